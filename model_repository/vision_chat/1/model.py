from omniflow_backend.triton.workflow_model import TritonPythonModel

__all__ = ["TritonPythonModel"]

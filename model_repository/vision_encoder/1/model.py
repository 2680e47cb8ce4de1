from omniflow_backend.triton.role_model import TritonPythonModel

__all__ = ["TritonPythonModel"]

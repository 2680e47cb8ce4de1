from omniflow_backend.triton.unary_model import TritonPythonModel

__all__ = ["TritonPythonModel"]

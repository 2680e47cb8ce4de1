"""OmniFlow: multimodal inference as a workflow, on NVIDIA Triton."""

from omniflow_backend.dsl.interface import ActivationContext, Role, SessionLoadBalance, interface
from omniflow_backend.dsl.types import (
    Audio,
    Bool,
    Bytes,
    FieldType,
    Float,
    Image,
    Int,
    Json,
    Many,
    Optional,
    Tensor,
    Text,
)
from omniflow_backend.dsl.workflow import GlobalParam, Workflow
from omniflow_backend.errors import BadInput, CallError, WorkflowError

__all__ = [
    "ActivationContext",
    "Audio",
    "BadInput",
    "Bool",
    "Bytes",
    "CallError",
    "FieldType",
    "Float",
    "GlobalParam",
    "Image",
    "Int",
    "Json",
    "Many",
    "Optional",
    "Role",
    "SessionLoadBalance",
    "Tensor",
    "Text",
    "Workflow",
    "WorkflowError",
    "interface",
]

"""What a workflow's models offer to clients: the tensors of the orchestrator and of its unary front."""

from __future__ import annotations

from dataclasses import dataclass, replace

from omniflow_backend.dsl.types import Bytes, FieldType, ManyType, TensorType, Text
from omniflow_backend.planning.plan import Plan
from omniflow_backend.triton.attachment import ATTACH, ATTACHED
from omniflow_backend.triton.tensors import NoTensor, TensorSpec, tensor_spec

SESSION_ID = "session_id"
TIMEOUT_MS = "timeout_ms"
CANCEL_PREVIOUS = "cancel_previous"
TRACE = "trace"
EVENT = "event"
OUTPUT = "OUTPUT"
SYSTEM_FINISH = "SYSTEM_FINISH"
TRACE_OF_FAILURE = "TRACE"

_CONTROLS = (
    TensorSpec(SESSION_ID, "TYPE_STRING", (1,), optional=True),
    TensorSpec(TIMEOUT_MS, "TYPE_INT64", (1,), optional=True),
    TensorSpec(CANCEL_PREVIOUS, "TYPE_BOOL", (1,), optional=True),
    TensorSpec(TRACE, "TYPE_BOOL", (1,), optional=True),
    TensorSpec(ATTACH, "TYPE_STRING", (1,), optional=True),
)


@dataclass(frozen=True, slots=True)
class WorkflowSurface:
    """Tensors by name. ``whole`` are the outputs of the unary front, where what is streamed comes in one piece."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    whole: dict[str, TensorSpec]

    @classmethod
    def of(cls, plan: Plan) -> WorkflowSurface:
        """The surface of a compiled workflow. Raises ``NoTensor`` that names the placeholder or output."""
        inputs = {
            name: replace(tensor_spec(name, placeholder.type), optional=True)
            for name, placeholder in plan.placeholders.items()
        }
        # Triton sees every input as optional: what is missing is told by us, in our words, and attach requests have
        # none.
        for control in _CONTROLS:
            if control.name in inputs:
                raise NoTensor(f"placeholder {control.name!r} of workflow {plan.name!r}: the name is reserved")
            inputs[control.name] = control
        outputs = {output.name: tensor_spec(output.name, output.type) for output in plan.outputs}
        whole = {
            output.name: tensor_spec(output.name, whole_type(output.type) if output.stream else output.type)
            for output in plan.outputs
        }
        own = {name: TensorSpec(name, "TYPE_STRING", (1,)) for name in (EVENT, TRACE, ATTACHED)}
        for name in own.keys() & outputs.keys():
            raise NoTensor(f"output {name!r} of workflow {plan.name!r}: the name is reserved")
        return cls(inputs, {**outputs, **own}, {**whole, EVENT: own[EVENT], TRACE: own[TRACE]})


def is_joined(streamed: FieldType) -> bool:
    """Whether the pieces of a stream of this type are parts of one value: text, bytes, samples."""
    return streamed in (Text, Bytes) or (isinstance(streamed, TensorType) and streamed.shape == (-1,))


def whole_type(streamed: FieldType) -> FieldType:
    """The type of a streamed output when it comes in one piece: parts are joined, all else becomes a list."""
    return streamed if is_joined(streamed) else ManyType(streamed)

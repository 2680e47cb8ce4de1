"""Runs a workflow's activations on a server: over channels to role processes, through BLS to any other model."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniflow_backend.drivers.dispatcher import RunningCall, StartedActivation
from omniflow_backend.drivers.role_host import ActivationRequest, ActivationSink
from omniflow_backend.dsl.types import FieldType, ManyType, Scalar, required
from omniflow_backend.errors import BadInput, ErrorCode
from omniflow_backend.planning.plan import Plan, PlannedNode
from omniflow_backend.triton import bls
from omniflow_backend.triton.attachment import ATTACH, ATTACHED, Attachment
from omniflow_backend.triton.links import RoleLink
from omniflow_backend.triton.memory import MemoryManagerStore
from omniflow_backend.triton.replicas import Replicas
from omniflow_backend.triton.repository import replica_names
from omniflow_backend.triton.role_surface import RoleSurface
from omniflow_backend.triton.tensors import NoTensor, strings, to_array, to_value
from omniflow_backend.triton.values import Encoded, TensorStore, ValueEncoder, WireValue

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _CallState:
    """What one call holds here.

    ``packed`` keeps the caller's values packed: several activations may take the same one.
    """

    scope: str
    encoder: ValueEncoder
    packed: dict[int, tuple[Any, WireValue]] = field(default_factory=dict)

    def to_wire(self, value: Any) -> WireValue:
        """``value`` as the channel takes it."""
        if isinstance(value, Encoded):
            return value.wire
        if isinstance(value, bool | int | float | None):
            return self.encoder.encode(value)
        known = self.packed.get(id(value))
        if known is None:
            known = self.packed[id(value)] = (value, self.encoder.to_wire(value))
        return known[1]


class TritonExecutor:
    """The orchestrator's ``Executor``: starts every activation where its node is served."""

    def __init__(
        self,
        plan: Plan,
        runtime: Path,
        store: MemoryManagerStore | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._store = store
        self._loop = loop
        self._calls: dict[str, _CallState] = {}
        self._keeps_tensors = store is not None and any(_may_be_big(node) for node in plan.nodes)
        self._count_fields = {
            node.index: frozenset(count.output for _, count in node.count_routes if count.output is not None)
            for node in plan.nodes
        }
        self._roles: dict[str, Replicas[RoleLink]] = {}
        for role in plan.roles.values():
            decoupled = RoleSurface.of(role.role.interfaces).decoupled
            attach = attach_decoupled if decoupled else _attach
            models = replica_names(role.name, role.replicas)
            self._roles[role.name] = Replicas(
                [RoleLink(model, runtime, attach, loop, silence_s=role.role.hang_timeout_s) for model in models]
            )

    def start(
        self, node: PlannedNode, run: RunningCall, request: ActivationRequest, sink: ActivationSink
    ) -> StartedActivation:
        """See ``Executor``. Values stay packed, except counts, which the runtime has to read."""
        call = self._call(run)
        if node.role is None:
            model_call = _ModelCall(node, request, sink, self._store)
            model_call.task = self._loop.create_task(model_call.run())
            return model_call
        counts = self._count_fields[node.index]
        if counts:
            sink = _CountReadingSink(sink, counts)
        inputs = {name: call.to_wire(value) for name, value in request.inputs.items()}
        session = run.session_id if node.spec.load_balance is not None else None
        link = self._roles[node.role].choose(node.name, run.replicas, session)
        return link.start(request, inputs, call.scope, sink)

    def call_ended(self, run: RunningCall) -> None:
        """Release the tensors of the call."""
        call = self._calls.pop(run.key, None)
        if call is not None and self._keeps_tensors and self._store is not None:
            self._store.release_scope(call.scope)

    def close(self) -> None:
        """Disconnect from all roles."""
        for replicas in self._roles.values():
            for link in replicas:
                link.close()

    def _call(self, run: RunningCall) -> _CallState:
        call = self._calls.get(run.key)
        if call is None:
            scope = f"{os.getpid()}-{run.key}"
            if self._keeps_tensors and self._store is not None:
                self._store.open_scope(scope)
            call = self._calls[run.key] = _CallState(scope, ValueEncoder(self._store, scope))
        return call


def unpack(value: Any, store: TensorStore | None) -> Any:
    """A value as authors see it, from what the runtime holds: packed values, and lists of them."""
    if isinstance(value, Encoded):
        return value.decode(store)
    if isinstance(value, list):
        return [unpack(item, store) for item in value]
    return value


class _CountReadingSink:
    """Unpacks the fields that tell counts."""

    __slots__ = ("_counts", "_sink")

    def __init__(self, sink: ActivationSink, counts: frozenset[str]) -> None:
        self._sink = sink
        self._counts = counts

    def on_yield(self, ordinal: int, fields: Mapping[str, Any]) -> None:
        read = {name: unpack(value, None) if name in self._counts else value for name, value in fields.items()}
        self._sink.on_yield(ordinal, read)

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        self._sink.on_end(yields, run_s)

    def on_error(self, code: ErrorCode, message: str) -> None:
        self._sink.on_error(code, message)


class _ModelCall:
    """One activation of a model that is not a role of ours: one BLS request, each response is a yield."""

    def __init__(
        self, node: PlannedNode, request: ActivationRequest, sink: ActivationSink, store: TensorStore | None
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self._node = node
        self._request = request
        self._sink = sink
        self._store = store
        self._credits = bls.Credits(request.credits)
        self._cancelled = False
        self._yields = 0

    def accept(self, count: int) -> None:
        """``count`` more responses may be taken from the model."""
        self._credits.grant(count)

    def cancel(self) -> None:
        """Hear nothing more of it. Triton cannot stop the model: its responses are drained unread."""
        self._cancelled = True
        self._credits.stop()

    async def run(self) -> None:
        """Call the model and report what comes."""
        spec = self._node.spec
        try:
            inputs = {
                name: to_array(unpack(value, self._store), spec.inputs[name], name)
                for name, value in self._request.inputs.items()
                if value is not None
            }
            request = bls.request_of(spec.name, inputs, list(spec.outputs), self._request.request_id)
            if spec.style.repeats:
                await bls.stream(request, self._respond, self._credits)
            else:
                self._respond(await bls.infer(request))
        except (bls.ModelFailed, NoTensor, BadInput) as error:
            self._fail(ErrorCode.ROLE_FAILED, f"model {spec.name!r}: {error}")
        except Exception as error:
            log.exception("model %s could not be called", spec.name)
            self._fail(ErrorCode.INTERNAL, f"model {spec.name!r} could not be called: {error!r}")
        else:
            if not self._cancelled:
                self._sink.on_end(self._yields)

    def _respond(self, tensors: bls.Tensors) -> None:
        if self._cancelled:
            return
        outputs = self._node.spec.outputs
        try:
            fields = {name: to_value(tensors[name], kind, name) for name, kind in outputs.items() if name in tensors}
        except BadInput as error:
            self._fail(ErrorCode.ROLE_FAILED, f"model {self._node.name!r} gave an output of another type: {error}")
            return
        self._yields += 1
        self._sink.on_yield(self._yields - 1, fields)

    def _fail(self, code: ErrorCode, message: str) -> None:
        if not self._cancelled:
            self.cancel()
            self._sink.on_error(code, message)


async def _attach(model: str) -> Attachment:
    return _attachment(await bls.infer(_attach_request(model)), model)


async def attach_decoupled(model: str) -> Attachment:
    """Attach to a decoupled model of ours. Raises ``ModelFailed``, ``ProtocolError``."""
    return _attachment(await bls.infer_first(_attach_request(model)), model)


def _attach_request(model: str) -> Any:
    return bls.request_of(model, {ATTACH: strings([b"1"])}, [ATTACHED])


def _attachment(tensors: bls.Tensors, model: str) -> Attachment:
    return Attachment.from_json(tensors[ATTACHED].reshape(-1)[0].decode(), model)


def _may_be_big(node: PlannedNode) -> bool:
    return any(not _is_small(kind) for kind in _types(node))


def _types(node: PlannedNode) -> Iterable[FieldType]:
    yield from node.spec.inputs.values()
    yield from node.spec.outputs.values()


def _is_small(kind: FieldType) -> bool:
    """Whether no value of this type goes to the tensor store: it holds no array."""
    inner = required(kind)
    while isinstance(inner, ManyType):
        inner = required(inner.item)
    return isinstance(inner, Scalar)

"""Calls of a workflow as clients make them: what they ask for, and how its results become responses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omniflow_backend.drivers.dispatcher import RunningCall
from omniflow_backend.dsl.types import FieldType
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.planning.plan import Plan
from omniflow_backend.runtime.trace import RecordedTrace, Trace
from omniflow_backend.triton.attachment import ATTACH
from omniflow_backend.triton.cancel_watch import CancelWatch
from omniflow_backend.triton.orchestrator import unpack
from omniflow_backend.triton.requests import ClientRequest
from omniflow_backend.triton.tensors import Array, strings, to_array, to_value
from omniflow_backend.triton.values import TensorStore
from omniflow_backend.triton.workflow_surface import (
    CANCEL_PREVIOUS,
    EVENT,
    OUTPUT,
    SESSION_ID,
    SYSTEM_FINISH,
    TIMEOUT_MS,
    TRACE,
    TRACE_OF_FAILURE,
)

_CONTROLS = frozenset({SESSION_ID, TIMEOUT_MS, CANCEL_PREVIOUS, TRACE, ATTACH})


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call: values for placeholders, and how to run it. ``timeout_s`` in seconds."""

    inputs: Mapping[str, Any]
    request_id: str
    session_id: str | None
    timeout_s: float | None
    cancel_previous: bool
    traced: bool

    @classmethod
    def read(cls, plan: Plan, request: ClientRequest) -> CallRequest:
        """From a Triton request. Raises ``BadInput`` that names the input."""
        if request.parameters:
            known = ", ".join([*plan.placeholders, *sorted(_CONTROLS - {ATTACH})])
            raise BadInput(f"workflow {plan.name!r} has no input {request.parameters[0]!r}; it has {known}")
        inputs = {
            name: to_value(array, plan.placeholders[name].type, name)
            for name, array in request.tensors.items()
            if name not in _CONTROLS and name in plan.placeholders
        }
        timeout_ms = _control(request, TIMEOUT_MS)
        if timeout_ms is not None and timeout_ms <= 0:
            raise BadInput(f"{TIMEOUT_MS!r} must be above 0, got {timeout_ms}")
        return cls(
            inputs=inputs,
            request_id=request.request_id,
            session_id=request.text(SESSION_ID) or request.correlation_id or None,
            timeout_s=None if timeout_ms is None else timeout_ms / 1000,
            cancel_previous=bool(_control(request, CANCEL_PREVIOUS)),
            traced=bool(_control(request, TRACE)),
        )


class CallTrace:
    """The trace of one call, and what it is of."""

    def __init__(self, plan: Plan, request_id: str, session_id: str | None) -> None:
        self.trace = Trace(time.monotonic)
        self._plan = plan
        self._request_id = request_id
        self._session_id = session_id

    def to_json(self) -> str:
        """All so far (see ``RecordedTrace``)."""
        return RecordedTrace.of(self.trace, self._plan.name, self._request_id, self._session_id).to_json()


class StreamedAnswer:
    """Sends one call's results to its client as they come. A ``CallListener``.

    ``trace`` goes with SYSTEM_FINISH; of a failed call it is one more response, before the error.
    """

    def __init__(
        self,
        plan: Plan,
        request: ClientRequest,
        store: TensorStore | None,
        watch: CancelWatch,
        trace: CallTrace | None = None,
    ) -> None:
        self._plan = plan
        self._trace = trace
        self._types: dict[str, FieldType] = {output.name: output.type for output in plan.outputs}
        self._request = request
        self._store = store
        self._watch = watch
        self._run: RunningCall | None = None

    @property
    def client_has_gone(self) -> bool:
        """Whether the client cancelled or disconnected."""
        return self._request.responder.cancelled

    def running(self, run: RunningCall) -> None:
        """The call has been submitted: its client is watched from now on."""
        self._run = run
        if not self._request.responder.finished:
            self._watch.add(self)

    def end_early(self, code: ErrorCode, message: str) -> None:
        """End the call; the failure is sent as for any other."""
        self._watch.discard(self)
        if self._run is not None:
            self._run.cancel(message, code)

    def on_emit(self, output: str, value: Any) -> None:
        self._guarded(lambda: self._request.responder.send(self._tensors(OUTPUT, {output: value})))

    def on_finish(self, outputs: Mapping[str, Any]) -> None:
        self._watch.discard(self)
        traced = {} if self._trace is None else {TRACE: strings([self._trace.to_json().encode()])}
        self._guarded(lambda: self._request.responder.send(self._tensors(SYSTEM_FINISH, outputs) | traced, final=True))

    def on_fail(self, failure: Failure) -> None:
        self._watch.discard(self)
        if self._trace is not None and not self._request.responder.finished:
            tensors = {EVENT: strings([TRACE_OF_FAILURE.encode()]), TRACE: strings([self._trace.to_json().encode()])}
            try:
                self._request.responder.send(tensors)
            except Exception as error:
                log.warning("the trace of a failed call was not sent: %s", error)
        self._request.responder.fail(failure)

    def _tensors(self, event: str, values: Mapping[str, Any]) -> dict[str, Array]:
        tensors = {
            name: to_array(unpack(value, self._store), self._types[name], name) for name, value in values.items()
        }
        tensors[EVENT] = strings([event.encode()])
        return tensors

    def _guarded(self, send: Callable[[], None]) -> None:
        try:
            send()
        except Exception as error:
            message = f"an output could not be presented: {error}"
            self._request.responder.fail(
                Failure(ErrorCode.OUTPUT_FAILED, message, workflow=self._plan.name, request=self._request.request_id)
            )
            if self._run is not None:
                self._run.cancel(message, ErrorCode.OUTPUT_FAILED)


def _control(request: ClientRequest, name: str) -> Any:
    array = request.tensors.get(name)
    if array is None:
        return None
    if array.size != 1:
        raise BadInput(f"{name!r} must be one value, got {array.size}")
    return array.reshape(-1)[0].item()

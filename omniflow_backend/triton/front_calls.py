"""Calls that come from a workflow's unary front, over a channel, as if the workflow were a role with one interface.

So they are cancelled when the front's client goes, and fail at once when the orchestrator dies: Triton's own calls
between models do neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omniflow_backend.drivers.dispatcher import Dispatcher, RunningCall
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.planning.plan import Plan
from omniflow_backend.triton.channel.server import ActivationSink
from omniflow_backend.triton.channel.wire import Start
from omniflow_backend.triton.orchestrator import unpack
from omniflow_backend.triton.values import TensorStore, ValueEncoder, decode_fields
from omniflow_backend.triton.workflow_calls import CallTrace
from omniflow_backend.triton.workflow_surface import TRACE

CALL = "call"
INPUTS = "inputs"
CANCEL_PREVIOUS = "cancel_previous"
TRACED = "traced"


class FrontCalls:
    """Starts calls that a front sends.

    Their values travel inside the messages: the call's tensors are gone when it ends.
    """

    def __init__(self, plan: Plan, dispatcher: Dispatcher, store: TensorStore | None) -> None:
        self._plan = plan
        self._dispatcher = dispatcher
        self._store = store

    def start(self, message: Start, sink: ActivationSink) -> FrontCall:
        """Submit a call. The front has made the inputs into values; what is wrong with them fails it."""
        call = FrontCall(sink, self._store)
        try:
            values = decode_fields(message.inputs, self._store)
            if values[TRACED]:
                call.trace = CallTrace(self._plan, message.request_id, message.session_id)
            call.run = self._dispatcher.submit(
                values[INPUTS],
                call,
                request_id=message.request_id,
                session_id=message.session_id,
                timeout_s=message.time_left,
                cancel_previous=values[CANCEL_PREVIOUS],
                trace=call.trace.trace if call.trace is not None else None,
            )
        except BadInput as error:
            call.on_fail(Failure(ErrorCode.BAD_INPUT, str(error), workflow=self._plan.name, request=message.request_id))
        return call


class FrontCall:
    """One such call: a ``RunningActivation`` for the channel, a ``CallListener`` for the runtime."""

    def __init__(self, sink: ActivationSink, store: TensorStore | None) -> None:
        self.run: RunningCall | None = None
        self.trace: CallTrace | None = None
        self._sink = sink
        self._store = store
        self._inline = ValueEncoder(None, "")

    def accept(self, count: int) -> None:
        """The front takes everything as it comes."""

    def cancel(self) -> None:
        """The front's client has gone, or the front has died."""
        if self.run is not None:
            self.run.cancel("the client has gone")

    def on_emit(self, output: str, value: Any) -> None:
        self._send({output: value})

    def on_finish(self, outputs: Mapping[str, Any]) -> None:
        if self._send(outputs if self.trace is None else {**outputs, TRACE: self.trace.to_json()}):
            self._sink.ended()

    def on_fail(self, failure: Failure) -> None:
        # The message is a whole failure already, with its code in front.
        self._sink.failed(failure.code, str(failure))

    def _send(self, values: Mapping[str, Any]) -> bool:
        try:
            packed = self._inline.encode_fields({name: unpack(value, self._store) for name, value in values.items()})
        except Exception as error:
            message = f"an output could not be presented: {error}"
            self._sink.failed(ErrorCode.OUTPUT_FAILED, message)
            if self.run is not None:
                self.run.cancel(message, ErrorCode.OUTPUT_FAILED)
            return False
        self._sink.yielded(packed)
        return True

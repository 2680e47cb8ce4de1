"""Running activations that come over the channel: values are unpacked on the way in and packed on the way out."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from omniflow_backend.drivers.role_host import ActivationRequest, RoleHost, RunningActivation
from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel.server import ActivationSink
from omniflow_backend.triton.channel.wire import Start
from omniflow_backend.triton.values import TensorStore, ValueEncoder, decode_fields

log = logging.getLogger(__name__)


class RoleActivations:
    """Starts what the channel brings on a ``RoleHost``."""

    def __init__(self, host: RoleHost, store: TensorStore | None) -> None:
        self._host = host
        self._store = store

    def start(self, message: Start, sink: ActivationSink) -> RunningActivation | _NeverRan:
        """Begin one activation. Inputs that cannot be read fail it."""
        try:
            inputs = decode_fields(message.inputs, self._store)
        except Exception as error:
            sink.failed(ErrorCode.INTERNAL, f"the inputs of {message.node} could not be read: {error}")
            return _NeverRan()
        request = ActivationRequest(
            activation_id=message.activation_id,
            interface=message.interface,
            inputs=inputs,
            request_id=message.request_id,
            session_id=message.session_id,
            node=message.node,
            deadline=None if message.time_left is None else time.monotonic() + message.time_left,
            credits=message.window,
        )
        packing = _PackingSink(sink, ValueEncoder(self._store, message.scope))
        packing.activation = self._host.start(request, packing)
        return packing.activation


class _NeverRan:
    """An activation that failed before it began."""

    def accept(self, count: int) -> None: ...

    def cancel(self) -> None: ...


class _PackingSink:
    """Packs what the role yields."""

    __slots__ = ("_encoder", "_failed", "_sink", "activation")

    def __init__(self, sink: ActivationSink, encoder: ValueEncoder) -> None:
        self._sink = sink
        self._encoder = encoder
        self._failed = False
        self.activation: RunningActivation | None = None

    def on_yield(self, ordinal: int, fields: Mapping[str, Any]) -> None:
        if self._failed:
            return
        try:
            packed = self._encoder.encode_fields(fields)
        except Exception as error:
            self.on_error(ErrorCode.ROLE_FAILED, f"a yield cannot be sent: {error}")
            if self.activation is not None:
                self.activation.cancel()
            return
        self._sink.yielded(packed)

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        if not self._failed:
            self._sink.ended(run_s)

    def on_error(self, code: ErrorCode, message: str) -> None:
        if not self._failed:
            self._failed = True
            self._sink.failed(code, message)

"""The role's end of the channel: takes activations from any number of orchestrators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel import wire
from omniflow_backend.triton.channel.socket import FrameConnection, FrameListener, Outbox
from omniflow_backend.triton.values import WireValue

logger = logging.getLogger(__name__)


class RunningActivation(Protocol):
    """What the executor of activations gives for each one. Called on the loop's thread."""

    def accept(self, count: int) -> None:
        """``count`` more yields may follow."""
        ...

    def cancel(self) -> None:
        """Stop soon; nothing more is wanted."""
        ...


class ActivationSink(Protocol):
    """Where an activation's results go.

    Called on the loop's thread; ``ended`` or ``failed`` once, last. Deaf after a cancel.
    """

    def yielded(self, fields: dict[str, WireValue]) -> None: ...

    def ended(self, run_s: float | None = None) -> None: ...

    def failed(self, code: ErrorCode, message: str) -> None: ...


Starter = Callable[[wire.Start, ActivationSink], RunningActivation]


class ActivationServer:
    """Listens on ``endpoint`` and runs what orchestrators start through ``start``, all on ``loop``.

    When an orchestrator disconnects, however it ends, its activations are cancelled. A frame that cannot be understood
    is answered with ``Refuse`` and cancels them, too: something of what was wanted is lost.
    """

    def __init__(self, endpoint: str, start: Starter, loop: asyncio.AbstractEventLoop) -> None:
        """Listen. Raises ``OSError`` when the endpoint is taken. Must be called on the loop's thread."""
        self.endpoint = endpoint
        self._start = start
        self._loop = loop
        self._peers: dict[FrameConnection, _Peer] = {}
        self._listener = FrameListener(endpoint, loop, self._received, self._disconnected)

    @property
    def running(self) -> int:
        """How many activations have not ended."""
        return sum(len(peer.activations) for peer in self._peers.values())

    def close(self) -> None:
        """Cancel everything, stop listening, remove the socket file. Idempotent."""
        for connection in list(self._peers):
            self._disconnected(connection)
        self._listener.close()

    def _received(self, connection: FrameConnection, frame: bytes) -> None:
        try:
            messages = wire.decode_for_role(frame)
        except wire.ProtocolError as error:
            logger.error("dropped a frame from an orchestrator: %s", error)
            self._disconnected(connection)
            connection.send(wire.encode_frame([wire.Refuse(str(error))]))
            return
        peer = self._peers.get(connection)
        if peer is None:
            peer = self._peers[connection] = _Peer.of(connection, self._loop)
        for message in messages:
            try:
                self._dispatch(peer, message)
            except Exception:
                logger.exception("a message of an orchestrator could not be handled")

    def _dispatch(self, peer: _Peer, message: wire.ToRole) -> None:
        if isinstance(message, wire.Start):
            if message.serial in peer.activations:
                return
            sink = _Sink(peer, message.serial)
            peer.activations[message.serial] = sink
            try:
                running = self._start(message, sink)
            except Exception as error:
                logger.exception("activation %s could not be started", message.activation_id)
                sink.failed(ErrorCode.INTERNAL, f"the activation could not be started: {error!r}")
                return
            sink.running = running
        elif isinstance(message, wire.Accept):
            sink_or_none = peer.activations.get(message.serial)
            if sink_or_none is not None and sink_or_none.running is not None:
                sink_or_none.running.accept(message.count)
        elif isinstance(message, wire.Cancel):
            sink_or_none = peer.activations.pop(message.serial, None)
            if sink_or_none is not None:
                sink_or_none.cancel()
            peer.outbox.post(wire.Stopped(message.serial))

    def _disconnected(self, connection: FrameConnection) -> None:
        """Cancel what came over this connection."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            sinks, peer.activations = peer.activations, {}
            for sink in sinks.values():
                sink.cancel()


@dataclass(slots=True, eq=False)
class _Peer:
    """One orchestrator."""

    outbox: Outbox
    activations: dict[int, _Sink] = field(default_factory=dict)

    @classmethod
    def of(cls, connection: FrameConnection, loop: asyncio.AbstractEventLoop) -> _Peer:
        return cls(Outbox(loop, lambda messages: connection.send(wire.encode_frame(messages))))  # type: ignore[arg-type]


class _Sink:
    """Sends the results of one activation to its peer."""

    __slots__ = ("_ordinal", "_peer", "_serial", "cancelled", "running")

    def __init__(self, peer: _Peer, serial: int) -> None:
        self._peer = peer
        self._serial = serial
        self._ordinal = 0
        self.running: RunningActivation | None = None
        self.cancelled = False

    def yielded(self, fields: dict[str, WireValue]) -> None:
        if not self.cancelled:
            self._peer.outbox.post(wire.Yield(self._serial, self._ordinal, fields))
            self._ordinal += 1

    def ended(self, run_s: float | None = None) -> None:
        self._close(wire.End(self._serial, self._ordinal, run_s))

    def failed(self, code: ErrorCode, message: str) -> None:
        self._close(wire.Error(self._serial, code, message))

    def cancel(self) -> None:
        if not self.cancelled:
            self.cancelled = True
            if self.running is not None:
                self.running.cancel()

    def _close(self, last: wire.End | wire.Error) -> None:
        if self._peer.activations.pop(self._serial, None) is not None and not self.cancelled:
            self._peer.outbox.post(last)

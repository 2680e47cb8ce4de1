"""The role's end of the channel: takes activations from any number of orchestrators."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import zmq

from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel import wire
from omniflow_backend.triton.channel.socket import LoopSocket, Outbox
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

    An orchestrator first says who it is (``Hello``); when its process dies, its activations are cancelled. A frame
    that cannot be understood is answered with ``Refuse`` and otherwise ignored.
    """

    def __init__(
        self, endpoint: str, start: Starter, loop: asyncio.AbstractEventLoop, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        """Bind. Raises ``zmq.ZMQError`` when the endpoint cannot be bound. Must be called on the loop's thread."""
        self.endpoint = endpoint
        self._start = start
        self._loop = loop
        self._peers: dict[bytes, _Peer] = {}
        socket = context.socket(zmq.ROUTER)
        socket.sndhwm = socket.rcvhwm = 0
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(endpoint)
        self._socket = LoopSocket(socket, loop, self._received)

    @property
    def running(self) -> int:
        """How many activations have not ended."""
        return sum(len(peer.activations) for peer in self._peers.values())

    def close(self) -> None:
        """Cancel everything, stop listening, remove the socket file. Idempotent."""
        for peer in list(self._peers.values()):
            self._forget(peer)
        self._socket.close()
        if self.endpoint.startswith("ipc://"):
            Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def _received(self, frames: list[bytes]) -> None:
        identity, frame = frames[0], frames[-1]
        try:
            messages = wire.decode_for_role(frame)
        except wire.ProtocolError as error:
            logger.error("dropped a frame from an orchestrator: %s", error)
            known = self._peers.get(identity)
            if known is not None:
                self._forget(known)
            self._refuse(identity, str(error))
            return
        for message in messages:
            if isinstance(message, wire.Hello):
                self._welcome(identity, message)
                continue
            peer = self._peers.get(identity)
            if peer is not None and isinstance(message, wire.Bye):
                self._forget(peer)
                continue
            if peer is None:
                self._refuse(identity, "an activation came before Hello, or after the process that said it was gone")
                return
            try:
                self._dispatch(peer, message)
            except Exception:
                logger.exception("a message of orchestrator %d could not be handled", peer.pid)

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

    def _welcome(self, identity: bytes, hello: wire.Hello) -> None:
        if identity in self._peers:
            return
        try:
            pidfd = os.pidfd_open(hello.pid)
        except OSError as error:
            self._refuse(identity, f"no process {hello.pid}: {error.strerror}")
            return
        peer = _Peer(identity, hello.pid, pidfd)
        peer.outbox = Outbox(self._loop, lambda messages: self._send(peer, messages))
        self._peers[identity] = peer
        self._loop.add_reader(pidfd, self._forget, peer)

    def _refuse(self, identity: bytes, message: str) -> None:
        try:
            self._socket.send([identity, wire.encode_frame([wire.Refuse(message)])])
        except ConnectionError:
            logger.debug("nobody left to refuse")

    def _send(self, peer: _Peer, messages: list[object]) -> None:
        try:
            self._socket.send([peer.identity, wire.encode_frame(messages)])  # type: ignore[arg-type]
        except ConnectionError:
            self._forget(peer)

    def _forget(self, peer: _Peer) -> None:
        if self._peers.pop(peer.identity, None) is None:
            return
        self._loop.remove_reader(peer.pidfd)
        os.close(peer.pidfd)
        sinks, peer.activations = peer.activations, {}
        for sink in sinks.values():
            sink.cancel()


@dataclass(slots=True, eq=False)
class _Peer:
    """One orchestrator."""

    identity: bytes
    pid: int
    pidfd: int
    outbox: Outbox = field(init=False)
    activations: dict[int, _Sink] = field(default_factory=dict)


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

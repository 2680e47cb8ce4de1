"""A ZMQ socket on an asyncio loop, without ``zmq.asyncio`` (whose futures cost more than an activation)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import zmq

logger = logging.getLogger(__name__)

_FRAMES_PER_TURN = 256
# As plain integers: arithmetic with pyzmq's enumerations costs as much as the calls themselves.
_EVENTS = int(zmq.EVENTS)
_READABLE = int(zmq.POLLIN)
_NOBLOCK = int(zmq.NOBLOCK)


class LoopSocket:
    """Calls ``on_frames`` with each message of ``socket`` on ``loop``; sends without blocking.

    The descriptor of a ZMQ socket is edge triggered: it tells of an event once, and a send may swallow that. So
    everything there is is read after every wake-up and after every send. All methods must be called on the loop's
    thread.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], loop: asyncio.AbstractEventLoop, on_frames: Callable[[list[bytes]], None]
    ) -> None:
        self._socket = socket
        self._loop = loop
        self._on_frames = on_frames
        self._unsent: deque[list[bytes]] = deque()
        self._drain_scheduled = False
        self._closed = False
        self._descriptor = int(socket.getsockopt(zmq.FD))
        loop.add_reader(self._descriptor, self.drain)
        self._schedule_drain()

    def send(self, parts: list[bytes]) -> None:
        """Queue one message for the peer. Raises ``ConnectionError`` when a ROUTER no longer knows the peer."""
        if self._closed:
            return
        if self._unsent:
            self._unsent.append(parts)
            return
        try:
            self._socket.send_multipart(parts, _NOBLOCK)
        except zmq.Again:
            self._unsent.append(parts)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise ConnectionError("the peer has gone") from None
            raise
        if self._readable():
            self._schedule_drain()

    def drain(self) -> None:
        """Handle every message that is there; many at a time, so that others get their turn."""
        self._drain_scheduled = False
        for _ in range(_FRAMES_PER_TURN):
            if self._closed:
                return
            if not self._readable():
                break
            frames = self._socket.recv_multipart(_NOBLOCK)
            try:
                self._on_frames(frames)
            except Exception:
                logger.exception("a channel message could not be handled")
        else:
            self._schedule_drain()
        self._send_rest()

    def close(self, linger_ms: int = 0) -> None:
        """Stop reading and close the socket; what is not sent within ``linger_ms`` is dropped. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=linger_ms)

    def _readable(self) -> bool:
        """Whether there is a message. Asking takes notice of what the descriptor told, and is cheaper than to try."""
        return bool(int(self._socket.getsockopt(_EVENTS)) & _READABLE)

    def _schedule_drain(self) -> None:
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._loop.call_soon(self.drain)

    def _send_rest(self) -> None:
        while self._unsent and not self._closed:
            try:
                self._socket.send_multipart(self._unsent[0], _NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                logger.debug("dropped a message: %s", error)
            self._unsent.popleft()
            self._schedule_drain()


class Outbox:
    """Collects messages for one peer and sends all of one loop iteration in one frame."""

    __slots__ = ("_loop", "_messages", "_send")

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[object]], None]) -> None:
        self._loop = loop
        self._send = send
        self._messages: list[object] = []

    def post(self, message: object) -> None:
        """Send ``message`` at the end of this iteration of the loop."""
        if not self._messages:
            self._loop.call_soon(self.flush)
        self._messages.append(message)

    def flush(self) -> None:
        """Send what is queued now."""
        if self._messages:
            messages, self._messages = self._messages, []
            self._send(messages)

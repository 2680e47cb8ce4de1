"""Frames over unix stream sockets on an asyncio loop: no threads, no futures, one system call for what is there.

A frame travels as its length (4 bytes, little endian) and its bytes. ZMQ was measured for this and needs six times as
long for a round trip, because each message crosses its I/O threads on both sides (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 1 << 30
"""A longer frame ends the connection: whoever announces it does not speak our protocol."""

_SCHEME = "ipc://"
_LENGTH = struct.Struct("<I")
_READ_BYTES = 256 * 1024
_READS_PER_TURN = 16
_BACKLOG = 128
_CONNECT_SECONDS = 1.0


class FrameConnection:
    """One end of a connection. All methods must be called on the loop's thread.

    Calls ``on_frame`` with each frame, and ``on_close`` once when the other side has gone or broke the framing, after
    the last frame; not after ``close``.
    """

    def __init__(
        self,
        connection: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[FrameConnection, bytes], None],
        on_close: Callable[[FrameConnection], None],
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._descriptor = connection.fileno()
        self._loop = loop
        self._on_frame = on_frame
        self._on_close = on_close
        self._read = bytearray()
        self._unsent: deque[memoryview] = deque()
        self._closed = False
        loop.add_reader(self._descriptor, self._readable)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[FrameConnection, bytes], None],
        on_close: Callable[[FrameConnection], None],
    ) -> FrameConnection:
        """A connection to whoever listens at ``endpoint``. Raises ``ConnectionError`` when nobody does."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(str(_path(endpoint)))
        except OSError as error:
            connection.close()
            raise ConnectionError(f"nobody listens at {endpoint}: {error.strerror or error}") from None
        return cls(connection, loop, on_frame, on_close)

    def send(self, frame: bytes) -> None:
        """Send a frame, or queue what the other side does not take yet. Nothing happens once it has gone."""
        if self._closed:
            return
        if len(frame) > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {len(frame)} bytes is too long; {MAX_FRAME_BYTES} at most")
        parts = [memoryview(_LENGTH.pack(len(frame))), memoryview(frame)]
        if self._unsent:
            self._unsent.extend(parts)
        elif self._sent(parts):
            self._loop.add_writer(self._descriptor, self._writable)

    def drain(self) -> None:
        """Handle everything that has arrived."""
        while self._receive():
            pass

    def close(self) -> None:
        """Disconnect; what the other side has not taken is dropped, what it has taken it still reads. Idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            self._connection.close()
            self._unsent.clear()

    def _readable(self) -> None:
        # Whoever sends without end must not keep the loop from others: epoll tells again of what is left.
        for _ in range(_READS_PER_TURN):
            if not self._receive():
                return

    def _receive(self) -> bool:
        """Read once and handle the frames that are complete; whether there may be more to read."""
        if self._closed:
            return False
        try:
            data = self._connection.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            logger.debug("a connection broke: %s", error)
            data = b""
        if not data:
            self._gone()
            return False
        read = self._read
        read += data
        start, size = 0, len(read)
        while size - start >= _LENGTH.size and not self._closed:
            (length,) = _LENGTH.unpack_from(read, start)
            if length > MAX_FRAME_BYTES:
                logger.error("a frame of %d bytes was announced, %d at most; disconnecting", length, MAX_FRAME_BYTES)
                self._gone()
                return False
            end = start + _LENGTH.size + length
            if end > size:
                break
            frame = bytes(read[start + _LENGTH.size : end])
            start = end
            try:
                self._on_frame(self, frame)
            except Exception:
                logger.exception("a channel frame could not be handled")
        del read[:start]
        return len(data) == _READ_BYTES

    def _sent(self, parts: list[memoryview]) -> bool:
        """Send ``parts``; whether some of it had to be queued."""
        try:
            count = self._connection.sendmsg(parts, (), socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            # Reading tells what is still there, and that the other side has gone.
            logger.debug("a frame could not be sent: %s", error)
            return False
        for part in parts:
            if count < len(part):
                self._unsent.append(part[count:])
            count = max(0, count - len(part))
        return bool(self._unsent)

    def _writable(self) -> None:
        while self._unsent:
            part = self._unsent[0]
            try:
                count = self._connection.send(part, socket.MSG_NOSIGNAL)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                logger.debug("queued frames could not be sent: %s", error)
                self._unsent.clear()
                break
            if count < len(part):
                self._unsent[0] = part[count:]
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._descriptor)

    def _gone(self) -> None:
        self.close()
        self._on_close(self)


class FrameListener:
    """Accepts connections at ``endpoint``; the socket file is for this user only."""

    def __init__(
        self,
        endpoint: str,
        loop: asyncio.AbstractEventLoop,
        on_frame: Callable[[FrameConnection, bytes], None],
        on_close: Callable[[FrameConnection], None],
    ) -> None:
        """Listen. Raises ``OSError`` when the endpoint is taken. Must be called on the loop's thread."""
        self._path = _path(endpoint)
        self._loop = loop
        self._on_frame = on_frame
        self._on_close = on_close
        self._connections: set[FrameConnection] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(self._path))
            os.chmod(self._path, 0o600)
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
        except OSError:
            self._listener.close()
            raise
        loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Disconnect everybody, stop listening, remove the socket file. Idempotent."""
        if self._listener.fileno() < 0:
            return
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.ECONNABORTED, errno.EINTR):
                    logger.error("a connection could not be accepted: %s", error)
                return
            self._connections.add(FrameConnection(accepted, self._loop, self._on_frame, self._closed))

    def _closed(self, connection: FrameConnection) -> None:
        self._connections.discard(connection)
        self._on_close(connection)


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


def _path(endpoint: str) -> Path:
    if not endpoint.startswith(_SCHEME):
        raise ValueError(f"{endpoint!r} is no channel endpoint: it must begin with {_SCHEME}")
    return Path(endpoint.removeprefix(_SCHEME))

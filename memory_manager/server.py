"""The event loop of the manager process: requests over ZMQ, descriptors, notices and liveness over a unix socket."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from memory_manager.devices.cpu import CpuMemory, available_bytes
from memory_manager.devices.memory import DeviceMemory
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerError
from memory_manager.pools.messages import AcquirePages, Declare, FetchRegion, RegionGranted
from memory_manager.pools.parameters import Parameters
from memory_manager.protocol import (
    MAX_FRAME,
    NOTICE,
    AnyOperation,
    AnyReply,
    Failure,
    FailureCode,
    FetchPool,
    Hello,
    PoolGranted,
    ProtocolError,
    Welcome,
    decode_operations,
    encode,
)
from memory_manager.service import Later, Service
from memory_manager.tmp_buffers.blocks import BlockStore
from memory_manager.weights.messages import FetchWeights
from memory_manager.weights.service import SharedWeights

logger = logging.getLogger(__name__)

_REQUESTS_PER_TURN = 256
# More than the kernel buffers for one connection: what was sent before a request is always heard before it.
_NOTICES_PER_TURN = 4096
# A larger message never reaches us: ZMQ ends the connection. Between this and MAX_FRAME the sender gets a typed reply.
_MAX_RECEIVED = 16 * MAX_FRAME
_MAX_WAITING_CONNECTIONS = 128


@dataclass(slots=True)
class _Peer:
    """A control connection. `session` is set by its `Hello`."""

    connection: socket.socket
    pid: int
    session: bytes | None = None


@dataclass(slots=True)
class _Message:
    """A request that is answered when none of its replies comes later any more."""

    session: bytes
    request_id: int
    replies: list[AnyReply | Later]


class EndpointInUse(MemoryManagerError):
    """Another manager serves this endpoint."""


class Server:
    """Serves one endpoint until `stop`, or until the watched process ends.

    Order: what one client sent on its control connection is executed before any request it sent later.

    Args:
        endpoint: where.
        memory: the device whose pools are handed out.
        limit: bytes all pools together may take.
        pool_bytes: size of a pool; the first one is made and pre-faulted before the server accepts anybody.
        parent_pid: the process with which this one ends.
        pages_directory: where pages of global parameters lie that are in files; `None` refuses those.
        idle_weights: bytes of shared weights that may stay when nobody uses them.

    Raises:
        EndpointInUse: if another manager serves the endpoint.
        MemoryError: if the first pool cannot be made.
        ProcessLookupError: if the parent is gone already.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        memory: DeviceMemory,
        limit: int,
        pool_bytes: int,
        parent_pid: int | None = None,
        pages_directory: Path | None = None,
        idle_weights: int = 0,
    ) -> None:
        self._endpoint = endpoint
        self._parent = os.pidfd_open(parent_pid) if parent_pid is not None else None
        self._lock = _lock(endpoint)
        # Later pools are only reserved, not touched: zeroing a large one would keep every client waiting.
        self._store = BlockStore(lambda nbytes: memory.allocate(nbytes, False), memory.device, limit, pool_bytes)
        self._store.add_pool(memory.allocate(min(pool_bytes, limit), prefault=True))
        self._parameters = Parameters(memory, CpuMemory(), available_bytes, pages_directory, self._wake)
        self._weights = SharedWeights({memory.device: memory}, idle_weights)
        self._service = Service(self._store, self._parameters, self._weights, incarnation=secrets.randbits(62))
        self._unanswered: dict[Later, _Message] = {}
        self._peers: dict[int, _Peer] = {}
        self._peer_of: dict[bytes, _Peer] = {}
        self._context = zmq.Context()
        self._requests = self._context.socket(zmq.ROUTER)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.setsockopt(zmq.MAXMSGSIZE, _MAX_RECEIVED)
        endpoint.path.unlink(missing_ok=True)
        endpoint.control.unlink(missing_ok=True)
        self._requests.bind(endpoint.requests)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(endpoint.control))
        self._listener.listen(_MAX_WAITING_CONNECTIONS)
        self._listener.setblocking(False)
        self._woken, self.wake_descriptor = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = False
        self._poller = zmq.Poller()

    def stop(self) -> None:
        """Ends `serve` soon. May be called from another thread.

        A signal handler that calls it needs `signal.set_wakeup_fd(server.wake_descriptor)` too: a signal that arrives
        just before the loop waits would otherwise be handled only after the next event.
        """
        self._stopping = True
        os.write(self.wake_descriptor, b"s")

    def serve(self) -> None:
        """Runs until `stop`; then nothing of the manager is left but the lock file."""
        poller = self._poller
        handlers: dict[int, Callable[[], None]] = {self._listener.fileno(): self._accept, self._woken: self._wake_up}
        if self._parent is not None:
            handlers[self._parent] = self.stop
        for descriptor in handlers:
            poller.register(descriptor, zmq.POLLIN)
        poller.register(self._requests, zmq.POLLIN)
        logger.info("serving", extra={"endpoint": str(self._endpoint.path), "limit": self._store.limit})
        try:
            while not self._stopping:
                for ready, _ in poller.poll(self._patience()):
                    if ready is self._requests:
                        self._answer_requests()
                    elif ready in handlers:
                        handlers[ready]()
                    elif ready in self._peers:
                        self._hear(self._peers[ready])
                self._answer_late()
        finally:
            self._close()

    def _close(self) -> None:
        for peer in self._peers.values():
            peer.connection.close()
        self._listener.close()
        self._endpoint.control.unlink(missing_ok=True)
        self._context.destroy(linger=0)
        self._endpoint.path.unlink(missing_ok=True)
        self._parameters.close()
        self._weights.close()
        self._store.close()
        for descriptor in (self._woken, self.wake_descriptor, self._parent, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        logger.info("stopped", extra={"endpoint": str(self._endpoint.path)})

    def _wake_up(self) -> None:
        os.read(self._woken, 64)

    # Requests

    def _answer_requests(self) -> None:
        for _ in range(_REQUESTS_PER_TURN):
            try:
                session, *frames = self._requests.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            peer = self._peer_of.get(session)
            if peer is not None:
                self._hear(peer)
            self._answer(session, frames)

    def _answer(self, session: bytes, frames: list[bytes]) -> None:
        try:
            if len(frames) != 1:
                raise ProtocolError(FailureCode.BAD_MESSAGE, f"a request is one frame, this one has {len(frames)}")
            request_id, operations = decode_operations(frames[0])
            if request_id == NOTICE:
                raise ProtocolError(FailureCode.BAD_MESSAGE, "a request needs an id above 0; notices belong elsewhere")
        except ProtocolError as error:
            self._reply(_Message(session, error.request_id, [self._refuse(error, session)]))
            return
        replies = [self._service.execute(session, operation) for operation in operations]
        message = _Message(session, request_id, replies)
        self._unanswered.update((reply, message) for reply in replies if isinstance(reply, Later))
        self._reply(message)

    def _answer_late(self) -> None:
        for later, reply in self._service.take_late_replies():
            message = self._unanswered.pop(later)
            message.replies[message.replies.index(later)] = reply
            self._reply(message)

    def _reply(self, message: _Message) -> None:
        """Sends the replies if none of them comes later. ZMQ drops what is for a client that is gone."""
        replies = [reply for reply in message.replies if not isinstance(reply, Later)]
        if len(replies) == len(message.replies):
            self._requests.send_multipart([message.session, encode(message.request_id, replies)])

    def _patience(self) -> int | None:
        """Milliseconds until something must be done."""
        deadline = self._service.next_deadline
        return None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))

    def _wake(self) -> None:
        # A full pipe wakes the loop just as well; a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            os.write(self.wake_descriptor, b"m")

    def _refuse(self, error: ProtocolError, session: bytes | None) -> Failure:
        self._service.refused_messages += 1
        logger.warning("refused a message", extra={"session": session.hex() if session else None, "reason": str(error)})
        return Failure(error.code, str(error))

    # Control connections

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                logger.warning("could not accept a client", extra={"reason": str(error)})
            return
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, user, _ = struct.unpack("3i", credentials)
        if user != os.geteuid():
            logger.warning("refused a connection of another user", extra={"pid": pid, "user": user})
            connection.close()
            return
        self._peers[connection.fileno()] = _Peer(connection, pid)
        self._poller.register(connection.fileno(), zmq.POLLIN)

    def _hear(self, peer: _Peer) -> None:
        """Executes what has arrived on a control connection, and ends it after a hang-up."""
        for _ in range(_NOTICES_PER_TURN):
            try:
                frame = peer.connection.recv(MAX_FRAME + 1)
            except BlockingIOError:
                return
            except OSError:
                frame = b""
            if not frame or not self._handle_control(peer, frame):
                self._drop(peer)
                return

    def _handle_control(self, peer: _Peer, frame: bytes) -> bool:
        """Whether the connection goes on."""
        try:
            request_id, operations = decode_operations(frame)
        except ProtocolError as error:
            return self._send(peer, error.request_id, [self._refuse(error, peer.session)])
        replies: list[AnyReply] = []
        descriptors: tuple[int, ...] = ()
        for operation in operations:
            reply, passed = self._control(peer, operation)
            replies.append(reply)
            descriptors += passed
            if isinstance(reply, Failure):
                logger.warning("refused on control", extra={"pid": peer.pid, "reason": reply.message})
        return request_id == NOTICE or self._send(peer, request_id, replies, descriptors)

    def _control(self, peer: _Peer, operation: AnyOperation) -> tuple[AnyReply, tuple[int, ...]]:
        if isinstance(operation, Hello):
            return self._welcome(peer, operation), ()
        if peer.session is None:
            return Failure(FailureCode.UNKNOWN_CLIENT, "a control connection starts with Hello"), ()
        if isinstance(operation, FetchPool):
            return self._grant(operation)
        if isinstance(operation, FetchRegion):
            return self._grant_region(operation)
        if isinstance(operation, FetchWeights):
            return self._grant_weights(peer.session, operation)
        if isinstance(operation, AcquirePages | Declare):
            return Failure(FailureCode.NOT_ALLOWED, "what may have to wait does not belong on a control connection"), ()
        reply = self._service.execute(peer.session, operation)
        assert not isinstance(reply, Later)
        return reply, ()

    def _welcome(self, peer: _Peer, hello: Hello) -> AnyReply:
        if peer.session is not None:
            return Failure(FailureCode.NOT_ALLOWED, "this connection has said Hello already")
        # ZMQ keeps routing ids that start with a zero byte for itself.
        peer.session = b"c" + secrets.token_bytes(15)
        self._peer_of[peer.session] = peer
        self._service.connect(peer.session, hello.name, peer.pid)
        logger.info("client connected", extra={"client": hello.name, "pid": peer.pid})
        return Welcome(self._service.incarnation, peer.session)

    def _grant(self, request: FetchPool) -> tuple[AnyReply, tuple[int, ...]]:
        pool = self._store.pool(request.pool)
        if pool is None:
            return Failure(FailureCode.STALE_HANDLE, f"pool {request.pool} does not exist any more"), ()
        export = pool.region.export()
        existing = [other.number for other in self._store.pools]
        return PoolGranted(pool.number, export.device, export.nbytes, export.payload, existing), export.descriptors

    def _grant_region(self, request: FetchRegion) -> tuple[AnyReply, tuple[int, ...]]:
        try:
            export = self._parameters.region(request.parameter, request.tier).export()
        except MemoryManagerError as error:
            return Failure(FailureCode.NOT_ALLOWED, str(error)), ()
        return RegionGranted(export.device, export.nbytes, export.payload), export.descriptors

    def _grant_weights(self, session: bytes, request: FetchWeights) -> tuple[AnyReply, tuple[int, ...]]:
        try:
            return self._weights.fetch(session, request)
        except MemoryManagerError as error:
            return Failure(FailureCode.NOT_ALLOWED, str(error)), ()

    def _send(self, peer: _Peer, request_id: int, replies: list[AnyReply], descriptors: tuple[int, ...] = ()) -> bool:
        try:
            socket.send_fds(peer.connection, [encode(request_id, replies)], list(descriptors))
        except OSError as error:
            # Gone, or it does not read its replies: a peer nobody can serve.
            logger.warning("control connection lost", extra={"pid": peer.pid, "reason": str(error)})
            return False
        return True

    def _drop(self, peer: _Peer) -> None:
        self._poller.unregister(peer.connection.fileno())
        del self._peers[peer.connection.fileno()]
        peer.connection.close()
        if peer.session is not None:
            del self._peer_of[peer.session]
            self._service.disconnect(peer.session)
            logger.info("client gone", extra={"pid": peer.pid})


def _lock(endpoint: Endpoint) -> int:
    """Makes this process the only one that serves the endpoint, as long as the descriptor is open."""
    descriptor = os.open(endpoint.lock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise EndpointInUse(f"another MemoryManager serves {endpoint.path}") from error
    return descriptor

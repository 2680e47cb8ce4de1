"""One connection of a client to one run of the manager. It ends with that run and is then replaced, never revived."""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

import zmq

from memory_manager.devices.memory import DeviceMemory, Export, Mapping
from memory_manager.endpoint import Endpoint
from memory_manager.errors import (
    MemoryManagerError,
    MemoryManagerUnavailable,
    PoolExhausted,
    RequestRefused,
    ScopeReleased,
    StaleHandle,
)
from memory_manager.pools.messages import FetchRegion, RegionGranted
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
    decode_replies,
    encode,
)
from memory_manager.weights.messages import FetchWeights, WeightsRegion

_MAX_DESCRIPTORS = 8
_Reply = TypeVar("_Reply", bound=AnyReply)


class Connection:
    """Requests over ZMQ; notices, descriptors and liveness over the control socket.

    `request`, `mapping` and `close` need the owner's lock. `notify` does not: one message is one system call.

    Raises:
        MemoryManagerUnavailable: if no manager answers before the deadline (monotonic seconds).
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: Endpoint,
        memory: DeviceMemory,
        name: str,
        deadline: float,
    ) -> None:
        self._memory = memory
        self._where = str(endpoint.path)
        self._mappings: dict[tuple[int, bool], Mapping] = {}
        self._unsent: deque[bytes] = deque()
        self._last_request = NOTICE
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._control.settimeout(_remaining(deadline) or 0.001)
            self._control.connect(str(endpoint.control))
            self._control.setblocking(False)
            self._arrivals = select.poll()
            self._arrivals.register(self._control, select.POLLIN)
            self._hang_up = select.poll()
            self._hang_up.register(self._control, select.POLLRDHUP)
            welcome, _ = self._ask_control(Hello(name), Welcome, deadline)
        except OSError as error:
            self._control.close()
            raise MemoryManagerUnavailable(
                f"no MemoryManager answers at {endpoint.path} ({error}); is `python -m memory_manager` running there?"
            ) from error
        except MemoryManagerError:
            self._control.close()
            raise
        self._requests = context.socket(zmq.DEALER)
        self._requests.setsockopt(zmq.LINGER, 0)
        self._requests.setsockopt(zmq.ROUTING_ID, welcome.session)
        self._requests.connect(endpoint.requests)
        self._poller = zmq.Poller()
        self._poller.register(self._requests, zmq.POLLIN)
        self._poller.register(self._control, zmq.POLLIN)

    @property
    def alive(self) -> bool:
        """Whether the manager still holds its end. False at once after it died, however it died."""
        return not self._hang_up.poll(0)

    def request(
        self, operations: Sequence[AnyOperation], deadline: float, undo: Sequence[AnyOperation] = ()
    ) -> list[AnyReply]:
        """One round trip: the reply to each operation, in order.

        `undo` is sent, in order behind the request, if the caller never gets the replies.

        Raises:
            MemoryManagerUnavailable: if the manager died, or did not answer before the deadline.
            RequestRefused: if it could not accept the message.
        """
        request_id = self._send_request(operations)
        try:
            replies = self._await_replies(request_id, deadline)
        except BaseException:
            if undo:
                self._send_request(undo)
            raise
        if len(replies) != len(operations):
            raise _error_of(replies[0]) if isinstance(replies[0], Failure) else RequestRefused("replies do not fit")
        return replies

    def notify(self, *operations: AnyOperation) -> bool:
        """Tell without waiting for anything; from any thread, event loop or finalizer. False if the manager died.

        The manager executes notices of a client in order and before any later request of it. If it is too busy to
        take a notice now, `flush` delivers it.
        """
        frame = encode(NOTICE, operations)
        sent = None if self._unsent else self._try_send(frame)
        if sent is None:
            self._unsent.append(frame)
        return sent is not False

    def flush(self) -> None:
        """Deliver notices that did not go out at once, as far as the manager takes them."""
        while self._unsent:
            if self._try_send(self._unsent[0]) is None:
                return
            self._unsent.popleft()

    def mapping(self, pool: int, writable: bool, deadline: float) -> Mapping:
        """The pool, mapped into this process; mapped once for reading and once for writing, on first use.

        Raises:
            MemoryManagerUnavailable: if the manager died, or did not answer before the deadline.
            StaleHandle: if there is no such pool.
        """
        found = self._mappings.get((pool, writable))
        if found is None:
            found = self._fetch(pool, writable, deadline)
            self._mappings[pool, writable] = found
        return found

    def region(self, parameter: int, tier: int, deadline: float) -> Mapping:
        """The memory of a parameter's tier, mapped into this process, writable.

        Raises:
            MemoryManagerUnavailable: if the manager died, or did not answer before the deadline.
            RequestRefused: if there is no such parameter, or it has no such tier in memory.
        """
        granted, descriptors = self._ask_control(FetchRegion(parameter, tier), RegionGranted, deadline)
        export = Export(granted.device, granted.nbytes, granted.payload, tuple(descriptors))
        return self._memory.import_region(export, True)

    def weights(self, publication: int, writable: bool, deadline: float) -> Mapping | None:
        """The region of a publication of weights, mapped into this process; `None` while it is being made.

        Raises:
            MemoryManagerUnavailable: if the manager died, or did not answer before the deadline.
            RequestRefused: if this client has no such publication, or there is no room for it.
        """
        granted, descriptors = self._ask_control(FetchWeights(publication), WeightsRegion, deadline)
        if not granted.ready:
            return None
        export = Export(granted.device, granted.nbytes, granted.payload, tuple(descriptors))
        return self._memory.import_region(export, writable)

    def close(self) -> None:
        """Hang up. Mappings stay as long as views of them do."""
        self._control.close()
        self._requests.close()
        self._mappings.clear()

    def _send_request(self, operations: Sequence[AnyOperation]) -> int:
        self.flush()
        self._last_request += 1
        try:
            self._requests.send(encode(self._last_request, operations), zmq.NOBLOCK)
        except zmq.Again:
            raise MemoryManagerUnavailable(f"the MemoryManager at {self._where} has stopped taking requests") from None
        return self._last_request

    def _await_replies(self, request_id: int, deadline: float) -> list[AnyReply]:
        while True:
            ready = dict(self._poller.poll(math.ceil(_remaining(deadline) * 1000)))
            if self._requests in ready:
                answered, replies = _decode(self._requests.recv())
                # Anything else answers a request that somebody stopped waiting for.
                if answered == request_id or (answered == NOTICE and isinstance(replies[0], Failure)):
                    return replies
            elif ready:
                # A hang-up raises; anything else is the late answer to a question that nobody waits for any more.
                _close_all(self._receive_control()[2])
            elif time.monotonic() >= deadline:
                raise MemoryManagerUnavailable(f"the MemoryManager at {self._where} does not answer; is it stuck?")

    def _try_send(self, frame: bytes) -> bool | None:
        """Whether the manager is there to get it; `None` if it cannot take it now."""
        try:
            self._control.send(frame)
        except BlockingIOError:
            return None
        except OSError:
            return False
        return True

    def _fetch(self, pool: int, writable: bool, deadline: float) -> Mapping:
        granted, descriptors = self._ask_control(FetchPool(pool), PoolGranted, deadline)
        existing = set(granted.existing)
        self._mappings = {key: mapping for key, mapping in self._mappings.items() if key[0] in existing}
        return self._memory.import_region(
            Export(granted.device, granted.nbytes, granted.payload, tuple(descriptors)), writable
        )

    def _ask_control(self, question: AnyOperation, kind: type[_Reply], deadline: float) -> tuple[_Reply, list[int]]:
        self._last_request += 1
        if self._try_send(encode(self._last_request, [question])) is None:
            raise MemoryManagerUnavailable(f"the MemoryManager at {self._where} has stopped reading; is it stuck?")
        while self._arrivals.poll(math.ceil(_remaining(deadline) * 1000)):
            answered, replies, descriptors = self._receive_control()
            if answered == self._last_request:
                if not isinstance(replies[0], kind):
                    _close_all(descriptors)
                return expect(replies[0], kind), descriptors
            _close_all(descriptors)
        raise MemoryManagerUnavailable(f"the MemoryManager at {self._where} does not answer; is it stuck?")

    def _receive_control(self) -> tuple[int, list[AnyReply], list[int]]:
        try:
            frame, descriptors, _, _ = socket.recv_fds(
                self._control, MAX_FRAME, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            frame, descriptors = b"", []
        if not frame:
            raise MemoryManagerUnavailable(f"the MemoryManager at {self._where} died; its memory is gone with it")
        return *_decode(frame), descriptors


def expect(reply: AnyReply, kind: type[_Reply]) -> _Reply:
    """The reply, if it is of that kind.

    Raises:
        MemoryManagerError: of the kind that a `Failure` describes.
    """
    if isinstance(reply, kind):
        return reply
    raise _error_of(reply)


def _error_of(reply: AnyReply) -> MemoryManagerError:
    match reply:
        case Failure(code=FailureCode.POOL_EXHAUSTED):
            return PoolExhausted(reply.asked, reply.held, reply.free, reply.limit)
        case Failure(code=FailureCode.STALE_HANDLE):
            return StaleHandle(reply.message)
        case Failure(code=FailureCode.SCOPE_RELEASED):
            return ScopeReleased(reply.message)
        case Failure(code=FailureCode.UNKNOWN_CLIENT):
            return MemoryManagerUnavailable(reply.message)
        case Failure():
            return RequestRefused(f"{reply.code.name}: {reply.message}")
    return RequestRefused(f"the manager answered {type(reply).__name__}, which does not answer what was asked")


def _decode(frame: bytes) -> tuple[int, list[AnyReply]]:
    try:
        request_id, replies = decode_replies(frame)
    except ProtocolError as error:
        raise RequestRefused(f"the manager's answer cannot be read: {error}") from error
    if not replies:
        raise RequestRefused("the manager's answer is empty")
    return request_id, replies


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

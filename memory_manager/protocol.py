"""The wire protocol between clients and the MemoryManager: msgpack frames, decoded straight into typed operations.

A message is `[version, request id, [operation, ...]]`; the reply is `[version, request id, [reply, ...]]`, one reply
for each operation, in order. Operations of one message are executed in order and fail one by one. A message that cannot
be read gets one `Failure`, with request id 0 where not even that could be read. On the control connection a request id
of 0 marks a notice: it is executed, never answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Any, TypeAlias

import msgspec

from memory_manager.bounds import Count, Name
from memory_manager.pools.messages import FetchRegion, ParameterOperation, PoolsReply
from memory_manager.weights.messages import FetchWeights, WeightsOperation, WeightsReply

VERSION = 1
NOTICE = 0
MAX_FRAME = 256 * 1024
MAX_OPERATIONS = 256
MAX_BLOCKS = 1024


class Operation(IntEnum):
    """What a client can ask for. Numbers are part of the protocol: never reused. Each plane takes its own tens.

    The twenties are those of `pools.messages`, the thirties those of `weights.messages`.
    """

    HELLO = 1
    FETCH_POOL = 2
    HEARTBEAT = 3
    DISCONNECT = 4
    STATISTICS = 5
    OPEN_SCOPE = 10
    RELEASE_SCOPE = 11
    ALLOCATE = 12
    SEAL = 13
    ACQUIRE = 14
    RELEASE = 15
    PUBLISH = 16
    FIND = 17


class ReplyKind(IntEnum):
    """What the manager answers. Numbers as in `Operation`."""

    DONE = 1
    FAILURE = 2
    WELCOME = 3
    POOL = 4
    STATISTICS = 5
    ALLOCATED = 10
    FOUND = 11


class FailureCode(IntEnum):
    """Why an operation or a whole message was refused."""

    BAD_MESSAGE = 1
    WRONG_VERSION = 2
    TOO_LARGE = 3
    UNKNOWN_CLIENT = 4
    NOT_ALLOWED = 5
    STALE_HANDLE = 6
    POOL_EXHAUSTED = 7
    SCOPE_RELEASED = 8
    INTERNAL = 9
    PAGES_UNAVAILABLE = 10
    DECLARATION_REFUSED = 11
    UNKNOWN_PARAMETER = 12
    STALE_RESERVATION = 13


class BlockRef(msgspec.Struct, array_like=True, frozen=True):
    """A stretch of bytes inside the block of that generation; `incarnation` names the run of the manager."""

    incarnation: Count
    pool: Count
    offset: Count
    nbytes: Count
    generation: Count


# Operations


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.HELLO)):
    """Control connection only, first: who connects. Answered by `Welcome`."""

    name: Name


class FetchPool(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.FETCH_POOL)):
    """Control connection only: pass a pool. Answered by `PoolGranted` with the pool's descriptors attached."""

    pool: Count


class Heartbeat(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.HEARTBEAT)):
    """The client is running; shown in the statistics."""


class Disconnect(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.DISCONNECT)):
    """The client goes; everything it holds is released before the reply."""


class Statistics(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.STATISTICS)):
    """Answered by `StatisticsReport`."""


class OpenScope(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.OPEN_SCOPE)):
    """This client owns the scope from now on: its blocks outlive their producers, but not their owner."""

    scope: Name


class ReleaseScope(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.RELEASE_SCOPE)):
    """The first references of all blocks of the scope go. Nothing happens if there is none."""

    scope: Name


class Allocate(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.ALLOCATE)):
    """One block for each size, all or none, held by the scope and by `lease` of this client."""

    lease: Count
    sizes: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MAX_BLOCKS)]
    scope: Name


class Seal(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.SEAL)):
    """The blocks allocated under `lease` are written completely."""

    lease: Count


class Acquire(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.ACQUIRE)):
    """One more reference to each block, all or none, held by `lease` of this client."""

    lease: Count
    blocks: Annotated[list[BlockRef], msgspec.Meta(min_length=1, max_length=MAX_BLOCKS)]


class Release(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.RELEASE)):
    """What `lease` holds is let go. Nothing happens if there is no such lease."""

    lease: Count


class Publish(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.PUBLISH)):
    """Keep the block under `key` when nobody refers to it any more, as long as its bytes are not needed."""

    key: Name
    block: BlockRef
    dtype: Name
    shape: Annotated[list[Count], msgspec.Meta(max_length=32)]


class Find(msgspec.Struct, array_like=True, frozen=True, tag=int(Operation.FIND)):
    """One more reference to the blocks published under the keys, where there are any, held by `lease`."""

    lease: Count
    keys: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_BLOCKS)]


ControlOperation: TypeAlias = Hello | FetchPool | FetchRegion | FetchWeights
ClientOperation: TypeAlias = Heartbeat | Disconnect | Statistics
BufferOperation: TypeAlias = OpenScope | ReleaseScope | Allocate | Seal | Acquire | Release | Publish | Find
AnyOperation: TypeAlias = ControlOperation | ClientOperation | BufferOperation | ParameterOperation | WeightsOperation


# Replies


class Done(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.DONE)):
    """Done; nothing to tell."""


class Failure(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.FAILURE)):
    """Refused. The numbers are those of `PoolExhausted` (bytes) or of `PagesUnavailable` (slots)."""

    code: FailureCode
    message: str
    asked: int = 0
    held: int = 0
    free: int = 0
    limit: int = 0


class Welcome(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.WELCOME)):
    """`session` is the routing id this client must use for its requests."""

    incarnation: int
    session: bytes


class PoolGranted(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.POOL)):
    """How to import a pool (see `devices`), and which pools exist now: forget the others."""

    pool: int
    device: str
    nbytes: int
    payload: bytes
    existing: list[int]


class Allocated(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.ALLOCATED)):
    """One block for each size asked."""

    blocks: list[BlockRef]


class PublishedTensor(msgspec.Struct, array_like=True, frozen=True):
    """A tensor found under a cache key."""

    block: BlockRef
    dtype: str
    shape: list[int]


class Found(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.FOUND)):
    """What lies under each key, in order; `None` where nothing does."""

    tensors: list[PublishedTensor | None]


class PoolStatistics(msgspec.Struct, array_like=True, frozen=True):
    """One pool; sizes in bytes."""

    pool: int
    device: str
    nbytes: int
    used: int
    largest_free: int
    blocks: int


class ClientStatistics(msgspec.Struct, array_like=True, frozen=True):
    """One connected client: the references its leases hold, and how long it has sent nothing."""

    name: str
    pid: int
    references: int
    owned_scopes: int
    silent_seconds: float


class StatisticsReport(msgspec.Struct, array_like=True, frozen=True, tag=int(ReplyKind.STATISTICS)):
    """The manager at one moment; sizes in bytes. `idle_blocks` are published and referred to by nobody."""

    incarnation: int
    limit: int
    blocks: int
    bytes_held: int
    references: int
    idle_blocks: int
    scopes: int
    refused_messages: int
    pools: list[PoolStatistics]
    clients: list[ClientStatistics]

    def references_of(self, name: str) -> int:
        """References that the leases of all clients of that name hold."""
        return sum(client.references for client in self.clients if client.name == name)


AnyReply: TypeAlias = (
    Done | Failure | Welcome | PoolGranted | Allocated | Found | StatisticsReport | PoolsReply | WeightsReply
)


class ProtocolError(Exception):
    """A frame that cannot be accepted, with the request id if that much could be read."""

    def __init__(self, code: FailureCode, message: str, request_id: int = 0) -> None:
        super().__init__(message)
        self.code, self.request_id = code, request_id


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    version: int
    request_id: Count
    body: msgspec.Raw


_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(_Envelope)
_operations = msgspec.msgpack.Decoder(
    Annotated[list[AnyOperation], msgspec.Meta(min_length=1, max_length=MAX_OPERATIONS)]
)
_replies: msgspec.msgpack.Decoder[list[AnyReply]] = msgspec.msgpack.Decoder(list[AnyReply])


def encode(request_id: int, parts: Sequence[AnyOperation] | Sequence[AnyReply]) -> bytes:
    """The frame of a request, notice or reply."""
    return _encoder.encode((VERSION, request_id, parts))


def decode_operations(frame: bytes) -> tuple[int, list[AnyOperation]]:
    """The request id and the operations of a frame.

    Raises:
        ProtocolError: for any frame that is not exactly that.
    """
    if len(frame) > MAX_FRAME:
        raise ProtocolError(FailureCode.TOO_LARGE, f"a request may have {MAX_FRAME} bytes, this one has {len(frame)}")
    request_id, body = _open(frame)
    return request_id, _decode(_operations, body, request_id)


def decode_replies(frame: bytes) -> tuple[int, list[AnyReply]]:
    """The request id and the replies of a frame.

    Raises:
        ProtocolError: for any frame that is not exactly that.
    """
    request_id, body = _open(frame)
    return request_id, _decode(_replies, body, request_id)


def _open(frame: bytes) -> tuple[int, msgspec.Raw]:
    envelope = _decode(_envelope, frame, 0)
    if envelope.version != VERSION:
        message = f"this side speaks protocol version {VERSION}, the message is of version {envelope.version}"
        raise ProtocolError(FailureCode.WRONG_VERSION, message, envelope.request_id)
    return envelope.request_id, envelope.body


def _decode(decoder: Any, data: bytes | msgspec.Raw, request_id: int) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ProtocolError(FailureCode.BAD_MESSAGE, f"not a valid message: {error}", request_id) from None

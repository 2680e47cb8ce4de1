"""Executes operations for clients: the protocol on one side, the pure pools on the other, no socket in between."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from memory_manager.errors import MemoryManagerError, PoolExhausted, RequestRefused, ScopeReleased, StaleHandle
from memory_manager.pools.errors import DeclarationRefused, PagesUnavailable, StaleReservation, UnknownParameter
from memory_manager.pools.messages import (
    AcquirePages,
    Declare,
    FinishPages,
    ForgetPages,
    ParameterStatus,
    ReleasePages,
)
from memory_manager.pools.parameters import Answer, Parameters
from memory_manager.protocol import (
    Acquire,
    Allocate,
    Allocated,
    AnyOperation,
    AnyReply,
    BlockRef,
    ClientStatistics,
    Disconnect,
    Done,
    Failure,
    FailureCode,
    Find,
    Found,
    Heartbeat,
    OpenScope,
    PoolStatistics,
    Publish,
    PublishedTensor,
    Release,
    ReleaseScope,
    Seal,
    Statistics,
    StatisticsReport,
)
from memory_manager.tmp_buffers.blocks import BlockStore, Published
from memory_manager.tmp_buffers.holders import Holders
from memory_manager.tmp_buffers.pool import Block
from memory_manager.weights.messages import WeightsOperation
from memory_manager.weights.service import SharedWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Later:
    """Stands for a reply that comes later, among those of `take_late_replies`."""

    ticket: int


@dataclass(slots=True)
class _Session:
    name: str
    pid: int
    last_heard: float


class Service:
    """The state of one manager: who is connected, and what each holds."""

    def __init__(self, store: BlockStore, parameters: Parameters, weights: SharedWeights, incarnation: int) -> None:
        self.incarnation = incarnation
        self.refused_messages = 0
        self._store = store
        self._parameters = parameters
        self._weights = weights
        self._holders = Holders(store)
        self._sessions: dict[bytes, _Session] = {}

    def connect(self, session: bytes, name: str, pid: int) -> None:
        """A client from now on."""
        self._sessions[session] = _Session(name, pid, time.monotonic())
        self._holders.add_client(session)

    def knows(self, session: bytes) -> bool:
        """Whether that client is connected."""
        return session in self._sessions

    def disconnect(self, session: bytes) -> None:
        """The client is gone, and with it what it held. Nothing happens if it was not connected."""
        if self._sessions.pop(session, None) is not None:
            self._holders.drop_client(session)
            self._parameters.drop_client(session)
            self._weights.drop_client(session)

    @property
    def next_deadline(self) -> float | None:
        """When `take_late_replies` has something to do at the latest (monotonic seconds)."""
        return self._parameters.next_deadline

    def take_late_replies(self) -> list[tuple[Later, AnyReply]]:
        """Replies that had to wait. Must be called after every batch of operations, too: it makes pages move."""
        return [(Later(ticket), _reply(answer)) for ticket, answer in self._parameters.pump()]

    def execute(self, session: bytes, operation: AnyOperation) -> AnyReply | Later:
        """The reply to one operation of a client, or a later one. Never raises: what goes wrong becomes a `Failure`."""
        client = self._sessions.get(session)
        if client is None:
            return Failure(FailureCode.UNKNOWN_CLIENT, "this client is not connected (any more); connect again")
        client.last_heard = time.monotonic()
        try:
            if isinstance(operation, WeightsOperation):
                return self._weights.execute(session, f"{client.name} (pid {client.pid})", operation) or Done()
            return self._perform(session, operation)
        except MemoryManagerError as error:
            return _failure(error)
        except Exception as error:
            logger.exception("operation failed", extra={"client": client.name, "operation": type(operation).__name__})
            return Failure(FailureCode.INTERNAL, f"{type(operation).__name__}: {type(error).__name__}: {error}")

    def _perform(self, session: bytes, operation: AnyOperation) -> AnyReply | Later:
        holders = self._holders
        match operation:
            case Allocate(lease, sizes, scope):
                return Allocated([self._reference(block) for block in holders.allocate(session, lease, sizes, scope)])
            case Acquire(lease, references):
                holders.acquire(session, lease, [self._resolve(reference) for reference in references])
            case Release(lease):
                holders.release(session, lease)
            case Seal(lease):
                holders.seal(session, lease)
            case OpenScope(scope):
                holders.open_scope(session, scope)
            case ReleaseScope(scope):
                holders.release_scope(scope)
            case Publish(key, reference, dtype, shape):
                block = self._resolve(reference)
                self._store.publish(key, Published(block, reference.offset, reference.nbytes, dtype, tuple(shape)))
            case Find(lease, keys):
                return Found([self._describe(tensor) for tensor in holders.find(session, lease, keys)])
            case Declare() | AcquirePages() | FinishPages() | ReleasePages() | ForgetPages() | ParameterStatus():
                answer = self._parameters.execute(session, operation)
                return Later(answer) if isinstance(answer, int) else _reply(answer)
            case Statistics():
                return self._report()
            case Disconnect():
                self.disconnect(session)
            case Heartbeat():
                pass
            case _:
                raise RequestRefused(f"{type(operation).__name__} belongs on the control connection")
        return Done()

    def _resolve(self, reference: BlockRef) -> Block:
        if reference.incarnation != self.incarnation:
            raise StaleHandle("the handle is of an earlier run of the manager; its bytes ended with that process")
        return self._store.resolve(reference.pool, reference.offset, reference.nbytes, reference.generation)

    def _reference(self, block: Block) -> BlockRef:
        return BlockRef(self.incarnation, block.pool, block.offset, block.nbytes, block.generation)

    def _describe(self, tensor: Published | None) -> PublishedTensor | None:
        if tensor is None:
            return None
        block = tensor.block
        reference = BlockRef(self.incarnation, block.pool, tensor.offset, tensor.nbytes, block.generation)
        return PublishedTensor(reference, tensor.dtype, list(tensor.shape))

    def _report(self) -> StatisticsReport:
        now = time.monotonic()
        pools = self._store.pools
        blocks = [block for pool in pools for block in pool.blocks]
        return StatisticsReport(
            incarnation=self.incarnation,
            limit=self._store.limit,
            blocks=len(blocks),
            bytes_held=self._store.used,
            references=sum(block.references for block in blocks),
            idle_blocks=self._store.idle,
            scopes=self._holders.scopes,
            refused_messages=self.refused_messages,
            pools=[
                PoolStatistics(
                    pool.number, pool.device, pool.region.nbytes, pool.used, pool.largest_free, len(pool.blocks)
                )
                for pool in pools
            ],
            clients=[
                ClientStatistics(
                    client.name,
                    client.pid,
                    self._holders.references_of(session),
                    self._holders.owned_scopes_of(session),
                    round(now - client.last_heard, 3),
                )
                for session, client in self._sessions.items()
            ],
        )


def _reply(answer: Answer) -> AnyReply:
    if answer is None:
        return Done()
    return _failure(answer) if isinstance(answer, MemoryManagerError) else answer


def _failure(error: MemoryManagerError) -> Failure:
    match error:
        case PoolExhausted(asked=asked, held=held, free=free, limit=limit):
            return Failure(FailureCode.POOL_EXHAUSTED, str(error), asked, held, free, limit)
        case PagesUnavailable(asked=asked, held=held, free=free):
            return Failure(FailureCode.PAGES_UNAVAILABLE, str(error), asked, held, free)
        case DeclarationRefused(reasons=reasons):
            return Failure(FailureCode.DECLARATION_REFUSED, "; ".join(reasons))
    return Failure(_CODES.get(type(error), FailureCode.INTERNAL), str(error))


_CODES = {
    StaleHandle: FailureCode.STALE_HANDLE,
    ScopeReleased: FailureCode.SCOPE_RELEASED,
    RequestRefused: FailureCode.NOT_ALLOWED,
    UnknownParameter: FailureCode.UNKNOWN_PARAMETER,
    StaleReservation: FailureCode.STALE_RESERVATION,
}

"""What a role process uses to share weights, and to agree on the capacity of a KV pool."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from memory_manager.connection import expect
from memory_manager.devices.cpu import CpuMemory
from memory_manager.devices.memory import DeviceMemory, Mapping
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerUnavailable
from memory_manager.protocol import AnyOperation, AnyReply, Done
from memory_manager.reconnecting import Reconnecting
from memory_manager.weights.errors import CapacityFailed, LoaderBusy
from memory_manager.weights.messages import (
    AcquireLoader,
    ArriveAtCapacity,
    CapacityPhase,
    CapacityRound,
    CapacityState,
    FindWeights,
    JoinCapacity,
    LoaderState,
    ProposeCapacity,
    PublishWeights,
    ReleaseLoader,
    ReserveWeights,
    WeightEntry,
    WeightsFound,
    WeightSpec,
    WeightsReserved,
)

_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.25
_MAKING_SECONDS = 60.0
_Reply = TypeVar("_Reply", bound=AnyReply)


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """A parameter in shared memory: `array` is one-dimensional uint8, read-only unless it is being written."""

    entry: WeightEntry
    array: Any


@dataclass(frozen=True, slots=True)
class Reservation:
    """Parameters that this process writes, by name, and how they become visible to others.

    `publish` gives the same bytes read-only; nobody may write into `parameters` after it. Unpublished, all of it is
    taken back when loading ends.
    """

    parameters: dict[str, SharedBytes]
    publish: Callable[[], dict[str, SharedBytes]]


@dataclass(frozen=True, slots=True)
class CapacityMember:
    """This process as a member of a pool, in one round."""

    pool: str
    number: int
    ask: Callable[[ArriveAtCapacity | ProposeCapacity], CapacityState]

    def agree(self, measure: Callable[[], int]) -> int:
        """The capacity in pages: the minimum of what all members propose. Call it after loading.

        `measure` says how many pages this process could have; it is called when all have loaded and nobody loads on
        the device, and again if somebody has begun to load meanwhile. Waits by asking again, ever more slowly.

        Raises:
            CapacityFailed: if a member dies before the capacity is final, or the deadline passes.
            RequestRefused: if the manager was restarted meanwhile.
            MemoryManagerUnavailable: see `errors`.
        """
        state = self.ask(ArriveAtCapacity(self.number))
        pauses = _pauses()
        while state.phase is not CapacityPhase.FINAL:
            if state.phase is CapacityPhase.FAILED:
                raise CapacityFailed(self.pool, state.members, state.reason)
            if state.phase is CapacityPhase.MEASURE:
                state = self.ask(ProposeCapacity(self.number, state.epoch, measure()))
            else:
                time.sleep(next(pauses))
                state = self.ask(ArriveAtCapacity(self.number))
        return state.pages


class WeightClient:
    """A client of the manager at `endpoint`; thread-safe, but one call waits for another.

    Everything it found or published is held until `close`, or until this process ends, however it ends. Arrays stay
    valid also when the manager dies; a restarted one knows nothing of them.

    Args:
        endpoint: path of the manager's socket.
        name: shown to people who look at the manager, and to those who wait for this client.
        memory: where weights lie.
        timeout: seconds after which a manager that is stuck counts as unavailable. A dead one is noticed at once.
    """

    def __init__(
        self, endpoint: str | Path, name: str, memory: DeviceMemory | None = None, timeout: float = 5.0
    ) -> None:
        self._memory: DeviceMemory = CpuMemory() if memory is None else memory
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection = Reconnecting(Endpoint(Path(endpoint)), self._memory, name)

    def __enter__(self) -> WeightClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def device(self) -> str:
        """Where weights lie."""
        return self._memory.device

    @contextlib.contextmanager
    def loading(self, timeout: float) -> Iterator[None]:
        """Be the one process that loads on the device. Waits by asking again, ever more slowly.

        Raises:
            LoaderBusy: if another one is that for `timeout` seconds.
            MemoryManagerUnavailable: see `errors`.
        """
        start = time.monotonic()
        for pause in _pauses():
            state = self._ask(AcquireLoader(self.device), LoaderState)
            if state.granted:
                break
            if time.monotonic() - start >= timeout:
                raise LoaderBusy(self.device, state.holder, state.held, timeout)
            time.sleep(pause)
        try:
            yield
        finally:
            # A manager that is gone took the lease with it.
            with contextlib.suppress(MemoryManagerUnavailable):
                self._ask(ReleaseLoader(self.device), Done)

    def find(self, checkpoint: str, partition: str) -> dict[str, SharedBytes]:
        """What is published, by name, read-only.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        found: dict[str, SharedBytes] = {}
        publication = 0
        while True:
            reply = self._ask(FindWeights(self.device, checkpoint, partition, publication), WeightsFound)
            if not reply.entries:
                return found
            publication = reply.publication
            found.update(_views(reply.entries, self._map(publication, writable=False)))

    def reserve(self, checkpoint: str, partition: str, wanted: Sequence[WeightSpec]) -> Reservation:
        """Shared memory to write these parameters into. Only while `loading`; at most `messages.MAX_ENTRIES` at once.

        Raises:
            RequestRefused: if some are published already, or there is no room.
            MemoryManagerUnavailable: see `errors`.
        """
        reply = self._ask(ReserveWeights(self.device, checkpoint, partition, list(wanted)), WeightsReserved)
        parameters = _views(reply.entries, self._map(reply.publication, writable=True))
        return Reservation(parameters, lambda: self._publish(reply))

    def join_capacity(self, pool: str, members: Sequence[str], member: str, timeout: float) -> CapacityMember:
        """Take part in finding the capacity of a pool; before loading, so that the others notice if this one dies.

        Args:
            pool: the name that all members use.
            members: all of them.
            member: which of them this process is.
            timeout: seconds in which all must have loaded and proposed; that of the first to join counts.

        Raises:
            RequestRefused: if others say something else about the pool, or another process is that member.
            MemoryManagerUnavailable: see `errors`.
        """
        operation = JoinCapacity(pool, self.device, list(members), member, max(1, round(timeout * 1000)))
        number = self._ask(operation, CapacityRound).round
        return CapacityMember(pool, number, lambda question: self._ask(question, CapacityState))

    def close(self) -> None:
        """Hold nothing any more: the manager notices that the connection ends. Idempotent."""
        with self._lock:
            self._connection.close()

    def _publish(self, reserved: WeightsReserved) -> dict[str, SharedBytes]:
        mapping = self._map(reserved.publication, writable=False)
        self._ask(PublishWeights(reserved.publication), Done)
        return _views(reserved.entries, mapping)

    def _ask(self, operation: AnyOperation, kind: type[_Reply]) -> _Reply:
        with self._lock:
            deadline = time.monotonic() + self._timeout
            (reply,) = self._connection.get(deadline).request([operation], deadline)
        return expect(reply, kind)

    def _map(self, publication: int, writable: bool) -> Mapping:
        start = time.monotonic()
        for pause in _pauses():
            with self._lock:
                deadline = time.monotonic() + self._timeout
                mapping = self._connection.get(deadline).weights(publication, writable, deadline)
            if mapping is not None:
                return mapping
            if time.monotonic() - start >= _MAKING_SECONDS:
                break
            time.sleep(pause)
        raise MemoryManagerUnavailable(f"the MemoryManager makes no memory for weights in {_MAKING_SECONDS:g} s")


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def _views(entries: Sequence[WeightEntry], mapping: Mapping) -> dict[str, SharedBytes]:
    return {entry.name: SharedBytes(entry, mapping.view(entry.offset, entry.nbytes)) for entry in entries}

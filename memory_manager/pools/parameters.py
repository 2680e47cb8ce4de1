"""All parameters of one manager, by number: executes what clients ask, and answers later what has to wait."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from memory_manager.devices.memory import DeviceMemory, Region
from memory_manager.errors import MemoryManagerError, RequestRefused
from memory_manager.pools.declaration import (
    ElementType,
    OuterDimension,
    ParameterDeclaration,
    Recomputation,
    SliceDimension,
    Tier,
)
from memory_manager.pools.errors import DeclarationRefused, PagesUnavailable, UnknownParameter
from memory_manager.pools.messages import (
    AcquirePages,
    Declare,
    Declared,
    FinishPages,
    ForgetPages,
    PageGrant,
    PagesGranted,
    ParameterOperation,
    ParameterReport,
    ParameterStatus,
    ReleasePages,
    SlotName,
    TierReport,
)
from memory_manager.pools.parameter_pool import ParameterPool
from memory_manager.pools.requests import (
    Access,
    EvictionGuard,
    Granted,
    Holder,
    NodeAlone,
    Outcome,
    SlotRef,
    Want,
)
from memory_manager.pools.tiers import ParameterTiers, this_machine

logger = logging.getLogger(__name__)

Answer: TypeAlias = Declared | PagesGranted | ParameterReport | MemoryManagerError | None
"""`None` is done; an error is one that `execute` would have raised."""


@dataclass(slots=True)
class _Building:
    """Memory and files of a parameter are being made; who waits for it."""

    declaration: ParameterDeclaration
    pool: Future[ParameterPool]
    tickets: list[int]


class Parameters:
    """Declared parameters and their pools.

    Args:
        device: memory of first tiers.
        host: memory of second tiers.
        host_bytes: how much of it can be had now.
        directory: where files of third tiers lie; `None` refuses them.
        wake: called from other threads when `pump` has something to do.
        guard: makes the guard of a parameter; by default a node that shares nothing.
    """

    def __init__(
        self,
        device: DeviceMemory,
        host: DeviceMemory,
        host_bytes: Callable[[], int],
        directory: Path | None,
        wake: Callable[[], None],
        guard: Callable[[ParameterDeclaration], EvictionGuard] | None = None,
    ) -> None:
        self._device = device
        self._host = host
        self._host_bytes = host_bytes
        self._directory = directory
        self._wake = wake
        self._guard = guard or _node_alone
        # A number of an earlier run must not name another parameter of this one.
        self._numbers = itertools.count(secrets.randbits(48))
        self._pools: dict[int, ParameterPool] = {}
        self._by_name: dict[str, int] = {}
        self._tickets = itertools.count(1)
        self._waiting: dict[tuple[int, int], tuple[int, AcquirePages]] = {}
        # Making gigabytes takes seconds, in which the manager has others to serve.
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="declare")
        self._building: dict[str, _Building] = {}

    def execute(self, client: bytes, operation: ParameterOperation) -> Answer | int:
        """The answer, or a ticket: the answer is then among those of `pump`, at the operation's timeout at the latest.

        Raises:
            DeclarationRefused: see there.
            UnknownParameter: if there is no such parameter.
            PagesUnavailable: if the pages can never be granted.
            StaleReservation: for a page that the lease does not write (any more).
            RequestRefused: for an operation that makes no sense.
        """
        if isinstance(operation, Declare):
            return self._declare(operation)
        pool = self._pool(operation.parameter)
        engine = pool.engine
        match operation:
            case AcquirePages():
                return self._acquire(client, pool, operation)
            case FinishPages(_, lease, slots):
                for slot in slots:
                    reference = SlotRef(Tier(slot.tier), slot.position, slot.generation)
                    engine.finish_write(Holder(client, lease), reference)
            case ReleasePages(_, lease, pages):
                engine.release(Holder(client, lease), pages)
            case ForgetPages(_, pages):
                engine.forget(pages)
            case ParameterStatus():
                return _report(pool)
        return None

    def pump(self) -> list[tuple[int, Answer]]:
        """Answers by ticket. Begins and ends migrations; call it after every batch of operations, too."""
        answers = self._take_built()
        for number, pool in self._pools.items():
            for request, outcome in pool.pump():
                ticket, operation = self._waiting.pop((number, request))
                answers.append((ticket, _answer(operation, outcome)))
        return answers

    @property
    def next_deadline(self) -> float | None:
        """When `pump` has something to do at the latest (monotonic seconds)."""
        deadlines = [pool.engine.next_deadline for pool in self._pools.values()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def drop_client(self, client: bytes) -> None:
        """The client is gone, and with it what it held."""
        for pool in self._pools.values():
            pool.engine.drop_client(client)

    def region(self, parameter: int, tier: int) -> Region:
        """The memory of a tier.

        Raises:
            UnknownParameter: if there is no such parameter.
            RequestRefused: if it has no such tier in memory.
        """
        pool = self._pool(parameter)
        region = pool.tiers.regions.get(Tier(tier))
        if region is None:
            raise RequestRefused(f"parameter {pool.declaration.name!r} has no {Tier(tier).name} in memory")
        return region

    def close(self) -> None:
        """Stop moving and give memory back; files stay."""
        self._builder.shutdown()
        self._take_built()
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _pool(self, parameter: int) -> ParameterPool:
        pool = self._pools.get(parameter)
        if pool is None:
            raise UnknownParameter(f"no parameter {parameter} is declared in this run of the manager; declare it first")
        return pool

    def _declare(self, operation: Declare) -> Answer | int:
        declaration = _declaration(operation)
        name = declaration.name
        number = self._by_name.get(name)
        building = self._building.get(name)
        if number is not None:
            existing = self._pools[number].declaration
        else:
            existing = declaration if building is None else building.declaration
        if existing != declaration:
            raise DeclarationRefused(name, ["it is declared differently already"])
        if number is not None:
            return self._declared(number)
        if building is None:
            pool = self._builder.submit(self._build, declaration)
            building = self._building[name] = _Building(declaration, pool, [])
            pool.add_done_callback(lambda _: self._wake())
        building.tickets.append(next(self._tickets))
        return building.tickets[-1]

    def _build(self, declaration: ParameterDeclaration) -> ParameterPool:
        directory = self._directory
        if directory is None:
            if Tier.L3 in declaration.tiers:
                raise DeclarationRefused(declaration.name, ["this manager was started without a directory for L3"])
            directory = Path()
        machine = this_machine(directory, self._host_bytes())
        tiers = ParameterTiers(declaration, self._device, self._host, directory, machine)
        return ParameterPool(tiers, self._guard(declaration), self._wake)

    def _take_built(self) -> list[tuple[int, Answer]]:
        answers: list[tuple[int, Answer]] = []
        for name, building in list(self._building.items()):
            if not building.pool.done():
                continue
            del self._building[name]
            answer: Answer
            try:
                pool = building.pool.result()
            except MemoryManagerError as error:
                answer = error
            except Exception as error:
                logger.exception("could not make a parameter", extra={"parameter": name})
                answer = DeclarationRefused(name, [f"{type(error).__name__}: {error}"])
            else:
                number = next(self._numbers)
                self._pools[number] = pool
                self._by_name[name] = number
                answer = self._declared(number)
            answers += ((ticket, answer) for ticket in building.tickets)
        return answers

    def _declared(self, number: int) -> Declared:
        pool = self._pools[number]
        slots = {int(tier): count for tier, count in pool.tiers.capacities.items()}
        return Declared(number, pool.declaration.layout_id, slots)

    def _acquire(self, client: bytes, pool: ParameterPool, operation: AcquirePages) -> Answer | int:
        now = time.monotonic()
        try:
            outcome = pool.engine.request(
                Holder(client, operation.lease),
                [Want(wanted.page, Access(wanted.access), wanted.base) for wanted in operation.pages],
                tier=None if operation.tier is None else Tier(operation.tier),
                deadline=now + operation.timeout / 1000,
                hold_until=None if operation.hold is None else now + operation.hold / 1000,
            )
        except ValueError as error:
            raise RequestRefused(str(error)) from None
        if not isinstance(outcome, int):
            answer = _answer(operation, outcome)
            if isinstance(answer, PagesUnavailable):
                raise answer
            return answer
        ticket = next(self._tickets)
        self._waiting[operation.parameter, outcome] = (ticket, operation)
        return ticket


def _node_alone(declaration: ParameterDeclaration) -> EvictionGuard:
    return NodeAlone(declaration.recomputation is Recomputation.RECOMPUTABLE)


def _declaration(operation: Declare) -> ParameterDeclaration:
    try:
        dtype, recomputation = ElementType.named(operation.dtype), Recomputation(operation.recomputation)
    except ValueError as error:
        raise DeclarationRefused(operation.name, [str(error)]) from None
    return ParameterDeclaration(
        name=operation.name,
        sub_names=tuple(OuterDimension(found.name, tuple(found.labels)) for found in operation.sub_names),
        slice_dims=tuple(SliceDimension(found.name, tuple(found.labels), found.axis) for found in operation.slice_dims),
        page_size=operation.page_size,
        shape=tuple(operation.shape),
        dtype=dtype,
        recomputation=recomputation,
        tiers={Tier(size.tier): size.nbytes for size in operation.tiers},
    )


def _answer(operation: AcquirePages, outcome: Outcome) -> PagesGranted | PagesUnavailable:
    if not isinstance(outcome, Granted):
        return PagesUnavailable(str(outcome), outcome.asked, outcome.held, outcome.free)
    grants = [outcome.grants[wanted.page] for wanted in operation.pages]
    return PagesGranted(
        [
            None if grant is None else PageGrant(SlotName(int(grant.slot.tier), *grant.slot[1:]), grant.writable)
            for grant in grants
        ]
    )


def _report(pool: ParameterPool) -> ParameterReport:
    table, engine = pool.engine.table, pool.engine
    tiers = [TierReport(int(tier), table.capacity(tier), table.free(tier), table.held(tier)) for tier in table.tiers]
    return ParameterReport(tiers, engine.waiting, engine.in_flight, asdict(engine.counters))

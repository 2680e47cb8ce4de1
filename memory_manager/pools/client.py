"""What a role process uses to keep pages of global parameters in the MemoryManager."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from memory_manager.connection import Connection, expect
from memory_manager.devices.cpu import CpuMemory
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerUnavailable
from memory_manager.pools.declaration import ParameterDeclaration, Tier
from memory_manager.pools.errors import DeclarationRefused, PagesUnavailable, StaleReservation, UnknownParameter
from memory_manager.pools.messages import (
    MAX_PAGES,
    AcquirePages,
    Declare,
    Declared,
    Dimension,
    FinishPages,
    ForgetPages,
    PageGrant,
    PagesGranted,
    ParameterReport,
    ParameterStatus,
    ReleasePages,
    TierSize,
    WantedPage,
)
from memory_manager.pools.paging import Array, PagedStorage, RegionLayout, arrangement_of
from memory_manager.pools.requests import PageId, Want
from memory_manager.protocol import AnyOperation, AnyReply, Done, Failure, FailureCode
from memory_manager.reconnecting import Reconnecting

_DECLARING_SECONDS = 60.0
_Reply = TypeVar("_Reply", bound=AnyReply)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Pages of one parameter, granted together.

    Args:
        tier: where they are wanted; `None` for a look-up, which moves nothing.
        hold: seconds for which they are held at most; `None` for as long as this client lives.
    """

    parameter: ParameterDeclaration
    wants: tuple[Want, ...]
    tier: Tier | None = Tier.L1
    hold: float | None = None


@dataclass(slots=True, eq=False)
class PageLease:
    """What a `PageRequest` got: held until released. `grants` has one entry for each want; `None` is a miss.

    Args:
        run: the connection under which it was granted. The lease ends with it.
    """

    request: PageRequest
    number: int
    grants: list[PageGrant | None]
    run: Connection = field(repr=False)

    @property
    def complete(self) -> bool:
        """Whether no page is a miss."""
        return None not in self.grants


class ParameterClient:
    """A client of the manager at `endpoint` for global parameters; thread-safe, but one call waits for another.

    What it holds ends with this process, however it ends. After a restart of the manager every lease is gone, and
    parameters are declared anew with the next call. Each method is one message, and one more the first time a
    parameter or a tier of it is used.

    Args:
        endpoint: path of the manager's socket.
        name: shown in the manager's statistics and logs.
        timeout: seconds after which a manager that is stuck counts as unavailable. A dead one is noticed at once.
    """

    def __init__(self, endpoint: str | Path, name: str, timeout: float = 5.0) -> None:
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection = Reconnecting(Endpoint(Path(endpoint)), CpuMemory(), name)
        self._declared: dict[str, tuple[ParameterDeclaration, Declared]] = {}
        self._storages: dict[tuple[str, Tier], PagedStorage] = {}
        self._leases = itertools.count(1)

    def __enter__(self) -> ParameterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def declare(self, parameter: ParameterDeclaration) -> str:
        """The parameter exists when this returns its layout id.

        Raises:
            DeclarationRefused: if the machine cannot have it, or it is declared differently already.
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            return self._number_of(self._connected(), parameter).layout_id

    def acquire(self, requests: Sequence[PageRequest], timeout: float) -> list[PageLease]:
        """All requests, in one message; those of one parameter get all their slots together or none.

        Args:
            timeout: seconds to wait for pages that are on their way, and for room.

        Raises:
            PagesUnavailable: if one of them is not granted in time. Then nothing of any is held.
            RequestRefused: for a request that makes no sense.
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            connection = self._connected()
            numbers = [self._number_of(connection, request.parameter).parameter for request in requests]
            leases = [next(self._leases) for _ in requests]
            operations = [
                _acquire(number, lease, request, timeout)
                for number, lease, request in zip(numbers, leases, requests, strict=True)
            ]
            undo = [ReleasePages(number, lease) for number, lease in zip(numbers, leases, strict=True)]
            deadline = time.monotonic() + timeout + self._timeout
            replies = connection.request(operations, deadline, undo)
            try:
                granted = [_expect(reply, PagesGranted) for reply in replies]
            except BaseException:
                connection.notify(*undo)
                raise
        return [
            PageLease(request, lease, reply.grants, connection)
            for request, lease, reply in zip(requests, leases, granted, strict=True)
        ]

    def renew(self, leases: Sequence[PageLease], hold: float | None) -> list[bool]:
        """Hold all pages of the leases for `hold` seconds from now at least. For each lease: does it hold all of them?

        Pages that are still being written do not count, and neither do misses.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            connection = self._run_of(leases)
            operations = []
            for lease in leases:
                pages = [WantedPage(want.page) for want in lease.request.wants]
                number = self._number_of(connection, lease.request.parameter).parameter
                operations.append(AcquirePages(number, lease.number, pages, None, 0, _ms(hold)))
            replies = connection.request(operations, time.monotonic() + self._timeout)
        return [None not in _expect(reply, PagesGranted).grants for reply in replies]

    def finish(self, leases: Sequence[PageLease]) -> None:
        """Everything that the leases were writing is complete: others may read it. They go on holding it.

        Raises:
            StaleReservation: for a page that its lease does not write any more; those before it are finished.
            MemoryManagerUnavailable: see `errors`.
        """
        writing = [lease for lease in leases if any(grant is not None and grant.writable for grant in lease.grants)]
        with self._lock:
            connection = self._run_of(leases)
            operations = []
            for lease in writing:
                written = [grant.slot for grant in lease.grants if grant is not None and grant.writable]
                number = self._number_of(connection, lease.request.parameter).parameter
                operations.append(FinishPages(number, lease.number, written))
            if not operations:
                return
            replies = connection.request(operations, time.monotonic() + self._timeout)
        for lease, reply in zip(writing, replies, strict=True):
            _expect(reply, Done)
            lease.grants = [None if grant is None else PageGrant(grant.slot, False) for grant in lease.grants]

    def release(self, leases: Sequence[PageLease], pages: Sequence[PageId] | None = None) -> None:
        """The leases hold these pages (all, if `None`) no more. Views of them must not be used any more. Idempotent.

        Raises:
            MemoryManagerUnavailable: see `errors`; then nothing is held either.
        """
        with self._lock:
            connection = self._run_of(leases)
            operations = [
                ReleasePages(
                    self._number_of(connection, lease.request.parameter).parameter,
                    lease.number,
                    None if pages is None else list(pages),
                )
                for lease in leases
            ]
            for reply in connection.request(operations, time.monotonic() + self._timeout):
                _expect(reply, Done)

    def forget(self, parameters: Sequence[ParameterDeclaration], pages: Sequence[PageId]) -> None:
        """Nobody needs these pages any more, preserved ones either: their room in every tier may be used for others.

        Whoever holds one keeps its bytes until it lets go. Pages that do not exist are ignored.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            connection = self._connected()
            numbers = [self._number_of(connection, parameter).parameter for parameter in parameters]
            for start in range(0, len(pages), MAX_PAGES):
                some = list(pages[start : start + MAX_PAGES])
                operations = [ForgetPages(number, some) for number in numbers]
                for reply in connection.request(operations, time.monotonic() + self._timeout):
                    _expect(reply, Done)

    def storage(self, parameter: ParameterDeclaration, tier: Tier = Tier.L1) -> PagedStorage:
        """The memory of a tier, mapped into this process: views of the pages that a lease holds, without a copy.

        Raises:
            RequestRefused: if the parameter has no such tier in memory.
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            connection = self._connected()
            declared = self._number_of(connection, parameter)
            found = self._storages.get((parameter.name, tier))
            if found is None:
                deadline = time.monotonic() + self._timeout
                mapping = connection.region(declared.parameter, int(tier), deadline)
                layout = RegionLayout(parameter, arrangement_of(tier), declared.slots[int(tier)])
                found = PagedStorage(mapping.view(0, layout.nbytes), layout)
                self._storages[parameter.name, tier] = found
            return found

    def view(self, lease: PageLease, want: int, sub_names: Sequence[str], slices: Sequence[str]) -> Array:
        """`[token, *slice_shape]` of the page that the lease's n-th want got, in shared memory.

        Raises:
            KeyError: if that want is a miss, and for labels that the declaration does not have.
        """
        grant = lease.grants[want]
        if grant is None:
            raise KeyError(f"page {lease.request.wants[want].page.hex()} is a miss")
        storage = self.storage(lease.request.parameter, Tier(grant.slot.tier))
        return storage.view(sub_names, grant.slot.position, slices)

    def status(self, parameter: ParameterDeclaration) -> ParameterReport:
        """How full the tiers of the parameter are, and what has happened to it.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._lock:
            connection = self._connected()
            operation = ParameterStatus(self._number_of(connection, parameter).parameter)
            reply = connection.request([operation], time.monotonic() + self._timeout)[0]
        return _expect(reply, ParameterReport)

    def close(self) -> None:
        """Everything this client holds is let go: the manager notices that the connection ends. Idempotent."""
        with self._lock:
            self._connection.close()

    def _connected(self) -> Connection:
        before = self._connection.current
        connection = self._connection.get(time.monotonic() + self._timeout)
        if connection is not before:
            self._declared.clear()
            self._storages.clear()
        return connection

    def _run_of(self, leases: Sequence[PageLease]) -> Connection:
        connection = self._connected()
        if any(lease.run is not connection for lease in leases):
            raise MemoryManagerUnavailable("the manager has been restarted: the leases of its last run are gone")
        return connection

    def _number_of(self, connection: Connection, parameter: ParameterDeclaration) -> Declared:
        known, declared = self._declared.get(parameter.name, (None, None))
        if declared is None or (known is not parameter and known != parameter):
            reply = connection.request([_declare(parameter)], time.monotonic() + _DECLARING_SECONDS)[0]
            if isinstance(reply, Failure) and reply.code is FailureCode.DECLARATION_REFUSED:
                raise DeclarationRefused(parameter.name, reply.message.split("; "))
            declared = _expect(reply, Declared)
            self._declared[parameter.name] = (parameter, declared)
        return declared


def _expect(reply: AnyReply, kind: type[_Reply]) -> _Reply:
    match reply:
        case Failure(code=FailureCode.PAGES_UNAVAILABLE):
            raise PagesUnavailable(reply.message, reply.asked, reply.held, reply.free)
        case Failure(code=FailureCode.STALE_RESERVATION):
            raise StaleReservation(reply.message)
        case Failure(code=FailureCode.UNKNOWN_PARAMETER):
            raise UnknownParameter(reply.message)
    return expect(reply, kind)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _acquire(parameter: int, lease: int, request: PageRequest, timeout: float) -> AnyOperation:
    wants = [WantedPage(want.page, want.access.value, want.base) for want in request.wants]
    tier = None if request.tier is None else int(request.tier)
    return AcquirePages(parameter, lease, wants, tier, _ms(timeout) or 0, _ms(request.hold))


def _declare(parameter: ParameterDeclaration) -> Declare:
    return Declare(
        name=parameter.name,
        sub_names=[Dimension(dimension.name, list(dimension.labels)) for dimension in parameter.sub_names],
        slice_dims=[
            Dimension(dimension.name, list(dimension.labels), dimension.axis) for dimension in parameter.slice_dims
        ],
        page_size=parameter.page_size,
        shape=list(parameter.shape),
        dtype=parameter.dtype.value[0],
        recomputation=parameter.recomputation.value,
        tiers=[TierSize(int(tier), nbytes) for tier, nbytes in parameter.tiers.items()],
    )

"""Sessions that outlive the process: pages in the MemoryManager, their chains in Redis (paper, 4.1 and 5.1)."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from memory_manager.connection import Connection
from memory_manager.errors import MemoryManagerError, MemoryManagerUnavailable
from memory_manager.metadata.sessions import SessionChain, SessionChains, SessionChanged, SessionVersion
from memory_manager.pools.client import PageLease, PageRequest, ParameterClient
from memory_manager.pools.declaration import ParameterDeclaration, Tier
from memory_manager.pools.errors import PagesUnavailable
from memory_manager.pools.requests import Access, PageId, Want
from omniflow_backend.compute.sessions.errors import SessionConflict, SessionFull, SessionLost, SessionsAway
from omniflow_backend.compute.sessions.history import History
from omniflow_backend.compute.sessions.pages import (
    PAGE_POSITIONS,
    Array,
    embedded_pages,
    has_embeddings,
    page_count,
    read_pages,
    write_page,
)
from omniflow_backend.compute.sessions.store import Retained, SessionName

logger = logging.getLogger(__name__)

_PAGES_AT_ONCE = 256
_UID_BYTES = 16
_NONCE_BYTES = 16
_PAGES_OF_A_TURN = 4
_CLOCK_MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Pages:
    """A session's version, and the pages in which its history lies.

    Args:
        run: the manager's run in which this process has seen or written all of them, if it was one.
        reserved: pages that the next turn may write.
    """

    version: SessionVersion
    ids: list[PageId]
    run: Connection | None
    reserved: list[PageId]


@dataclass(frozen=True, slots=True)
class _Cached:
    retained: Retained[Pages]
    ends: float


class RetainedSessions:
    """Implements `SessionStore`: any process that reaches the same Redis and MemoryManager can go on with a session.

    A turn writes the pages that it changes under new ids, commits them to the session's chain in one step, and then
    forgets those that they replace. What this process knows of a session is used as long as Redis names the same
    version. A restart of the manager loses pages that lie in host memory; what this process knows is written again.

    Args:
        chains: of this history.
        pages: closed with the store, and `chains` too.
        records: see `pages.declare_records`.
        embeddings: see `pages.declare_embeddings`.
        idle_s: as `chains` has it.
        timeout_s: to wait for room, and for pages that are on their way.
        cached_bytes: of all sessions that are known in this process; the least recently used ones go.
    """

    def __init__(
        self,
        chains: SessionChains,
        pages: ParameterClient,
        records: ParameterDeclaration,
        embeddings: ParameterDeclaration,
        *,
        idle_s: float,
        timeout_s: float = 5.0,
        cached_bytes: int = 256 * 2**20,
    ) -> None:
        self._chains = chains
        self._pages = pages
        self._records = records
        self._embeddings = embeddings
        self._idle_s = idle_s
        self._timeout = timeout_s
        self._cached_bytes = cached_bytes
        self._pages_at_once = min(_PAGES_AT_ONCE, records.slots(Tier.L2), embeddings.slots(Tier.L2))
        self._cache: OrderedDict[str, _Cached] = OrderedDict()
        self._cached = 0
        self._dropped: list[PageId] = []
        self._lock = threading.Lock()

    def open(self, name: SessionName, *, anew: bool) -> Retained[Pages]:
        with _explained(name):
            known = self._known(name)
            for _ in range(3):
                reserved = _new_ids(_PAGES_OF_A_TURN)
                chain = self._open(name, known, reserved)
                if chain is None:
                    if known is not None and not anew:
                        raise SessionLost(str(name), "Redis does not know it any more")
                    begins = SessionVersion(secrets.token_bytes(_UID_BYTES), 0)
                    return Retained(History(), Pages(begins, [], None, reserved))
                if anew:
                    return Retained(History(), Pages(chain.version, [], None, reserved))
                if chain.pages is None and known is not None:
                    self._keep(name, known)
                    return replace(known, version=replace(known.version, reserved=reserved))
                loaded = self._load(chain, reserved)
                if loaded is not None:
                    self._keep(name, loaded)
                    return loaded
                # Gone, or replaced since Redis was asked.
        raise SessionLost(str(name), "the MemoryManager does not have its pages any more")

    def commit(self, name: SessionName, before: Retained[Pages], boundary: int, after: History) -> None:
        with _explained(name):
            while True:
                try:
                    retained, unneeded = self._commit(name, before.version, boundary // PAGE_POSITIONS, after)
                    break
                except SessionChanged:
                    raise SessionConflict(str(name)) from None
                except PagesUnavailable as error:
                    unneeded = self._chains.sweep(name.key, self._take_dropped())
                    if not unneeded:
                        raise SessionFull(str(name), f"no room for its history ({error})") from error
                    self._forget(unneeded)
        self._keep(name, retained)
        try:
            self._forget(unneeded)
        except MemoryManagerError as error:
            # They stay named as unneeded: a later turn forgets them.
            logger.warning("could not forget pages of history", extra={"pages": len(unneeded), "reason": str(error)})

    def close(self) -> None:
        self._pages.close()
        self._chains.close()

    def _commit(
        self, name: SessionName, before: Pages, keep: int, after: History
    ) -> tuple[Retained[Pages], list[PageId]]:
        numbers = range(keep, page_count(len(after)))
        ids, unused = before.reserved[: len(numbers)], before.reserved[len(numbers) :]
        if len(ids) < len(numbers):
            more = _new_ids(len(numbers) - len(ids))
            self._chains.reserve(name.key, more)
            ids = [*ids, *more]
        run = self._write(after, numbers, ids)
        if keep and (run is None or run is not before.run) and not self._there(before.ids[:keep]):
            logger.warning("the MemoryManager lost pages of history; writing them again", extra={"session": str(name)})
            return self._commit(name, replace(before, reserved=[]), 0, after)
        unneeded = self._chains.commit(name.key, before.version, keep, ids, len(after), unused)
        version = SessionVersion(before.version.uid, before.version.number + 1)
        return Retained(after, Pages(version, [*before.ids[:keep], *ids], run, [])), unneeded

    def _write(self, history: History, numbers: range, ids: Sequence[PageId]) -> Connection | None:
        """Fill these pages. The manager's run that has all of them; `None` if it was restarted in between."""
        runs = set()
        for start in range(0, len(ids), self._pages_at_once):
            end = start + self._pages_at_once
            part = dict(zip(numbers[start:end], ids[start:end], strict=True))
            embedded = [page for page in part if has_embeddings(history, page)]
            requests = [_request(self._records, part.values(), Access.WRITE)]
            if embedded:
                requests.append(_request(self._embeddings, [part[page] for page in embedded], Access.WRITE))
            leases = self._pages.acquire(requests, self._timeout)
            try:
                rows = {page: self._pages.view(leases[1], place, (), ()) for place, page in enumerate(embedded)}
                for place, page in enumerate(part):
                    write_page(history, page, self._pages.view(leases[0], place, (), ()), rows.get(page))
                self._pages.finish(leases)
            finally:
                self._release(leases)
            runs.add(leases[0].run)
        return runs.pop() if len(runs) == 1 else None

    def _there(self, ids: Sequence[PageId]) -> bool:
        """Whether the manager has all these pages, wherever."""
        (lease,) = self._pages.acquire([PageRequest(self._records, tuple(map(Want, ids)), None)], self._timeout)
        self._release([lease])
        return lease.complete

    def _load(self, chain: SessionChain, reserved: list[PageId]) -> Retained[Pages] | None:
        """What lies in the chain's pages; `None` if one of them is gone."""
        ids = chain.pages or []
        records = self._read(self._records, ids)
        if records is None:
            return None
        embedded = embedded_pages(chain.length, records)
        rows = self._read(self._embeddings, [ids[page] for page in embedded])
        if rows is None:
            return None
        history = read_pages(chain.length, records, dict(zip(embedded, rows, strict=True)))
        return Retained(history, Pages(chain.version, ids, None, reserved))

    def _read(self, parameter: ParameterDeclaration, ids: Sequence[PageId]) -> list[Array] | None:
        """Copies of pages; `None` if one of them is gone."""
        pages: list[Array] = []
        for start in range(0, len(ids), self._pages_at_once):
            part = ids[start : start + self._pages_at_once]
            (lease,) = self._pages.acquire([_request(parameter, part, Access.READ)], self._timeout)
            try:
                if not lease.complete:
                    return None
                pages += [self._pages.view(lease, place, (), ()).copy() for place in range(len(part))]
            finally:
                self._release([lease])
        return pages

    def _release(self, leases: Sequence[PageLease]) -> None:
        # A manager that is away holds nothing any more.
        with suppress(MemoryManagerUnavailable):
            self._pages.release(leases)

    def _known(self, name: SessionName) -> Retained[Pages] | None:
        with self._lock:
            cached = self._cache.get(name.key)
            if cached is None or cached.ends > time.monotonic():
                return None if cached is None else cached.retained
            self._uncache(name.key)
            return None

    def _keep(self, name: SessionName, retained: Retained[Pages]) -> None:
        ends = time.monotonic() + self._idle_s - _CLOCK_MARGIN_S
        with self._lock:
            self._uncache(name.key)
            self._cache[name.key] = _Cached(retained, ends)
            self._cached += retained.history.nbytes
            while self._cached > self._cached_bytes:
                self._uncache(next(iter(self._cache)))

    def _uncache(self, key: str) -> None:
        cached = self._cache.pop(key, None)
        if cached is not None:
            self._cached -= cached.retained.history.nbytes

    def _open(self, name: SessionName, known: Retained[Pages] | None, reserve: list[PageId]) -> SessionChain | None:
        version = None if known is None else known.version.version
        return self._chains.open(name.key, version, reserve, self._take_dropped())

    def _take_dropped(self) -> list[PageId]:
        with self._lock:
            dropped, self._dropped = self._dropped, []
            return dropped

    def _forget(self, unneeded: list[PageId]) -> None:
        if unneeded:
            self._pages.forget([self._records, self._embeddings], unneeded)
            with self._lock:
                self._dropped += unneeded


def _new_ids(count: int) -> list[PageId]:
    """Ids that no page has, not even one of another turn that wants to commit the same version."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return [nonce + number.to_bytes(4, "big") for number in range(count)]


def _request(parameter: ParameterDeclaration, ids: Iterable[PageId], access: Access) -> PageRequest:
    return PageRequest(parameter, tuple(Want(page, access) for page in ids), Tier.L2)


@contextmanager
def _explained(name: SessionName) -> Iterator[None]:
    try:
        yield
    except MemoryManagerError as error:
        raise SessionsAway(str(name), str(error)) from error

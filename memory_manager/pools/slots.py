"""The slot engine (paper, 4.1.2): which pages are where, who holds them, what moves. No memory, files or threads."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from memory_manager.pools.deadlines import Deadlines
from memory_manager.pools.declaration import Tier
from memory_manager.pools.errors import StaleReservation
from memory_manager.pools.in_flight import MigrationsInFlight
from memory_manager.pools.plan import Plan, plan
from memory_manager.pools.pressure import Fate, Pressure, Room
from memory_manager.pools.requests import (
    Access,
    Counters,
    EvictionGuard,
    Grant,
    Granted,
    Holder,
    HolderKind,
    Migration,
    MigrationFailure,
    Obstacle,
    Outcome,
    PageId,
    Refused,
    Request,
    SlotRef,
    Want,
)
from memory_manager.pools.slot_table import Slot, SlotState, SlotTable

_SUSPENSION = 1.0
"""Seconds for which nothing is sent to a tier that failed to take a page."""
_RETRY = 0.1
"""Seconds after which requests that wait for space are looked at again, even if nothing has changed on this node."""


@dataclass(frozen=True, slots=True)
class _HoldEnds:
    """A holder may hold a slot no longer, unless that has been extended."""

    slot: Slot
    kind: HolderKind
    holder: Holder


class SlotEngine:
    """All pages of one parameter on one node::

        request --+-> outcome, at once                         (everything is there)
                  +-> waits: for space, a writer, a migration  --> outcome (`take_outcomes`)
        outcome Granted --> holder holds the slots --> release, `hold_until`, or the death of its client

    A request gets all its slots in one step or none, first come first served within a tier, so that two requests never
    wait for each other's slots. Migrations that it needs are in `take_migrations`; whoever executes them calls
    `finish_migration` or `abort_migration` when no byte moves any more.

    Args:
        capacities: slots of each tier that exists.
        guard: see `EvictionGuard`.
        clock: monotonic seconds; `expire` must be called at `next_deadline`.
    """

    def __init__(
        self, capacities: Mapping[Tier, int], guard: EvictionGuard, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.table = SlotTable(capacities)
        self.counters = Counters()
        self._in_flight = MigrationsInFlight(self.table)
        self._pressure = Pressure(self.table, self._in_flight, guard, clock)
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Request] = {}
        self._queues: dict[Tier, deque[Request]] = {tier: deque() for tier in self.table.tiers}
        self._behind_writer: dict[PageId, list[Request]] = {}
        self._outcomes: list[tuple[int, Outcome]] = []
        self._deadlines: Deadlines[Request | _HoldEnds | None] = Deadlines()
        self._retries = False

    # Requests

    def request(
        self,
        holder: Holder,
        wants: Sequence[Want],
        *,
        tier: Tier | None,
        deadline: float,
        kind: HolderKind = HolderKind.INFERENCE,
        hold_until: float | None = None,
    ) -> Outcome | int:
        """The outcome, or the number under which `take_outcomes` will report it, not later than `deadline` + `expire`.

        With `tier=None` pages are held wherever they are complete, and nothing moves: a look-up. Give it `hold_until`;
        asking again with the same holder changes that, and tells whether the page is still there.

        Raises:
            ValueError: if a page is wanted in two ways, a look-up wants to write, or the tier does not exist.
        """
        unique = {want.page: want for want in wants}
        if len(unique) < len(wants) and any(unique[want.page] != want for want in wants):
            raise ValueError("one request wants one page in two ways")
        if tier is None and any(want.access is not Access.READ for want in wants):
            raise ValueError("writing needs a tier to write to")
        if tier is not None and not self.table.capacity(tier):
            raise ValueError(f"this parameter has no {tier.name}")
        for page in unique:
            self.table.record_use(page)
        request = Request(next(self._numbers), holder, unique, tier, kind, deadline, hold_until)
        self._waiting[request.number] = request
        if not self._attempt(request, in_line=False) and tier is not None:
            self._enqueue(tier, request)
        if self._outcomes and self._outcomes[-1][0] == request.number:
            return self._outcomes.pop()[1]
        self._deadlines.add(deadline, request)
        return request.number

    def cancel(self, number: int) -> None:
        """The request is not waited for any more: it is refused, and holds nothing."""
        request = self._waiting.get(number)
        if request is not None:
            self._refuse(request, Obstacle.GIVEN_UP)
            self._settle()

    def finish_write(self, holder: Holder, reference: SlotRef) -> None:
        """The page is complete: others may read it. The holder goes on holding it.

        Raises:
            StaleReservation: unless the holder is the writer of that slot now.
        """
        slot = self._written_by(holder, reference)
        slot.state, slot.writer = SlotState.COMPLETE, None
        self._wake(slot.page)
        self._settle()

    def abort_write(self, holder: Holder, reference: SlotRef) -> None:
        """The page will not be written; whoever waits for it writes it. The holder must not touch the slot any more.

        Raises:
            StaleReservation: unless the holder is the writer of that slot now.
        """
        self._let_go(self._written_by(holder, reference), holder)
        self._settle()

    def release(self, holder: Holder, pages: Collection[PageId] | None = None) -> None:
        """The holder holds these pages (all, if `None`) no more, and does not wait for any of them. Idempotent.

        What it was writing there is aborted, and its requests that wait for one of them are refused.
        """
        for request in [request for request in self._waiting.values() if request.holder == holder]:
            if pages is None or not request.wants.keys().isdisjoint(pages):
                self._refuse(request, Obstacle.GIVEN_UP)
        for slot in self.table.held_by(holder):
            if pages is None or slot.page in pages:
                self._let_go(slot, holder)
        self._settle()

    def drop_client(self, client: bytes) -> None:
        """The client is gone: everything it held is let go, nothing else."""
        for request in [request for request in self._waiting.values() if request.holder.client == client]:
            self._refuse(request, Obstacle.GIVEN_UP)
        for holder in self.table.holders_of(client):
            for slot in self.table.held_by(holder):
                self._let_go(slot, holder)
        self._settle()

    def take_outcomes(self) -> list[tuple[int, Outcome]]:
        """Outcomes of requests that had to wait, each once."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    # Pages

    def restore(self, tier: Tier, pages: Mapping[int, PageId]) -> None:
        """Complete pages by slot number, found in a tier that outlives the process."""
        self.table.restore(tier, pages)

    def evict(self, page: PageId, tier: Tier) -> Fate:
        """Take the page out of the tier if that is safe: nobody holds it, and policy lets it go."""
        slot = self.table.copies(page).get(tier)
        if slot is None:
            return Fate.GONE
        if slot.held or slot.state is not SlotState.COMPLETE:
            return Fate.STAYS
        fate = self._pressure.send_away(slot)
        self._settle()
        return fate

    def preload(self, pages: Sequence[PageId], tier: Tier) -> None:
        """Begin to bring pages into the tier that are in another one, as far as there is room. Nobody waits for it."""
        for page in pages:
            source = self.table.complete(page)
            if source is None or tier in self.table.copies(page):
                continue
            if self._pressure.make_room(tier, 1, set(pages)) is not Room.NOW:
                return
            self._in_flight.begin(source, self.table.take(tier, page, SlotState.FILLING))

    def forget(self, pages: Collection[PageId]) -> None:
        """The pages do not exist any more, whatever the policy. Who holds one keeps its bytes until it lets go."""
        for page in pages:
            for slot in list(self.table.copies(page).values()):
                self.table.detach(slot)
            self._wake(page)
        self._settle()

    # Migrations

    def take_migrations(self) -> list[Migration]:
        """Migrations that have begun since the last call; each must be finished or aborted."""
        return self._in_flight.take_started()

    def finish_migration(self, number: int) -> None:
        """All bytes are in the destination."""
        migration, source, destination, followers, evicts = self._in_flight.end(number)
        self.counters.migrations += 1
        if destination.state is SlotState.FILLING:
            destination.state = SlotState.COMPLETE if destination.writer is None else SlotState.WRITING
            destination.migration = None
        for request in followers:
            self._advance(request)
        self._in_flight.let_go(migration, source, destination)
        if evicts and not source.held and {source.state, destination.state} == {SlotState.COMPLETE}:
            self.table.detach(source)
        self._settle()

    def abort_migration(self, number: int, failure: MigrationFailure) -> None:
        """The destination is not the page, and nothing moves any more. Who waited gets a miss, never these bytes."""
        migration, source, destination, followers, _ = self._in_flight.end(number)
        self.counters.failed_migrations += 1
        if destination.state is not SlotState.DETACHED:
            self.table.detach(destination)
        for request in followers:
            self._advance(request)
        if failure is MigrationFailure.SOURCE_CORRUPT:
            self.counters.corrupt_pages += 1
            if source.state is not SlotState.DETACHED:
                self.table.detach(source)
        elif migration.kind is HolderKind.OFFLOAD:
            until = self._clock() + _SUSPENSION
            self._pressure.suspend(destination.tier, until)
            self._deadlines.add(until, None)
        self._in_flight.let_go(migration, source, destination)
        self._wake(migration.becomes)
        self._settle()

    # Time

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do at the latest."""
        return self._deadlines.next

    def expire(self) -> None:
        """Refuse requests and end holds whose time is over, and look again whether others can go on."""
        now = self._clock()
        for event in self._deadlines.due(now):
            if event is None:
                self._retries = False
            elif isinstance(event, _HoldEnds):
                self._end_hold(event, now)
            elif event.number in self._waiting:
                self._refuse(event, event.obstacle)
        self._settle()
        if any(self._queues.values()):
            self._retry_later()

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many migrations have begun and not ended."""
        return len(self._in_flight)

    # Granting

    def _attempt(self, request: Request, in_line: bool) -> bool:
        """Whether the request does not wait for space: it is granted, refused, or waits for something else."""
        found = plan(self.table, request)
        request.asked = found.new_slots
        if found.blocked_on is not None:
            request.obstacle = Obstacle.WRITER
            self._behind_writer.setdefault(found.blocked_on, []).append(request)
            return True
        tier = request.tier
        if found.new_slots and tier is not None:
            request.obstacle = Obstacle.NO_SPACE
            if found.all_slots > self.table.capacity(tier):
                request.asked = found.all_slots
                self._refuse(request, Obstacle.TOO_LARGE)
                return True
            if not in_line and self._queues[tier]:
                return False
            bases = {want.base for want in request.wants.values() if want.base is not None}
            if self._pressure.make_room(tier, found.new_slots, request.wants.keys() | bases) is not Room.NOW:
                return False
        self._commit(request, found)
        return True

    def _commit(self, request: Request, found: Plan) -> None:
        self.counters.hits += len(found.present)
        self.counters.misses += len(found.misses)
        self.counters.joined += len(found.joined)
        request.grants.update((want.page, None) for want in found.misses)
        for want, slot in (*found.present, *found.joined):
            self._hold(request, want, slot)
        if request.tier is not None:
            for want in found.reserves:
                slot = self.table.take(request.tier, want.page, SlotState.WRITING)
                slot.writer = request.holder
                self._hold(request, want, slot)
            for want, source in found.moves:
                slot = self.table.take(request.tier, want.page, SlotState.FILLING)
                slot.writer = request.holder if source.page != want.page else None
                self._in_flight.begin(source, slot)
                self._hold(request, want, slot)
        request.obstacle = Obstacle.MIGRATION
        if not request.migrations:
            self._grant(request)

    def _hold(self, request: Request, want: Want, slot: Slot) -> None:
        if self.table.hold(slot, request.kind, request.holder, request.hold_until):
            request.fresh.add(want.page)
            if request.hold_until is not None:
                self._deadlines.add(request.hold_until, _HoldEnds(slot, request.kind, request.holder))
        request.grants[want.page] = Grant(want.page, slot.ref, slot.writer is not None)
        if slot.migration is not None:
            self._in_flight.follow(slot.migration, request)

    def _advance(self, request: Request) -> None:
        """Grant the request if no migration keeps it waiting. A hold that has ended meanwhile is a miss."""
        if request.migrations:
            return
        for page, grant in request.grants.items():
            slot = self.table.resolve(grant.slot) if grant is not None else None
            if slot is None or slot.state is SlotState.DETACHED or request.holder not in slot.holders[request.kind]:
                request.grants[page] = None
                if slot is not None and page in request.fresh:
                    self.table.let_go(slot, request.holder)
        self._grant(request)

    def _grant(self, request: Request) -> None:
        del self._waiting[request.number]
        self._outcomes.append((request.number, Granted(request.grants)))

    def _refuse(self, request: Request, obstacle: Obstacle) -> None:
        tier = request.tier or self.table.tiers[0]
        self._withdraw(request)
        self.counters.refused_requests += obstacle is not Obstacle.GIVEN_UP
        refused = Refused(obstacle, tier, request.asked, self.table.held(tier), self.table.free(tier))
        self._outcomes.append((request.number, refused))

    def _withdraw(self, request: Request) -> None:
        """The request ends without a grant: what it alone made its holder hold is let go."""
        del self._waiting[request.number]
        self._in_flight.unfollow(request)
        others = [other for other in self._waiting.values() if other.holder == request.holder]
        for page in request.fresh:
            grant = request.grants.get(page)
            slot = self.table.resolve(grant.slot) if grant is not None else None
            if slot is not None and not any(page in other.grants for other in others):
                self._let_go(slot, request.holder)

    def _settle(self) -> None:
        """Something has changed: requests that wait for space are looked at again, first come first served."""
        for queue in self._queues.values():
            while queue:
                if queue[0].number in self._waiting and not self._attempt(queue[0], in_line=True):
                    break
                queue.popleft()

    def _enqueue(self, tier: Tier, request: Request) -> None:
        self._queues[tier].append(request)
        self._retry_later()

    def _retry_later(self) -> None:
        """The cluster may let a page go later that it wants to keep now; nobody tells."""
        if not self._retries:
            self._retries = True
            self._deadlines.add(self._clock() + _RETRY, None)

    def _wake(self, page: PageId) -> None:
        """The page is not being written any more: who waited for that is looked at again."""
        for request in self._behind_writer.pop(page, []):
            if request.number in self._waiting and not self._attempt(request, in_line=False):
                assert request.tier is not None
                self._enqueue(request.tier, request)

    # Letting go

    def _written_by(self, holder: Holder, reference: SlotRef) -> Slot:
        slot = self.table.resolve(reference)
        if slot is None or slot.state is not SlotState.WRITING or slot.writer != holder:
            raise StaleReservation(
                f"slot {reference.position} of {reference.tier.name} is not being written by this holder (any more): "
                "it was released, its time was over, or the page was forgotten; ask for the page again"
            )
        return slot

    def _let_go(self, slot: Slot, holder: Holder) -> None:
        page, writes = slot.page, slot.writer == holder
        if writes:
            self.table.detach(slot)
        self.table.let_go(slot, holder)
        if writes:
            self._wake(page)

    def _end_hold(self, event: _HoldEnds, now: float) -> None:
        slot, kind, holder = event.slot, event.kind, event.holder
        until = slot.holders[kind].get(holder)
        if until is None:
            return
        if until > now:
            self._deadlines.add(until, event)
            return
        self.counters.expired_holds += 1
        if slot.writer != holder:
            self.table.let_go(slot, holder, kind)
            return
        page = slot.page
        self.table.detach(slot)
        self._wake(page)

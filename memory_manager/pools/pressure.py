"""Makes room in a tier (paper, 4.1.4): sends the coldest pages away, and only those that may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from enum import Enum, auto

from memory_manager.pools.declaration import Tier
from memory_manager.pools.in_flight import MigrationsInFlight
from memory_manager.pools.requests import EvictionGuard, PageId
from memory_manager.pools.slot_table import Slot, SlotState, SlotTable

_GUARD_REFUSALS = 16
"""Pages of one search that the cluster may want to keep before the search ends; the next one asks about others."""


class Room(Enum):
    """What a search for room found."""

    NOW = auto()
    COMING = auto()
    """Enough pages are on their way to a slower tier."""
    NONE = auto()


class Fate(Enum):
    """What became of a page that should go."""

    GONE = auto()
    LEAVING = auto()
    """It is being copied to a slower tier, and goes when that is done."""
    WAITING = auto()
    """It leaves as soon as the slower tier has room, which is being made."""
    STAYS = auto()


class Pressure:
    """Decides which pages leave a tier, and how.

    A page with another complete copy on this node just goes. The last copy moves to a slower tier; where none can take
    it, the guard is asked. Nobody holds a page that goes: held slots are not among the candidates.

    Args:
        in_flight: where copies to slower tiers begin.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        table: SlotTable,
        in_flight: MigrationsInFlight,
        guard: EvictionGuard,
        clock: Callable[[], float],
    ) -> None:
        self.dropped = 0
        self._table = table
        self._guard = guard
        self._in_flight = in_flight
        self._clock = clock
        self._suspended: dict[Tier, float] = {}

    def suspend(self, tier: Tier, until: float) -> None:
        """The tier failed to take a page: send nothing there before that time."""
        self._suspended[tier] = until

    def make_room(self, tier: Tier, needs: int, protected: Collection[PageId]) -> Room:
        """At least `needs` free slots in the tier, now or as soon as what was begun is done. `protected` pages stay."""
        table = self._table
        if table.free(tier) >= needs:
            return Room.NOW
        missing = needs - table.free(tier) - self._in_flight.leaving[tier]
        # Nothing is dropped for a request that could not be granted anyway.
        if missing > table.idle(tier):
            return Room.NONE
        refusals = 0
        waiting: Counter[Tier] = Counter()
        candidates = table.coldest(tier) if missing > 0 else iter(())
        for slot in candidates:
            if slot.page in protected:
                continue
            if self._send_away(slot, waiting, protected) is not Fate.STAYS:
                missing -= 1
            elif (refusals := refusals + 1) >= _GUARD_REFUSALS:
                break
            if missing <= 0:
                break
        if table.free(tier) >= needs:
            return Room.NOW
        return Room.COMING if missing <= 0 else Room.NONE

    def send_away(self, slot: Slot) -> Fate:
        """Evict one slot, which must be complete and held by nobody."""
        return self._send_away(slot, Counter(), ())

    def _send_away(self, slot: Slot, waiting: Counter[Tier], protected: Collection[PageId]) -> Fate:
        table, page = self._table, slot.page
        if any(copy is not slot and copy.state is SlotState.COMPLETE for copy in table.copies(page).values()):
            self._drop(slot)
            return Fate.GONE
        for lower in table.tiers:
            if lower <= slot.tier or self._clock() < self._suspended.get(lower, 0.0):
                continue
            room = self.make_room(lower, 1 + waiting[lower], protected)
            if room is Room.NOW:
                self._in_flight.begin(slot, table.take(lower, page, SlotState.FILLING), evicts=True)
                return Fate.LEAVING
            if room is Room.COMING:
                waiting[lower] += 1
                return Fate.WAITING
        if self._guard.withdraw(page):
            self._drop(slot)
            return Fate.GONE
        return Fate.STAYS

    def _drop(self, slot: Slot) -> None:
        self._table.detach(slot)
        self.dropped += 1

"""Slots, who holds them, and which pages are in them. Keeps the one rule: nothing that is held is ever freed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from memory_manager.pools.declaration import Tier
from memory_manager.pools.eviction import EvictionBuckets
from memory_manager.pools.requests import Holder, HolderKind, PageId, SlotRef
from memory_manager.pools.sketch import FrequencySketch


class SlotState(Enum):
    """See `Slot`."""

    FREE = "free"
    WRITING = "writing"
    FILLING = "filling"
    COMPLETE = "complete"
    DETACHED = "detached"


def _no_holders() -> tuple[dict[Holder, float | None], ...]:
    return tuple({} for _ in HolderKind)


@dataclass(slots=True, eq=False)
class Slot:
    """Room for one page::

                 reserve                 finish
        FREE ---------------> WRITING ------------+
         ^ |                    |  |              v
         | | begin    finish    |  +----------> COMPLETE
         | +-------> FILLING ---+---finish---^    |    |
         |              |       |                 |    | reclaim (no holder)
         |              | abort | abort, deadline | forget   |
         |              v       v                 v          |
         +---------- DETACHED (not a copy now)  <+          |
         | last holder gone                                  |
         +---------------------------------------------------+

    FILLING leads to WRITING where a client extends a copy, else to COMPLETE. A slot leaves DETACHED only with its last
    holder: whoever still writes into it or reads it does no harm to the next page.

    Args:
        holders: one set for each `HolderKind`, with the time at which each hold ends by itself, if it does.
        writer: who may finish it, while WRITING, or FILLING for an extension.
    """

    tier: Tier
    index: int
    generation: int = 0
    state: SlotState = SlotState.FREE
    page: PageId = b""
    writer: Holder | None = None
    migration: int | None = None
    holders: tuple[dict[Holder, float | None], ...] = field(default_factory=_no_holders)

    @property
    def held(self) -> bool:
        """Whether any of the four sets is not empty."""
        inference, load, offload, upload = self.holders
        return bool(inference or load or offload or upload)

    @property
    def ref(self) -> SlotRef:
        """The slot as long as this page lies in it."""
        return SlotRef(self.tier, self.index, self.generation)


class SlotTable:
    """All slots of one parameter on one node."""

    def __init__(self, capacities: Mapping[Tier, int]) -> None:
        self._slots = {tier: [Slot(tier, index) for index in range(capacities[tier])] for tier in sorted(capacities)}
        self._free = {tier: list(range(count))[::-1] for tier, count in capacities.items()}
        self._buckets = {tier: EvictionBuckets() for tier in capacities}
        self._pages: dict[PageId, dict[Tier, Slot]] = {}
        # A dict for a set: what is let go together becomes evictable in the order in which it was taken, on every run.
        self._held: dict[bytes, dict[Holder, dict[Slot, None]]] = {}
        self._sketch = FrequencySketch(sum(capacities.values()))
        self._generation = 0

    @property
    def tiers(self) -> list[Tier]:
        """The fastest first."""
        return list(self._slots)

    def capacity(self, tier: Tier) -> int:
        """How many slots the tier has; 0 if it does not exist."""
        return len(self._slots.get(tier, ()))

    def idle(self, tier: Tier) -> int:
        """How many slots are complete and held by nobody."""
        return len(self._buckets[tier])

    def free(self, tier: Tier) -> int:
        """How many slots have nothing in them."""
        return len(self._free[tier])

    def held(self, tier: Tier) -> int:
        """How many slots somebody holds."""
        return self.capacity(tier) - self.free(tier) - self.idle(tier)

    def slots(self, tier: Tier) -> list[Slot]:
        """All slots of the tier."""
        return self._slots[tier]

    def resolve(self, ref: SlotRef) -> Slot | None:
        """The slot, if the same page is still in it."""
        slots = self._slots.get(ref.tier, [])
        slot = slots[ref.position] if 0 <= ref.position < len(slots) else None
        return slot if slot is not None and slot.generation == ref.generation else None

    def slot(self, ref: SlotRef) -> Slot:
        """The slot at that position, whatever is in it."""
        return self._slots[ref.tier][ref.position]

    def copies(self, page: PageId) -> Mapping[Tier, Slot]:
        """Where the page is, or is about to be; the fastest tier first."""
        return self._pages.get(page, {})

    def complete(self, page: PageId) -> Slot | None:
        """The fastest complete copy."""
        found: Slot | None = None
        for slot in self.copies(page).values():
            if slot.state is SlotState.COMPLETE and (found is None or slot.tier < found.tier):
                found = slot
        return found

    def pages(self) -> list[PageId]:
        """Pages with at least one complete copy."""
        return [page for page in self._pages if self.complete(page) is not None]

    def record_use(self, page: PageId) -> None:
        """Somebody asked for the page."""
        if self._sketch.record(page):
            for buckets in self._buckets.values():
                buckets.cool()

    def coldest(self, tier: Tier) -> Iterator[Slot]:
        """Complete slots that nobody holds, in the order in which they should go; see `EvictionBuckets.coldest`."""
        return (self._slots[tier][index] for index in self._buckets[tier].coldest())

    # The life of a slot

    def take(self, tier: Tier, page: PageId, state: SlotState) -> Slot:
        """A free slot for the page; the caller must hold it at once."""
        return self._occupy(self._slots[tier][self._free[tier].pop()], page, state)

    def restore(self, tier: Tier, pages: Mapping[int, PageId]) -> None:
        """Complete pages that lay in these slots before the start. Slots that are taken stay as they are."""
        found = {index: pages[index] for index in self._free[tier] if index in pages}
        self._free[tier] = [index for index in self._free[tier] if index not in found]
        for index, page in found.items():
            self._rest(self._occupy(self._slots[tier][index], page, SlotState.COMPLETE))

    def detach(self, slot: Slot) -> None:
        """The page is not in this slot any more; the slot is free as soon as nobody holds it.

        A writer may not know, and goes on writing: its hold does not end by itself any more.
        """
        for holders in slot.holders:
            if slot.writer in holders:
                holders[slot.writer] = None
        copies = self._pages.get(slot.page, {})
        if copies.get(slot.tier) is slot:
            del copies[slot.tier]
            if not copies:
                del self._pages[slot.page]
        self._buckets[slot.tier].remove(slot.index)
        slot.state, slot.writer, slot.migration = SlotState.DETACHED, None, None
        if not slot.held:
            self._rest(slot)

    # Holders

    def hold(self, slot: Slot, kind: HolderKind, holder: Holder, until: float | None = None) -> bool:
        """The holder holds the slot, until that time at most; the later time counts if it held it before in this way.

        Whether it did not.
        """
        holders = slot.holders[kind]
        new = holder not in holders
        before = until if new else holders[holder]
        holders[holder] = None if until is None or before is None else max(until, before)
        if new:
            self._held.setdefault(holder.client, {}).setdefault(holder, {})[slot] = None
            self._buckets[slot.tier].remove(slot.index)
        return new

    def let_go(self, slot: Slot, holder: Holder, kind: HolderKind | None = None) -> None:
        """The holder does not hold the slot any more: in that way, or in no way at all."""
        for number, holders in enumerate(slot.holders):
            if kind is None or kind == number:
                holders.pop(holder, None)
        if any(holder in holders for holders in slot.holders):
            return
        slots = self._held.get(holder.client, {}).get(holder, {})
        slots.pop(slot, None)
        if not slots:
            numbers = self._held.get(holder.client, {})
            numbers.pop(holder, None)
            if not numbers:
                self._held.pop(holder.client, None)
        if not slot.held:
            self._rest(slot)

    def held_by(self, holder: Holder) -> list[Slot]:
        """What the holder holds, first what it took first."""
        return list(self._held.get(holder.client, {}).get(holder, ()))

    def holders_of(self, client: bytes) -> list[Holder]:
        """Under which ids the client holds anything."""
        return list(self._held.get(client, ()))

    @property
    def holds(self) -> int:
        """How many slots are held, counted once for each holder."""
        return sum(len(slots) for numbers in self._held.values() for slots in numbers.values())

    def _occupy(self, slot: Slot, page: PageId, state: SlotState) -> Slot:
        self._generation += 1
        slot.generation, slot.page, slot.state = self._generation, page, state
        self._pages.setdefault(page, {})[slot.tier] = slot
        return slot

    def _rest(self, slot: Slot) -> None:
        """Nobody holds the slot any more."""
        if slot.state is SlotState.COMPLETE:
            self._buckets[slot.tier].add(slot.index, self._sketch.estimate(slot.page))
        elif slot.state is SlotState.DETACHED:
            slot.state = SlotState.FREE
            # A reference to what was here is stale from now on.
            slot.generation, slot.page = 0, b""
            self._free[slot.tier].append(slot.index)
        else:
            self.detach(slot)

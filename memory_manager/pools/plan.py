"""How a request could be granted now: what of it is there, on its way, elsewhere, or to be written. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from memory_manager.pools.requests import Access, PageId, Request, Want
from memory_manager.pools.slot_table import Slot, SlotState, SlotTable


@dataclass(slots=True)
class Plan:
    """The wants of a request, sorted by what each needs. Slots are those that have the bytes, or will have them."""

    present: list[tuple[Want, Slot]] = field(default_factory=list)
    joined: list[tuple[Want, Slot]] = field(default_factory=list)
    moves: list[tuple[Want, Slot]] = field(default_factory=list)
    reserves: list[Want] = field(default_factory=list)
    misses: list[Want] = field(default_factory=list)
    blocked_on: PageId | None = None
    """A page that another holder is writing."""

    @property
    def new_slots(self) -> int:
        """Slots of the request's tier that must be free."""
        return len(self.moves) + len(self.reserves)

    @property
    def all_slots(self) -> int:
        """Slots of the request's tier that it holds when it is granted."""
        return self.new_slots + len(self.present) + len(self.joined)


def plan(table: SlotTable, request: Request) -> Plan:
    """The plan for a request as things are."""
    found = Plan()
    for want in request.wants.values():
        _sort(table, request, want, found)
    return found


def _sort(table: SlotTable, request: Request, want: Want, found: Plan) -> None:
    copies = table.copies(want.page)
    here = table.complete(want.page) if request.tier is None else copies.get(request.tier)
    if here is not None and here.state is SlotState.COMPLETE:
        found.present.append((want, here))
        return
    complete = table.complete(want.page)
    making = next((slot for slot in copies.values() if slot.writer is not None), None)
    if request.tier is None or (making is not None and want.access is Access.READ):
        found.misses.append(want)
    elif making is not None:
        if making.writer != request.holder or making is not here:
            found.blocked_on = want.page
        elif making.state is SlotState.WRITING:
            found.present.append((want, making))
        else:
            found.joined.append((want, making))
    elif here is not None:
        found.joined.append((want, here))
    elif complete is not None:
        found.moves.append((want, complete))
    elif want.access is Access.WRITE:
        found.reserves.append(want)
    elif want.base is not None and (base := table.complete(want.base)) is not None:
        found.moves.append((want, base))
    else:
        found.misses.append(want)

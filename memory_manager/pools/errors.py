"""What can go wrong in the Global Params Pool. Each error says what happened and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from memory_manager.errors import MemoryManagerError


class DeclarationRefused(MemoryManagerError):
    """A parameter cannot be declared so. `reasons` lists everything that is wrong, not only the first thing."""

    def __init__(self, parameter: str, reasons: Sequence[str]) -> None:
        self.parameter, self.reasons = parameter, tuple(reasons)
        super().__init__(f"parameter {parameter!r} cannot be declared: {'; '.join(reasons)}")


class UnknownParameter(MemoryManagerError):
    """Nobody has declared that parameter to this manager (or to this run of it); declare it first."""


class StaleReservation(MemoryManagerError):
    """The writer no longer owns the slot: it let go of it, its deadline passed, or its page was forgotten."""


class PageFileUnusable(MemoryManagerError):
    """The file of a parameter's third tier cannot be opened, locked or allocated."""


class PageCorrupt(MemoryManagerError):
    """What lies in a slot of a page file is not the page that was written there."""


class PagesUnavailable(MemoryManagerError):
    """A request for pages was not granted before its deadline; it holds nothing. All numbers are slots of its tier.

    Args:
        asked: slots that the request needs.
        held: slots that somebody holds.
        free: slots with nothing in them.
    """

    def __init__(self, message: str, asked: int, held: int, free: int) -> None:
        self.asked, self.held, self.free = asked, held, free
        super().__init__(message)

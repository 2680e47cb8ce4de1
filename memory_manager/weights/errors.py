"""What can go wrong while role processes load together."""

from __future__ import annotations

from collections.abc import Sequence

from memory_manager.errors import MemoryManagerError


class LoaderBusy(MemoryManagerError):
    """Another process loads on the device, and has not finished in time.

    Args:
        holder: that process, as the manager describes it.
    """

    def __init__(self, device: str, holder: str, held: float, waited: float) -> None:
        self.holder = holder
        super().__init__(
            f"{holder} has been loading on {device} for {held:.0f} s, and one process loads at a time; gave up after "
            f"{waited:.0f} s. If it hangs, end it: its lease ends with it"
        )


class CapacityFailed(MemoryManagerError):
    """The members of a pool did not agree on a capacity.

    Args:
        members: whose fault it was.
    """

    def __init__(self, pool: str, members: Sequence[str], reason: str) -> None:
        self.members = tuple(members)
        super().__init__(f"no capacity for the KV pool {pool!r}: {reason}; start its members again together")

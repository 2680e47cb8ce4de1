"""What can go wrong between a client and the MemoryManager. Each error says what happened and what to do about it."""

from __future__ import annotations


class MemoryManagerError(Exception):
    """Base of everything this package raises on purpose."""


class MemoryManagerUnavailable(MemoryManagerError):
    """No manager answers at the endpoint: it is not running, died, or is stuck. Safe to try again later."""


class StaleHandle(MemoryManagerError):
    """The handle names bytes that are gone: released, reused, or of a manager that has since been restarted."""


class InvalidHandle(MemoryManagerError, ValueError):
    """What was given cannot be a tensor handle."""


class PoolExhausted(MemoryManagerError):
    """An allocation does not fit.

    Args:
        asked: bytes asked for.
        held: bytes that blocks occupy now.
        free: bytes below the limit that no block occupies (they may be scattered).
        limit: the configured limit in bytes.
    """

    def __init__(self, asked: int, held: int, free: int, limit: int, reason: str = "") -> None:
        self.asked, self.held, self.free, self.limit = asked, held, free, limit
        super().__init__(
            f"no room for {asked} bytes in the tmp buffer pools: {held} bytes held, {free} free of a limit of {limit}"
            f"{f' ({reason})' if reason else ''}; release scopes that ended, or start the manager with a higher --limit"
        )


class ScopeReleased(MemoryManagerError):
    """An allocation names a scope that its owner has already released; the call it belongs to has ended."""


class RequestRefused(MemoryManagerError):
    """A message was not accepted: malformed, of another protocol version, too large, or not allowed there."""

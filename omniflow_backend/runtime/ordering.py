"""Order of stateful execution and of streams (paper 3.4; contract section 6, rulings 9 and 10).

A delivery to an ordered interface or a stream waits until every earlier sibling on its path has no work left towards
the same target. It looks
at siblings only, never at descendants, so a loop does not wait for itself.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from omniflow_backend.runtime.paths import Token

if TYPE_CHECKING:
    from omniflow_backend.runtime.activation import Activation


class Ordered(Protocol):
    """What waits in a gate: an activation of an ordered interface or a value of a stream."""

    sequence: int
    target: int
    at: Token


class Siblings:
    """For one producing activation and one target: how far its yields are settled, and who waits behind them."""

    __slots__ = ("_settled", "_tokens", "_waiting")

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._settled = 0
        self._waiting: list[tuple[int, int, Ordered]] = []

    def settled(self, target: int) -> int:
        """The lowest ordinal that still has work towards ``target``. A closed token never opens again, so this only
        grows.
        """
        tokens, settled = self._tokens, self._settled
        while settled < len(tokens) and not tokens[settled].pending.get(target):
            settled += 1
        self._settled = settled
        return settled

    def wait(self, item: Ordered, ordinal: int) -> None:
        """Keep ``item`` until all ordinals below ``ordinal`` are settled."""
        heapq.heappush(self._waiting, (ordinal, item.sequence, item))

    def freed(self, target: int) -> list[Ordered]:
        """The items that no longer wait here, in order."""
        if not self._waiting:
            return []
        settled = self.settled(target)
        free = []
        while self._waiting and self._waiting[0][0] <= settled:
            free.append(heapq.heappop(self._waiting)[2])
        return free


def pass_gate(item: Ordered) -> bool:
    """Move ``item`` up its path past settled siblings; ``True`` when none is left to wait for."""
    token: Token | None = item.at
    while token is not None:
        activation: Activation | None = token.activation
        if activation is not None and activation.siblings is not None:
            siblings = activation.siblings.get(item.target)
            if siblings is not None and siblings.settled(item.target) < token.ordinal:
                item.at = token
                siblings.wait(item, token.ordinal)
                return False
        token = token.lease_parent
    return True

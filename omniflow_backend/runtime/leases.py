"""Leases: whether work that may still reach a join, an ordered interface or a stream is outstanding (paper 3.3).

Every token counts, per target, the activations, deliveries, buckets and open child tokens below it. A token whose count
falls to zero is
closed for that target and tells its own parent, up to the target's anchor. So each start and end of work costs a
constant, and
"nothing more can come" is a counter that reads zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from omniflow_backend.planning.plan import Plan, TargetKind
from omniflow_backend.runtime.paths import Token


class Leases:
    """The counters of one call. ``closed`` collects ``(token, target)`` pairs that reached zero, for the call to act
    on.

    ``watch`` is told of each token that becomes held for a target (true), or closed (false).
    """

    __slots__ = ("_anchors", "_gates", "_watch", "closed")

    def __init__(self, plan: Plan, watch: Callable[[Token, int, bool], None] | None = None) -> None:
        self._watch = watch
        self._anchors = tuple(target.anchor for target in plan.targets)
        self._gates = tuple(target.kind is not TargetKind.JOIN for target in plan.targets)
        self.closed: deque[tuple[Token, int]] = deque()

    def hold(self, token: Token, targets: Iterable[int]) -> None:
        """Register work under ``token`` before it is handed on."""
        for target in targets:
            at: Token | None = token
            while at is not None:
                pending = at.pending
                count = pending.get(target, 0)
                pending[target] = count + 1
                if not count and self._watch is not None:
                    self._watch(at, target, True)
                if count or at.node == self._anchors[target]:
                    break
                at = at.lease_parent

    def release(self, token: Token, targets: Iterable[int]) -> None:
        """The work has ended, and all that it started is registered."""
        for target in targets:
            at: Token | None = token
            while at is not None:
                count = at.pending[target] - 1
                at.pending[target] = count
                if count:
                    break
                if self._watch is not None:
                    self._watch(at, target, False)
                is_anchor = at.node == self._anchors[target]
                if is_anchor or self._gates[target]:
                    self.closed.append((at, target))
                if is_anchor:
                    break
                at = at.lease_parent

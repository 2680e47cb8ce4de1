"""What a workflow's calls have done so far, in numbers that only grow: for metrics."""

from __future__ import annotations

from dataclasses import dataclass

from omniflow_backend.errors import ErrorCode
from omniflow_backend.planning.plan import Plan


@dataclass(slots=True)
class NodeCounts:
    """One node. ``queue_s`` is from handing an activation to its role until its function began, ``run_s`` from there
    to its end, both in seconds and of activations that ended well.
    """

    activations: int = 0
    failures: int = 0
    skips: int = 0
    impossible: int = 0
    queue_s: float = 0.0
    run_s: float = 0.0


@dataclass(slots=True)
class WorkflowCounts:
    """One workflow; ``nodes`` by index. A call is started when it is submitted, also one that is refused."""

    nodes: list[NodeCounts]
    started: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0

    @classmethod
    def of(cls, plan: Plan) -> WorkflowCounts:
        """All zero."""
        return cls([NodeCounts() for _ in plan.nodes])

    @property
    def open(self) -> int:
        """Calls without a terminal event yet."""
        return self.started - self.finished - self.failed - self.cancelled

    def count_failure(self, code: ErrorCode) -> None:
        """A call has ended with an ERROR."""
        if code is ErrorCode.CANCELLED:
            self.cancelled += 1
        else:
            self.failed += 1

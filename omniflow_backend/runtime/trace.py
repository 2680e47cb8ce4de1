"""What happened in one call, in order, with times (contract section 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from omniflow_backend.errors import Failure


class TraceKind(StrEnum):
    """Kinds of trace events."""

    ACTIVATED = "activated"
    YIELDED = "yielded"
    SKIPPED = "skipped"
    IMPOSSIBLE = "impossible"
    ENDED = "ended"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event; ``time`` in seconds of the clock the trace was given."""

    time: float
    kind: TraceKind
    activation: int | None = None
    node: str = ""
    path: str = ""
    fields: tuple[str, ...] = ()
    detail: str = ""


class Trace:
    """Collects a call's events. The clock is the driver's: the runtime itself knows none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.events: list[TraceEvent] = []

    def as_json(self) -> list[dict[str, Any]]:
        """The events as plain data, in order."""
        return [asdict(event) for event in self.events]

    def activated(self, activation: int, node: str, path: str) -> None:
        self._add(TraceKind.ACTIVATED, activation=activation, node=node, path=path)

    def yielded(self, activation: int, path: str, fields: Mapping[str, Any]) -> None:
        self._add(TraceKind.YIELDED, activation=activation, path=path, fields=tuple(fields))

    def skipped(self, node: str, path: str, missing: Sequence[str]) -> None:
        """A yield that does not provide what a route needs: the most common author error, so it names the fields."""
        self._add(TraceKind.SKIPPED, node=node, path=path, fields=tuple(missing))

    def impossible(self, node: str, path: str, missing: Sequence[str]) -> None:
        """A bucket to which nothing more can come and which lacks required fields."""
        self._add(TraceKind.IMPOSSIBLE, node=node, path=path, fields=tuple(missing))

    def ended(self, activation: int) -> None:
        self._add(TraceKind.ENDED, activation=activation)

    def finished(self, outputs: Sequence[str]) -> None:
        self._add(TraceKind.FINISHED, fields=tuple(outputs))

    def failed(self, failure: Failure) -> None:
        self._add(TraceKind.FAILED, node=failure.node, path=failure.path, detail=str(failure))

    def _add(self, kind: TraceKind, **parts: Any) -> None:
        self.events.append(TraceEvent(self._clock(), kind, **parts))

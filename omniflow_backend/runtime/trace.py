"""What happened in one call, in order, with times (contract section 9)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from omniflow_backend.errors import Failure, OmniFlowError

_MOST_EVENTS = 100_000


class TraceKind(StrEnum):
    """Kinds of trace events, in the order in which one piece of work meets them."""

    ADMITTED = "admitted"
    QUEUED = "queued"
    STARTED = "started"
    BEGUN = "begun"
    YIELDED = "yielded"
    DELIVERED = "delivered"
    SKIPPED = "skipped"
    OPENED = "bucket opened"
    FIRED = "bucket fired"
    IMPOSSIBLE = "bucket impossible"
    EMITTED = "emitted"
    HELD = "lease held"
    CLOSED = "lease closed"
    ENDED = "ended"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event; ``time`` in seconds of the clock the trace was given.

    ``path`` is the yield concerned; of a bucket, its anchor's; of an activation, what it descends from.
    """

    time: float
    kind: TraceKind
    activation: int | None = None
    node: str = ""
    path: str = ""
    fields: tuple[str, ...] = ()
    detail: str = ""


class Trace:
    """Collects a call's events. The clock is the driver's: the runtime itself knows none.

    After ``limit`` events only the call's end is still taken, and ``left_out`` counts the others.
    """

    def __init__(self, clock: Callable[[], float], limit: int = _MOST_EVENTS) -> None:
        self._clock = clock
        self._limit = limit
        self.began = clock()
        self.wall_began = time.time()
        self.left_out = 0
        self.events: list[TraceEvent] = []

    def admitted(self) -> None:
        """The call's session lets it begin."""
        self._add(TraceKind.ADMITTED)

    def queued(self, activation: int, node: str, path: str) -> None:
        """The activation exists; an ordered interface may still hold it back."""
        self._add(TraceKind.QUEUED, activation=activation, node=node, path=path)

    def started(self, activation: int, node: str, path: str) -> None:
        """The activation has been handed to its role."""
        self._add(TraceKind.STARTED, activation=activation, node=node, path=path)

    def begun(self, activation: int, at: float) -> None:
        """The interface function began at ``at``; told when it has ended."""
        self._add(TraceKind.BEGUN, at, activation=activation)

    def yielded(self, activation: int, path: str, fields: Mapping[str, Any]) -> None:
        """One yield has its token, the last of ``path``."""
        self._add(TraceKind.YIELDED, activation=activation, path=path, fields=tuple(fields))

    def delivered(self, node: str, path: str, fields: Iterable[str], activation: int | None = None) -> None:
        """The yield at ``path`` gave ``fields`` to ``node``: to a new activation, or to a bucket."""
        self._add(TraceKind.DELIVERED, activation=activation, node=node, path=path, fields=tuple(fields))

    def skipped(self, node: str, path: str, missing: Sequence[str]) -> None:
        """A yield that does not provide what a route needs: the most common author error, so it names the fields."""
        self._add(TraceKind.SKIPPED, node=node, path=path, fields=tuple(missing))

    def opened(self, node: str, path: str) -> None:
        """The first contribution to a bucket of ``node``."""
        self._add(TraceKind.OPENED, node=node, path=path)

    def fired(self, node: str, path: str, activation: int) -> None:
        """The bucket was complete and became ``activation``."""
        self._add(TraceKind.FIRED, activation=activation, node=node, path=path)

    def impossible(self, node: str, path: str, missing: Sequence[str]) -> None:
        """A bucket to which nothing more can come and which lacks required fields."""
        self._add(TraceKind.IMPOSSIBLE, node=node, path=path, fields=tuple(missing))

    def emitted(self, output: str, path: str) -> None:
        """One value of a streamed output went to the caller."""
        self._add(TraceKind.EMITTED, path=path, fields=(output,))

    def ended(self, activation: int) -> None:
        """The activation has ended and all its yields have been taken."""
        self._add(TraceKind.ENDED, activation=activation)

    def held(self, waiting: str, kind: str, path: str) -> None:
        """From now on something is outstanding below ``path`` that may still reach ``waiting``.

        ``kind`` is what waits: a ``join``, the ``order`` of an interface, or a ``stream``.
        """
        self._add(TraceKind.HELD, node=waiting, path=path, detail=kind)

    def closed(self, waiting: str, kind: str, path: str) -> None:
        """Nothing more can come from below ``path`` for ``waiting``."""
        self._add(TraceKind.CLOSED, node=waiting, path=path, detail=kind)

    def finished(self, outputs: Sequence[str]) -> None:
        """SYSTEM_FINISH."""
        self._add(TraceKind.FINISHED, last=True, fields=tuple(outputs))

    def failed(self, failure: Failure) -> None:
        """ERROR."""
        self._add(TraceKind.FAILED, last=True, node=failure.node, path=failure.path, detail=str(failure))

    def _add(self, kind: TraceKind, at: float | None = None, *, last: bool = False, **parts: Any) -> None:
        if len(self.events) < self._limit or last:
            self.events.append(TraceEvent(self._clock() if at is None else at, kind, **parts))
        else:
            self.left_out += 1


@dataclass(frozen=True, slots=True)
class RecordedTrace:
    """A trace as it leaves the call: times in seconds since the call was submitted, events in the order of time.

    ``began`` is the wall-clock time of submission, in seconds since 1970.
    """

    workflow: str
    request: str
    session: str
    began: float
    left_out: int
    events: tuple[TraceEvent, ...]

    @classmethod
    def of(cls, trace: Trace, workflow: str, request: str, session: str | None) -> RecordedTrace:
        """What ``trace`` has so far."""
        events = sorted(trace.events, key=lambda event: event.time)
        relative = tuple(
            TraceEvent(e.time - trace.began, e.kind, e.activation, e.node, e.path, e.fields, e.detail) for e in events
        )
        return cls(workflow, request, session or "", trace.wall_began, trace.left_out, relative)

    def to_json(self) -> str:
        """One object; ``events`` leave out what does not apply to them. Times are rounded to microseconds."""
        plain = asdict(self)
        plain["events"] = [
            {name: value for name, value in asdict(event).items() if value not in (None, "", ())}
            | {"time": round(event.time, 6)}
            for event in self.events
        ]
        return json.dumps(plain, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> RecordedTrace:
        """Read what ``to_json`` wrote. Raises ``OmniFlowError`` when it is something else."""
        try:
            plain = json.loads(text)
            events = tuple(
                TraceEvent(**{**event, "kind": TraceKind(event["kind"]), "fields": tuple(event.get("fields", ()))})
                for event in plain["events"]
            )
            return cls(**{**plain, "events": events})
        except (ValueError, TypeError, KeyError) as error:
            raise OmniFlowError(f"this is not a trace of a call: {error!r}") from None

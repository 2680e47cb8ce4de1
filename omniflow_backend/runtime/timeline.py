"""A trace as spans in time: what ran when, in which lane of a picture, and which buckets waited for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

from omniflow_backend.runtime.trace import RecordedTrace, TraceEvent, TraceKind


class End(Enum):
    """How something ended."""

    WELL = "ended"
    FAILED = "failed"
    STOPPED = "stopped"
    IMPOSSIBLE = "impossible"


@dataclass(slots=True)
class ActivationSpan:
    """One activation. Times in seconds since the call was submitted; ``None`` for what was not reached or not told.

    ``queued`` until ``started`` it was held back by order, until ``begun`` it waited in its role.
    """

    number: int
    node: str
    path: str
    queued: float
    started: float | None = None
    begun: float | None = None
    ended: float = 0.0
    end: End = End.STOPPED
    yields: list[tuple[float, str]] = field(default_factory=list)

    @property
    def first(self) -> float:
        """When it came to be."""
        return self.queued


@dataclass(slots=True)
class BucketSpan:
    """One bucket of a join: ``path`` is its anchor's, ``contributions`` are times and paths of what came."""

    node: str
    path: str
    opened: float
    closed: float = 0.0
    end: End = End.STOPPED
    missing: tuple[str, ...] = ()
    contributions: list[tuple[float, str]] = field(default_factory=list)

    @property
    def first(self) -> float:
        """When it was opened."""
        return self.opened

    @property
    def ended(self) -> float:
        """When it fired, was found impossible, or was dropped with the call."""
        return self.closed


@dataclass(slots=True)
class NodeRow:
    """All of one node, in the order of time."""

    name: str
    activations: list[ActivationSpan] = field(default_factory=list)
    buckets: list[BucketSpan] = field(default_factory=list)
    skips: list[TraceEvent] = field(default_factory=list)


@dataclass(slots=True)
class Timeline:
    """One call. ``outputs`` are emissions by output; ``failure`` is the message of the ERROR, if there was one."""

    rows: list[NodeRow]
    outputs: dict[str, list[TraceEvent]]
    admitted: float | None
    end: float
    failure: str | None
    finished: bool

    @classmethod
    def of(cls, trace: RecordedTrace) -> Timeline:
        """Read the events of a trace."""
        return _Reader(trace).timeline


class _Reader:
    def __init__(self, trace: RecordedTrace) -> None:
        self._rows: dict[str, NodeRow] = {}
        self._activations: dict[int, ActivationSpan] = {}
        self._buckets: dict[tuple[str, str], BucketSpan] = {}
        self._unplaced: list[TraceEvent] = []
        end = max((event.time for event in trace.events), default=0.0)
        self.timeline = Timeline([], {}, None, end, None, False)
        for event in trace.events:
            self._read(event)
        failed = {(e.node, e.path) for e in trace.events if e.kind is TraceKind.FAILED}
        for activation in self._activations.values():
            if activation.end is End.STOPPED:
                activation.ended = end
                if (activation.node, activation.path) in failed:
                    activation.end = End.FAILED
        for bucket in self._buckets.values():
            if bucket.end is End.STOPPED:
                bucket.closed = end
        self.timeline.rows = list(self._rows.values())

    def _row(self, node: str) -> NodeRow:
        return self._rows.setdefault(node, NodeRow(node))

    def _read(self, event: TraceEvent) -> None:
        kind = event.kind
        if kind is TraceKind.QUEUED and event.activation is not None:
            span = ActivationSpan(event.activation, event.node, event.path, event.time)
            self._activations[event.activation] = span
            self._row(event.node).activations.append(span)
        elif event.activation in self._activations and event.activation is not None:
            self._read_activation(self._activations[event.activation], event)
        elif kind is TraceKind.OPENED:
            self._bucket(event)
            # The contribution that opened it was told just before.
            unplaced, self._unplaced = self._unplaced, []
            for delivery in unplaced:
                self._contribute(delivery)
        elif kind is TraceKind.DELIVERED:
            self._contribute(event)
        elif kind is TraceKind.IMPOSSIBLE:
            bucket = self._bucket(event)
            bucket.closed, bucket.end, bucket.missing = event.time, End.IMPOSSIBLE, event.fields
        elif kind is TraceKind.SKIPPED:
            self._row(event.node).skips.append(event)
        elif kind is TraceKind.EMITTED:
            self.timeline.outputs.setdefault(event.fields[0], []).append(event)
        elif kind is TraceKind.ADMITTED:
            self.timeline.admitted = event.time
        elif kind is TraceKind.FINISHED:
            self.timeline.finished = True
        elif kind is TraceKind.FAILED:
            self.timeline.failure = event.detail

    def _read_activation(self, span: ActivationSpan, event: TraceEvent) -> None:
        match event.kind:
            case TraceKind.STARTED:
                span.started = event.time
            case TraceKind.BEGUN:
                span.begun = event.time
            case TraceKind.YIELDED:
                span.yields.append((event.time, event.path))
            case TraceKind.ENDED:
                span.ended, span.end = event.time, End.WELL
            case TraceKind.FIRED:
                bucket = self._bucket(event)
                bucket.closed, bucket.end = event.time, End.WELL

    def _bucket(self, event: TraceEvent) -> BucketSpan:
        key = (event.node, event.path)
        if key not in self._buckets:
            self._buckets[key] = BucketSpan(event.node, event.path, event.time)
            self._row(event.node).buckets.append(self._buckets[key])
        return self._buckets[key]

    def _contribute(self, event: TraceEvent) -> None:
        """A delivery without an activation went into the bucket whose anchor is on its path."""
        path = event.path
        while True:
            bucket = self._buckets.get((event.node, path))
            if bucket is not None or not path:
                break
            path = path.rpartition(":")[0]
        if bucket is None:
            self._unplaced.append(event)
        elif bucket.end is End.STOPPED:
            bucket.contributions.append((event.time, event.path))


class Span(Protocol):
    """Something that takes room in time."""

    @property
    def first(self) -> float: ...

    @property
    def ended(self) -> float: ...


AnySpan = TypeVar("AnySpan", bound=Span)


def lanes(spans: Iterable[AnySpan], gap: float, most: int) -> Sequence[list[AnySpan]]:
    """Spread spans over as few lanes as keep them ``gap`` seconds apart; the last of ``most`` takes all others."""
    made: list[list[AnySpan]] = []
    for span in sorted(spans, key=lambda span: span.first):
        free = next((lane for lane in made if lane[-1].ended + gap <= span.first), None)
        if free is None and len(made) < most:
            free = []
            made.append(free)
        (free if free is not None else made[-1]).append(span)
    return made

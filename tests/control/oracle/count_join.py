"""Count joins as appendix A.2 tells them, over the list of what was admitted so far; nothing is kept between looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.control.graphs import AlternativeSpec, Source
from tests.control.oracle.order import Path, common


@dataclass(frozen=True, slots=True)
class Admitted:
    """One yield that a count join took notice of. ``nodes`` is the node of every token of ``path``."""

    node: int
    path: Path
    nodes: tuple[int, ...]
    fields: Mapping[str, Any]

    def values(self, sources: Sequence[Source]) -> list[Any]:
        """What the yield contributes to a field that has these sources."""
        return [self.fields[s.field] for s in sources if s.node == self.node and s.field in self.fields]


@dataclass(frozen=True, slots=True)
class Fired:
    """The one activation of a count join."""

    inputs: Mapping[str, list[Any]]
    origin: Path


@dataclass(frozen=True, slots=True)
class Refused:
    """The join cannot be decided: the call fails."""

    reason: str


@dataclass(slots=True)
class Counts:
    """What is known about how many events each trigger field needs."""

    known: dict[str, int] = field(default_factory=dict)
    told: dict[str, int] = field(default_factory=dict)

    def tell(self, name: str, count: int) -> Refused | None:
        """Take note of a count that a role told."""
        if self.told.setdefault(name, count) != count:
            return Refused(f"{name} told as {self.told[name]} and {count}")
        self.known[name] = count
        return None


def decide(
    alternative: AlternativeSpec, counts: Mapping[str, int], admitted: Sequence[Admitted]
) -> Fired | Refused | None:
    """What the join does with these events: ``None`` while it has to wait."""
    selected: dict[str, list[Admitted]] = {}
    for name in alternative.counts:
        if name not in counts:
            return None
        events = [event for event in admitted if event.values(alternative.fields[name])]
        selected[name] = events[: counts[name]]
        if len(selected[name]) < counts[name]:
            return None
    anchors = ordered([event for event in admitted if any(event in events for events in selected.values())])
    if not anchors:
        return None
    inputs: dict[str, list[Any]] = {
        name: _values(alternative, name, ordered(events)) for name, events in selected.items()
    }
    used = list(anchors)
    refused: Refused | None = None
    for name in alternative.fields.keys() - alternative.counts.keys():
        companions = []
        for anchor in anchors:
            nearest = _nearest(anchor, [event for event in admitted if event.values(alternative.fields[name])])
            if not nearest:
                return None
            if len(nearest) > 1:
                refused = Refused(f"{name} has {len(nearest)} candidates equally near")
            companions.append(nearest[0])
        inputs[name] = _values(alternative, name, companions)
        used += companions
    return refused or Fired(inputs, common([event.path for event in used]))


def is_owed(alternative: AlternativeSpec, counts: Counts, admitted: Sequence[Admitted]) -> bool:
    """Whether a join that has not fired when the call ends makes it fail (ruling 8)."""
    came = any(event.values(alternative.fields[name]) for event in admitted for name in alternative.counts)
    all_zero = all(counts.known.get(name) == 0 for name in alternative.counts)
    return (came or any(counts.told.values())) and not all_zero


def ordered(events: Sequence[Admitted]) -> list[Admitted]:
    """Stable topological order: of those that nothing left must precede, the first admitted."""
    left = list(events)
    result = []
    while left:
        chosen = next(event for event in left if not any(_before(other, event) for other in left))
        left.remove(chosen)
        result.append(chosen)
    return result


def _before(a: Admitted, b: Admitted) -> bool:
    return a.nodes == b.nodes and [ordinal for _, ordinal in a.path] < [ordinal for _, ordinal in b.path]


def _nearest(anchor: Admitted, candidates: Sequence[Admitted]) -> list[Admitted]:
    related = [
        c for c in candidates if c.path == common([c.path, anchor.path]) or anchor.path == common([c.path, anchor.path])
    ]
    distances = [abs(len(c.path) - len(anchor.path)) for c in related]
    return [c for c, distance in zip(related, distances, strict=True) if distance == min(distances)]


def _values(alternative: AlternativeSpec, name: str, events: Sequence[Admitted]) -> list[Any]:
    return [value for event in events for value in event.values(alternative.fields[name])]

"""Count joins (ABC): one request-wide bucket per node, fired once when declared counts are met (paper 3.5, A.2)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from omniflow_backend.dsl.types import OptionalType, is_many
from omniflow_backend.planning.plan import AlternativeKind, Plan, PlannedNode
from omniflow_backend.runtime.paths import Token, common_prefix, show_path
from omniflow_backend.runtime.prefix_join import one_or_many


class CountJoinError(Exception):
    """A count join that cannot be decided: contradictory counts or ambiguous companions."""


@dataclass(slots=True, eq=False)
class _Event:
    """One yield that contributed to one field; ``facets`` are the alternatives it came through."""

    token: Token
    admission: int
    value: Any
    facets: set[int] = field(default_factory=set)


class CountBucket:
    """What one call has contributed to one count join.

    Admission order decides which events are selected; selection is frozen once a field has its count, and only then
    sorted.
    """

    def __init__(self, node: PlannedNode, placeholders: Mapping[str, Any]) -> None:
        self._node = node
        self._facets = [a for a in node.alternatives if a.kind is AlternativeKind.COUNT_JOIN]
        self._triggers = tuple(dict.fromkeys(f for facet in self._facets for f in facet.triggers))
        self._events: dict[str, dict[int, _Event]] = {f: {} for facet in self._facets for f in facet.fields}
        self._counts: dict[str, int] = {}
        self._admitted = 0
        self.told = False
        self.fired = False
        self.held = False
        for facet in self._facets:
            for count in facet.counts:
                if count.constant is not None:
                    self._set(count.field, count.constant)
                elif count.placeholder is not None:
                    self._set(count.field, placeholders[count.placeholder])

    def learn(self, trigger: str, count: int) -> None:
        """A count told by an output. Raises ``CountJoinError`` when it is negative or contradicts an earlier one."""
        self._set(trigger, count)
        self.told = self.told or count > 0

    def add(self, facet: int, name: str, token: Token, value: Any) -> None:
        """One contribution; the same event through another alternative counts once."""
        event = self._events[name].get(token.event)
        if event is None:
            event = self._events[name][token.event] = _Event(token, self._admitted, value)
            self._admitted += 1
        event.facets.add(facet)

    @property
    def reached(self) -> bool:
        """Whether a trigger event came or a positive count was told: then it has to be satisfied (ruling 8)."""
        return self.told or any(self._events[trigger] for trigger in self._triggers)

    @property
    def empty(self) -> bool:
        """All counts are known to be zero: the node does not run."""
        return all(self._counts.get(trigger) == 0 for trigger in self._triggers)

    def shortfall(self) -> str:
        """What is missing, in words; empty when the bucket can fire."""
        for trigger in self._triggers:
            seen = len(self._events[trigger])
            if trigger not in self._counts:
                return f"the count of {trigger!r} was never told ({seen} came)"
            if seen < self._counts[trigger]:
                return f"{trigger!r} wanted {self._counts[trigger]} and saw {seen}"
        for facet in self._facets:
            for name in self._companions(facet.index):
                if isinstance(self._node.spec.inputs[name], OptionalType):
                    continue
                index = _Neighbours(self._events[name].values(), facet.index)
                for anchor in self._anchors(facet.index):
                    if not index.nearest(anchor.token):
                        return f"{name!r} has no value on the path of a selected {', '.join(facet.triggers)} event"
        return ""

    def fire(self, name_of: Any) -> tuple[dict[str, Any], Token]:
        """The inputs, by field, and the path all selected events share. Raises ``CountJoinError`` for ambiguous
        companions.
        """
        self.fired = True
        spec = self._node.spec
        used: list[Token] = []
        values: dict[str, list[Any]] = {name: [] for name in self._events}
        for trigger in self._triggers:
            for event in _sorted(self._selected(trigger)):
                values[trigger].append(event.value)
                used.append(event.token)
        for facet in self._facets:
            anchors = _sorted(self._anchors(facet.index))
            for name in self._companions(facet.index):
                index = _Neighbours(self._events[name].values(), facet.index)
                for anchor in anchors:
                    nearest = index.nearest(anchor.token)
                    if len(nearest) > 1:
                        both = " and ".join(show_path(event.token, name_of) for event in nearest[:2])
                        raise CountJoinError(
                            f"{name!r} of {self._node.name} is ambiguous: {both} are equally near to "
                            f"{show_path(anchor.token, name_of)}"
                        )
                    values[name] += [event.value for event in nearest]
                    used += [event.token for event in nearest]
        inputs = {
            name: None
            if not found and self._counts.get(name) == 0 and not is_many(spec.inputs[name])
            else one_or_many(name, found, spec)
            for name, found in values.items()
        }
        return inputs, reduce(common_prefix, used)

    def _set(self, trigger: str, count: int) -> None:
        if not isinstance(count, int) or count < 0:
            raise CountJoinError(f"the count of {trigger!r} must be an int of at least 0, got {count!r}")
        known = self._counts.setdefault(trigger, count)
        if known != count:
            raise CountJoinError(f"the count of {trigger!r} was told twice: first {known}, then {count}")

    def _selected(self, trigger: str) -> list[_Event]:
        return list(self._events[trigger].values())[: self._counts[trigger]]

    def _companions(self, facet: int) -> list[str]:
        fields = next(a for a in self._facets if a.index == facet).fields
        return [name for name in fields if name not in self._triggers]

    def _anchors(self, facet: int) -> list[_Event]:
        selected = {
            event.token.event: event
            for trigger in self._triggers
            for event in self._selected(trigger)
            if facet in event.facets
        }
        return list(selected.values())


def judged_first(plan: Plan, waiting: Sequence[int]) -> int:
    """Of count joins that have not fired, one that none of the others can still feed; any, where each feeds another."""

    def fed_by(start: int) -> set[int]:
        found: set[int] = set()
        frontier = [route.node for route in plan.nodes[start].routes]
        while frontier:
            index = frontier.pop()
            if index not in found:
                found.add(index)
                frontier += [route.node for route in plan.nodes[index].routes]
        return found

    fed = {index for other in waiting for index in fed_by(other) if index != other}
    return next((index for index in waiting if index not in fed), waiting[0])


class _Neighbours:
    """Finds the events of one field nearest to a path, along ancestors and descendants."""

    def __init__(self, events: Iterable[_Event], facet: int) -> None:
        self._at: dict[Token, _Event] = {}
        self._below: dict[Token, list[_Event]] = {}
        for event in events:
            if facet in event.facets:
                self._at[event.token] = event
                for token in event.token.chain():
                    self._below.setdefault(token, []).append(event)

    def nearest(self, token: Token) -> list[_Event]:
        """All events at the smallest path distance: one is a match, none a miss, more an ambiguity."""
        by_distance: dict[int, list[_Event]] = {}
        for ancestor in (*token.chain(), _root(token)):
            if ancestor in self._at:
                by_distance.setdefault(token.depth - ancestor.depth, []).append(self._at[ancestor])
                break
        below = self._below.get(token, [])
        if below:
            closest = min(event.token.depth for event in below)
            by_distance.setdefault(closest - token.depth, []).extend(e for e in below if e.token.depth == closest)
        if not by_distance:
            return []
        return list(dict.fromkeys(by_distance[min(by_distance)]))


def _root(token: Token) -> Token:
    while token.parent is not None:
        token = token.parent
    return token


def _sorted(events: Iterable[_Event]) -> list[_Event]:
    """Stable topological order: paths with the same nodes by their ordinals, all others by admission."""
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], int, _Event]]] = {}
    for event in events:
        chain = list(event.token.chain())[::-1]
        nodes, ordinals = tuple(t.node for t in chain), tuple(t.ordinal for t in chain)
        groups.setdefault(nodes, []).append((ordinals, event.admission, event))
    heads: list[tuple[int, tuple[int, ...], int]] = []
    for nodes, members in groups.items():
        members.sort(key=lambda member: member[:2])
        heapq.heappush(heads, (members[0][1], nodes, 0))
    ordered = []
    while heads:
        _, nodes, position = heapq.heappop(heads)
        members = groups[nodes]
        ordered.append(members[position][2])
        if position + 1 < len(members):
            heapq.heappush(heads, (members[position + 1][1], nodes, position + 1))
    return ordered

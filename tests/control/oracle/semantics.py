"""What a call must do: the whole tree of its activations, from what every activation yields.

There is no time here. Everything that direct routes start is expanded; then, of the buckets that are open, one to
which no other open bucket can contribute any more is closed; and so on until none is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omniflow_backend.dsl.types import is_many
from tests.control.graphs import PLACEHOLDER_VALUES, AlternativeSpec, Source
from tests.control.oracle.count_join import Admitted, Counts, Fired, Refused, decide, is_owed
from tests.control.oracle.facts import ENTRY, Facts
from tests.control.oracle.order import Branches, Path, common, precedes
from tests.control.oracle.yields import Behaviour, YieldTable

MOST_ACTIVATIONS = 60


class TooLarge(Exception):
    """The tree grows beyond what a quick test should run."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One value of a field, or of an output. ``position`` is that of its source in the ``bind`` or ``output`` call."""

    path: Path
    position: int
    value: Any


@dataclass(slots=True)
class Act:
    """One activation that must happen; with ``failure``, instead, a bucket that must fail the call when it closes.

    ``turn`` is where it stands among others in time. It is ready once the yield ``cause`` was taken, all of ``needs``
    have ended, and the log of takes is ``after`` long. A ``patient`` one may take its time: it could have had something
    from a count join that never fired, and only the end of everything tells. An ``optional`` one is begun only if that
    is known before the count join fails the call. ``collected`` has, per joined field, the contributions of which a
    list is made.
    """

    index: int
    node: int
    alternative: int
    origin: Path
    turn: Path
    inputs: Mapping[str, Any]
    behaviour: Behaviour | None
    cause: tuple[int, int] | None = None
    needs: frozenset[int] = frozenset()
    after: int = 0
    collected: Mapping[str, Sequence[Contribution]] = field(default_factory=dict)
    failure: str | None = None
    patient: bool = False
    optional: bool = False


Bucket = dict[str, list[Contribution]]
Take = tuple[int, int, int]
"""(node, ident of its behaviour, ordinal): a yield, as whoever ran the call knows it."""


class Tree:
    """Evaluates one call. ``log`` is the order in which yields were taken: only count joins ask for it.

    Raises ``TooLarge``.
    """

    def __init__(self, facts: Facts, table: YieldTable, log: Sequence[Take] = ()) -> None:
        self.facts = facts
        self.acts: list[Act] = []
        self.outputs: list[list[Contribution]] = [[] for _ in facts.graph.outputs]
        self.fails_at: int | None = None
        self.owed = False
        self._table = table
        self._log = log
        self._buckets: dict[tuple[int, int, Path], Bucket] = {}
        self._occurrences: dict[int, Path] = {}
        self._counting = list(facts.counting)
        self._fired: set[int] = set()
        for node, spec in enumerate(facts.graph.nodes):
            for number, alternative in enumerate(spec.alternatives):
                if not alternative.fields:
                    self._add(node, number, (), {})
        expanded = 0
        while True:
            while expanded < len(self.acts):
                self._expand(self.acts[expanded])
                expanded += 1
            if self._close_a_bucket() or self._count():
                continue
            if not self._give_up_counting():
                break
        self._judge_told()
        for act in self.acts:
            act.needs = self._needs(act)

    def path(self, act: int, ordinal: int) -> Path:
        """The path of a yield."""
        return (*self.acts[act].origin, (act, ordinal))

    def turn(self, token: tuple[int, int]) -> Path:
        """Where a yield stands among others in time: its path, but without what joins brought along by chance.

        What a join yields belongs to the occurrence of its anchor (ruling 5), even where all that it happened to
        collect came from further below; what a count join yields belongs to the call (ruling 6).
        """
        return (*self.acts[token[0]].turn, token)

    def field_branches(self, node: int, number: int, name: str) -> Branches:
        """How values of one joined field compare where their paths part below one yield."""
        alternative = self.facts.graph.nodes[node].alternatives[number]
        anchor = self.facts.anchors.get((node, number))
        return self._branches(alternative.fields[name], anchor)

    def output_branches(self, output: int) -> Branches:
        """How values of one output compare where their paths part below one yield."""
        return self._branches(self.facts.graph.outputs[output].sources, None)

    def comes_before(self, a: Contribution, b: Contribution, branches: Branches) -> bool | None:
        """Generation order of two values."""
        return a.position < b.position if a.path == b.path else precedes(a.path, b.path, branches)

    def _branches(self, sources: Sequence[Source], anchor: int | None) -> Branches:
        feeds: dict[int, list[int]] = {}

        def fed(node: int) -> list[int]:
            if node not in feeds:
                feeds[node] = self.facts.feeds(node, sources, anchor)
            return feeds[node]

        def branches(a: int, b: int) -> bool | None:
            first, second = self.acts[a], self.acts[b]
            if first.node == second.node:
                same = first.alternative == second.alternative or first.cause is None or second.cause is None
                return None if same or first.collected or second.collected else first.alternative < second.alternative
            ours, theirs = fed(first.node), fed(second.node)
            if ours and theirs and ours[-1] < theirs[0]:
                return True
            return False if ours and theirs and theirs[-1] < ours[0] else None

        return branches

    # --- growing ------------------------------------------------------------------------------------------------------

    def _add(self, node: int, number: int, origin: Path, inputs: Mapping[str, Any], **parts: Any) -> Act:
        if len(self.acts) >= MOST_ACTIVATIONS:
            raise TooLarge
        alternative = self.facts.graph.nodes[node].alternatives[number]
        inputs = {**inputs, **{name: PLACEHOLDER_VALUES[constant] for name, constant in alternative.constants.items()}}
        behaviour = None if "failure" in parts else self._table.behaviour(node, inputs)
        cause = parts.get("cause")
        turn = self.turn(cause) if cause else ()
        act = Act(len(self.acts), node, number, origin, turn, inputs, behaviour, optional=self.owed, **parts)
        self.acts.append(act)
        return act

    def _expand(self, act: Act) -> None:
        if act.behaviour is None:
            return
        for ordinal, fields in enumerate(act.behaviour.yields):
            path = self.path(act.index, ordinal)
            for node, number, alternative in self.facts.direct[act.node]:
                self._direct(act, ordinal, path, fields, node, number, alternative)
            for node, number, alternative in self.facts.joins[act.node]:
                self._contribute(act.node, path, fields, node, number, alternative)
            for index, output in enumerate(self.facts.graph.outputs):
                for position, source in enumerate(output.sources):
                    if source.node == act.node and source.field in fields:
                        self.outputs[index].append(Contribution(path, position, fields[source.field]))

    def _direct(
        self,
        act: Act,
        ordinal: int,
        path: Path,
        fields: Mapping[str, Any],
        node: int,
        number: int,
        alternative: AlternativeSpec,
    ) -> None:
        spec = self.facts.graph.nodes[node]
        inputs = {}
        for name, sources in alternative.fields.items():
            (source,) = (s for s in sources if s.node == act.node)
            if source.field in fields:
                value = fields[source.field]
                wrap = is_many(spec.inputs[name]) and not is_many(
                    self.facts.graph.nodes[act.node].outputs[source.field]
                )
                inputs[name] = [value] if wrap else value
            elif not spec.optional(name):
                return
        self._add(node, number, path, inputs, cause=(act.index, ordinal))

    def _contribute(
        self,
        source_node: int,
        path: Path,
        fields: Mapping[str, Any],
        node: int,
        number: int,
        alternative: AlternativeSpec,
    ) -> None:
        key = (node, number, self._up_to(path, self.facts.anchors[node, number]))
        for name, sources in alternative.fields.items():
            for position, source in enumerate(sources):
                if source.node == source_node and source.field in fields:
                    bucket = self._buckets.setdefault(key, {})
                    bucket.setdefault(name, []).append(Contribution(path, position, fields[source.field]))

    def _up_to(self, path: Path, anchor: int) -> Path:
        """The path up to the latest token of the anchor."""
        if anchor == ENTRY:
            return ()
        return path[: 1 + max(index for index, (act, _) in enumerate(path) if self.acts[act].node == anchor)]

    def _within(self, origin: Path, anchor: int, occurrence: Path) -> bool:
        """Whether work under ``origin`` belongs to this occurrence of the anchor."""
        return origin[: len(occurrence)] == occurrence and all(
            self.acts[act].node != anchor for act, _ in origin[len(occurrence) :]
        )

    # --- closing ------------------------------------------------------------------------------------------------------

    def _close_a_bucket(self) -> bool:
        for key in self._buckets:
            node, number, occurrence = key
            anchor, feeding = self.facts.anchors[node, number], self.facts.contributors[node, number]
            if any(
                n in feeding and self._within(o, anchor, occurrence)
                for n, _, o in self._buckets
                if (n, o) != (node, occurrence)
            ):
                continue
            if feeding.intersection(self._counting):
                continue
            self._close(node, number, occurrence, self._buckets.pop(key))
            return True
        assert not self._buckets or self._counting, "every open bucket waits for another one"
        return False

    def _close(self, node: int, number: int, occurrence: Path, bucket: Bucket) -> None:
        spec = self.facts.graph.nodes[node]
        alternative = spec.alternatives[number]
        if any(name not in bucket and not spec.optional(name) for name in alternative.fields):
            return
        inputs: dict[str, Any] = {}
        failure: str | None = None
        for name, contributions in bucket.items():
            inputs[name] = [c.value for c in contributions] if is_many(spec.inputs[name]) else contributions[0].value
            if not is_many(spec.inputs[name]) and len(contributions) > 1:
                failure = f"{len(contributions)} values for {name!r}"
        origin = common([c.path for contributions in bucket.values() for c in contributions])
        assert origin[: len(occurrence)] == occurrence, "the anchor's token must survive"
        parts: dict[str, Any] = {"failure": failure} if failure else {}
        cause = occurrence[-1] if occurrence else None
        act = self._add(node, number, origin, inputs, collected=bucket, cause=cause, **parts)
        self._occurrences[act.index] = occurrence
        unfired = [n for n in self.facts.counting if n not in self._fired]
        act.patient = not self.facts.contributors[node, number].isdisjoint(unfired)

    def _needs(self, act: Act) -> frozenset[int]:
        """All that could have contributed to the bucket of ``act``."""
        occurrence = self._occurrences.get(act.index)
        if occurrence is None:
            return frozenset()
        key = (act.node, act.alternative)
        anchor, feeding = self.facts.anchors[key], self.facts.contributors[key]
        return frozenset(a.index for a in self.acts if a.node in feeding and self._within(a.origin, anchor, occurrence))

    # --- counting -----------------------------------------------------------------------------------------------------

    def _count(self) -> bool:
        """Fire a count join for which enough of the log is in the tree."""
        for node in self._counting:
            position, outcome, _, _ = self._decide(node)
            if isinstance(outcome, Fired):
                self._fired.add(node)
                self._counting.remove(node)
                number, _ = self._counted(node)
                self._add(node, number, outcome.origin, outcome.inputs, after=position)
                return True
        return False

    def _give_up_counting(self) -> bool:
        """Nothing can go on any more: one count join will never fire."""
        if not self._counting:
            return False
        towards = self.facts.towards
        node = next(
            (n for n in self._counting if not any(o in towards[n] for o in self._counting if o != n)), self._counting[0]
        )
        _, _, counts, admitted = self._decide(node)
        self._counting.remove(node)
        self.owed = self.owed or is_owed(self._counted(node)[1], counts, admitted)
        return True

    def _judge_told(self) -> None:
        """From where in the log on contradictory counts, or ambiguous companions, fail the call."""
        for node in self.facts.counting:
            position, outcome, _, _ = self._decide(node)
            if isinstance(outcome, Refused):
                self.fails_at = position if self.fails_at is None else min(position, self.fails_at)

    def _counted(self, node: int) -> tuple[int, AlternativeSpec]:
        ((number, alternative),) = ((n, a) for n, a in enumerate(self.facts.graph.nodes[node].alternatives) if a.counts)
        return number, alternative

    def _decide(self, node: int) -> tuple[int, Fired | Refused | None, Counts, list[Admitted]]:
        """Where in the log, and how, a count join is decided."""
        _, alternative = self._counted(node)
        counts = Counts()
        for name, count in alternative.counts.items():
            if not isinstance(count, Source):
                counts.known[name] = PLACEHOLDER_VALUES[count] if isinstance(count, str) else count
        admitted: list[Admitted] = []
        for position, event in enumerate(self._events(), start=1):
            if event is None:
                break
            for name, count in alternative.counts.items():
                if isinstance(count, Source) and count.node == event.node and count.field in event.fields:
                    refused = counts.tell(name, event.fields[count.field])
                    if refused:
                        return position, refused, counts, admitted
            if any(event.values(sources) for sources in alternative.fields.values()):
                admitted.append(event)
            if node not in self._fired:
                outcome = decide(alternative, counts.known, admitted)
                if outcome is not None:
                    return position, outcome, counts, admitted
        return 0, None, counts, admitted

    def _events(self) -> Iterator[Admitted | None]:
        """The log as events of this tree; ``None`` for one of an activation that is not there yet."""
        acts: dict[tuple[int, int], list[Act]] = {}
        for act in self.acts:
            if act.behaviour is not None:
                acts.setdefault((act.node, act.behaviour.ident), []).append(act)
        seen: Counter[Take] = Counter()
        for node, ident, ordinal in self._log:
            alike = acts.get((node, ident), [])
            if len(alike) <= seen[node, ident, ordinal]:
                yield None
                continue
            act = alike[seen[node, ident, ordinal]]
            seen[node, ident, ordinal] += 1
            path = self.path(act.index, ordinal)
            assert act.behaviour is not None
            yield Admitted(node, path, tuple(self.acts[a].node for a, _ in path), act.behaviour.yields[ordinal])

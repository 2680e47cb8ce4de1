"""What a graph means, by brute force: dominators by removing nodes, reachability by walking.

Nothing here is shared with the planner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from tests.control.graphs import AlternativeSpec, GraphSpec, NodeSpec, Source

ENTRY = -1


class Facts:
    """Answers about one graph: anchors, who can contribute to what, and whether it is legal."""

    def __init__(self, graph: GraphSpec) -> None:
        self.graph = graph
        self._size = len(graph.nodes)
        self.direct: list[list[tuple[int, int, AlternativeSpec]]] = [[] for _ in graph.nodes]
        self.joins: list[list[tuple[int, int, AlternativeSpec]]] = [[] for _ in graph.nodes]
        causal: set[tuple[int, int]] = set()
        resets: set[tuple[int, int]] = set()
        for index, node in enumerate(graph.nodes):
            for number, alternative in enumerate(node.alternatives):
                if not alternative.fields:
                    causal.add((ENTRY, index))
                for source in alternative.sources:
                    if not alternative.counts:
                        into = self.direct if alternative.is_direct else self.joins
                        into[source].append((index, number, alternative))
                    (resets if alternative.counts else causal).add((source, index))
        self._full = causal | resets
        self._anchored = causal | {(ENTRY, index) for _, index in resets}
        self.anchors = {
            (index, number): self._anchor(alternative.sources)
            for index, node in enumerate(graph.nodes)
            for number, alternative in enumerate(node.alternatives)
            if alternative.is_join and self.all_can_run
        }
        self.contributors = {
            key: self._upstream(graph.nodes[key[0]].alternatives[key[1]].sources, anchor)
            for key, anchor in self.anchors.items()
        }
        self.counting = [index for index, node in enumerate(graph.nodes) if any(a.counts for a in node.alternatives)]
        self.towards = [self._upstream([index], None) for index in range(self._size)]

    @cached_property
    def all_can_run(self) -> bool:
        """Whether every node has a way to be activated that does not begin with itself."""
        able: set[int] = set()
        while len(able) < self._size:
            more = {
                index
                for index, node in enumerate(self.graph.nodes)
                if index not in able and any(self._can_run(node, a, able) for a in node.alternatives)
            }
            if not more:
                return False
            able |= more
        return True

    @staticmethod
    def _can_run(node: NodeSpec, alternative: AlternativeSpec, able: set[int]) -> bool:
        return all(
            node.optional(name) or any(source.node in able for source in sources)
            for name, sources in alternative.fields.items()
        )

    @cached_property
    def legal(self) -> bool:
        """Whether every cycle through a prefix join leads through its anchor.

        Else two turns of a loop would share a bucket; or, where the cycle leads through a count join, by an event or by
        a count, each of the two would wait until nothing more can come of the other.
        """
        if not self.all_can_run:
            return False
        told = {
            (count.node, index)
            for index, node in enumerate(self.graph.nodes)
            for alternative in node.alternatives
            for count in alternative.counts.values()
            if isinstance(count, Source)
        }
        edges = self._full | told
        return not any(self._turns_without(node, anchor, edges) for (node, _), anchor in self.anchors.items())

    def feeds(self, node: int, sources: Sequence[Source], anchor: int | None) -> list[int]:
        """Positions of the sources that a branch beginning at ``node`` can reach without passing ``anchor``."""
        return [
            position
            for position, source in enumerate(sources)
            if source.node == node or node in self._upstream([source.node], anchor)
        ]

    @staticmethod
    def _turns_without(node: int, anchor: int, edges: Iterable[tuple[int, int]]) -> bool:
        rest = {edge for edge in edges if anchor not in edge}
        return any(node in _walk(after, rest) for before, after in rest if before == node)

    def _anchor(self, sources: Iterable[int]) -> int:
        common = set.intersection(*(self._dominators(source) for source in sources))
        return max(common, key=lambda node: len(self._dominators(node)))

    def _dominators(self, node: int) -> set[int]:
        candidates = range(ENTRY, self._size)
        return {c for c in candidates if c in (node, ENTRY) or node not in _walk(ENTRY, self._anchored, without=c)}

    def _upstream(self, nodes: Iterable[int], anchor: int | None) -> frozenset[int]:
        """Nodes whose pending activation may still lead to a yield of ``nodes`` without passing ``anchor``."""
        found: set[int] = set()
        frontier = [node for node in nodes if node != anchor]
        while frontier:
            node = frontier.pop()
            if node not in found:
                found.add(node)
                frontier += [a for a, b in self._full if b == node and a not in (ENTRY, anchor)]
        return frozenset(found)


def _walk(start: int, edges: Iterable[tuple[int, int]], without: int | None = None) -> set[int]:
    found: set[int] = set()
    frontier = [start]
    while frontier:
        node = frontier.pop()
        if node not in found and node != without:
            found.add(node)
            frontier += [b for a, b in edges if a == node]
    return found

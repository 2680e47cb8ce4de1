"""Graph questions of the planner, answered by networkx: dominators, cycles, reachability."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from omniflow_backend.planning.plan import ENTRY

if TYPE_CHECKING:
    import networkx


class FlowGraph:
    """The nodes of a workflow and the call's entry.

    ``edges`` are the causal ones. ``resets`` are edges into count joins: they carry values, but the join's output
    starts anew at the call (contract ruling 6), so dominators and cycles do not see them. ``told`` are edges that tell
    a count join its counts.
    """

    def __init__(
        self,
        nodes: int,
        edges: Iterable[tuple[int, int]],
        resets: Iterable[tuple[int, int]],
        told: Iterable[tuple[int, int]],
    ) -> None:
        import networkx as nx

        self._nx = nx
        resets = list(resets)
        self.causal: networkx.DiGraph = nx.DiGraph()
        self.causal.add_nodes_from([ENTRY, *range(nodes)])
        self.causal.add_edges_from(edges)
        self.full: networkx.DiGraph = self.causal.copy()
        self.full.add_edges_from(resets)
        self._waits: networkx.DiGraph = self.full.copy()
        self._waits.add_edges_from(told)
        dominance = self.causal.copy()
        dominance.add_edges_from((ENTRY, target) for _, target in resets)
        self._dominator = {ENTRY: ENTRY, **nx.immediate_dominators(dominance, ENTRY)}

    def common_dominator(self, nodes: Sequence[int]) -> int:
        """The nearest node on every way from the entry to every one of ``nodes``; a node dominates itself."""
        chain = self._chain(nodes[0])
        for node in nodes[1:]:
            others = set(self._chain(node))
            chain = [candidate for candidate in chain if candidate in others]
        return chain[0]

    def dominates(self, dominator: int, node: int) -> bool:
        """Whether every way from the entry to ``node`` leads through ``dominator``."""
        return dominator in self._chain(node)

    def cycle_avoiding(self, node: int, avoided: int) -> list[int] | None:
        """A cycle through ``node`` that does not pass ``avoided``, if there is one."""
        return self._cycle(self.causal, node, avoided)

    def mutual_wait(self, node: int, avoided: int) -> list[int] | None:
        """Like ``cycle_avoiding``, for a cycle that leads through a count join: by what it counts, or by its count."""
        return self._cycle(self._waits, node, avoided)

    def _cycle(self, graph: networkx.DiGraph, node: int, avoided: int) -> list[int] | None:
        if node == avoided:
            return None
        rest = graph.subgraph(n for n in graph if n != avoided)
        for successor in rest.successors(node):
            if self._nx.has_path(rest, successor, node):
                return [node, *self._nx.shortest_path(rest, successor, node)]
        return None

    def ancestors(self, node: int, avoided: int | None = None) -> set[int]:
        """``node`` and all nodes from which it can be reached, not passing through ``avoided``."""
        if node == avoided:
            return {node}
        graph = self.full if avoided is None else self.full.subgraph(n for n in self.full if n != avoided)
        return self._nx.ancestors(graph, node) | {node}

    def below_loops(self, nodes: Iterable[int]) -> set[int]:
        """Those of ``nodes`` that lie on a loop, and everything that can be reached from them."""
        loops = {
            node
            for component in self._nx.strongly_connected_components(self.full)
            for node in component
            if len(component) > 1 or self.full.has_edge(node, node)
        }
        return {found for node in loops.intersection(nodes) for found in (node, *self._nx.descendants(self.full, node))}

    def back_edges(self) -> set[tuple[int, int]]:
        """Edges that close a loop: to a dominator where the loop has one entry, else every edge inside the loop."""
        closing: set[tuple[int, int]] = set()
        for component in self._nx.strongly_connected_components(self.full):
            inside = [(a, b) for a, b in self.full.edges(component) if b in component]
            natural = {(a, b) for a, b in inside if self.dominates(b, a)}
            rest = self._nx.DiGraph(edge for edge in inside if edge not in natural)
            closing |= natural if self._nx.is_directed_acyclic_graph(rest) else set(inside)
        return closing

    def _chain(self, node: int) -> list[int]:
        chain = [node]
        while node != ENTRY:
            node = self._dominator.get(node, ENTRY)
            chain.append(node)
        return chain

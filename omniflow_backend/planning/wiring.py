"""Who feeds whom, read from the bindings as written: ways and loops are judged also where a type is still wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omniflow_backend.dsl.types import OptionalType
from omniflow_backend.dsl.workflow import Binding, GlobalParam, Handle, Node, Placeholder
from omniflow_backend.planning.graph import FlowGraph
from omniflow_backend.planning.plan import ENTRY


class Wiring:
    """The bindings of a workflow's nodes, without a look at fields and types."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._index = {node: index for index, node in enumerate(nodes)}

    @property
    def is_known(self) -> bool:
        """Whether every node is bound, and only to what belongs to this workflow: else no way can be judged."""
        return all(node._bindings and all(map(self._is_clear, node._bindings)) for node in self._nodes)

    def graph(self) -> FlowGraph:
        """The flow graph of the bindings."""
        edges: list[tuple[int, int]] = []
        resets: list[tuple[int, int]] = []
        told: list[tuple[int, int]] = []
        for target, node in enumerate(self._nodes):
            for binding in node._bindings:
                sources = dict.fromkeys(self._index[handle.node] for handle in _handles(binding))
                into = resets if binding.counts and sources else edges
                into += [(source, target) for source in sources or (ENTRY,)]
                told += [(self._index[c.node], target) for c in binding.counts.values() if isinstance(c, Handle)]
        return FlowGraph(len(self._nodes), edges, resets, told)

    def never_run(self) -> list[Node]:
        """The nodes each of whose alternatives needs something that only a node of this list could give."""
        runnable: set[Node] = set()
        waiting = list(self._nodes)
        grown = True
        while grown:
            able = [n for n in waiting if any(all(map(runnable.intersection, _needs(n, b))) for b in n._bindings)]
            runnable.update(able)
            waiting = [node for node in waiting if node not in runnable]
            grown = bool(able)
        return waiting

    def _is_clear(self, binding: Binding) -> bool:
        return all(
            isinstance(source, Placeholder | GlobalParam) or (isinstance(source, Handle) and source.node in self._index)
            for sources in (*binding.sources.values(), binding.counts.values())
            for source in sources
            if not isinstance(source, int)
        )


def _handles(binding: Binding) -> Iterator[Handle]:
    return (source for sources in binding.sources.values() for source in sources if isinstance(source, Handle))


def _needs(node: Node, binding: Binding) -> Iterator[set[Node]]:
    """For each thing an alternative cannot do without: the nodes of which one has to give it."""
    inputs = node._spec.inputs if node._spec is not None else {}
    for field, sources in binding.sources.items():
        providers = {source.node for source in sources if isinstance(source, Handle)}
        count = binding.counts.get(field, 1)
        may_be_none = not isinstance(count, int) or count == 0 or isinstance(inputs.get(field), OptionalType)
        if providers and not may_be_none:
            yield providers
    for count in binding.counts.values():
        if isinstance(count, Handle):
            yield {count.node}
    everyone = {handle.node for handle in _handles(binding)}
    if everyone:
        yield everyone

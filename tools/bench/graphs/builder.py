"""Building graphs of no-op stages: each node is a process of its own, shared by all graphs."""

from __future__ import annotations

from typing import Any

from bench.graphs.stage import Stage

from omniflow_backend import Int, Workflow
from omniflow_backend.dsl.workflow import Node
from omniflow_backend.planning.plan import AlternativeKind, Plan


class Graph:
    """A workflow under construction: ``node("step", x=...)`` takes the next stage."""

    def __init__(self, name: str) -> None:
        self.workflow = Workflow(name)
        self.x = self.workflow.placeholder("x", Int)
        self._nodes = 0

    def node(self, interface: str, **fields: Any) -> Node:
        """A node of its own, bound to ``fields`` when there are any."""
        stage = self.workflow.role(f"stage_{self._nodes}", Stage)
        self._nodes += 1
        node: Node = getattr(stage, interface)
        return node.bind(**fields) if fields else node

    def finish(self, *sources: Any, stream: bool = False) -> Workflow:
        """Name the result and hand the workflow out."""
        self.workflow.output("y", list(sources), stream=stream, many=not stream)
        return self.workflow


def edges(plan: Plan) -> int:
    """Scheduling edges: from the call to its first nodes, between nodes, counts, and to outputs."""
    entries = sum(a.kind is AlternativeKind.ENTRY for node in plan.nodes for a in node.alternatives)
    routes = sum(len(node.routes) + len(node.count_routes) for node in plan.nodes)
    return entries + routes + sum(len(output.sources) for output in plan.outputs)

"""The two graphs on which rivals are compared: a chain of five and a diamond."""

from __future__ import annotations

from bench.graphs.builder import Graph

from omniflow_backend import Workflow


def _chain(g: Graph) -> Workflow:
    value = g.x
    for _ in range(5):
        value = g.node("step", x=value).y
    return g.finish(value)


def _diamond(g: Graph) -> Workflow:
    a = g.node("step", x=g.x)
    b, c = g.node("step", x=a.y), g.node("step", x=a.y)
    return g.finish(g.node("pair", a=b.y, b=c.y).y)


chain = _chain(Graph("chain"))
diamond = _diamond(Graph("diamond"))

"""LangGraph: each graph a compiled ``StateGraph`` of async nodes, called with ``ainvoke``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from protocol import Call, serve

CHAIN = ("s0", "s1", "s2", "s3", "s4")


class Link(TypedDict):
    """The value that a chain passes on."""

    value: int


class Diamond(TypedDict, total=False):
    """One key for each node: two branches may not write the same one."""

    x: int
    a: int
    b: int
    c: int
    joined: int


async def step(state: Link) -> Link:
    return {"value": state["value"]}


async def first(state: Diamond) -> Diamond:
    return {"a": state["x"]}


async def left(state: Diamond) -> Diamond:
    return {"b": state["a"]}


async def right(state: Diamond) -> Diamond:
    return {"c": state["a"]}


async def join(state: Diamond) -> Diamond:
    return {"joined": state["b"] + state["c"]}


def chain() -> Call:
    graph = StateGraph(Link)
    for name in CHAIN:
        graph.add_node(name, step)
    for source, target in zip((START, *CHAIN), (*CHAIN, END), strict=True):
        graph.add_edge(source, target)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"value": 0})


def diamond() -> Call:
    graph = StateGraph(Diamond)
    for name, node in (("first", first), ("left", left), ("right", right), ("join", join)):
        graph.add_node(name, node)
    graph.add_edge(START, "first")
    graph.add_edge("first", "left")
    graph.add_edge("first", "right")
    graph.add_edge(["left", "right"], "join")
    graph.add_edge("join", END)
    compiled = graph.compile()
    return lambda: compiled.ainvoke({"x": 0})


@asynccontextmanager
async def graphs() -> AsyncIterator[Mapping[str, Call]]:
    yield {"chain": chain(), "diamond": diamond()}


if __name__ == "__main__":
    asyncio.run(serve(graphs(), version("langgraph")))

"""Roles and workflows that do nothing: what is left is the price of orchestration."""

from __future__ import annotations

from typing import Any

from omniflow_backend import Int, Role, Workflow, interface


class Pass(Role):
    """Hands its input on."""

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def step(self, ctx: Any, x: int) -> dict[str, int]:
        return {"y": x}


class Add(Role):
    """Joins two inputs."""

    @interface(inputs={"a": Int, "b": Int}, outputs={"y": Int})
    async def join(self, ctx: Any, a: int, b: int) -> dict[str, int]:
        return {"y": a + b}


def chain(length: int) -> Workflow:
    """``length`` steps, one after another, each a role of its own."""
    workflow = Workflow(f"chain_{length}")
    value: Any = workflow.placeholder("x", Int)
    for index in range(length):
        value = workflow.role(f"pass_{index}", Pass).step(x=value).y
    workflow.output("y", value)
    return workflow


def diamond() -> Workflow:
    """A, then B and C side by side, then a join of both."""
    workflow = Workflow("diamond")
    a = workflow.role("pass_0", Pass).step(x=workflow.placeholder("x", Int))
    b = workflow.role("pass_1", Pass).step(x=a.y)
    c = workflow.role("pass_2", Pass).step(x=a.y)
    workflow.output("y", workflow.role("add", Add).join(a=b.y, b=c.y).y)
    return workflow


chain_5 = chain(5)
diamond_4 = diamond()

"""Prefix joins, skips, order and streams, driven through the in-process driver (paper 3.2-3.4, figure 11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from omniflow_backend import Int, Many, Optional, Role, SessionLoadBalance, Text, Workflow, interface
from omniflow_backend.errors import ErrorCode
from omniflow_backend.runtime.trace import TraceKind
from omniflow_backend.testing import CallResult, run


class Source(Role):
    """Yields ``count`` labelled values."""

    @interface(inputs={"count": Int}, outputs={"value": Text, "left": Text, "right": Text})
    def emit(self, ctx: Any, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            yield {"value": f"A{index}"}


class Branch(Role):
    """Yields ``repeats`` values for each input, after a delay that shrinks with each input: later ones overtake."""

    @interface(inputs={"value": Text}, outputs={"out": Text})
    async def step(self, ctx: Any, value: str) -> AsyncIterator[dict[str, Any]]:
        await asyncio.sleep(self.options.get("delay", 0.0) * (5 - int(value[-1])))
        for index in range(self.options.get("repeats", 1)):
            yield {"out": f"{value}.{self.options['label']}{index}"}


class Join(Role):
    @interface(inputs={"b": Many(Text), "c": Many(Text)}, outputs={"joined": Text})
    def join(self, ctx: Any, b: list[str], c: list[str]) -> dict[str, Any]:
        return {"joined": f"{' '.join(b)}|{' '.join(c)}"}


def diamond(yields_b: int, yields_c: int, delay: float = 0.0) -> Workflow:
    workflow = Workflow("diamond")
    a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
    b = workflow.role("b", Branch, label="B", repeats=yields_b, delay=delay).step(value=a.value)
    c = workflow.role("c", Branch, label="C", repeats=yields_c).step(value=a.value)
    joined = workflow.role("j", Join).join(b=b.out, c=c.out)
    workflow.output("joined", joined.joined, stream=True)
    return workflow


def kinds(result: CallResult, kind: TraceKind, node: str) -> int:
    return sum(event.kind is kind and event.node == node for event in result.trace)


class TestFigure11:
    """The paper's three cases: where repetition occurs decides how many buckets there are."""

    def test_each_source_yield_is_a_bucket_of_its_own(self) -> None:
        result = run(diamond(1, 1).compile(), {"count": 3})
        assert result.values("joined") == [f"A{i}.B0|A{i}.C0" for i in range(3)]

    def test_repeated_yields_of_a_branch_gather_in_one_bucket(self) -> None:
        result = run(diamond(3, 1).compile(), {"count": 1})
        assert result.values("joined") == ["A0.B0 A0.B1 A0.B2|A0.C0"]

    def test_both_levels_repeat_and_the_join_runs_once_per_source_yield(self) -> None:
        result = run(diamond(2, 3).compile(), {"count": 2})
        assert result.values("joined") == [f"A{i}.B0 A{i}.B1|A{i}.C0 A{i}.C1 A{i}.C2" for i in range(2)]

    def test_a_branch_that_yields_nothing_makes_its_bucket_impossible_and_the_call_still_finishes(self) -> None:
        result = run(diamond(1, 0).compile(), {"count": 2}).raise_for_failure()
        assert result.values("joined") == []
        assert kinds(result, TraceKind.IMPOSSIBLE, "j.join") == 2

    def test_a_source_that_yields_nothing_finishes_the_call(self) -> None:
        assert run(diamond(1, 1).compile(), {"count": 0}).raise_for_failure().streamed == []

    def test_streams_keep_generation_order_when_later_work_overtakes(self) -> None:
        result = run(diamond(1, 1, delay=0.004).compile(), {"count": 5})
        assert result.values("joined") == [f"A{i}.B0|A{i}.C0" for i in range(5)]


class Partial(Role):
    """Alternates between its two fields."""

    @interface(inputs={"count": Int}, outputs={"even": Text, "odd": Text})
    def emit(self, ctx: Any, count: int) -> Iterator[dict[str, Any]]:
        for index in range(count):
            yield {"odd" if index % 2 else "even": f"v{index}"}
        yield {}


class Echo(Role):
    @interface(inputs={"value": Text, "more": Optional(Text)}, outputs={"value": Text})
    def echo(self, ctx: Any, value: str, more: str | None) -> dict[str, Any]:
        return {"value": value + (f"+{more}" if more else "")}


class TestPartialYields:
    def test_a_direct_route_skips_yields_without_its_fields_and_says_so(self) -> None:
        workflow = Workflow("partial")
        source = workflow.role("source", Partial).emit(count=workflow.placeholder("count", Int))
        workflow.output("even", workflow.role("echo", Echo).echo(value=source.even).value, many=True)
        result = run(workflow.compile(), {"count": 5})
        assert result.outputs == {"even": ["v0", "v2", "v4"]}
        assert kinds(result, TraceKind.SKIPPED, "echo.echo") == 3

    def test_in_a_join_every_yield_contributes_the_fields_it_has(self) -> None:
        workflow = Workflow("partial")
        source = workflow.role("source", Partial).emit(count=workflow.placeholder("count", Int))
        echo = workflow.role("echo", Echo).echo(value=source.odd)
        joined = workflow.role("j", Join).join(b=source.even, c=echo.value)
        workflow.output("joined", joined.joined)
        result = run(workflow.compile(), {"count": 1})
        assert result.outputs == {}, "each yield is a bucket of its own: none has both fields"

    def test_an_optional_field_does_not_hold_a_bucket_back_but_its_lease_does(self) -> None:
        workflow = Workflow("optional")
        source = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        late = workflow.role("late", Branch, label="L", delay=0.002).step(value=source.value)
        never = workflow.role("never", Branch, label="N", repeats=0, delay=0.002).step(value=source.value)
        echo = workflow.role("echo", Echo).echo
        echo.bind(value=source.value, more=[late.out, never.out])
        workflow.output("value", echo.value, many=True)
        assert run(workflow.compile(), {"count": 2}).outputs == {"value": ["A0+A0.L0", "A1+A1.L0"]}


class TestNestedJoins:
    def test_a_join_inside_a_branch_settles_before_the_outer_join_fires(self) -> None:
        workflow = Workflow("nested")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        b = workflow.role("b", Branch, label="B", repeats=2).step(value=a.value)
        x = workflow.role("x", Branch, label="X", repeats=2, delay=0.002).step(value=b.out)
        y = workflow.role("y", Branch, label="Y").step(value=b.out)
        inner = workflow.role("inner", Join).join(b=x.out, c=y.out)
        c = workflow.role("c", Branch, label="C").step(value=a.value)
        outer = workflow.role("outer", Join).join(b=inner.joined, c=c.out)
        workflow.output("joined", outer.joined, stream=True)
        result = run(workflow.compile(), {"count": 2}).raise_for_failure()
        assert result.values("joined") == [
            " ".join(f"A{i}.B{j}.X0 A{i}.B{j}.X1|A{i}.B{j}.Y0" for j in range(2)) + f"|A{i}.C0" for i in range(2)
        ]

    def test_a_plain_field_with_two_values_fails_the_call_and_names_itself(self) -> None:
        workflow = Workflow("plain")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        b = workflow.role("b", Branch, label="B", repeats=2).step(value=a.value)
        c = workflow.role("c", Branch, label="C").step(value=a.value)
        workflow.output("value", workflow.role("echo", Echo).echo(value=b.out, more=c.out).value)
        failure = run(workflow.compile(), {"count": 1}).failure
        assert failure is not None
        assert failure.code is ErrorCode.JOIN_FAILED
        assert failure.node == "echo.echo"
        assert "'value'" in failure.message
        assert "2" in failure.message


class Stateful(Role):
    """Appends to a history that only ordered execution keeps in order."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.history: list[str] = []
        self.inside = 0

    @interface(inputs={"value": Text}, outputs={"out": Text}, load_balance=SessionLoadBalance())
    async def update(self, ctx: Any, value: str) -> AsyncIterator[dict[str, Any]]:
        self.inside += 1
        assert self.inside == 1, "two activations of one session at once"
        await asyncio.sleep(0.001)
        self.history.append(value)
        yield {"out": value}
        await asyncio.sleep(0)
        self.inside -= 1


class TestOrderOfStatefulExecution:
    def test_a_later_input_waits_until_the_earlier_one_has_settled(self) -> None:
        workflow = Workflow("ordered")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        slow = workflow.role("slow", Branch, label="S", delay=0.003).step(value=a.value)
        workflow.output("out", workflow.role("state", Stateful).update(value=slow.out).out, stream=True)
        state = Stateful()
        result = run(workflow.compile(), {"count": 5}, roles={"state": state}).raise_for_failure()
        assert state.history == [f"A{i}.S0" for i in range(5)] == result.values("out")

    def test_an_earlier_branch_that_yields_nothing_lets_the_later_one_pass(self) -> None:
        workflow = Workflow("ordered")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        dropped = workflow.role("drop", DropFirst).drop(value=a.value)
        workflow.output("out", workflow.role("state", Stateful).update(value=dropped.out).out, stream=True)
        assert run(workflow.compile(), {"count": 3}).raise_for_failure().values("out") == ["A1", "A2"]


class DropFirst(Role):
    @interface(inputs={"value": Text}, outputs={"out": Text})
    async def drop(self, ctx: Any, value: str) -> dict[str, Any] | None:
        await asyncio.sleep(0.003 if value == "A0" else 0)
        return None if value == "A0" else {"out": value}


class Turn(Role):
    """An agent's turn: goes on through a tool until its budget is used up."""

    @interface(inputs={"value": Text}, outputs={"tool": Text, "answer": Text})
    def think(self, ctx: Any, value: str) -> dict[str, Any]:
        return {"answer": value} if value.count("t") >= 3 else {"tool": value}


class Tool(Role):
    @interface(inputs={"value": Text}, outputs={"result": Text})
    def use(self, ctx: Any, value: str) -> dict[str, Any]:
        return {"result": value + "t"}


class TestCycles:
    def test_a_loop_ends_when_its_body_yields_elsewhere(self) -> None:
        workflow = Workflow("agent_loop")
        think = workflow.role("agent", Turn).think
        think.bind(value=workflow.placeholder("question", Text))
        tool = workflow.role("tool", Tool).use(value=think.tool)
        think.bind(value=tool.result)
        workflow.output("answer", think.answer)
        assert run(workflow.compile(), {"question": "q"}).outputs == {"answer": "qttt"}

    def test_a_join_in_a_loop_collects_each_turn_apart(self) -> None:
        workflow = Workflow("agent_loop")
        think = workflow.role("agent", Turn).think
        think.bind(value=workflow.placeholder("question", Text))
        left = workflow.role("left", Tool).use(value=think.tool)
        right = workflow.role("right", Echo).echo(value=think.tool)
        joined = workflow.role("j", Join).join(b=left.result, c=right.value)
        think.bind(value=joined.joined)
        workflow.output("answer", think.answer)
        assert run(workflow.compile(), {"question": "q"}).outputs == {"answer": _expected_loop()}


def _expected_loop() -> str:
    value = "q"
    while value.count("t") < 3:
        value = f"{value}t|{value}"
    return value


class TestOutputs:
    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_many_collects_all_values_in_order(self, count: int) -> None:
        workflow = Workflow("outputs")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        workflow.output("values", a.value, many=True)
        assert run(workflow.compile(), {"count": count}).outputs == {"values": [f"A{i}" for i in range(count)]}

    def test_a_plain_output_with_two_values_is_an_error_that_names_the_count(self) -> None:
        workflow = Workflow("outputs")
        a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
        workflow.output("value", a.value)
        failure = run(workflow.compile(), {"count": 2}).failure
        assert failure is not None
        assert failure.code is ErrorCode.OUTPUT_FAILED
        assert "got 2" in failure.message

    @pytest.mark.parametrize("form", [{}, {"many": True}, {"stream": True}])
    def test_an_output_without_value_fails_the_call_only_when_required(self, form: dict[str, bool]) -> None:
        for is_required in (False, True):
            workflow = Workflow("outputs")
            a = workflow.role("a", Source).emit(count=workflow.placeholder("count", Int))
            workflow.output("value", a.value, required=is_required, **form)
            result = run(workflow.compile(), {"count": 0})
            assert (result.failure is not None) == is_required
            assert not any(result.outputs.values())

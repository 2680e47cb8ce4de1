"""Ends of calls: failure, cancellation, deadlines, sessions, backpressure, interface styles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omniflow_backend import BadInput, CallError, Int, Role, SessionLoadBalance, Text, Workflow, interface
from omniflow_backend.drivers.in_process import InProcessDriver
from omniflow_backend.errors import ErrorCode
from omniflow_backend.testing import collect, run


class Worker(Role):
    """One interface of each style, and ones that misbehave."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.log: list[str] = []
        self.made = 0

    @interface(inputs={"x": Int}, outputs={"y": Int})
    def function(self, ctx: Any, x: int) -> dict[str, Any]:
        return {"y": x + 1}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def async_function(self, ctx: Any, x: int) -> dict[str, Any]:
        return {"y": x + 1}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    def generator(self, ctx: Any, x: int) -> Iterator[dict[str, Any]]:
        for index in range(x):
            self.made += 1
            yield {"y": index}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def async_generator(self, ctx: Any, x: int) -> AsyncIterator[dict[str, Any]]:
        for index in range(x):
            self.made += 1
            yield {"y": index}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    def fail(self, ctx: Any, x: int) -> dict[str, Any]:
        raise BadInput("x is odd") if x % 2 else RuntimeError("it broke")

    @interface(inputs={"x": Int}, outputs={"y": Int})
    def wrong_field(self, ctx: Any, x: int) -> dict[str, Any]:
        return {"z": x}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    def no_mapping(self, ctx: Any, x: int) -> Any:
        return x

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def endless(self, ctx: Any, x: int) -> AsyncIterator[dict[str, Any]]:
        ctx.on_cancel(lambda: self.log.append("cancelled"))
        try:
            while True:
                yield {"y": x}
                await asyncio.sleep(0.001)
        finally:
            self.log.append("closed")

    @interface(inputs={"x": Int}, outputs={"y": Int}, load_balance=SessionLoadBalance())
    async def turn(self, ctx: Any, x: int) -> dict[str, Any]:
        self.log.append(f"begin {x}")
        await asyncio.sleep(0.002)
        self.log.append(f"end {x}")
        return {"y": x}


def one_node(name: str, *, stream: bool = True) -> Workflow:
    workflow = Workflow("one")
    node = getattr(workflow.role("worker", Worker), name)
    workflow.output("y", node(x=workflow.placeholder("x", Int)).y, stream=stream)
    return workflow


class TestStyles:
    @pytest.mark.parametrize("threads", [False, True])
    @pytest.mark.parametrize(
        ("name", "values"),
        [("function", [4]), ("async_function", [4]), ("generator", [0, 1, 2]), ("async_generator", [0, 1, 2])],
    )
    def test_an_interface_may_be_written_in_any_style(self, name: str, values: list[int], threads: bool) -> None:
        async def go() -> list[int]:
            executor = ThreadPoolExecutor(1) if threads else None
            driver = InProcessDriver(one_node(name).compile(), executor=executor)
            return (await collect(driver, {"x": 3}, timeout_s=5)).raise_for_failure().values("y")

        assert asyncio.run(go()) == values


class TestDeclarations:
    def test_parameters_that_differ_from_the_declared_inputs_are_refused(self) -> None:
        with pytest.raises(TypeError, match=r"declared inputs \['x'\] but parameters \['z'\]"):

            @interface(inputs={"x": Int}, outputs={})
            def step(self: Any, ctx: Any, z: int) -> None: ...

    @pytest.mark.parametrize("name", ["load", "close", "prepare", "options", "threads"])
    def test_an_interface_may_not_take_the_name_of_something_a_role_has(self, name: str) -> None:
        def method(self: Any, ctx: Any) -> None: ...

        method.__name__ = name
        with pytest.raises(TypeError, match="choose another name"):
            interface(inputs={}, outputs={})(method)


class TestFailures:
    def test_a_failing_role_fails_the_call_with_node_role_and_line(self) -> None:
        failure = run(one_node("fail").compile(), {"x": 2}).failure
        assert failure is not None
        assert failure.code is ErrorCode.ROLE_FAILED
        assert (failure.node, failure.role) == ("worker.fail", "worker")
        assert "it broke" in failure.message
        assert "test_calls.py" in failure.message

    def test_bad_input_found_by_a_role_keeps_its_code(self) -> None:
        failure = run(one_node("fail").compile(), {"x": 1}).failure
        assert failure is not None
        assert (failure.code, failure.message) == (ErrorCode.BAD_INPUT, "x is odd")

    @pytest.mark.parametrize("name", ["wrong_field", "no_mapping"])
    def test_a_yield_that_is_not_declared_fails_the_call(self, name: str) -> None:
        failure = run(one_node(name).compile(), {"x": 1}).failure
        assert failure is not None
        assert failure.code is ErrorCode.ROLE_FAILED

    @pytest.mark.parametrize(
        ("inputs", "word"),
        [
            ({}, "needs input 'x'"),
            ({"x": "1"}, "must be Int"),
            ({"x": 1, "z": 2}, "no input 'z'"),
            ({"x": True}, "bool"),
        ],
    )
    def test_wrong_call_inputs_are_refused_by_name(self, inputs: dict[str, Any], word: str) -> None:
        failure = run(one_node("function").compile(), inputs).failure
        assert failure is not None
        assert failure.code is ErrorCode.BAD_INPUT
        assert word in failure.message


class TestCancellation:
    @pytest.mark.parametrize("how", ["cancel", "deadline"])
    def test_it_ends_the_call_at_once_runs_hooks_once_and_frees_the_role(self, how: str) -> None:
        async def go() -> tuple[ErrorCode | None, list[str], int]:
            worker = Worker()
            driver = InProcessDriver(one_node("endless").compile(), roles={"worker": worker})
            stream = driver.call({"x": 1}, timeout_s=0.02 if how == "deadline" else None)
            seen = 0
            seen_at_cancel = 0
            code = None
            try:
                async for _ in stream:
                    seen += 1
                    if how == "cancel" and seen == 3:
                        stream.cancel()
                        seen_at_cancel = seen
            except CallError as error:
                code = error.failure.code
            if how == "cancel":
                assert seen == seen_at_cancel, "no output after the terminal event"
            await asyncio.sleep(0.01)
            return code, worker.log, driver.active

        code, log, active = asyncio.run(go())
        assert code is (ErrorCode.CANCELLED if how == "cancel" else ErrorCode.DEADLINE_EXCEEDED)
        assert sorted(log) == ["cancelled", "closed"]
        assert active == 0

    def test_a_failure_in_one_branch_stops_the_other(self) -> None:
        async def go() -> tuple[Any, int]:
            workflow = Workflow("two")
            x = workflow.placeholder("x", Int)
            worker = workflow.role("worker", Worker)
            workflow.output("y", worker.endless(x=x).y, stream=True)
            workflow.output("z", worker.fail(x=x).y)
            driver = InProcessDriver(workflow.compile())
            result = await collect(driver, {"x": 2}, timeout_s=5)
            await asyncio.sleep(0.01)
            return result.failure, driver.active

        failure, active = asyncio.run(go())
        assert failure.node == "worker.fail"
        assert active == 0


class TestSessions:
    def run_turns(self, sessions: list[str | None], **options: Any) -> list[str]:
        async def go() -> list[str]:
            worker = Worker()
            driver = InProcessDriver(one_node("turn").compile(), roles={"worker": worker})
            calls = [collect(driver, {"x": i}, session_id=s, timeout_s=5, **options) for i, s in enumerate(sessions)]
            await asyncio.gather(*calls)
            return worker.log

        return asyncio.run(go())

    def test_calls_of_one_session_run_one_at_a_time_first_in_first_out(self) -> None:
        assert self.run_turns(["s"] * 3) == [f"{step} {i}" for i in range(3) for step in ("begin", "end")]

    @pytest.mark.parametrize("sessions", [["a", "b"], [None, None]])
    def test_calls_of_different_sessions_run_side_by_side(self, sessions: list[str | None]) -> None:
        assert self.run_turns(sessions)[:2] == ["begin 0", "begin 1"]

    def test_cancel_previous_ends_earlier_calls_of_the_session_first(self) -> None:
        log = self.run_turns(["s"] * 3, cancel_previous=True)
        assert log == ["begin 2", "end 2"], "tasks of cancelled calls never begin"

    def test_a_queued_call_that_is_cancelled_leaves_the_session_alive(self) -> None:
        async def go() -> list[Any]:
            driver = InProcessDriver(one_node("turn").compile())
            streams = [driver.call({"x": i}, session_id="s") for i in range(3)]
            streams[1].cancel()
            ends: list[Any] = []
            for stream in streams:
                try:
                    ends.append([item.value async for item in stream])
                except CallError as error:
                    ends.append(error.failure.code)
            return ends

        assert asyncio.run(go()) == [[0], ErrorCode.CANCELLED, [2]]

    def test_two_requests_with_one_id_do_not_collide(self) -> None:
        async def go() -> list[list[Any]]:
            driver = InProcessDriver(one_node("turn").compile())
            results = await asyncio.gather(*(collect(driver, {"x": i}, request_id="same") for i in range(4)))
            return [result.values("y") for result in results]

        assert asyncio.run(go()) == [[0], [1], [2], [3]]


class Slow(Role):
    @interface(inputs={"x": Int}, outputs={"done": Text})
    async def consume(self, ctx: Any, x: int) -> dict[str, Any]:
        while self.options["gate"] and not self.options["gate"][0].is_set():
            await asyncio.sleep(0.001)
        return {"done": str(x)}


class TestBackpressure:
    @pytest.mark.parametrize("style", ["generator", "async_generator"])
    def test_a_slow_consumer_holds_its_producer_within_the_window(self, style: str) -> None:
        async def go() -> tuple[int, int]:
            gate = asyncio.Event()
            workflow = Workflow("backpressure", window=4)
            source = getattr(workflow.role("worker", Worker), style)(x=workflow.placeholder("x", Int))
            workflow.output("done", workflow.role("slow", Slow, gate=[gate]).consume(x=source.y).done, many=True)
            worker = Worker()
            driver = InProcessDriver(workflow.compile(), roles={"worker": worker})
            task = asyncio.create_task(collect(driver, {"x": 100}, timeout_s=10))
            await asyncio.sleep(0.05)
            held = worker.made
            gate.set()
            result = (await task).raise_for_failure()
            return held, len(result.outputs["done"])

        held, done = asyncio.run(go())
        assert held <= 2 * 4 + 1
        assert done == 100

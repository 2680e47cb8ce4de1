"""What comparable systems got wrong: each case is a rule here. Some need a server: see ``tests/triton``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from omniflow_backend import CallError, Int, Many, Role, SessionLoadBalance, Text, Workflow, interface
from omniflow_backend.drivers.in_process import InProcessDriver
from omniflow_backend.errors import ErrorCode
from omniflow_backend.testing import CallResult, collect, run


class Producer(Role):
    """Makes ``n`` chunks and says that it is done; knows whether it still runs."""

    running = 0

    @interface(inputs={"n": Int}, outputs={"chunk": Text, "done": Text, "spare": Text})
    async def produce(self, ctx: Any, n: int) -> AsyncIterator[dict[str, Any]]:
        self.running += 1
        try:
            for index in range(n):
                yield {"chunk": f"c{index}", "spare": "nobody takes this"}
            yield {"done": "done"}
        finally:
            self.running -= 1

    @interface(inputs={"n": Int}, outputs={"n": Int, "chunk": Text})
    async def begin(self, ctx: Any, n: int) -> dict[str, Any]:
        return {"n": n, "chunk": "c0"}

    @interface(inputs={"items": Many(Text)}, outputs={"item": Text})
    async def each(self, ctx: Any, items: list[str]) -> AsyncIterator[dict[str, Any]]:
        for item in items:
            yield {"item": item}

    @interface(inputs={"n": Int}, outputs={"texts": Many(Text)})
    async def listed(self, ctx: Any, n: int) -> dict[str, Any]:
        return {"texts": [f"t{index}" for index in range(n)]}


class Stage(Role):
    """A middle that is slower for earlier values, so that later ones overtake."""

    threads = 4

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[str] = []

    @interface(inputs={"chunk": Text}, outputs={"chunk": Text})
    async def work(self, ctx: Any, chunk: str) -> dict[str, Any]:
        await asyncio.sleep(0.02 / (1 + int(chunk[1:])))
        self.seen.append(chunk)
        if chunk == self.options.get("fails_at"):
            raise RuntimeError("the stage broke")
        return {"chunk": chunk.upper()}

    @interface(inputs={"chunk": Text}, outputs={"hit": Text, "miss": Text})
    async def cached(self, ctx: Any, chunk: str) -> dict[str, Any]:
        return {"hit": f"{chunk} cached"} if int(chunk[1:]) % 2 else {"miss": chunk}

    @interface(inputs={"chunk": Text}, outputs={"chunk": Text})
    def slow(self, ctx: Any, chunk: str) -> Iterator[dict[str, Any]]:
        yield {"chunk": f"{chunk} slow"}

    @interface(inputs={"chunk": Text}, outputs={"chunk": Text}, load_balance=SessionLoadBalance())
    async def turn(self, ctx: Any, chunk: str) -> dict[str, Any]:
        await asyncio.sleep(0.005)
        return {"chunk": chunk}


class End(Role):
    """Collects."""

    @interface(inputs={"texts": Many(Text)}, outputs={"all": Text, "number": Int})
    async def gather(self, ctx: Any, texts: list[str]) -> dict[str, Any]:
        return {"all": ",".join(texts), "number": len(texts)}

    @interface(inputs={"chunks": Many(Text), "done": Text}, outputs={"all": Text})
    async def finish(self, ctx: Any, chunks: list[str], done: str) -> dict[str, Any]:
        return {"all": ",".join([*chunks, done])}


def numbered(n: int) -> list[str]:
    return [f"c{index}" for index in range(n)]


def flow_of(**options: Any) -> tuple[Workflow, Any, Any, Any]:
    flow = Workflow("case", **options)
    return flow, flow.role("producer", Producer), flow.role("stage", Stage), flow.role("end", End)


def outcome(flow: Workflow, inputs: dict[str, Any], **roles: Role) -> CallResult:
    return run(flow.compile(), inputs, roles=roles, timeout_s=10).raise_for_failure()


def test_requests_whose_default_ids_collide_do_not_mix() -> None:
    async def go(request_ids: list[str]) -> list[list[Any]]:
        flow, producer, stage, _ = flow_of()
        produced = producer.each(items=flow.placeholder("items", Many(Text)))
        flow.output("chunk", stage.work(chunk=produced.item).chunk, stream=True)
        driver = InProcessDriver(flow.compile())
        calls = [collect(driver, {"items": [f"c{n}"]}, request_id=id) for n, id in enumerate(request_ids)]
        return [result.values("chunk") for result in await asyncio.gather(*calls)]

    for ids in ([""] * 4, ["0"] * 4):
        assert asyncio.run(go(ids)) == [["C0"], ["C1"], ["C2"], ["C3"]]


def test_a_join_of_cache_hits_and_misses_keeps_both_in_order() -> None:
    flow, producer, stage, end = flow_of()
    looked_up = stage.cached(chunk=producer.produce(n=flow.placeholder("n", Int)).chunk)
    encoded = stage.slow(chunk=looked_up.miss)
    whole = producer.listed(n=flow.placeholder("m", Int))
    joined = end.finish(chunks=[looked_up.hit, encoded.chunk], done=whole_text(flow, whole))
    flow.output("all", joined.all)
    result = outcome(flow, {"n": 5, "m": 1})
    assert result.outputs["all"] == "c0 slow,c1 cached,c2 slow,c3 cached,c4 slow,t0"


def whole_text(flow: Workflow, listed: Any) -> Any:
    return flow.role("end", End).gather(texts=listed.texts).all


def test_a_fast_branch_that_is_far_ahead_does_not_make_its_join_time_out() -> None:
    """The values that wait in a bucket do not wait for an acknowledgement: the window would be full for ever."""
    flow, producer, stage, end = flow_of(window=2)
    begun = producer.begin(n=flow.placeholder("n", Int))
    fast, slow = producer.produce(n=begun.n), stage.work(chunk=begun.chunk)
    flow.output("all", end.finish(chunks=fast.chunk, done=slow.chunk).all)
    assert outcome(flow, {"n": 100}).outputs["all"] == ",".join([*numbered(100), "C0"])


@pytest.mark.parametrize("number", [1, 2, 5])
def test_every_image_of_a_request_is_taken_not_only_the_first(number: int) -> None:
    flow, producer, stage, end = flow_of()
    image = producer.each(items=flow.placeholder("images", Many(Text)))
    encoded = stage.work(chunk=image.item)
    text = end.gather(texts=flow.placeholder("images_too", Many(Text)))
    flow.output("all", end.finish(chunks=encoded.chunk, done=text.all).all)
    images = numbered(number)
    result = outcome(flow, {"images": images, "images_too": ["question"]})
    assert result.outputs["all"] == ",".join([*(image.upper() for image in images), "question"])


def test_an_empty_list_between_stages_is_a_value() -> None:
    flow, producer, _, end = flow_of()
    gathered = end.gather(texts=producer.listed(n=flow.placeholder("n", Int)).texts)
    flow.output("number", gathered.number)
    assert outcome(flow, {"n": 0}).outputs == {"number": 0}


def test_a_done_marker_never_overtakes_its_chunks() -> None:
    flow, producer, stage, end = flow_of()
    produced = producer.produce(n=flow.placeholder("n", Int))
    worked = stage.work(chunk=produced.chunk)
    flow.output("stream", [worked.chunk, produced.done], stream=True)
    counts = {"chunks": flow.placeholder("n_too", Int), "done": 1}
    flow.output("all", end.finish(chunks=worked.chunk, done=produced.done, activate_by_count=counts).all)
    result = outcome(flow, {"n": 20, "n_too": 20})
    expected = [*(chunk.upper() for chunk in numbered(20)), "done"]
    assert result.values("stream") == expected
    assert result.outputs["all"] == ",".join(expected)


def test_chunks_are_neither_coalesced_nor_lost_when_the_consumer_is_slow() -> None:
    flow, producer, stage, _ = flow_of(window=3)
    flow.output("chunk", stage.turn(chunk=producer.produce(n=flow.placeholder("n", Int)).chunk).chunk, stream=True)
    assert outcome(flow, {"n": 40}).values("chunk") == numbered(40)


def test_a_stream_is_sent_as_deltas_only_and_not_repeated_at_the_end() -> None:
    flow, producer, *_ = flow_of()
    flow.output("text", producer.produce(n=flow.placeholder("n", Int)).chunk, stream=True)
    result = outcome(flow, {"n": 4})
    assert result.values("text") == numbered(4)
    assert result.outputs == {}


def test_a_request_inherits_nothing_from_an_aborted_one_with_its_id() -> None:
    async def go() -> tuple[Any, CallResult]:
        flow, producer, stage, end = flow_of()
        produced = producer.produce(n=flow.placeholder("n", Int))
        worked = stage.work(chunk=produced.chunk)
        flow.output("chunk", worked.chunk, stream=True)
        flow.output("all", end.gather(texts=worked.chunk, activate_by_count={"texts": flow.placeholder("m", Int)}).all)
        worker = Stage()
        driver = InProcessDriver(flow.compile(), roles={"stage": worker})
        aborted = driver.call({"n": 10, "m": 10}, request_id="same")
        async with asyncio.timeout(5):
            while not worker.seen:
                await asyncio.sleep(0)
        aborted.cancel()
        return aborted, await collect(driver, {"n": 3, "m": 3}, request_id="same", timeout_s=5)

    aborted, result = asyncio.run(go())
    assert aborted.failure.code is ErrorCode.CANCELLED
    assert result.raise_for_failure().outputs["all"] == "C0,C1,C2"
    assert len(result.streamed) == 3


def test_an_error_in_a_stage_ends_the_join_that_waits_for_it() -> None:
    flow, producer, stage, end = flow_of()
    produced = producer.produce(n=flow.placeholder("n", Int))
    flow.output("all", end.finish(chunks=stage.work(chunk=produced.chunk).chunk, done=produced.done).all)
    result = run(flow.compile(), {"n": 5}, roles={"stage": Stage(fails_at="c2")}, timeout_s=10)
    assert result.failure is not None
    assert (result.failure.code, result.failure.node) == (ErrorCode.ROLE_FAILED, "stage.work")


@pytest.mark.parametrize("how", ["the consumer fails", "the caller cancels"])
def test_an_early_end_downstream_stops_the_producer(how: str) -> None:
    async def go() -> tuple[ErrorCode | None, int, int]:
        flow, producer, stage, _ = flow_of()
        worked = stage.work(chunk=producer.produce(n=flow.placeholder("n", Int)).chunk)
        flow.output("chunk", worked.chunk, stream=True)
        source = Producer()
        fails_at = "c1" if how == "the consumer fails" else None
        roles: dict[str, Role] = {"producer": source, "stage": Stage(fails_at=fails_at)}
        driver = InProcessDriver(flow.compile(), roles=roles)
        stream = driver.call({"n": 10**9}, timeout_s=20)
        code = None
        try:
            async for _ in stream:
                if how == "the caller cancels":
                    stream.cancel()
        except CallError as error:
            code = error.failure.code
        async with asyncio.timeout(5):
            while source.running:
                await asyncio.sleep(0)
        return code, source.running, driver.active

    code, running, active = asyncio.run(go())
    assert code is (ErrorCode.ROLE_FAILED if how == "the consumer fails" else ErrorCode.CANCELLED)
    assert (running, active) == (0, 0)


@pytest.mark.parametrize("threads", [False, True])
def test_outputs_that_nobody_asked_for_do_not_stall_the_graph(threads: bool) -> None:
    async def go() -> CallResult:
        flow, producer, *_ = flow_of(window=1)
        flow.output("done", producer.produce(n=flow.placeholder("n", Int)).done)
        driver = InProcessDriver(flow.compile(), executor=ThreadPoolExecutor(1) if threads else None)
        return await collect(driver, {"n": 500}, timeout_s=10)

    assert asyncio.run(go()).raise_for_failure().outputs == {"done": "done"}


def test_a_session_survives_the_cancelling_of_a_request_that_was_queued() -> None:
    async def go() -> list[Any]:
        flow, producer, stage, _ = flow_of()
        flow.output("chunk", stage.turn(chunk=producer.produce(n=flow.placeholder("n", Int)).chunk).chunk, stream=True)
        driver = InProcessDriver(flow.compile())
        calls = [asyncio.ensure_future(collect(driver, {"n": 2}, session_id="s", timeout_s=5)) for _ in range(2)]
        queued = driver.call({"n": 2}, session_id="s")
        calls.append(asyncio.ensure_future(collect(driver, {"n": 2}, session_id="s", timeout_s=5)))
        await asyncio.sleep(0)
        queued.cancel()
        results = await asyncio.gather(*calls)
        return [result.raise_for_failure().values("chunk") for result in results]

    assert asyncio.run(go()) == [["c0", "c1"]] * 3

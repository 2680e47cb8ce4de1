"""Roles for tests against a real server; each stub loads this file by its path."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from omniflow_backend import (
    ActivationContext,
    Audio,
    BadInput,
    Bool,
    Bytes,
    Float,
    Image,
    Int,
    Json,
    Many,
    Optional,
    Role,
    SessionLoadBalance,
    Tensor,
    Text,
    Workflow,
    interface,
)


class Plain(Role):
    """Interfaces that answer once."""

    def load(self) -> None:
        self.cancelled = 0

    @interface(inputs={"text": Text}, outputs={"text": Text})
    def shout(self, ctx: ActivationContext, text: str) -> dict[str, Any]:
        if text == "bad":
            raise BadInput("this text is not wanted")
        if text == "broken":
            raise RuntimeError("something broke")
        return {"text": text.upper() + str(self.options.get("mark", ""))}

    @interface(inputs={"seconds": Float}, outputs={"slept": Float})
    async def sleep(self, ctx: ActivationContext, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    @interface(inputs={"wait_for_cancel": Bool}, outputs={"cancelled": Int})
    async def cancellations(self, ctx: ActivationContext, wait_for_cancel: bool) -> dict[str, Any]:
        """How many of its own waiting activations were cancelled."""
        if wait_for_cancel:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return {"cancelled": self.cancelled}

    @interface(
        inputs={
            "samples": Audio,
            "picture": Image,
            "matrix": Tensor("int32", (-1, 2)),
            "texts": Many(Text),
            "whole": Int,
            "flag": Bool,
            "raw": Bytes,
            "data": Json,
            "maybe": Optional(Float),
        },
        outputs={
            "samples": Audio,
            "picture": Image,
            "matrix": Tensor("int32", (-1, 2)),
            "texts": Many(Text),
            "whole": Int,
            "flag": Bool,
            "raw": Bytes,
            "data": Json,
            "maybe": Float,
        },
    )
    async def echo(self, ctx: ActivationContext, **values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value is not None}

    @interface(inputs={"die": Bool}, outputs={"pid": Int})
    def process(self, ctx: ActivationContext, die: bool) -> dict[str, Any]:
        if die:
            os.abort()
        return {"pid": os.getpid()}


class Stream(Role):
    """Interfaces that yield."""

    made = 0
    closed = 0

    @interface(inputs={"n": Int, "pause": Optional(Float)}, outputs={"item": Int})
    async def count(self, ctx: ActivationContext, n: int, pause: float | None) -> AsyncIterator[dict[str, Any]]:
        try:
            for item in range(n):
                if pause:
                    await asyncio.sleep(pause)
                Stream.made += 1
                yield {"item": item}
        finally:
            Stream.closed += 1

    @interface(inputs={"slow": Int}, outputs={"item": Int})
    def blocking(self, ctx: ActivationContext, slow: int) -> Iterator[dict[str, Any]]:
        for item in range(slow):
            time.sleep(0.002)
            yield {"item": item}

    @interface(inputs={"look": Bool}, outputs={"made": Int, "closed": Int, "pid": Int})
    async def progress(self, ctx: ActivationContext, look: bool) -> dict[str, Any]:
        return {"made": Stream.made, "closed": Stream.closed, "pid": os.getpid()}

    @interface(inputs={"fail_after": Int}, outputs={"item": Int})
    async def breaks(self, ctx: ActivationContext, fail_after: int) -> AsyncIterator[dict[str, Any]]:
        for item in range(fail_after):
            yield {"item": item}
        raise RuntimeError("broke in the middle")

    @interface(inputs={"megabytes": Int}, outputs={"big": Tensor("uint8", (-1,))})
    async def big(self, ctx: ActivationContext, megabytes: int) -> dict[str, Any]:
        import numpy as np

        return {"big": np.full(megabytes << 20, 7, np.uint8)}


class CorruptingEcho(Role):
    """What a stub built for another numpy does to tensors."""

    @interface(
        inputs={"numbers": Tensor("float32", (-1,)), "raw": Bytes},
        outputs={"numbers": Tensor("float32", (-1,)), "raw": Bytes},
    )
    async def echo(self, ctx: ActivationContext, numbers: Any, raw: bytes) -> dict[str, Any]:
        return {"numbers": numbers * 0 + numbers[0], "raw": raw}


class Unloadable(Role):
    """Fails to load while the file named in its options exists."""

    def load(self) -> None:
        if os.path.exists(self.options["while_exists"]):
            raise RuntimeError("the weights are not there")

    def close(self) -> None:
        with open(self.options["while_exists"] + ".closed", "w") as file:
            file.write("closed")

    @interface(inputs={"seconds": Float}, outputs={"text": Text})
    def hog(self, ctx: ActivationContext, seconds: float) -> dict[str, Any]:
        """Does not care about being cancelled."""
        with open(self.options["while_exists"] + ".begun", "w"):
            time.sleep(seconds)
        return {"text": "done"}


class Source(Role):
    """Where test workflows begin."""

    @interface(inputs={"text": Text, "n": Int}, outputs={"part": Text, "count": Int})
    async def split(self, ctx: ActivationContext, text: str, n: int) -> AsyncIterator[dict[str, Any]]:
        yield {"count": n}
        for index in range(n):
            yield {"part": f"{text}{index}"}


class Worker(Role):
    """Middles and ends of test workflows."""

    @interface(inputs={"part": Text}, outputs={"text": Text})
    async def left(self, ctx: ActivationContext, part: str) -> dict[str, Any]:
        return {"text": f"<{part}"}

    @interface(inputs={"part": Text}, outputs={"text": Text})
    def right(self, ctx: ActivationContext, part: str) -> dict[str, Any]:
        if part.startswith("broken"):
            raise RuntimeError("cannot do the right thing")
        return {"text": f"{part}>"}

    @interface(inputs={"left": Text, "right": Text}, outputs={"both": Text})
    async def join(self, ctx: ActivationContext, left: str, right: str) -> dict[str, Any]:
        return {"both": left + right}

    @interface(inputs={"parts": Many(Text)}, outputs={"all": Text})
    async def gather(self, ctx: ActivationContext, parts: list[str]) -> dict[str, Any]:
        return {"all": ",".join(parts)}


class Waiter(Role):
    """A role that takes its time, and knows what became of its activations."""

    def load(self) -> None:
        self.begun = 0
        self.ended = 0
        self.cancelled = 0
        self.largest_lead = 0

    @interface(inputs={"seconds": Float}, outputs={"text": Text})
    async def wait(self, ctx: ActivationContext, seconds: float) -> dict[str, Any]:
        self.begun += 1
        ctx.on_cancel(self.count_cancel)
        await asyncio.sleep(seconds)
        self.ended += 1
        return {"text": f"waited {seconds:g} in {ctx.session_id} as {os.getpid()}"}

    @interface(inputs={"look": Bool}, outputs={"begun": Int, "ended": Int, "cancelled": Int, "pid": Int})
    async def seen(self, ctx: ActivationContext, look: bool) -> dict[str, Any]:
        return {"begun": self.begun, "ended": self.ended, "cancelled": self.cancelled, "pid": os.getpid()}

    def count_cancel(self) -> None:
        self.cancelled += 1


class Stubborn(Role):
    """A role that may not let go; two of its plain functions run at once."""

    threads = 2
    hang_timeout_s = 1.0

    @interface(inputs={"how": Text, "seconds": Float}, outputs={"hold": Float, "block": Float, "pid": Int})
    async def route(self, ctx: ActivationContext, how: str, seconds: float) -> dict[str, Any]:
        return {how: seconds} if how in ("hold", "block") else {"pid": os.getpid()}

    @interface(inputs={"seconds": Float}, outputs={"pid": Int})
    def hold(self, ctx: ActivationContext, seconds: float) -> dict[str, Any]:
        """Never looks whether it is cancelled."""
        time.sleep(seconds)
        return {"pid": os.getpid()}

    @interface(inputs={"seconds": Float}, outputs={"pid": Int})
    async def block(self, ctx: ActivationContext, seconds: float) -> dict[str, Any]:
        """Does what an async interface must not: nothing else can happen in its process."""
        time.sleep(seconds)
        return {"pid": os.getpid()}


class Twin(Role):
    """A role with replicas."""

    @interface(inputs={"part": Text, "seconds": Float}, outputs={"pid": Int, "part": Text})
    async def work(self, ctx: ActivationContext, part: str, seconds: float) -> dict[str, Any]:
        await asyncio.sleep(seconds)
        return {"pid": os.getpid(), "part": part}

    @interface(inputs={"part": Text}, outputs={"pid": Int}, load_balance=SessionLoadBalance())
    async def turn(self, ctx: ActivationContext, part: str) -> dict[str, Any]:
        return {"pid": os.getpid()}


class Tensors(Role):
    """Makes and reads big arrays."""

    @interface(inputs={"size": Int}, outputs={"data": Tensor("float32", (-1,))})
    async def make(self, ctx: ActivationContext, size: int) -> dict[str, Any]:
        import numpy as np

        return {"data": np.arange(size, dtype=np.float32)}

    @interface(inputs={"data": Tensor("float32", (-1,))}, outputs={"total": Float, "pid": Int, "owned": Bool})
    async def total(self, ctx: ActivationContext, data: Any) -> dict[str, Any]:
        return {"total": float(data.sum(dtype="float64")), "pid": os.getpid(), "owned": bool(data.flags.writeable)}


def _diamond() -> Workflow:
    flow = Workflow("diamond")
    source, worker = flow.role("source", Source), flow.role("worker", Worker)
    split = source.split(text=flow.placeholder("text", Text), n=flow.placeholder("n", Int, default=1))
    left, right = worker.left(part=split.part), worker.right(part=split.part)
    joined = worker.join(left=left.text, right=right.text)
    flow.output("both", joined.both, stream=True)
    flow.output("count", split.count)
    gathered = worker.gather(parts=split.part, activate_by_count={"parts": split.count})
    flow.output("all", gathered.all)
    return flow


def _waiting() -> Workflow:
    flow = Workflow("waiting")
    node = flow.role("waiter", Waiter).wait(seconds=flow.placeholder("seconds", Float))
    flow.output("text", node.text)
    return flow


def _big() -> Workflow:
    flow = Workflow("big")
    made = flow.role("maker", Tensors).make(size=flow.placeholder("size", Int))
    total = flow.role("reader", Tensors).total(data=made.data)
    flow.output("data", made.data)
    flow.output("total", total.total)
    flow.output("pid", total.pid)
    return flow


def _wrapping() -> Workflow:
    flow = Workflow("wrapping")
    node = flow.triton_model("foreign", inputs={"x": Text}, outputs={"y": Text})
    node.bind(x=flow.placeholder("text", Text))
    stream = flow.triton_model("foreign_stream", inputs={"x": Text}, outputs={"y": Text}, decoupled=True)
    stream.bind(x=node.y)
    flow.output("y", stream.y, stream=True)
    return flow


def _stubborn() -> Workflow:
    flow = Workflow("holding")
    role = flow.role("stubborn", Stubborn)
    route = role.route(how=flow.placeholder("how", Text), seconds=flow.placeholder("seconds", Float, default=0.0))
    pids = [route.pid, role.hold(seconds=route.hold).pid, role.block(seconds=route.block).pid]
    flow.output("pid", pids)
    return flow


def _twins() -> Workflow:
    flow = Workflow("twins")
    source, twin = flow.role("source", Source), flow.role("twin", Twin, replicas=2)
    text, count = flow.placeholder("text", Text, default="x"), flow.placeholder("n", Int, default=1)
    split = source.split(text=text, n=count)
    worked = twin.work(part=split.part, seconds=flow.placeholder("seconds", Float, default=0.0))
    flow.output("pids", worked.pid, many=True)
    flow.output("turns", twin.turn(part=worked.part).pid, many=True)
    return flow


diamond, waiting, big, wrapping = _diamond(), _waiting(), _big(), _wrapping()
holding, twins = _stubborn(), _twins()

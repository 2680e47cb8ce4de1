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
    Tensor,
    Text,
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

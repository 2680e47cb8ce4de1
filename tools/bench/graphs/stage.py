"""The no-op role behind every benchmark graph: interfaces of all the shapes that models have, and no work in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from omniflow_backend import Int, Many, Optional, Role, SessionLoadBalance, interface

Values = dict[str, int]
REPEATS = 3


class Stage(Role):
    """One process; a graph uses as many as it has nodes."""

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def step(self, ctx: Any, x: int) -> Values:
        """An encoder, a decoder, a tokenizer: one in, one out."""
        return {"y": x}

    @interface(inputs={"x": Int}, outputs={"y": Int}, load_balance=SessionLoadBalance())
    async def turn(self, ctx: Any, x: int) -> Values:
        """What updates session state: one at a time, in order."""
        return {"y": x}

    @interface(inputs={"a": Int, "b": Int}, outputs={"y": Int})
    async def pair(self, ctx: Any, a: int, b: int) -> Values:
        """A join of two branches."""
        return {"y": a}

    @interface(inputs={"a": Int, "b": Int, "c": Int}, outputs={"y": Int})
    async def triple(self, ctx: Any, a: int, b: int, c: int) -> Values:
        """A join of three branches."""
        return {"y": a}

    @interface(inputs={"xs": Many(Int), "a": Int}, outputs={"y": Int})
    async def gather(self, ctx: Any, xs: list[int], a: int) -> Values:
        """All of one branch, with one of another."""
        return {"y": a}

    @interface(inputs={"a": Int, "b": Optional(Int)}, outputs={"y": Int})
    async def optional_pair(self, ctx: Any, a: int, b: int | None) -> Values:
        """A join whose second branch may not be taken."""
        return {"y": a}

    @interface(inputs={"x": Int}, outputs={"y": Int, "sentence": Int, "done": Int})
    async def stream(self, ctx: Any, x: int) -> AsyncIterator[Values]:
        """An LLM or a talker: pieces, some of which complete a sentence, then the end."""
        for piece in range(REPEATS):
            yield {"y": piece, "sentence": piece} if piece == REPEATS - 1 else {"y": piece}
        yield {"done": x}

    @interface(inputs={"x": Int}, outputs={"frame": Int, "text": Int, "count": Int})
    async def parse(self, ctx: Any, x: int) -> AsyncIterator[Values]:
        """A parser of multimodal input: how many frames, the frames, the text."""
        yield {"count": REPEATS}
        for frame in range(REPEATS):
            yield {"frame": frame}
        yield {"text": x}

    @interface(inputs={"x": Int}, outputs={"left": Int, "right": Int})
    async def route(self, ctx: Any, x: int) -> Values:
        """A choice: one of two ways."""
        return {"left": x} if x % 2 == 0 else {"right": x}

    @interface(inputs={"x": Int}, outputs={"again": Int, "answer": Int})
    async def loop(self, ctx: Any, x: int) -> Values:
        """An agent's or a sampler's turn: again until the third."""
        return {"answer": x} if x % 3 == 2 else {"again": x}

    @interface(inputs={"x": Int}, outputs={"y": Int})
    async def advance(self, ctx: Any, x: int) -> Values:
        """The body of a loop."""
        return {"y": x + 1}

    @interface(inputs={"xs": Many(Int), "zs": Optional(Many(Int))}, outputs={"y": Int})
    async def collect(self, ctx: Any, xs: list[int], zs: list[int] | None) -> Values:
        """A count join: diffusion with all its conditions."""
        return {"y": len(xs)}

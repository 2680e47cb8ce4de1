"""Random conversions: a page layout, block stacks that hold a part of it in some strides, and tokens to move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from memory_manager.layouts import BlockStacks, PageLayout, PageMove

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

# Orders of [block, token, head, dim] in memory: NHD, HND, tokens outermost, heads outermost, and dim not innermost.
ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3), (2, 1, 0, 3), (0, 2, 3, 1))
DIM_INNERMOST = ORDERS[:4]
_INTEGERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True)
class Case:
    """One conversion. Bytes are random, on both sides, and the same for the same `seed`."""

    layout: PageLayout
    layers: int
    heads: int
    first_layer: int
    first_head: int
    blocks: int
    block_tokens: int
    order: tuple[int, ...]
    gap: int  # elements between one stack's end and the next one's start
    tokens: tuple[tuple[int, int], ...]
    table: tuple[tuple[int, ...], ...]
    seed: int

    def stack_bytes(self) -> Bytes:
        """The allocation that all stacks are views of."""
        return self._random(0, self._stack_items * self.layout.kinds * self.layers * self.layout.item_bytes)

    def page_bytes(self) -> list[Bytes]:
        """One allocation a page, a little longer than the page."""
        return [self._random(1 + index, self.layout.nbytes + 16) for index in range(len(self.tokens))]

    def stacks(self, allocation: Any) -> BlockStacks:
        """Stacks over an allocation on any device, given as bytes of numpy or CuPy."""
        items = allocation.view(_INTEGERS[self.layout.item_bytes])
        sizes = (self.blocks, self.block_tokens, self.heads, self.layout.head_dim)
        ordered = tuple(sizes[axis] for axis in self.order)

        def stack(layer: int, kind: int) -> Any:
            start = (layer * self.layout.kinds + kind) * self._stack_items
            return (
                items[start : start + math.prod(sizes)]
                .reshape(ordered)
                .transpose(tuple(np.argsort(self.order).tolist()))
            )

        return BlockStacks([[stack(layer, kind) for kind in range(self.layout.kinds)] for layer in range(self.layers)])

    def moves(self, pages: list[Any]) -> list[PageMove]:
        """Moves of all pages."""
        return [
            PageMove(page[: self.layout.nbytes], blocks, first, stop)
            for page, blocks, (first, stop) in zip(pages, self.table, self.tokens, strict=True)
        ]

    @property
    def placement(self) -> dict[str, int]:
        """What a converter is told besides the layouts."""
        return {"first_layer": self.first_layer, "first_head": self.first_head}

    @property
    def _stack_items(self) -> int:
        return self.blocks * self.block_tokens * self.heads * self.layout.head_dim + self.gap

    def _random(self, stream: int, nbytes: int) -> Bytes:
        return np.random.default_rng((self.seed, stream)).integers(0, 256, nbytes, np.uint8)


@st.composite
def cases(draw: st.DrawFn, orders: tuple[tuple[int, ...], ...] = ORDERS) -> Case:
    """Conversions of every shape that the layouts allow, small enough to be quick."""
    small = st.integers(1, 4)
    layout = PageLayout(
        layers=draw(small),
        kinds=draw(st.integers(1, 2)),
        partitions=draw(small),
        page_tokens=draw(st.integers(1, 12)),
        heads=draw(small),
        head_dim=draw(st.sampled_from([1, 2, 3, 8, 16, 40])),
        item_bytes=draw(st.sampled_from([1, 2, 4, 8])),
    )
    layers = draw(st.integers(1, layout.layers))
    # As many heads as a partition has, but across two of them, is where joining tokens would be wrong.
    heads = draw(st.one_of(st.just(layout.heads), st.integers(1, layout.total_heads)))
    blocks, block_tokens = draw(st.integers(1, 24)), draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16]))
    # No two moves share a block: what both wrote there would depend on their order.
    free = list(draw(st.permutations(range(blocks))))
    tokens, table = [], []
    for _ in range(draw(st.integers(1, 3))):
        first = draw(st.integers(0, layout.page_tokens - 1))
        stop = draw(st.integers(first, layout.page_tokens))
        count = (stop - 1) // block_tokens - first // block_tokens + 1 if stop > first else 0
        if count <= len(free):
            taken = free[:count]
            tokens.append((first, stop))
            table.append(tuple(sorted(taken) if draw(st.booleans()) else taken))
            free = free[count:]
    return Case(
        layout=layout,
        layers=layers,
        heads=heads,
        first_layer=draw(st.integers(0, layout.layers - layers)),
        first_head=draw(st.integers(0, layout.total_heads - heads)),
        blocks=blocks,
        block_tokens=block_tokens,
        order=draw(st.sampled_from(orders)),
        gap=draw(st.sampled_from([0, 0, 1, 8])),
        tokens=tuple(tokens),
        table=tuple(table),
        seed=draw(st.integers(0, 2**32)),
    )


# Stacks whose rows are as long as a partition's, and lie across two partitions.
STRADDLING = Case(
    *(PageLayout(2, 2, 3, 8, 4, 8, 2), 2, 4, 0, 2, 6, 4, (0, 1, 2, 3), 0),
    tokens=((0, 8), (1, 7)),
    table=((3, 0), (5, 1)),
    seed=11,
)

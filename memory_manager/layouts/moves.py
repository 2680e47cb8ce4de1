"""What is converted: tokens of pages, and the blocks they lie in, checked against both layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from memory_manager.layouts.arrays import Strided, strided
from memory_manager.layouts.page import PageLayout
from memory_manager.layouts.stacks import BlockStacks


class Direction(Enum):
    """Which side is written."""

    STORE = "store"
    LOAD = "load"


class ConversionPath(Enum):
    """How a conversion runs: compiled for the GPU, compiled for the CPU, or by indexing in numpy or torch."""

    KERNEL = "kernel"
    CPU = "cpu"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class PageMove:
    """Tokens `[first, stop)` of one page, and where they lie in the block stacks.

    Token t of the page lies at `t % block_tokens` of a block. `blocks` names the blocks that hold these tokens, in
    their order: its first entry is the block of token `first`, also where that is in the block's middle.

    Args:
        page: a contiguous array of at least `PageLayout.nbytes` bytes, of any dtype; tokens outside the range are
            neither read nor written.
        blocks: block numbers.
        first: the first token.
        stop: the token after the last; `None` is the page's end.
    """

    page: Any
    blocks: Sequence[int]
    first: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Checked moves as flat arrays: per page its address and (first, stop); the blocks of all pages in a row."""

    pages: list[Strided]
    arrays: list[Any]
    tokens: np.ndarray[Any, np.dtype[np.int32]]
    blocks: np.ndarray[Any, np.dtype[np.int32]]


def checked(moves: Sequence[PageMove], stacks: BlockStacks, layout: PageLayout, direction: Direction) -> Batch:
    """The moves, without those of no token.

    Raises:
        ValueError: for a page, tokens or blocks that do not fit the layouts, and for a target that is read-only.
    """
    pages: list[Strided] = []
    arrays: list[Any] = []
    tokens: list[int] = []
    blocks: list[int] = []
    if direction is Direction.LOAD and not stacks.writable:
        raise ValueError("the block stacks are read-only, so that no page can be loaded into them")
    for number, move in enumerate(moves):
        stop = layout.page_tokens if move.stop is None else move.stop
        if not 0 <= move.first <= stop <= layout.page_tokens:
            raise ValueError(f"move {number}: tokens {move.first}:{stop} do not lie in a page of {layout.page_tokens}")
        wanted = (stop - 1) // stacks.block_tokens - move.first // stacks.block_tokens + 1 if stop > move.first else 0
        if len(move.blocks) != wanted:
            raise ValueError(
                f"move {number}: tokens {move.first}:{stop} lie in {wanted} blocks of {stacks.block_tokens} tokens, "
                f"but {len(move.blocks)} are named"
            )
        place = _checked_page(number, move.page, stacks, layout, direction)
        if wanted:
            pages.append(place)
            arrays.append(move.page)
            tokens += (move.first, stop)
            blocks.extend(move.blocks)
    table = np.asarray(blocks, dtype=np.int64)
    if table.size and (table.min() < 0 or table.max() >= stacks.blocks):
        raise ValueError(f"blocks {table.min()} to {table.max()} do not lie in stacks of {stacks.blocks} blocks")
    return Batch(pages, arrays, np.asarray(tokens, dtype=np.int32), table.astype(np.int32))


def _checked_page(number: int, page: Any, stacks: BlockStacks, layout: PageLayout, direction: Direction) -> Strided:
    place = strided(page)
    if place.nbytes < layout.nbytes or not place.contiguous_from(0):
        raise ValueError(
            f"move {number}: a page is {layout.nbytes} contiguous bytes, not {place.nbytes} of shape {place.shape} "
            f"with strides {place.strides}"
        )
    if place.address % layout.item_bytes:
        raise ValueError(f"move {number}: the page's address is not a multiple of {layout.item_bytes} bytes")
    if direction is Direction.STORE and not place.writable:
        raise ValueError(f"move {number}: the page is read-only, so that nothing can be stored in it")
    if stacks.gpu is None and place.gpu is not None:
        raise ValueError(f"move {number}: the page is on GPU {place.gpu}, but the block stacks are on the host")
    return place

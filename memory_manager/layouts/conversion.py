"""Converts pages between block stacks and storage, straight into the destination, on the best path there is."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from memory_manager.layouts.copying import copy_pages
from memory_manager.layouts.moves import Batch, ConversionPath, Direction, PageMove, checked
from memory_manager.layouts.native import native
from memory_manager.layouts.page import PageLayout
from memory_manager.layouts.stacks import BlockStacks


class PageConverter:
    """Copies tokens of pages from `stacks` to storage (`store`) and back (`load`), bit for bit (paper, section 4.1.2).

    The stacks may hold a part of what a page has: layers `[first_layer, first_layer + stacks.layers)` and heads
    `[first_head, first_head + stacks.heads)` of the page, whose heads count through its partitions. The rest of the
    page is left alone. Safe to use from several threads, as long as they write different tokens.

    Args:
        stacks: the compute side.
        layout: the storage side.
        first_layer: the page's layer that the stacks' first one is.
        first_head: the page's head that the stacks' first one is.
        path: how to convert; by default the compiled way, else by indexing where that does not fit.

    Raises:
        ValueError: if the stacks do not fit into the layout, or `path` cannot convert them.
    """

    def __init__(
        self,
        stacks: BlockStacks,
        layout: PageLayout,
        *,
        first_layer: int = 0,
        first_head: int = 0,
        path: ConversionPath | None = None,
    ) -> None:
        _check_fit(stacks, layout, first_layer, first_head)
        self._stacks = stacks
        self._layout = layout
        self._first_layer = first_layer
        self._first_head = first_head
        module = native()
        best = _best_path(stacks, module)
        if path not in (None, best, ConversionPath.COPY):
            raise ValueError(
                f"these block stacks cannot be converted by {path}: built are "
                f"{'kernels' if module and module.HAS_KERNELS else 'no kernels'}, the stacks are "
                f"{'on the host' if stacks.gpu is None else 'on a GPU'} and their strides are "
                f"{'supported' if stacks.strides else 'not supported'}; leave path out to use {best}"
            )
        self._path = path or best
        self._module = module
        self._native = None if module is None or self._path is ConversionPath.COPY else self._compiled(module)

    @property
    def path(self) -> ConversionPath:
        """How pages are converted. On a GPU, batches with pages that its kernels cannot reach are copied instead."""
        return self._path

    def store(self, moves: Sequence[PageMove], *, threads: int = 1, stream: int = 0) -> None:
        """Write tokens of the stacks into pages.

        Args:
            moves: no two of them write the same tokens of a page.
            threads: CPU threads to use; at most one for every (layer, kind).
            stream: handle of the CUDA stream of the stacks' GPU on which the copies are queued; the call returns
                before they have run, and what they use must stay until then. Without meaning on the host.

        Raises:
            ValueError: for a move that does not fit the layouts; nothing has been written.
            RuntimeError: for what CUDA reports.
        """
        self._convert(moves, Direction.STORE, threads, stream)

    def load(self, moves: Sequence[PageMove], *, threads: int = 1, stream: int = 0) -> None:
        """Write tokens of pages into the stacks. Arguments and errors as for `store`."""
        self._convert(moves, Direction.LOAD, threads, stream)

    def _convert(self, moves: Sequence[PageMove], direction: Direction, threads: int, stream: int) -> None:
        batch = checked(moves, self._stacks, self._layout, direction)
        if not batch.arrays:
            return
        addresses = None if self._native is None else self._addresses(batch)
        if self._native is None or self._module is None or addresses is None:
            copy_pages(self._stacks, self._layout, self._first_layer, self._first_head, batch, direction, stream)
            return
        way = self._module.Direction.STORE if direction is Direction.STORE else self._module.Direction.LOAD
        if self._stacks.gpu is None:
            self._native.on_host(way, addresses, batch.tokens, batch.blocks, threads)
        else:
            self._native.on_device(way, addresses, batch.tokens, batch.blocks, self._stacks.gpu, stream)

    def _addresses(self, batch: Batch) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Where each page's first layer to convert starts; `None` if the GPU's kernels cannot reach one of them."""
        addresses = [page.address for page in batch.pages]
        if self._stacks.gpu is not None:
            assert self._module is not None
            for index, page in enumerate(batch.pages):
                if page.gpu is None:
                    addresses[index] = self._module.device_address(page.address)
                if page.gpu not in (None, self._stacks.gpu) or not addresses[index]:
                    return None
        return np.asarray(addresses, dtype=np.int64) + self._first_layer * self._layout.strides[0]

    def _compiled(self, module: ModuleType) -> Any:
        stacks, layout = self._stacks, self._layout
        return module.Conversion(
            stacks=np.asarray(stacks.addresses, dtype=np.int64),
            layers=stacks.layers,
            kinds=stacks.kinds,
            heads=stacks.heads,
            first_head=self._first_head,
            head_bytes=layout.head_dim * layout.item_bytes,
            block_tokens=stacks.block_tokens,
            stack_strides=np.asarray(stacks.strides, dtype=np.int64),
            partition_heads=layout.heads,
            page_strides=np.asarray(layout.strides[:5], dtype=np.int64),
        )


def _best_path(stacks: BlockStacks, module: ModuleType | None) -> ConversionPath:
    if module is None or stacks.strides is None:
        return ConversionPath.COPY
    if stacks.gpu is None:
        return ConversionPath.CPU
    return ConversionPath.KERNEL if module.HAS_KERNELS else ConversionPath.COPY


def _check_fit(stacks: BlockStacks, layout: PageLayout, first_layer: int, first_head: int) -> None:
    sizes = (
        ("layers", first_layer, stacks.layers, layout.layers),
        ("heads", first_head, stacks.heads, layout.total_heads),
    )
    for name, first, count, available in sizes:
        if first < 0 or first + count > available:
            raise ValueError(f"{name} {first}:{first + count} do not lie in a page of {available} {name}")
    head_dim = int(np.prod(stacks.dims))
    mine, page = (stacks.kinds, head_dim, stacks.item_bytes), (layout.kinds, layout.head_dim, layout.item_bytes)
    if mine != page:
        raise ValueError(f"(kinds, elements of a head, bytes of an element) are {mine} in the stacks, {page} in pages")

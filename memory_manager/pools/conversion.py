"""Between the arrangement of the computation (L1) and the one of storage (L2, L3), page by page (paper, 4.1.2)."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from memory_manager.layouts import BlockStacks, PageConverter, PageLayout, PageMove
from memory_manager.pools.declaration import ParameterDeclaration
from memory_manager.pools.paging import Array, PagedStorage


class LayoutConverter(Protocol):
    """Copies pages between the slots of an L1 region and pages in storage arrangement, straight into the destination.

    Called from several threads, for different pages.
    """

    def store(self, slot: int, page: Array) -> None:
        """The slot into `page`, an array with the logical axes of the layout (see `PagedStorage.page`)."""

    def load(self, page: Array, slot: int) -> None:
        """`page` into the slot."""


class IndexingConverter:
    """Any layout, by indexing in numpy; for regions in host memory."""

    def __init__(self, stacks: PagedStorage) -> None:
        self._stacks = stacks

    def store(self, slot: int, page: Array) -> None:
        np.copyto(page, self._stacks.page(slot), casting="no")

    def load(self, page: Array, slot: int) -> None:
        np.copyto(self._stacks.page(slot), page, casting="no")


class BlockStackConverter:
    """NHD block stacks, by the compiled code of `memory_manager.layouts`; see `fits`."""

    def __init__(self, stacks: PagedStorage) -> None:
        declaration = stacks.layout.declaration
        sizes = declaration.page_shape
        outer = len(declaration.sub_names)
        undivided = sum(dimension.axis is None for dimension in declaration.slice_dims)
        layers, kinds = math.prod(sizes[:outer]), math.prod(sizes[outer : outer + undivided])
        self._layout = PageLayout(
            layers=layers,
            kinds=kinds,
            partitions=math.prod(sizes[outer + undivided : outer + len(declaration.slice_dims)]),
            page_tokens=declaration.page_size,
            heads=declaration.slice_shape[0],
            head_dim=math.prod(declaration.slice_shape[1:]),
            item_bytes=declaration.dtype.carrier.itemsize,
        )
        blocks = stacks.blocks()
        whole = blocks.reshape(layers, kinds, *blocks.shape[outer + undivided :])
        self._converter = PageConverter(BlockStacks([list(layer) for layer in whole]), self._layout)

    @staticmethod
    def fits(declaration: ParameterDeclaration) -> bool:
        """Whether tokens are `[heads, head size, ...]`, and no slice dimension but the last one divides the heads."""
        *whole, last = [dimension.axis for dimension in declaration.slice_dims] or [None]
        return len(declaration.shape) >= 2 and all(axis is None for axis in whole) and last in (None, 0)

    def store(self, slot: int, page: Array) -> None:
        self._converter.store([PageMove(page, [slot])])

    def load(self, page: Array, slot: int) -> None:
        self._converter.load([PageMove(page, [slot])])


def converter_for(stacks: PagedStorage) -> LayoutConverter:
    """The fastest way that fits the layout."""
    return (
        BlockStackConverter(stacks)
        if BlockStackConverter.fits(stacks.layout.declaration)
        else IndexingConverter(stacks)
    )

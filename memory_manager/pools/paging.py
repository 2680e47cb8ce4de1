"""The physical paging layer (paper, 4.1.1): where every element of every page lies, and views of it without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from memory_manager.pools.declaration import ParameterDeclaration, Tier

Array = np.ndarray[Any, Any]


class Arrangement(Enum):
    """In which order the axes of a pool lie in memory."""

    BLOCK_STACK = "block stack"
    """What a computation wants: for each outer label and undivided slice one stack `[page, token, *shape]` (NHD)."""
    PAGE_MAJOR = "page major"
    """What storage wants: each page in one piece, on `PAGE_ALIGNMENT` boundaries, each slice in one piece."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where a view lies in its region; all in bytes but `shape`."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """Index arithmetic of one region: `slots` pages of a parameter in one arrangement. Pure; knows no memory.

    The logical axes are the same in every arrangement: page, outer dimensions, slice dimensions, token, slice shape.
    """

    declaration: ParameterDeclaration
    arrangement: Arrangement
    slots: int

    @property
    def nbytes(self) -> int:
        """Bytes of the region."""
        declaration = self.declaration
        return self.slots * (
            declaration.page_nbytes if self.arrangement is Arrangement.BLOCK_STACK else declaration.page_stride
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the logical axes."""
        return (self.slots, *self.declaration.page_shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each logical axis."""
        declaration, itemsize = self.declaration, self.declaration.dtype.carrier.itemsize
        if self.arrangement is Arrangement.PAGE_MAJOR:
            return (declaration.page_stride, *_dense(declaration.page_shape, itemsize))
        outer = declaration.stack_dimensions
        dense = _dense((*outer, self.slots, declaration.page_size, *declaration.shape), itemsize)
        page, token, *inner = dense[len(outer) :]
        undivided = iter(dense[len(declaration.sub_names) : len(outer)])
        slices = [
            next(undivided)
            if dimension.axis is None
            else inner[dimension.axis] * declaration.slice_shape[dimension.axis]
            for dimension in declaration.slice_dims
        ]
        return (page, *dense[: len(declaration.sub_names)], *slices, token, *inner)

    def stretch(self, sub_names: Sequence[str], page: int, slices: Sequence[str]) -> Stretch:
        """Where `[token, *slice_shape]` of one page lies, for one label of each outer and each slice dimension.

        Raises:
            KeyError: for a label or a number of labels that the declaration does not have.
            IndexError: for a page outside the region.
        """
        if not 0 <= page < self.slots:
            raise IndexError(f"page {page} does not lie in a region of {self.slots} pages")
        position = (page, *self._positions(sub_names, slices))
        strides = self.strides
        offset = sum(index * stride for index, stride in zip(position, strides, strict=False))
        return Stretch(offset, self.shape[len(position) :], strides[len(position) :])

    def stack(self, sub_names: Sequence[str], slices: Sequence[str]) -> Stretch:
        """Where `[page, token, *slice_shape]` lies: the same view of all pages of the region.

        Raises: as `stretch`, for labels.
        """
        position = self._positions(sub_names, slices)
        shape, strides = self.shape, self.strides
        offset = sum(index * stride for index, stride in zip(position, strides[1:], strict=False))
        rest = 1 + len(position)
        return Stretch(offset, (shape[0], *shape[rest:]), (strides[0], *strides[rest:]))

    def _positions(self, sub_names: Sequence[str], slices: Sequence[str]) -> tuple[int, ...]:
        dimensions = self.declaration.dimensions
        expected = (len(self.declaration.sub_names), len(self.declaration.slice_dims))
        if (len(sub_names), len(slices)) != expected:
            names = [dimension.name for dimension in dimensions]
            raise KeyError(f"{self.declaration.name}: one label for each of {names} is needed, in this order")
        positions = []
        for dimension, label in zip(dimensions, (*sub_names, *slices), strict=True):
            if label not in dimension.labels:
                raise KeyError(f"{self.declaration.name}: dimension {dimension.name!r} has no label {label!r}")
            positions.append(dimension.labels.index(label))
        return tuple(positions)


class PagedStorage:
    """The pages of one region. Every method returns a view of `memory`, never a copy.

    Args:
        memory: one-dimensional uint8 array over the whole region, `layout.nbytes` long at least. Views are writable
            when it is.
    """

    def __init__(self, memory: Array, layout: RegionLayout) -> None:
        if memory.nbytes < layout.nbytes:
            raise ValueError(
                f"a region of {memory.nbytes} bytes cannot hold {layout.slots} pages ({layout.nbytes} bytes)"
            )
        self.layout = layout
        self._memory = memory
        self._pages = self._array(Stretch(0, layout.shape, layout.strides))

    def view(self, sub_names: Sequence[str], page: int, slices: Sequence[str]) -> Array:
        """`[token, *slice_shape]` of one page, for one label of each dimension.

        Raises:
            KeyError: for labels that the declaration does not have.
            IndexError: for a page outside the region.
        """
        return self._array(self.layout.stretch(sub_names, page, slices))

    def stack(self, sub_names: Sequence[str], slices: Sequence[str]) -> Array:
        """`[page, token, *slice_shape]` of all pages: what an engine takes as one of its buffers.

        Raises:
            KeyError: for labels that the declaration does not have.
        """
        return self._array(self.layout.stack(sub_names, slices))

    def blocks(self) -> Array:
        """The whole region as `[outer..., undivided slices..., page, token, *shape]`; block stacks only.

        Raises:
            ValueError: if the region has another arrangement.
        """
        if self.layout.arrangement is not Arrangement.BLOCK_STACK:
            raise ValueError("pages that lie in one piece are no block stacks")
        declaration = self.layout.declaration
        shape = (*declaration.stack_dimensions, self.layout.slots, declaration.page_size, *declaration.shape)
        return np.ndarray(shape, declaration.dtype.carrier, self._memory)

    def page(self, page: int) -> Array:
        """A whole page with the logical axes of its layout (outer dimensions, slices, token, slice shape).

        Raises:
            IndexError: for a page outside the region.
        """
        if not 0 <= page < self.layout.slots:
            raise IndexError(f"page {page} does not lie in a region of {self.layout.slots} pages")
        return self._pages[page, ...]

    def raw(self, page: int) -> Array:
        """All `page_stride` bytes of a page, padding included; page major regions only.

        Raises:
            ValueError: if pages of this arrangement do not lie in one piece.
        """
        if self.layout.arrangement is not Arrangement.PAGE_MAJOR:
            raise ValueError("pages of a block stack do not lie in one piece")
        stride = self.layout.declaration.page_stride
        return self._memory[page * stride : (page + 1) * stride]

    def _array(self, stretch: Stretch) -> Array:
        dtype = self.layout.declaration.dtype.carrier
        return np.ndarray(stretch.shape, dtype, self._memory, stretch.offset, stretch.strides)


def arrangement_of(tier: Tier) -> Arrangement:
    """How the pages of a tier lie: computations run on L1."""
    return Arrangement.BLOCK_STACK if tier is Tier.L1 else Arrangement.PAGE_MAJOR


def _dense(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides)) if shape else ()

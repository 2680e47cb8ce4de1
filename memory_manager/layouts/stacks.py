"""The compute layout: the block stacks that attention kernels read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memory_manager.layouts.arrays import Strided, strided


class BlockStacks:
    """One array `[blocks, block_tokens, heads, *dims]` for every layer and kind: NHD, or any view of that shape.

    The arrays may be of numpy, torch or CuPy, in any strides; several may be views of one allocation. A cache that
    keeps heads before tokens is a transposed view; a pool of single tokens (`[slots, heads, head_dim]`) is one with
    `block_tokens` of 1. `dims` are what makes up one head, in the order of the page: usually `head_dim` alone.

    Args:
        arrays: `arrays[layer][kind]`. They are kept, so that their memory stays.

    Raises:
        ValueError: if they differ in shape, element size or device, or have fewer than four dimensions.
        TypeError: for what is no array.
    """

    def __init__(self, arrays: Sequence[Sequence[Any]]) -> None:
        self.arrays = tuple(tuple(layer) for layer in arrays)
        self._places = tuple(strided(array) for layer in self.arrays for array in layer)
        if not self._places or any(len(layer) != len(self.arrays[0]) for layer in self.arrays):
            raise ValueError("block stacks need at least one layer, and as many kinds in each layer")
        first = self._places[0]
        for place in self._places:
            if (place.shape, place.item_bytes, place.gpu) != (first.shape, first.item_bytes, first.gpu):
                raise ValueError(
                    f"block stacks are alike, but one has shape {first.shape}, {first.item_bytes}-byte elements "
                    f"{_where(first)}, and another {place.shape}, {place.item_bytes}-byte elements {_where(place)}"
                )
        if len(first.shape) < 4 or min(first.shape) < 1:
            raise ValueError(f"a block stack has shape [blocks, block_tokens, heads, *dims], not {first.shape}")

    @property
    def layers(self) -> int:
        return len(self.arrays)

    @property
    def kinds(self) -> int:
        return len(self.arrays[0])

    @property
    def blocks(self) -> int:
        return self._places[0].shape[0]

    @property
    def block_tokens(self) -> int:
        return self._places[0].shape[1]

    @property
    def heads(self) -> int:
        return self._places[0].shape[2]

    @property
    def dims(self) -> tuple[int, ...]:
        """What makes up one head."""
        return self._places[0].shape[3:]

    @property
    def item_bytes(self) -> int:
        return self._places[0].item_bytes

    @property
    def gpu(self) -> int | None:
        """The GPU's ordinal; `None` on the host."""
        return self._places[0].gpu

    @property
    def writable(self) -> bool:
        return all(place.writable for place in self._places)

    @property
    def addresses(self) -> list[int]:
        """One for every layer and kind, kinds running faster."""
        return [place.address for place in self._places]

    @property
    def strides(self) -> tuple[int, int, int] | None:
        """Bytes from block to block, token to token, head to head, if the arrays agree and a head is contiguous."""
        first = self._places[0]
        block, token, head = first.strides[:3]
        if any(place.strides[:3] != (block, token, head) or not place.contiguous_from(3) for place in self._places):
            return None
        return block, token, head


def _where(place: Strided) -> str:
    return "on the host" if place.gpu is None else f"on GPU {place.gpu}"

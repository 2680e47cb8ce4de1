"""One preallocated pool: blocks carved out of a region, and the index from any byte to its block."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

from memory_manager.devices.memory import Region
from memory_manager.tmp_buffers.extents import FreeExtents, aligned


@dataclass(slots=True, eq=False)
class Block:
    """Bytes `[offset, offset + nbytes)` of a pool. `generation` is its serial number, never used again.

    The bytes may be given to another block exactly when `references` is 0 and the block is not kept under a cache key.
    """

    pool: int
    offset: int
    nbytes: int
    generation: int
    references: int = 1
    key: str | None = None


class Pool:
    """The blocks of one region."""

    def __init__(self, number: int, device: str, region: Region) -> None:
        self.number = number
        self.device = device
        self.region = region
        self._extents = FreeExtents(region.nbytes)
        self._offsets: list[int] = []
        self._blocks: dict[int, Block] = {}

    @property
    def used(self) -> int:
        """Bytes that blocks occupy, with the padding that alignment costs."""
        return self.region.nbytes - self._extents.free

    @property
    def largest_free(self) -> int:
        """Bytes of the largest block that fits now."""
        return self._extents.largest

    @property
    def blocks(self) -> list[Block]:
        """All blocks, in the order of their offsets."""
        return [self._blocks[offset] for offset in self._offsets]

    def carve(self, nbytes: int, generation: int) -> Block | None:
        """A new block of `nbytes` bytes with one reference, or `None` if it does not fit."""
        offset = self._extents.take(aligned(nbytes))
        if offset is None:
            return None
        block = Block(self.number, offset, nbytes, generation)
        self._blocks[offset] = block
        insort(self._offsets, offset)
        return block

    def discard(self, block: Block) -> None:
        """The bytes of `block` are free."""
        del self._blocks[block.offset]
        del self._offsets[bisect_right(self._offsets, block.offset) - 1]
        self._extents.give(block.offset, aligned(block.nbytes))

    def block_at(self, offset: int, nbytes: int) -> Block | None:
        """The block in which bytes `[offset, offset + nbytes)` lie, or `None`."""
        position = bisect_right(self._offsets, offset) - 1
        if position < 0:
            return None
        block = self._blocks[self._offsets[position]]
        return block if offset + nbytes <= block.offset + block.nbytes else None

"""All blocks of the Tmp Buffer Pool: pools that grow to a limit, reference counts, and blocks kept under cache keys."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from memory_manager.devices.memory import Region
from memory_manager.errors import PoolExhausted, StaleHandle
from memory_manager.tmp_buffers.extents import ALIGNMENT, aligned
from memory_manager.tmp_buffers.pool import Block, Pool


@dataclass(frozen=True, slots=True)
class Published:
    """A tensor inside a block, kept under a cache key."""

    block: Block
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


class BlockStore:
    """Blocks and their references.

    A block is *held* (references > 0), *idle* (none, but published under a cache key) or gone. Idle blocks are dropped,
    least recently used first, when an allocation does not fit otherwise; held ones never.

    Args:
        allocate_region: new memory of at least that many bytes; raises `MemoryError` when the device has none left.
        device: its name.
        limit: bytes that all pools together may take.
        pool_bytes: size of a pool; a larger block gets a pool of its own size.
    """

    def __init__(self, allocate_region: Callable[[int], Region], device: str, limit: int, pool_bytes: int) -> None:
        self._allocate_region = allocate_region
        self._device = device
        self.limit = limit // ALIGNMENT * ALIGNMENT
        self._pool_bytes = min(aligned(pool_bytes), self.limit)
        self._pools: dict[int, Pool] = {}
        self._next_pool = 0
        self._next_generation = 1
        self._published: dict[str, Published] = {}
        self._idle: OrderedDict[int, Block] = OrderedDict()

    @property
    def pools(self) -> list[Pool]:
        """Pools that exist now, oldest first."""
        return list(self._pools.values())

    @property
    def idle(self) -> int:
        """How many blocks are idle."""
        return len(self._idle)

    @property
    def used(self) -> int:
        """Bytes that blocks occupy in all pools."""
        return sum(pool.used for pool in self._pools.values())

    def pool(self, number: int) -> Pool | None:
        """The pool of that number, if it exists."""
        return self._pools.get(number)

    def add_pool(self, region: Region) -> None:
        """A pool more."""
        self._pools[self._next_pool] = Pool(self._next_pool, self._device, region)
        self._next_pool += 1

    def allocate(self, nbytes: int) -> Block:
        """A new block with one reference.

        Raises:
            PoolExhausted: if it does not fit even after every idle block is gone.
        """
        reason = ""
        while True:
            for pool in self._pools.values():
                block = pool.carve(nbytes, self._next_generation)
                if block is not None:
                    self._next_generation += 1
                    return block
            try:
                grown = self._grow(aligned(nbytes))
            except MemoryError as error:
                grown, reason = False, str(error)
            if not grown and not self._drop_oldest_idle(nbytes):
                raise PoolExhausted(nbytes, self.used, self.limit - self.used, self.limit, reason)

    def resolve(self, pool: int, offset: int, nbytes: int, generation: int) -> Block:
        """The block of that generation in which those bytes lie.

        Raises:
            StaleHandle: if the block is gone, whatever lies there now.
        """
        owner = self._pools.get(pool)
        block = owner.block_at(offset, nbytes) if owner is not None else None
        if block is None or block.generation != generation:
            raise StaleHandle(
                f"block {generation} at pool {pool}, bytes {offset}:{offset + nbytes} has been released; "
                "a handle is valid as long as its scope, a reader or a cache key keeps the block"
            )
        return block

    def retain(self, block: Block) -> None:
        """One more reference."""
        block.references += 1
        self._idle.pop(block.generation, None)

    def release(self, block: Block) -> None:
        """One reference less; with the last one the block becomes idle or goes."""
        block.references -= 1
        if block.references == 0:
            if block.key is None:
                self._pools[block.pool].discard(block)
            else:
                self._idle[block.generation] = block

    def publish(self, key: str, tensor: Published) -> None:
        """Keep the block of `tensor` under `key` after its last reference. A later publication replaces it."""
        self.unpublish(key)
        if tensor.block.key is not None:
            self.unpublish(tensor.block.key)
        tensor.block.key = key
        self._published[key] = tensor

    def unpublish(self, key: str) -> None:
        """Forget `key`; an idle block goes with it. Nothing happens if there is none."""
        tensor = self._published.pop(key, None)
        if tensor is not None:
            tensor.block.key = None
            if self._idle.pop(tensor.block.generation, None) is not None:
                self._pools[tensor.block.pool].discard(tensor.block)

    def find(self, key: str) -> Published | None:
        """What is published under `key`; not a reference yet."""
        return self._published.get(key)

    def close(self) -> None:
        """Give all memory back to the device."""
        for pool in self._pools.values():
            pool.region.close()
        self._pools.clear()

    def _grow(self, nbytes: int) -> bool:
        total = sum(pool.region.nbytes for pool in self._pools.values())
        empty = [pool for pool in self._pools.values() if pool.used == 0]
        if total - sum(pool.region.nbytes for pool in empty) + nbytes > self.limit:
            return False
        # Empty pools, all too small for this block, make room for one that is not.
        while total + nbytes > self.limit:
            pool = empty.pop()
            total -= pool.region.nbytes
            del self._pools[pool.number]
            pool.region.close()
        self.add_pool(self._allocate_region(max(nbytes, min(self._pool_bytes, self.limit - total))))
        return True

    def _drop_oldest_idle(self, wanted: int) -> bool:
        if not self._idle or wanted > self.limit:
            return False
        block = next(iter(self._idle.values()))
        assert block.key is not None
        self.unpublish(block.key)
        return True

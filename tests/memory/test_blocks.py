"""Blocks, pools and cache keys, one rule each; `test_holders_model.py` walks through all of them at random."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory_manager import PoolExhausted, StaleHandle
from memory_manager.devices.cpu import CpuMemory
from memory_manager.tmp_buffers.blocks import BlockStore, Published
from memory_manager.tmp_buffers.pool import Block

POOL = 4096


@pytest.fixture
def store() -> Iterator[BlockStore]:
    store = BlockStore(lambda nbytes: CpuMemory().allocate(nbytes, False), "cpu", limit=4 * POOL, pool_bytes=POOL)
    yield store
    store.close()


def publish(store: BlockStore, key: str, nbytes: int) -> Block:
    block = store.allocate(nbytes)
    store.publish(key, Published(block, block.offset, nbytes, "|u1", (nbytes,)))
    store.release(block)
    return block


def test_blocks_start_on_cache_lines(store: BlockStore) -> None:
    assert [store.allocate(nbytes).offset for nbytes in (1, 64, 65, 0)] == [0, 64, 128, 256]


def test_the_smallest_hole_that_fits_is_used(store: BlockStore) -> None:
    large, _, small, _ = (store.allocate(nbytes) for nbytes in (512, 64, 128, 64))
    store.release(large)
    store.release(small)
    assert store.allocate(100).offset == small.offset


def test_neighbours_that_are_free_become_one_hole(store: BlockStore) -> None:
    blocks = [store.allocate(1024) for _ in range(4)]
    for block in (blocks[0], blocks[2], blocks[1]):
        store.release(block)
    assert store.pools[0].largest_free == 3072
    assert store.allocate(3072).offset == 0


def test_an_interior_pointer_finds_its_block(store: BlockStore) -> None:
    store.allocate(64)
    block = store.allocate(1000)
    assert store.resolve(block.pool, block.offset + 500, 500, block.generation) is block
    for offset, nbytes in ((block.offset + 500, 501), (block.offset - 1, 10)):
        with pytest.raises(StaleHandle):
            store.resolve(block.pool, offset, nbytes, block.generation)


def test_reused_bytes_do_not_answer_to_the_old_generation(store: BlockStore) -> None:
    old = store.allocate(64)
    store.release(old)
    new = store.allocate(64)
    assert new.offset == old.offset
    with pytest.raises(StaleHandle):
        store.resolve(old.pool, old.offset, old.nbytes, old.generation)


def test_pools_are_added_up_to_the_limit_and_then_it_says_what_is_held(store: BlockStore) -> None:
    for _ in range(4):
        store.allocate(3000)
    assert len(store.pools) == 4
    with pytest.raises(PoolExhausted) as caught:
        store.allocate(2000)
    assert (caught.value.asked, caught.value.held, caught.value.free) == (2000, 4 * 3008, 4 * (4096 - 3008))


def test_empty_pools_make_room_for_one_large_block(store: BlockStore) -> None:
    blocks = [store.allocate(POOL) for _ in range(4)]
    for block in blocks[:3]:
        store.release(block)
    assert store.allocate(3 * POOL).nbytes == 3 * POOL
    assert sum(pool.region.nbytes for pool in store.pools) == 4 * POOL


def test_a_held_pool_is_never_given_up(store: BlockStore) -> None:
    small = store.allocate(64)
    with pytest.raises(PoolExhausted):
        store.allocate(4 * POOL)
    assert store.resolve(small.pool, small.offset, 64, small.generation) is small


def test_a_published_block_stays_until_its_bytes_are_needed_least_recently_used_first(store: BlockStore) -> None:
    first, second, third = (publish(store, key, POOL) for key in ("first", "second", "third"))
    store.retain(first)
    store.release(first)
    store.allocate(POOL)
    store.allocate(POOL)
    assert [store.find(key) is not None for key in ("first", "second", "third")] == [True, False, True]
    assert store.idle == 2
    assert (second.key, third.key) == (None, "third")


def test_a_published_block_that_is_held_is_not_evicted(store: BlockStore) -> None:
    block = publish(store, "key", 4 * POOL)
    store.retain(block)
    with pytest.raises(PoolExhausted):
        store.allocate(64)
    store.release(block)
    store.allocate(64)
    assert store.find("key") is None


def test_publishing_again_replaces_what_the_key_named(store: BlockStore) -> None:
    publish(store, "key", 100)
    new = publish(store, "key", 200)
    found = store.find("key")
    assert found is not None
    assert found.block is new
    assert store.used == 256

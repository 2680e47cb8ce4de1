"""A random walk over everything clients can do, against a model that only counts, on real memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memory_manager import PoolExhausted, ScopeReleased
from memory_manager.devices.cpu import CpuMemory
from memory_manager.tmp_buffers.blocks import BlockStore, Published
from memory_manager.tmp_buffers.extents import aligned
from memory_manager.tmp_buffers.holders import Holders
from memory_manager.tmp_buffers.pool import Block

POOL, LIMIT = 1024, 4096
SCOPES = st.sampled_from(["one", "two", "three"])


@dataclass
class ModelScope:
    blocks: dict[int, bytes] = field(default_factory=dict)
    owners: set[bytes] = field(default_factory=set)


class HoldersModel(RuleBasedStateMachine):
    """The model knows blocks by generation. `making` are leases under which blocks are unsealed."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, Any] = {}
        self.store = BlockStore(self.new_region, "cpu", LIMIT, POOL)
        self.holders = Holders(self.store)
        self.numbers = iter(range(1, 1_000_000))
        self.blocks: dict[int, Block] = {}
        self.leases: dict[bytes, dict[int, list[int]]] = {}
        self.making: dict[tuple[bytes, int], str] = {}
        self.unsealed: set[int] = set()
        self.scopes: dict[str, ModelScope] = {}
        self.released: set[str] = set()
        self.keys: dict[str, int] = {}

    def new_region(self, nbytes: int) -> Any:
        return CpuMemory().allocate(nbytes, False)

    # What the model expects

    def references(self) -> Counter[int]:
        held = [block for scope in self.scopes.values() for block in scope.blocks]
        leased = [block for leases in self.leases.values() for lease in leases.values() for block in lease]
        return Counter(held + leased)

    def bytes_of(self, block: Block) -> memoryview:
        pool = self.store.pool(block.pool)
        assert pool is not None
        return memoryview(pool.region._map)[block.offset : block.offset + block.nbytes]  # type: ignore[attr-defined]

    def pattern(self, block: Block) -> bytes:
        return block.generation.to_bytes(4, "little") * (block.nbytes // 4)

    # What happens

    @initialize()
    def first_client(self) -> None:
        self.add_client()

    @precondition(lambda self: len(self.leases) < 3)
    @rule()
    def add_client(self) -> None:
        client = f"client-{next(self.numbers)}".encode()
        self.holders.add_client(client)
        self.leases[client] = {}

    @precondition(lambda self: self.leases)
    @rule(
        data=st.data(),
        sizes=st.lists(st.integers(0, 400).map(lambda words: words * 4), min_size=1, max_size=3),
        scope=SCOPES,
    )
    def allocate(self, data: st.DataObject, sizes: list[int], scope: str) -> None:
        client, lease = data.draw(st.sampled_from(list(self.leases))), next(self.numbers)
        before = self.store.used
        try:
            blocks = self.holders.allocate(client, lease, sizes, scope)
        except ScopeReleased:
            assert scope in self.released
            return
        except PoolExhausted:
            # What idle blocks occupied may be gone; what is held must be as before.
            assert self.store.used <= before
            return
        assert scope not in self.released
        self.leases[client][lease] = [block.generation for block in blocks]
        self.making[client, lease] = scope
        target = self.scopes.setdefault(scope, ModelScope())
        for block in blocks:
            assert block.generation not in self.blocks
            self.bytes_of(block)[:] = self.pattern(block)
            self.blocks[block.generation] = block
            target.blocks[block.generation] = client
            self.unsealed.add(block.generation)

    @precondition(lambda self: self.making)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        client, lease = data.draw(st.sampled_from(list(self.making)))
        self.holders.seal(client, lease)
        self.unsealed.difference_update(self.leases[client][lease])

    @precondition(lambda self: self.leases and self.references())
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        client, lease = data.draw(st.sampled_from(list(self.leases))), next(self.numbers)
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.references())), min_size=1, max_size=3))
        found = []
        for generation in chosen:
            block = self.blocks[generation]
            found.append(self.store.resolve(block.pool, block.offset, block.nbytes, generation))
        self.holders.acquire(client, lease, found)
        self.leases[client][lease] = chosen
        self.unsealed.difference_update(chosen)

    @precondition(lambda self: any(self.leases.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client, leases in self.leases.items() if leases]))
        lease = data.draw(st.sampled_from(list(self.leases[client])))
        self.holders.release(client, lease)
        self.holders.release(client, lease)
        self.let_go(client, lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), scope=SCOPES)
    def open_scope(self, data: st.DataObject, scope: str) -> None:
        client = data.draw(st.sampled_from(list(self.leases)))
        self.holders.open_scope(client, scope)
        self.released.discard(scope)
        self.scopes.setdefault(scope, ModelScope()).owners.add(client)

    @rule(scope=SCOPES)
    def release_scope(self, scope: str) -> None:
        self.holders.release_scope(scope)
        self.end_scope(scope)

    @precondition(lambda self: self.references())
    @rule(data=st.data(), key=st.sampled_from(["k1", "k2"]))
    def publish(self, data: st.DataObject, key: str) -> None:
        generation = data.draw(st.sampled_from(sorted(self.references())))
        block = self.blocks[generation]
        self.store.publish(key, Published(block, block.offset, block.nbytes, "|u1", (block.nbytes,)))
        self.keys = {old: other for old, other in self.keys.items() if other != generation}
        self.keys[key] = generation

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def client_dies(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(list(self.leases)))
        self.holders.drop_client(client)
        for lease in list(self.leases[client]):
            self.let_go(client, lease)
        del self.leases[client]
        for name, scope in list(self.scopes.items()):
            if scope.owners == {client}:
                self.end_scope(name)
            elif not scope.owners:
                scope.blocks = {block: producer for block, producer in scope.blocks.items() if producer != client}
            scope.owners.discard(client)

    def let_go(self, client: bytes, lease: int) -> None:
        blocks = self.leases[client].pop(lease)
        scope = self.making.pop((client, lease), None)
        if scope is not None:
            for block in self.unsealed.intersection(blocks):
                if scope in self.scopes:
                    self.scopes[scope].blocks.pop(block, None)
                self.unsealed.discard(block)

    def end_scope(self, name: str) -> None:
        scope = self.scopes.pop(name, None)
        if scope is not None and scope.owners:
            self.released.add(name)

    # What must hold

    @invariant()
    def every_block_has_exactly_the_references_that_somebody_holds(self) -> None:
        live = {block.generation: block.references for pool in self.store.pools for block in pool.blocks}
        expected = self.references()
        assert {generation: count for generation, count in live.items() if count} == dict(expected)
        idle = {generation for generation, count in live.items() if not count}
        assert idle <= set(self.keys.values())
        assert self.store.idle == len(idle)
        self.keys = {key: block for key, block in self.keys.items() if block in live}
        self.blocks = {generation: self.blocks[generation] for generation in live}

    @invariant()
    def live_blocks_do_not_overlap_and_keep_their_bytes(self) -> None:
        for pool in self.store.pools:
            end = 0
            for block in pool.blocks:
                assert block.offset >= end
                assert block.offset % 64 == 0
                end = block.offset + aligned(block.nbytes)
                assert self.bytes_of(block) == self.pattern(block)
            assert end <= pool.region.nbytes
            assert pool.used == sum(aligned(block.nbytes) for block in pool.blocks)
        assert sum(pool.region.nbytes for pool in self.store.pools) <= LIMIT

    def teardown(self) -> None:
        for client in list(self.leases):
            self.holders.drop_client(client)
        for scope in list(self.scopes):
            self.holders.release_scope(scope)
        for key in ("k1", "k2"):
            self.store.unpublish(key)
        assert self.holders.scopes == 0
        assert self.store.used == 0
        assert all(pool.largest_free == pool.region.nbytes for pool in self.store.pools)
        self.store.close()


TestHoldersModel = HoldersModel.TestCase
TestHoldersModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

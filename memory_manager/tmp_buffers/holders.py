"""Who holds which block: scopes hold what was made for a call, leases hold what a client uses right now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from memory_manager.errors import PoolExhausted, RequestRefused, ScopeReleased
from memory_manager.tmp_buffers.blocks import BlockStore, Published
from memory_manager.tmp_buffers.pool import Block

_REMEMBERED_SCOPES = 16384


@dataclass(slots=True, eq=False)
class Lease:
    """References of one client, let go together. `scope` is set where the client allocated the blocks."""

    blocks: list[Block]
    scope: str | None = None


@dataclass(slots=True, eq=False)
class Scope:
    """The first references of blocks, by generation, each with its producer. Owners are the clients that opened it."""

    blocks: dict[int, tuple[Block, bytes]] = field(default_factory=dict)
    owners: set[bytes] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Client:
    """What one client holds."""

    leases: dict[int, Lease] = field(default_factory=dict)
    scopes: set[str] = field(default_factory=set)


class Holders:
    """The life of a block, seen from outside::

        allocate --> unsealed --seal, or somebody acquires it--> sealed --last reference gone--> idle or gone
                        |
                        +-- its lease released unsealed, or its producer dies --> its scope lets it go

    A block has one reference of its scope (until the scope is released) and one of each lease that names it. When a
    client dies, its leases go, its unsealed blocks leave their scopes, and so do its sealed blocks in scopes that
    nobody owns. Scopes it owned alone are released. What other clients hold stays.
    """

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self._clients: dict[bytes, Client] = {}
        self._scopes: dict[str, Scope] = {}
        self._unsealed: set[int] = set()
        self._released_scopes: OrderedDict[str, None] = OrderedDict()

    @property
    def scopes(self) -> int:
        """How many scopes are active."""
        return len(self._scopes)

    def references_of(self, client: bytes) -> int:
        """References that the leases of `client` hold."""
        return sum(len(lease.blocks) for lease in self._clients[client].leases.values())

    def owned_scopes_of(self, client: bytes) -> int:
        """How many active scopes `client` opened."""
        return len(self._clients[client].scopes)

    def add_client(self, client: bytes) -> None:
        """A client from now on."""
        self._clients[client] = Client()

    def drop_client(self, client: bytes) -> None:
        """The client is gone, and with it what it held."""
        record = self._clients[client]
        for lease in list(record.leases):
            self.release(client, lease)
        for name in list(record.scopes):
            owners = self._scopes[name].owners
            if owners == {client}:
                self._close_scope(name)
            owners.discard(client)
        for name, scope in list(self._scopes.items()):
            if not scope.owners:
                for block in [block for block, producer in scope.blocks.values() if producer == client]:
                    self._leave_scope(name, block)
        del self._clients[client]

    def open_scope(self, client: bytes, name: str) -> None:
        """`client` owns the scope: blocks in it outlive their producers. A released scope may be opened anew."""
        self._released_scopes.pop(name, None)
        self._scopes.setdefault(name, Scope()).owners.add(client)
        self._clients[client].scopes.add(name)

    def release_scope(self, name: str) -> None:
        """The scope's references go, if there are any. If it had an owner, later allocations in it are refused."""
        if name in self._scopes:
            self._close_scope(name)

    def allocate(self, client: bytes, lease: int, sizes: Sequence[int], scope: str) -> list[Block]:
        """New unsealed blocks, one for each size, all or none, held by the scope and by the lease.

        Raises:
            PoolExhausted: if they do not fit.
            ScopeReleased: if an owner opened the scope and it has been released.
            RequestRefused: if the client has such a lease already.
        """
        leases = self._leases_without(client, lease)
        if scope in self._released_scopes:
            raise ScopeReleased(f"scope {scope!r} has been released: its call ended, nothing can be stored for it")
        blocks: list[Block] = []
        try:
            for nbytes in sizes:
                blocks.append(self.store.allocate(nbytes))
        except PoolExhausted:
            for block in blocks:
                self.store.release(block)
            raise
        held = self._scopes.setdefault(scope, Scope()).blocks
        for block in blocks:
            held[block.generation] = (block, client)
            self._unsealed.add(block.generation)
            self.store.retain(block)
        leases[lease] = Lease(blocks, scope)
        return blocks

    def seal(self, client: bytes, lease: int) -> None:
        """The blocks allocated under the lease are complete. Nothing happens if there is no such lease."""
        held = self._clients[client].leases.get(lease)
        if held is not None:
            self._unsealed.difference_update(block.generation for block in held.blocks)

    def acquire(self, client: bytes, lease: int, blocks: Sequence[Block]) -> None:
        """One more reference to each block.

        A handle leaves its producer only after the block is complete, so that whoever names a block proves it sealed,
        even if the producer's own word is still on its way.

        Raises:
            RequestRefused: if the client has such a lease already.
        """
        leases = self._leases_without(client, lease)
        for block in blocks:
            self.store.retain(block)
            self._unsealed.discard(block.generation)
        leases[lease] = Lease(list(blocks))

    def find(self, client: bytes, lease: int, keys: Sequence[str]) -> list[Published | None]:
        """What is published under the keys, each found block with one more reference.

        Raises:
            RequestRefused: if the client has such a lease already.
        """
        found = [self.store.find(key) for key in keys]
        if blocks := [tensor.block for tensor in found if tensor is not None]:
            self.acquire(client, lease, blocks)
        return found

    def release(self, client: bytes, lease: int) -> None:
        """What the lease holds is let go; blocks left unsealed leave their scope. Does nothing without such a lease."""
        held = self._clients[client].leases.pop(lease, None)
        if held is None:
            return
        for block in held.blocks:
            if held.scope is not None and block.generation in self._unsealed:
                self._unsealed.discard(block.generation)
                self._leave_scope(held.scope, block)
            self.store.release(block)

    def _leases_without(self, client: bytes, lease: int) -> dict[int, Lease]:
        leases = self._clients[client].leases
        if lease in leases:
            raise RequestRefused(f"lease {lease} is in use already; a client numbers its leases without repetition")
        return leases

    def _leave_scope(self, name: str, block: Block) -> None:
        scope = self._scopes.get(name)
        if scope is None or scope.blocks.pop(block.generation, None) is None:
            return
        if not scope.blocks and not scope.owners:
            del self._scopes[name]
        self.store.release(block)

    def _close_scope(self, name: str) -> None:
        scope = self._scopes.pop(name)
        for owner in scope.owners:
            self._clients[owner].scopes.discard(name)
        if scope.owners:
            self._released_scopes[name] = None
            if len(self._released_scopes) > _REMEMBERED_SCOPES:
                self._released_scopes.popitem(last=False)
        for block, _ in scope.blocks.values():
            self.store.release(block)

"""Migrations that have begun and not ended, and who waits for them."""

from __future__ import annotations

import itertools
from collections import Counter

from memory_manager.pools.declaration import Tier
from memory_manager.pools.requests import Holder, HolderKind, Migration, Request
from memory_manager.pools.slot_table import Slot, SlotTable

_ENGINE = b""
"""The client id under which migrations hold slots; no client has it."""


class MigrationsInFlight:
    """A migration holds its source and its destination from its begin to its end, whoever else lets go of them."""

    def __init__(self, table: SlotTable) -> None:
        self._table = table
        self._numbers = itertools.count(1)
        self._migrations: dict[int, Migration] = {}
        self._followers: dict[int, list[Request]] = {}
        self._evicting: set[int] = set()
        self._started: list[Migration] = []
        self.leaving: Counter[Tier] = Counter()
        """How many slots of each tier become free when migrations end."""

    def __len__(self) -> int:
        return len(self._migrations)

    def begin(self, source: Slot, destination: Slot, evicts: bool = False) -> None:
        """Bytes shall go from one slot to the other. With `evicts` the source is to be freed after it."""
        number = next(self._numbers)
        if destination.tier > source.tier:
            kind = HolderKind.OFFLOAD
        else:
            kind = HolderKind.UPLOAD if destination.tier is Tier.L1 else HolderKind.LOAD
        for slot in (source, destination):
            self._table.hold(slot, kind, Holder(_ENGINE, number))
        destination.migration = number
        migration = Migration(number, kind, source.page, source.ref, destination.page, destination.ref)
        self._migrations[number] = migration
        self._followers[number] = []
        self._started.append(migration)
        if evicts:
            self._evicting.add(number)
            self.leaving[source.tier] += 1

    def take_started(self) -> list[Migration]:
        """Migrations that nobody has taken yet."""
        started, self._started = self._started, []
        return started

    def follow(self, number: int, request: Request) -> None:
        """The request waits for the migration."""
        request.migrations.add(number)
        self._followers[number].append(request)

    def unfollow(self, request: Request) -> None:
        """The request waits for no migration any more. The migrations go on."""
        for number in request.migrations:
            self._followers[number].remove(request)
        request.migrations.clear()

    def end(self, number: int) -> tuple[Migration, Slot, Slot, list[Request], bool]:
        """The migration, its source and destination, who waited for it, and whether it evicts.

        Both slots are still held for it: `let_go` them when they are in their new state.
        """
        migration = self._migrations.pop(number)
        source = self._table.slot(migration.source)
        destination = self._table.slot(migration.destination)
        evicts = number in self._evicting
        if evicts:
            self._evicting.remove(number)
            self.leaving[source.tier] -= 1
        followers = self._followers.pop(number)
        for request in followers:
            request.migrations.discard(number)
        return migration, source, destination, followers, evicts

    def let_go(self, migration: Migration, source: Slot, destination: Slot) -> None:
        """The migration holds its slots no more."""
        for slot in (destination, source):
            self._table.let_go(slot, Holder(_ENGINE, migration.number))

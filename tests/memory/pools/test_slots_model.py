"""A random walk over everything that can happen to slots, with bytes that tell whose they are, against a model."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from memory_manager.pools.declaration import Tier
from memory_manager.pools.errors import StaleReservation
from memory_manager.pools.pressure import Fate
from memory_manager.pools.requests import (
    Access,
    Grant,
    Granted,
    Holder,
    Migration,
    MigrationFailure,
    Obstacle,
    Refused,
    Want,
)
from memory_manager.pools.slot_table import SlotState
from memory_manager.pools.slots import SlotEngine

CAPACITIES = {Tier.L1: 3, Tier.L2: 3, Tier.L3: 4}
PAGES = [b"page-%d" % number for number in range(12)]
HOLDERS = [Holder(client, number) for client in (b"a", b"b", b"c") for number in (1, 2)]
GARBAGE = b"garbage"

pages = st.sampled_from(PAGES)
holders = st.sampled_from(HOLDERS)
seconds = st.sampled_from([0.5, 2.0, 5.0])


class Cluster:
    """The guard: knows which pages are complete elsewhere, and what it allowed this node to lose."""

    def __init__(self, recomputable: bool) -> None:
        self.recomputable = recomputable
        self.elsewhere: set[bytes] = set()
        self.refuses = False
        self.allowed: set[bytes] = set()

    def withdraw(self, page: bytes) -> bool:
        if self.refuses or not (self.recomputable or page in self.elsewhere):
            return False
        self.allowed.add(page)
        return True


@dataclass
class Pending:
    holder: Holder
    wants: dict[bytes, Want]
    deadline: float
    hold_until: float | None


class SlotsModel(RuleBasedStateMachine):
    """`held` is what holders were granted and have not let go; `bytes` is what really lies in every slot."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.bytes: dict[tuple[Tier, int], bytes] = defaultdict(lambda: GARBAGE)
        self.held: dict[Holder, dict[bytes, tuple[Grant, float | None]]] = {holder: {} for holder in HOLDERS}
        self.pending: dict[int, Pending] = {}
        self.moving: dict[int, Migration] = {}
        self.complete: set[bytes] = set()
        self.disturbed = False

    @initialize(recomputable=st.booleans())
    def start(self, recomputable: bool) -> None:
        self.cluster = Cluster(recomputable)
        self.engine = SlotEngine(CAPACITIES, self.cluster, lambda: self.now)

    # What happens

    def place(self, slot: Any) -> tuple[Tier, int]:
        return slot.tier, slot.position

    def ask(self, holder: Holder, wants: list[Want], tier: Tier | None, patience: float, hold: float | None) -> None:
        until = None if hold is None else self.now + hold
        request = Pending(holder, {want.page: want for want in wants}, self.now + patience, until)
        answer = self.engine.request(holder, wants, tier=tier, deadline=request.deadline, hold_until=until)
        if isinstance(answer, int):
            self.pending[answer] = request
        else:
            self.receive(request, answer)
        self.collect()

    def receive(self, request: Pending, outcome: Granted | Refused) -> None:
        if isinstance(outcome, Refused):
            assert outcome.held + outcome.free <= CAPACITIES[outcome.tier]
            return
        assert outcome.grants.keys() == request.wants.keys()
        for page, grant in outcome.grants.items():
            want = request.wants[page]
            if grant is None:
                assert want.access is not Access.WRITE or self.disturbed, "who wants to write gets a slot"
                continue
            before = self.held[request.holder].get(page)
            until = request.hold_until
            if before is not None and before[0].slot == grant.slot:
                until = None if until is None or before[1] is None else max(until, before[1])
            self.held[request.holder][page] = (grant, until)
            content = self.bytes[self.place(grant.slot)]
            if not grant.writable:
                assert content == page, f"{page!r} was granted, {content!r} is there"
            elif want.access is Access.EXTEND and before is None:
                assert content == want.base

    def collect(self) -> None:
        """What the engine tells after every event."""
        for number, outcome in self.engine.take_outcomes():
            if isinstance(outcome, Refused) and outcome.obstacle is Obstacle.GIVEN_UP:
                assert number not in self.pending
            else:
                self.receive(self.pending.pop(number), outcome)
        for migration in self.engine.take_migrations():
            assert self.bytes[self.place(migration.source)] == migration.page
            self.bytes[self.place(migration.destination)] = GARBAGE
            self.moving[migration.number] = migration

    def let_go(self, holder: Holder, gone: list[bytes] | None) -> None:
        mine = self.held[holder]
        for page in list(mine) if gone is None else gone:
            mine.pop(page, None)
        for number, request in list(self.pending.items()):
            if request.holder == holder and (gone is None or request.wants.keys() & set(gone)):
                del self.pending[number]

    @rule(holder=holders, some=st.lists(pages, min_size=1, max_size=4), tier=st.sampled_from([Tier.L1, Tier.L2]),
          patience=seconds, hold=st.none() | seconds)  # fmt: skip
    def acquire(self, holder: Holder, some: list[bytes], tier: Tier, patience: float, hold: float | None) -> None:
        self.ask(holder, [Want(page) for page in some], tier, patience, hold)

    @rule(holder=holders, reads=st.lists(pages, max_size=2), writes=st.lists(pages, min_size=1, max_size=2))
    def acquire_for_both(self, holder: Holder, reads: list[bytes], writes: list[bytes]) -> None:
        wants = [Want(page, Access.WRITE if page in writes else Access.READ) for page in {*reads, *writes}]
        self.ask(holder, wants, Tier.L1, 2.0, None)

    @rule(holder=holders, some=st.lists(pages, min_size=1, max_size=3), hold=seconds)
    def look_up(self, holder: Holder, some: list[bytes], hold: float) -> None:
        self.ask(holder, [Want(page) for page in some], None, 1.0, hold)

    @rule(holder=holders, some=st.lists(pages, min_size=1, max_size=2), patience=seconds, hold=st.none() | seconds)
    def reserve(self, holder: Holder, some: list[bytes], patience: float, hold: float | None) -> None:
        self.ask(holder, [Want(page, Access.WRITE) for page in some], Tier.L1, patience, hold)

    @rule(holder=holders, base=pages, page=pages, patience=seconds)
    def extend(self, holder: Holder, base: bytes, page: bytes, patience: float) -> None:
        if base != page:
            self.ask(holder, [Want(page, Access.EXTEND, base)], Tier.L1, patience, None)

    @rule(data=st.data(), then=st.sampled_from(["write", "finish", "abort"]))
    @precondition(lambda self: any(grant.writable for mine in self.held.values() for grant, _ in mine.values()))
    def write(self, data: st.DataObject, then: str) -> None:
        mine = [(h, p, g) for h, grants in self.held.items() for p, (g, _) in grants.items() if g.writable]
        holder, page, grant = data.draw(st.sampled_from(mine))
        # A writer that was too late (its page is gone for it) writes all the same.
        self.bytes[self.place(grant.slot)] = page if then == "finish" else GARBAGE
        slot = self.engine.table.resolve(grant.slot)
        assert slot is not None, "a slot was given away while its writer held it"
        zombie = slot.state is not SlotState.WRITING
        try:
            if then == "finish":
                self.engine.finish_write(holder, grant.slot)
                self.complete.add(page)
                self.cluster.allowed.discard(page)
                self.held[holder][page] = (Grant(page, grant.slot, False), self.held[holder][page][1])
            elif then == "abort":
                self.engine.abort_write(holder, grant.slot)
                del self.held[holder][page]
        except StaleReservation:
            assert zombie
        else:
            assert then == "write" or not zombie
        self.collect()

    @rule(holder=holders, some=st.none() | st.lists(pages, min_size=1, max_size=3))
    def release(self, holder: Holder, some: list[bytes] | None) -> None:
        self.let_go(holder, some)
        self.engine.release(holder, some)
        self.collect()

    @rule(client=st.sampled_from([b"a", b"b", b"c"]))
    def client_dies(self, client: bytes) -> None:
        for holder in HOLDERS:
            if holder.client == client:
                self.let_go(holder, None)
        self.engine.drop_client(client)
        assert not self.engine.table.holders_of(client)
        self.collect()

    @rule(data=st.data(), end=st.sampled_from(["finish", "finish", "finish", *MigrationFailure]))
    @precondition(lambda self: self.moving)
    def migration_ends(self, data: st.DataObject, end: str | MigrationFailure) -> None:
        migration = self.moving.pop(data.draw(st.sampled_from(sorted(self.moving))))
        source = self.place(migration.source)
        assert self.bytes[source] == migration.page, "the source changed under a migration"
        if isinstance(end, str):
            self.bytes[self.place(migration.destination)] = migration.page
            self.engine.finish_migration(migration.number)
        else:
            self.disturbed = True
            if end is MigrationFailure.SOURCE_CORRUPT:
                self.cluster.allowed.add(migration.page)
            self.engine.abort_migration(migration.number, end)
        self.collect()

    @rule(page=pages, tier=st.sampled_from(list(Tier)))
    def evict(self, page: bytes, tier: Tier) -> None:
        held = any(page in mine and mine[page][0].slot.tier is tier for mine in self.held.values())
        slot = self.engine.table.copies(page).get(tier)
        fate = self.engine.evict(page, tier)
        assert not (held and slot is not None and slot.held and fate is Fate.GONE)
        self.collect()

    @rule(some=st.lists(pages, min_size=1, max_size=3), tier=st.sampled_from(list(Tier)))
    def preload(self, some: list[bytes], tier: Tier) -> None:
        self.engine.preload(some, tier)
        self.collect()

    @rule(page=pages)
    def forget(self, page: bytes) -> None:
        self.disturbed = True
        self.engine.forget([page])
        self.complete.discard(page)
        self.collect()

    @rule(page=pages, refuses=st.booleans())
    def cluster_changes(self, page: bytes, refuses: bool) -> None:
        self.cluster.elsewhere ^= {page}
        self.cluster.refuses = refuses

    @rule(passed=seconds)
    def time_passes(self, passed: float) -> None:
        self.now += passed
        self.disturbed = True
        for mine in self.held.values():
            for page, (grant, until) in list(mine.items()):
                # A writer keeps its slot, though not the right to finish it, until it lets go.
                if until is not None and until <= self.now and not grant.writable:
                    del mine[page]
        self.engine.expire()
        self.collect()
        assert all(request.deadline > self.now for request in self.pending.values()), "a request waits too long"

    # What always holds

    @invariant()
    def what_is_held_stays(self) -> None:
        for holder, mine in self.held.items():
            for page, (grant, _) in mine.items():
                slot = self.engine.table.resolve(grant.slot)
                assert slot is not None, f"{page!r} was given away while held"
                assert any(holder in holders for holders in slot.holders)
                assert grant.writable or self.bytes[self.place(grant.slot)] == page

    @invariant()
    def complete_slots_have_their_page(self) -> None:
        for tier in CAPACITIES:
            for slot in self.engine.table.slots(tier):
                if slot.state is SlotState.COMPLETE:
                    assert self.bytes[slot.tier, slot.index] == slot.page

    @invariant()
    def protected_pages_are_not_lost(self) -> None:
        lost = self.complete - set(self.engine.table.pages()) - self.cluster.allowed
        assert not lost

    @invariant()
    def slots_are_counted_once(self) -> None:
        table = self.engine.table
        for tier, capacity in CAPACITIES.items():
            states = [slot.state for slot in table.slots(tier)]
            free = [slot for slot in table.slots(tier) if slot.state is SlotState.FREE]
            assert table.free(tier) == len(free)
            assert not any(slot.held for slot in free)
            assert table.held(tier) == sum(slot.held for slot in table.slots(tier))
            assert table.free(tier) + table.held(tier) + table.idle(tier) == capacity == len(states)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for client in (b"a", b"b", b"c"):
            self.engine.drop_client(client)
        self.collect_without_clients()
        while self.moving:
            for number in list(self.moving):
                del self.moving[number]
                self.engine.finish_migration(number)
            self.collect_without_clients()
        assert self.engine.table.holds == 0
        assert self.engine.waiting == self.engine.in_flight == 0
        for tier in CAPACITIES:
            assert {slot.state for slot in self.engine.table.slots(tier)} <= {SlotState.FREE, SlotState.COMPLETE}
            assert self.engine.table.held(tier) == 0

    def collect_without_clients(self) -> None:
        self.engine.take_outcomes()
        self.moving.update((migration.number, migration) for migration in self.engine.take_migrations())


TestSlotsModel = SlotsModel.TestCase
TestSlotsModel.settings = settings(
    max_examples=150, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)

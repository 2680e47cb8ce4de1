"""The slot engine, case by case: what is granted, who waits, what may go, and what deaths leave behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from memory_manager.pools.declaration import Tier
from memory_manager.pools.errors import StaleReservation
from memory_manager.pools.pressure import Fate
from memory_manager.pools.requests import (
    Access,
    Grant,
    Granted,
    Holder,
    HolderKind,
    Migration,
    MigrationFailure,
    Obstacle,
    Refused,
    SlotRef,
    Want,
)
from memory_manager.pools.slots import SlotEngine

ANN, BOB, EVE = (Holder(client, 1) for client in (b"ann", b"bob", b"eve"))


class Guard:
    """Counts how often the cluster is asked."""

    def __init__(self, recomputable: bool) -> None:
        self.recomputable = recomputable
        self.asked: list[bytes] = []

    def withdraw(self, page: bytes) -> bool:
        self.asked.append(page)
        return self.recomputable


class Node:
    """An engine with a clock that is set by hand."""

    def __init__(self, l1: int = 0, l2: int = 0, l3: int = 0, recomputable: bool = True) -> None:
        self.now = 0.0
        self.guard = Guard(recomputable)
        capacities = {tier: slots for tier, slots in zip(Tier, (l1, l2, l3), strict=True) if slots}
        self.engine = SlotEngine(capacities, self.guard, lambda: self.now)

    def ask(
        self,
        holder: Holder,
        *pages: bytes,
        access: Access = Access.READ,
        tier: Tier | None = Tier.L1,
        hold_until: float | None = None,
    ) -> Granted | Refused | int:
        wants = [Want(page, access) for page in pages]
        return self.engine.request(holder, wants, tier=tier, deadline=self.now + 10, hold_until=hold_until)

    def get(self, holder: Holder, *pages: bytes, access: Access = Access.READ) -> list[Grant]:
        """What must be granted at once."""
        outcome = self.ask(holder, *pages, access=access)
        assert isinstance(outcome, Granted)
        return [grant for grant in (outcome.grants[page] for page in pages) if grant is not None]

    def make(self, *pages: bytes) -> None:
        """Complete pages in L1 that nobody holds."""
        for page in pages:
            (grant,) = self.get(EVE, page, access=Access.WRITE)
            self.engine.finish_write(EVE, grant.slot)
            self.engine.release(EVE)

    def ref(self, page: bytes) -> SlotRef:
        """Where the page is in L1."""
        return self.engine.table.copies(page)[Tier.L1].ref

    def wait_for(self, number: Granted | Refused | int) -> Granted | Refused:
        """The outcome of a request that had to wait and need not wait any more."""
        assert isinstance(number, int)
        return dict(self.engine.take_outcomes())[number]

    def migrate(self) -> Sequence[Migration]:
        """All migrations that have begun are finished."""
        migrations = self.engine.take_migrations()
        for migration in migrations:
            self.engine.finish_migration(migration.number)
        return migrations

    def sink(self, page: bytes, tier: Tier) -> None:
        """The page is in that tier only."""
        self.make(page)
        self.engine.preload([page], tier)
        self.migrate()
        for other in self.engine.table.tiers:
            if other is not tier:
                self.engine.evict(page, other)
        assert list(self.engine.table.copies(page)) == [tier]


class TestHolding:
    """A slot is let go exactly when its last holder lets go."""

    def test_holding_twice_under_one_id_is_holding_once(self) -> None:
        node = Node(l1=1)
        node.make(b"p")
        node.get(ANN, b"p")
        node.get(ANN, b"p")
        assert node.engine.table.holds == 1
        node.engine.release(ANN, [b"p"])
        assert node.engine.table.holds == 0
        assert node.engine.evict(b"p", Tier.L1) is Fate.GONE

    @pytest.mark.parametrize("kind", list(HolderKind))
    def test_each_of_the_four_sets_keeps_a_slot(self, kind: HolderKind) -> None:
        node = Node(l1=1)
        node.make(b"p")
        outcome = node.engine.request(ANN, [Want(b"p")], tier=Tier.L1, deadline=1, kind=kind)
        assert isinstance(outcome, Granted)
        assert node.engine.evict(b"p", Tier.L1) is Fate.STAYS
        assert isinstance(node.ask(BOB, b"other", access=Access.WRITE), int)
        node.engine.release(ANN)
        assert not node.engine.table.copies(b"p")

    def test_a_dead_client_lets_go_of_its_own_holds_only(self) -> None:
        node = Node(l1=3)
        node.make(b"p", b"q")
        node.get(ANN, b"p", b"q")
        node.get(Holder(b"ann", 2), b"new", access=Access.WRITE)
        node.get(BOB, b"p")
        node.engine.drop_client(b"ann")
        assert node.engine.table.holders_of(b"bob") == [BOB]
        assert node.engine.table.holds == 1
        assert node.engine.evict(b"p", Tier.L1) is Fate.STAYS
        assert node.engine.evict(b"q", Tier.L1) is Fate.GONE
        assert not node.engine.table.copies(b"new")

    def test_pages_let_go_together_are_evicted_in_the_order_in_which_they_were_taken(self) -> None:
        pages = [b"p%d" % number for number in range(32)]
        taken = [pages[number * 11 % 32] for number in range(32)]
        node = Node(l1=32)
        node.make(*pages)
        node.get(ANN, *taken)
        node.engine.release(ANN)
        assert [slot.page for slot in node.engine.table.coldest(Tier.L1)] == taken

    def test_a_lookup_that_is_never_followed_by_a_read_ends_by_itself(self) -> None:
        node = Node(l1=1)
        node.make(b"p")
        assert node.ask(ANN, b"p", tier=None, hold_until=5.0) == Granted({b"p": Grant(b"p", node.ref(b"p"), False)})
        waiting = node.ask(BOB, b"new", access=Access.WRITE)
        node.now = 4.9
        node.engine.expire()
        assert node.engine.next_deadline == 5.0
        node.now = 5.0
        node.engine.expire()
        outcome = node.wait_for(waiting)
        assert isinstance(outcome, Granted)
        assert node.engine.counters.expired_holds == 1
        # Reading after all is a miss, not somebody else's bytes.
        assert node.ask(ANN, b"p", tier=None) == Granted({b"p": None})

    def test_a_lookup_that_is_followed_by_a_read_holds_as_long_as_the_read(self) -> None:
        node = Node(l1=1)
        node.make(b"p")
        node.ask(ANN, b"p", tier=None, hold_until=5.0)
        node.get(ANN, b"p")
        node.now = 6.0
        node.engine.expire()
        assert node.engine.evict(b"p", Tier.L1) is Fate.STAYS

    def test_a_hold_that_is_renewed_ends_at_the_later_time(self) -> None:
        node = Node(l1=1)
        node.make(b"p")
        node.ask(ANN, b"p", tier=None, hold_until=2.0)
        node.ask(ANN, b"p", tier=None, hold_until=5.0)
        for now, held in ((3.0, 1), (4.9, 1), (5.0, 0)):
            node.now = now
            node.engine.expire()
            assert node.engine.table.holds == held

    def test_a_lookup_does_not_shorten_a_hold(self) -> None:
        node = Node(l1=1)
        node.make(b"p")
        node.ask(ANN, b"p", tier=None, hold_until=5.0)
        node.ask(ANN, b"p", tier=None, hold_until=2.0)
        node.now = 3.0
        node.engine.expire()
        assert node.engine.evict(b"p", Tier.L1) is Fate.STAYS

    def test_a_hold_that_ends_before_its_page_arrives_is_a_miss(self) -> None:
        node = Node(l1=1, l2=1)
        node.sink(b"p", Tier.L2)
        waiting = node.ask(ANN, b"p", hold_until=5.0)
        node.now = 6.0
        node.engine.expire()
        node.migrate()
        assert node.wait_for(waiting) == Granted({b"p": None})


class TestWriting:
    """A page is seen by others when its writer says it is complete, and never otherwise."""

    def test_a_page_in_the_making_is_a_miss_for_readers(self) -> None:
        node = Node(l1=2)
        (grant,) = node.get(ANN, b"p", access=Access.WRITE)
        assert grant.writable
        assert node.get(BOB, b"p") == []
        node.engine.finish_write(ANN, grant.slot)
        assert node.get(BOB, b"p") == [Grant(b"p", grant.slot, False)]

    def test_a_second_writer_waits_and_gets_the_finished_page(self) -> None:
        node = Node(l1=2)
        (grant,) = node.get(ANN, b"p", access=Access.WRITE)
        waiting = node.ask(BOB, b"p", access=Access.WRITE)
        node.engine.finish_write(ANN, grant.slot)
        assert node.wait_for(waiting) == Granted({b"p": Grant(b"p", grant.slot, False)})

    @pytest.mark.parametrize("end", ["abort", "release", "death"])
    def test_a_second_writer_takes_over_when_the_first_gives_up(self, end: str) -> None:
        node = Node(l1=2)
        (grant,) = node.get(ANN, b"p", access=Access.WRITE)
        waiting = node.ask(BOB, b"p", access=Access.WRITE)
        if end == "abort":
            node.engine.abort_write(ANN, grant.slot)
        elif end == "release":
            node.engine.release(ANN)
        else:
            node.engine.drop_client(b"ann")
        outcome = node.wait_for(waiting)
        assert isinstance(outcome, Granted)
        assert (second := outcome.grants[b"p"]) is not None
        assert second.writable
        with pytest.raises(StaleReservation, match="not being written by this holder"):
            node.engine.finish_write(ANN, grant.slot)

    @pytest.mark.parametrize("doom", ["deadline", "forget"])
    def test_a_zombie_writer_neither_finishes_nor_writes_into_anothers_page(self, doom: str) -> None:
        node = Node(l1=2)
        outcome = node.ask(ANN, b"p", access=Access.WRITE, hold_until=5.0)
        assert isinstance(outcome, Granted)
        zombie = outcome.grants[b"p"]
        assert zombie is not None
        if doom == "forget":
            node.engine.forget([b"p"])
        node.now = 5.0
        node.engine.expire()
        # The page can be written anew, elsewhere; nobody gets the slot that the zombie may still write into.
        (fresh,) = node.get(BOB, b"p", access=Access.WRITE)
        assert fresh.slot.position != zombie.slot.position
        assert isinstance(node.ask(BOB, b"q", access=Access.WRITE), int)
        with pytest.raises(StaleReservation):
            node.engine.finish_write(ANN, zombie.slot)
        assert node.get(EVE, b"p") == []
        node.engine.drop_client(b"ann")
        assert len(node.engine.take_outcomes()) == 1

    def test_a_reservation_of_before_does_not_finish_the_one_of_now(self) -> None:
        node = Node(l1=1)
        (first,) = node.get(ANN, b"p", access=Access.WRITE)
        node.engine.release(ANN)
        (second,) = node.get(ANN, b"p", access=Access.WRITE)
        assert second.slot.position == first.slot.position
        with pytest.raises(StaleReservation):
            node.engine.finish_write(ANN, first.slot)
        node.engine.finish_write(ANN, second.slot)


class TestCopyOnWrite:
    """An extended page is a new page; the old one stays what it was."""

    def extend(self, node: Node, holder: Holder = ANN) -> Granted | Refused | int:
        wants = [Want(b"longer", Access.EXTEND, b"base")]
        return node.engine.request(holder, wants, tier=Tier.L1, deadline=node.now + 10)

    def test_the_base_is_copied_into_a_slot_of_its_own(self) -> None:
        node = Node(l1=2)
        node.make(b"base")
        waiting = self.extend(node)
        (migration,) = node.migrate()
        assert (migration.page, migration.becomes) == (b"base", b"longer")
        outcome = node.wait_for(waiting)
        assert outcome == Granted({b"longer": Grant(b"longer", migration.destination, True)})
        assert node.get(BOB, b"longer") == []
        node.engine.finish_write(ANN, migration.destination)
        assert len(node.get(BOB, b"longer", b"base")) == 2

    def test_the_base_stays_while_it_is_copied(self) -> None:
        node = Node(l1=2)
        node.make(b"base")
        self.extend(node)
        assert node.engine.evict(b"base", Tier.L1) is Fate.STAYS
        node.migrate()
        assert node.engine.evict(b"base", Tier.L1) is Fate.GONE

    def test_without_its_base_it_is_a_miss(self) -> None:
        assert self.extend(Node(l1=2)) == Granted({b"longer": None})

    def test_a_base_in_a_slower_tier_is_copied_from_there(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"base", Tier.L2)
        self.extend(node)
        (migration,) = node.migrate()
        assert (migration.source.tier, migration.destination.tier) == (Tier.L2, Tier.L1)
        assert Tier.L1 not in node.engine.table.copies(b"base")

    def test_a_client_that_dies_during_the_copy_leaves_nothing(self) -> None:
        node = Node(l1=2)
        node.make(b"base")
        mine = self.extend(node)
        other = self.extend(node, BOB)
        node.engine.drop_client(b"ann")
        # The dead client's slot is still being copied into: it is not given to the other one yet.
        assert [number for number, _ in node.engine.take_outcomes()] == [mine]
        for migration in node.engine.take_migrations():
            node.engine.finish_migration(migration.number)
        node.migrate()
        outcome = node.wait_for(other)
        assert isinstance(outcome, Granted)
        assert node.engine.table.holders_of(b"ann") == []
        assert node.engine.table.holds == 1


class TestMigration:
    """One page moves once, however many wait for it, and only what has arrived is granted."""

    def test_requests_for_one_page_join_one_migration(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"p", Tier.L2)
        waiting = [node.ask(holder, b"p") for holder in (ANN, BOB, EVE)]
        assert len(node.migrate()) == 1
        outcomes = dict(node.engine.take_outcomes())
        slots = {outcomes[number].grants[b"p"].slot for number in waiting}  # type: ignore[index,union-attr]
        assert len(slots) == 1
        assert node.engine.counters.joined == 2
        assert node.engine.table.holds == 3

    @pytest.mark.parametrize("failure", list(MigrationFailure))
    def test_a_failed_load_is_a_miss_for_all_who_waited(self, failure: MigrationFailure) -> None:
        node = Node(l1=2, l2=1, l3=2)
        node.sink(b"p", Tier.L3)
        waiting = [node.ask(holder, b"p") for holder in (ANN, BOB)]
        (load,) = node.engine.take_migrations()
        node.engine.abort_migration(load.number, failure)
        assert [outcome for _, outcome in node.engine.take_outcomes()] == [Granted({b"p": None})] * len(waiting)
        assert node.engine.table.holds == 0
        assert Tier.L1 not in node.engine.table.copies(b"p")
        corrupt = failure is MigrationFailure.SOURCE_CORRUPT
        assert (Tier.L3 in node.engine.table.copies(b"p")) is not corrupt
        assert node.engine.counters.corrupt_pages == corrupt

    def test_who_gives_up_does_not_stop_the_others(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"p", Tier.L2)
        node.ask(ANN, b"p")
        waiting = node.ask(BOB, b"p")
        node.engine.drop_client(b"ann")
        node.migrate()
        outcome = node.wait_for(waiting)
        assert isinstance(outcome, Granted)
        assert outcome.grants[b"p"] is not None

    def test_a_request_that_times_out_does_not_let_go_for_another_of_its_holder(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"p", Tier.L2)
        node.engine.request(ANN, [Want(b"p")], tier=Tier.L1, deadline=1)
        waiting = node.ask(ANN, b"p")
        node.now = 2.0
        node.engine.expire()
        node.engine.take_outcomes()
        node.migrate()
        outcome = node.wait_for(waiting)
        assert isinstance(outcome, Granted)
        assert outcome.grants[b"p"] is not None
        assert node.engine.table.held_by(ANN)

    def test_a_page_nobody_waits_for_any_more_still_arrives(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"p", Tier.L2)
        number = node.ask(ANN, b"p")
        assert isinstance(number, int)
        node.engine.cancel(number)
        node.migrate()
        refused = node.wait_for(number)
        assert isinstance(refused, Refused)
        assert refused.obstacle is Obstacle.GIVEN_UP
        assert len(node.get(BOB, b"p")) == 1

    def test_a_forgotten_page_does_not_come_back_with_a_migration(self) -> None:
        node = Node(l1=2, l2=2)
        node.sink(b"p", Tier.L2)
        waiting = node.ask(ANN, b"p")
        node.engine.forget([b"p"])
        node.migrate()
        assert node.wait_for(waiting) == Granted({b"p": None})
        assert node.engine.table.pages() == []
        assert node.engine.table.holds == 0


class TestPressure:
    """What goes, what never goes, and what a request that cannot be granted is told."""

    def test_when_everything_is_held_a_request_waits_without_work_and_then_fails_with_numbers(self) -> None:
        node = Node(l1=4)
        node.make(b"a", b"b", b"c")
        node.get(ANN, b"a", b"b", b"c")
        asked = node.ask(BOB, b"d", b"e", access=Access.WRITE)
        for _ in range(100):
            node.engine.expire()
        assert node.guard.asked == []
        assert node.engine.take_outcomes() == []
        node.now = 10.0
        node.engine.expire()
        refused = node.wait_for(asked)
        assert refused == Refused(Obstacle.NO_SPACE, Tier.L1, asked=2, held=3, free=1)
        assert "2 slots of L1 asked, 3 held, 1 free" in str(refused)
        assert node.engine.table.holders_of(b"bob") == []

    def test_it_goes_on_as_soon_as_something_is_released(self) -> None:
        node = Node(l1=1)
        node.make(b"a")
        node.get(ANN, b"a")
        asked = node.ask(BOB, b"b", access=Access.WRITE)
        node.engine.release(ANN)
        assert isinstance(node.wait_for(asked), Granted)

    def test_what_can_never_fit_fails_at_once(self) -> None:
        node = Node(l1=2)
        refused = node.ask(ANN, b"a", b"b", b"c", access=Access.WRITE)
        assert refused == Refused(Obstacle.TOO_LARGE, Tier.L1, asked=3, held=0, free=2)

    def test_first_come_first_served(self) -> None:
        node = Node(l1=3)
        node.make(b"a", b"b")
        node.get(ANN, b"a", b"b")
        large = node.ask(BOB, b"d", b"e", access=Access.WRITE)
        # There is room for it, but it came later.
        small = node.ask(EVE, b"f", access=Access.WRITE)
        assert node.engine.take_outcomes() == []
        node.engine.release(ANN, [b"a"])
        assert isinstance(node.wait_for(large), Granted)
        node.engine.release(ANN, [b"b"])
        assert isinstance(node.wait_for(small), Granted)

    def test_a_request_does_not_evict_what_it_asks_for_itself(self) -> None:
        node = Node(l1=2)
        node.make(b"a", b"b")
        wants = [Want(b"a"), Want(b"c", Access.WRITE)]
        outcome = node.engine.request(ANN, wants, tier=Tier.L1, deadline=1)
        assert isinstance(outcome, Granted)
        assert None not in outcome.grants.values()
        assert node.engine.table.pages() == [b"a"]

    def test_room_below_is_not_made_with_what_the_request_asks_for(self) -> None:
        """The colder of two pages in L2 is the one that is on its way up."""
        node = Node(l1=1, l2=2)
        node.sink(b"a", Tier.L2)
        node.sink(b"b", Tier.L2)
        node.make(b"c")
        waiting = node.ask(ANN, b"a")
        for _ in range(3):
            node.migrate()
        outcome = node.wait_for(waiting)
        assert isinstance(outcome, Granted)
        assert outcome.grants[b"a"] is not None

    def test_a_page_with_a_copy_below_goes_without_asking(self) -> None:
        node = Node(l1=1, l2=1, recomputable=False)
        node.make(b"a")
        node.engine.preload([b"a"], Tier.L2)
        node.migrate()
        assert len(node.get(ANN, b"b", access=Access.WRITE)) == 1
        assert list(node.engine.table.copies(b"a")) == [Tier.L2]
        assert node.guard.asked == []

    def test_the_last_copy_moves_down_before_its_slot_is_given_away(self) -> None:
        node = Node(l1=1, l2=1, recomputable=False)
        node.make(b"a")
        waiting = node.ask(ANN, b"b", access=Access.WRITE)
        assert node.engine.take_outcomes() == []
        (offload,) = node.migrate()
        assert (offload.kind, offload.page) == (HolderKind.OFFLOAD, b"a")
        assert isinstance(node.wait_for(waiting), Granted)
        assert list(node.engine.table.copies(b"a")) == [Tier.L2]

    def test_room_is_made_through_all_tiers(self) -> None:
        node = Node(l1=1, l2=1, l3=1, recomputable=False)
        node.make(b"a")
        for page in (b"b", b"c"):
            waiting = node.ask(ANN, page, access=Access.WRITE)
            for _ in range(3):
                node.migrate()
            outcome = node.wait_for(waiting)
            assert isinstance(outcome, Granted)
            node.engine.finish_write(ANN, node.ref(page))
            node.engine.release(ANN)
        tiers = {page: list(node.engine.table.copies(page)) for page in (b"a", b"b", b"c")}
        assert tiers == {b"a": [Tier.L3], b"b": [Tier.L2], b"c": [Tier.L1]}

    def test_the_last_copy_of_preserved_state_never_goes(self) -> None:
        node = Node(l1=1, l2=1, l3=1, recomputable=False)
        for page in (b"a", b"b", b"c"):
            node.ask(EVE, page, access=Access.WRITE)
            for _ in range(3):
                node.migrate()
            copies = node.engine.table.copies(page)
            node.engine.finish_write(EVE, copies[Tier.L1].ref)
            node.engine.release(EVE)
        node.engine.take_outcomes()
        asked = node.ask(ANN, b"d", access=Access.WRITE)
        node.now = 10.0
        node.engine.expire()
        assert node.wait_for(asked) == Refused(Obstacle.NO_SPACE, Tier.L1, asked=1, held=0, free=0)
        assert sorted(node.engine.table.pages()) == [b"a", b"b", b"c"]

    def test_recomputable_pages_go_when_no_tier_has_room_and_the_cluster_agrees(self) -> None:
        node = Node(l1=1)
        node.make(b"a", b"b")
        assert node.guard.asked == [b"a"]
        assert node.engine.table.pages() == [b"b"]

    def test_the_cluster_is_asked_again_now_and_then(self) -> None:
        node = Node(l1=1, recomputable=False)
        node.make(b"a")
        waiting = node.ask(ANN, b"b", access=Access.WRITE)
        node.guard.recomputable = True
        node.now = node.engine.next_deadline or 0.0
        assert 0 < node.now < 1
        node.engine.expire()
        assert isinstance(node.wait_for(waiting), Granted)

    def test_a_full_disk_is_not_tried_again_at_once(self) -> None:
        node = Node(l1=1, l3=4, recomputable=False)
        node.make(b"a")
        waiting = node.ask(ANN, b"b", access=Access.WRITE)
        (offload,) = node.engine.take_migrations()
        node.engine.abort_migration(offload.number, MigrationFailure.DESTINATION_FULL)
        assert node.engine.take_migrations() == []
        assert node.engine.table.pages() == [b"a"]
        times = 0
        while not (begun := node.migrate()):
            node.now = node.engine.next_deadline or 10.0
            node.engine.expire()
            times += 1
            assert times < 20, "it looks again now and then, not all the time"
        assert len(begun) == 1
        assert 0.5 < node.now < 10
        assert isinstance(node.wait_for(waiting), Granted)

    def test_a_page_that_is_acquired_while_it_moves_down_stays(self) -> None:
        node = Node(l1=1, l2=1)
        node.make(b"a")
        node.ask(ANN, b"b", access=Access.WRITE)
        node.get(BOB, b"a")
        node.migrate()
        assert node.engine.take_outcomes() == []
        assert sorted(node.engine.table.copies(b"a")) == [Tier.L1, Tier.L2]

    def test_nothing_is_evicted_for_a_request_that_must_wait_anyway(self) -> None:
        node = Node(l1=3)
        node.make(b"a", b"b", b"c")
        node.get(ANN, b"a", b"b")
        node.ask(BOB, b"d", b"e", access=Access.WRITE)
        assert sorted(node.engine.table.pages()) == [b"a", b"b", b"c"]


def test_restored_pages_are_there_and_may_go() -> None:
    node = Node(l1=1, l3=3)
    node.engine.restore(Tier.L3, {0: b"a", 2: b"b"})
    assert node.engine.table.free(Tier.L3) == 1
    waiting = node.ask(ANN, b"b")
    (load,) = node.migrate()
    assert (load.kind, load.source.position) == (HolderKind.UPLOAD, 2)
    assert isinstance(node.wait_for(waiting), Granted)
    assert node.engine.evict(b"a", Tier.L3) is Fate.GONE


@pytest.mark.parametrize(
    ("wants", "tier"),
    [
        ([Want(b"p"), Want(b"p", Access.WRITE)], Tier.L1),
        ([Want(b"p", Access.WRITE)], None),
        ([Want(b"p")], Tier.L2),
    ],
)
def test_a_request_that_makes_no_sense_is_an_error(wants: list[Want], tier: Tier | None) -> None:
    with pytest.raises(ValueError, match=r"two ways|needs a tier|has no L2"):
        Node(l1=1).engine.request(ANN, wants, tier=tier, deadline=1)

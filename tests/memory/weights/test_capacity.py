"""Members of a pool agree on the minimum, measured when nobody loads, or fail with the name of whom they lack."""

from __future__ import annotations

import pytest

from memory_manager.errors import RequestRefused
from memory_manager.weights.capacity import CapacityRounds
from memory_manager.weights.loader import LoaderLeases
from memory_manager.weights.messages import CapacityPhase, CapacityState

MEMBERS = ["a", "b"]


class Pool:
    """Clients `a` and `b` are the members of one pool on `gpu`; `now` is the time."""

    def __init__(self) -> None:
        self.leases = LoaderLeases()
        self.rounds = CapacityRounds(self.leases)
        self.now = 0.0

    def join(self, member: str, client: bytes | None = None, members: list[str] = MEMBERS, device: str = "gpu") -> int:
        return self.rounds.join(client or member.encode(), "kv", device, members, member, 10.0, self.now)

    def arrive(self, member: str, number: int) -> CapacityState:
        return self.rounds.arrive(member.encode(), number, self.now)

    def propose(self, member: str, number: int, epoch: int, pages: int) -> CapacityState:
        return self.rounds.propose(member.encode(), number, epoch, pages, self.now)

    def arrived(self) -> tuple[int, CapacityState]:
        """Both have joined and loaded; what `a` is told."""
        number = self.join("a")
        self.join("b")
        self.arrive("b", number)
        return number, self.arrive("a", number)

    def load(self, client: bytes) -> None:
        assert self.leases.acquire(client, f"client {client.decode()}", "gpu", self.now).client == client


@pytest.fixture
def pool() -> Pool:
    return Pool()


class TestAgreement:
    def test_nobody_measures_before_all_have_loaded(self, pool: Pool) -> None:
        number = pool.join("a")
        assert pool.arrive("a", number).members == ["b"]
        pool.join("b")
        pool.arrive("b", number)
        assert pool.arrive("a", number).phase is CapacityPhase.MEASURE

    def test_the_minimum_is_final_when_all_have_proposed(self, pool: Pool) -> None:
        number, told = pool.arrived()
        assert pool.propose("a", number, told.epoch, 30).members == ["b"]
        assert pool.propose("b", number, told.epoch, 20) == CapacityState(CapacityPhase.FINAL, pages=20)
        assert pool.arrive("a", number) == CapacityState(CapacityPhase.FINAL, pages=20)

    def test_a_member_that_starts_again_gets_the_capacity_that_is_final(self, pool: Pool) -> None:
        number, told = pool.arrived()
        pool.propose("a", number, told.epoch, 30)
        pool.propose("b", number, told.epoch, 20)
        pool.rounds.drop_client(b"b")
        assert pool.join("b") == number
        assert pool.arrive("b", number).pages == 20

    def test_the_pool_begins_anew_when_all_members_have_gone(self, pool: Pool) -> None:
        number, told = pool.arrived()
        for member in MEMBERS:
            pool.propose(member, number, told.epoch, 30)
            pool.rounds.drop_client(member.encode())
        assert pool.join("a") != number


class TestMeasuring:
    """A capacity figure measured while a neighbour was still loading is never taken."""

    def test_nobody_is_told_to_measure_while_a_neighbour_loads(self, pool: Pool) -> None:
        pool.load(b"neighbour")
        number, told = pool.arrived()
        assert (told.phase, told.reason) == (CapacityPhase.WAIT, "client neighbour loads on gpu")
        pool.leases.release(b"neighbour", "gpu")
        assert pool.arrive("a", number).phase is CapacityPhase.MEASURE

    def test_a_capacity_figure_measured_while_a_neighbour_was_still_loading_is_measured_again(self, pool: Pool) -> None:
        number, told = pool.arrived()
        pool.load(b"neighbour")
        assert pool.propose("a", number, told.epoch, 1000).phase is CapacityPhase.WAIT
        pool.leases.drop_client(b"neighbour")
        again = pool.propose("a", number, told.epoch, 1000)
        assert again.phase is CapacityPhase.MEASURE
        pool.propose("a", number, again.epoch, 30)
        assert pool.propose("b", number, again.epoch, 40).pages == 30

    def test_what_was_proposed_before_a_neighbour_began_to_load_is_measured_again(self, pool: Pool) -> None:
        number, told = pool.arrived()
        pool.propose("a", number, told.epoch, 1000)
        pool.load(b"neighbour")
        pool.leases.release(b"neighbour", "gpu")
        assert pool.arrive("a", number).phase is CapacityPhase.MEASURE

    def test_loading_after_the_capacity_is_final_changes_nothing(self, pool: Pool) -> None:
        number, told = pool.arrived()
        for member in MEMBERS:
            pool.propose(member, number, told.epoch, 30)
        pool.load(b"neighbour")
        assert pool.arrive("a", number).pages == 30


class TestFailure:
    def test_a_member_that_dies_before_proposing_fails_the_round_with_its_name(self, pool: Pool) -> None:
        number, _ = pool.arrived()
        pool.rounds.drop_client(b"b")
        failed = pool.arrive("a", number)
        assert (failed.phase, failed.members) == (CapacityPhase.FAILED, ["b"])
        assert "'b' died" in failed.reason

    def test_a_member_that_never_comes_fails_the_round_at_its_deadline_with_its_name(self, pool: Pool) -> None:
        number = pool.join("a")
        pool.arrive("a", number)
        pool.now = 10.0
        failed = pool.arrive("a", number)
        assert (failed.phase, failed.members) == (CapacityPhase.FAILED, ["b"])
        assert failed.reason == "b had not loaded after 10 s"

    def test_a_new_round_begins_after_a_failed_one(self, pool: Pool) -> None:
        number, _ = pool.arrived()
        pool.rounds.drop_client(b"b")
        assert pool.join("a") == pool.join("b") != number

    def test_members_that_say_different_things_are_refused(self, pool: Pool) -> None:
        number = pool.join("a")
        with pytest.raises(RequestRefused, match="none of the members"):
            pool.join("c")
        with pytest.raises(RequestRefused, match="has the members a, b"):
            pool.join("b", members=["b"])
        with pytest.raises(RequestRefused, match="is on gpu"):
            pool.join("b", device="cpu")
        with pytest.raises(RequestRefused, match="another process is the member 'a'"):
            pool.join("a", client=b"stranger")
        with pytest.raises(RequestRefused, match="no member"):
            pool.arrive("b", number)
        with pytest.raises(RequestRefused, match="no round"):
            pool.arrive("a", number + 1)

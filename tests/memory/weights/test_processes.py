"""Role processes with one checkpoint hold one copy of it, whoever of them, or the manager, dies."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memory_manager.process import ManagerProcess
from memory_manager.weights.errors import CapacityFailed
from tests.memory.weights.models import NAMES

SMALL = ["--limit", "8MiB", "--pool-size", "2MiB"]

Roles = Callable[..., list[Any]]


def all_of(value: float) -> dict[str, list[float]]:
    return {name: [value] for name in NAMES}


@pytest.mark.usefixtures("manager")
class TestSharing:
    def test_the_second_process_binds_what_the_first_loaded_and_its_own_loading_writes_nothing(
        self, roles: Roles
    ) -> None:
        owner, follower = roles("owner", "follower")
        assert owner.ask("load_alone", checkpoint="c", value=1.0) == []
        assert follower.ask("load_alone", checkpoint="c", value=2.0) == NAMES
        assert owner.ask("values") == follower.ask("values") == all_of(1.0)

    def test_two_checkpoints_under_one_name_do_not_mix(self, roles: Roles) -> None:
        one, other = roles("one", "other")
        assert one.ask("load_alone", checkpoint="c-of-monday", value=1.0) == []
        assert other.ask("load_alone", checkpoint="c-of-tuesday", value=2.0) == []
        assert (one.ask("values"), other.ask("values")) == (all_of(1.0), all_of(2.0))

    def test_a_follower_that_starts_while_the_owner_loads_waits_and_then_loads_nothing(self, roles: Roles) -> None:
        owner, follower = roles("owner", "follower")
        owner.ask("start_loading")
        follower.tell("load_alone", checkpoint="c", value=2.0)
        owner.ask("load", checkpoint="c", value=1.0)
        owner.ask("end_loading")
        assert follower.answer() == NAMES
        assert follower.ask("values") == all_of(1.0)

    def test_an_owner_killed_half_way_leaves_nothing_and_the_next_one_loads(self, roles: Roles) -> None:
        owner, next_one = roles("owner", "next")
        owner.ask("start_loading")
        owner.ask("leave_half_written", checkpoint="c")
        next_one.tell("load_alone", checkpoint="c", value=2.0)
        owner.kill()
        assert next_one.answer() == []
        assert next_one.ask("values") == all_of(2.0)

    def test_writing_into_shared_weights_ends_the_writer_and_changes_nothing_for_others(self, roles: Roles) -> None:
        owner, writer = roles("owner", "writer")
        owner.ask("load_alone", checkpoint="c", value=1.0)
        writer.ask("load_alone", checkpoint="c", value=1.0)
        writer.tell("write")
        assert writer.exit_status() == -signal.SIGSEGV
        assert owner.ask("values") == all_of(1.0)

    def test_the_owner_may_go_before_its_followers(self, roles: Roles) -> None:
        owner, follower, late = roles("owner", "follower", "late")
        owner.ask("load_alone", checkpoint="c", value=1.0)
        follower.ask("load_alone", checkpoint="c", value=1.0)
        owner.kill()
        assert follower.ask("values") == all_of(1.0)
        assert late.ask("load_alone", checkpoint="c", value=2.0) == NAMES
        assert late.ask("values") == all_of(1.0)


class TestDeathOfTheManager:
    @pytest.mark.parametrize("end", [ManagerProcess.kill, ManagerProcess.stop])
    def test_roles_keep_their_weights_and_the_next_manager_is_used_by_whoever_loads_next(
        self, endpoint: Path, roles: Roles, end: Callable[[ManagerProcess], int]
    ) -> None:
        with ManagerProcess(endpoint, SMALL) as first:
            owner, follower, late, later = roles("owner", "follower", "late", "later")
            owner.ask("load_alone", checkpoint="c", value=1.0)
            follower.ask("load_alone", checkpoint="c", value=1.0)
            end(first)
            assert owner.ask("values") == follower.ask("values") == all_of(1.0)
        with ManagerProcess(endpoint, SMALL):
            assert late.ask("load_alone", checkpoint="c", value=2.0) == []
            assert later.ask("load_alone", checkpoint="c", value=3.0) == NAMES
            assert (follower.ask("values"), later.ask("values")) == (all_of(1.0), all_of(2.0))

    def test_an_owner_whose_manager_dies_keeps_what_it_has_loaded(self, endpoint: Path, roles: Roles) -> None:
        with ManagerProcess(endpoint, SMALL) as first:
            (owner,) = roles("owner")
            owner.ask("start_loading")
            owner.ask("load", checkpoint="c", value=1.0)
            first.kill()
            owner.ask("end_loading")
            assert owner.ask("values") == all_of(1.0)


@pytest.mark.usefixtures("manager")
class TestCapacity:
    def test_the_minimum_of_what_all_members_propose_is_final_for_all(self, roles: Roles) -> None:
        members = ["thinker", "talker"]
        started = roles(*members)
        for role, member in zip(started, members, strict=True):
            role.ask("join", pool="kv", members=members, member=member)
        for role, pages in zip(started, (70, 50), strict=True):
            role.tell("agree", pages=pages)
        assert [role.answer() for role in started] == [50, 50]

    def test_a_member_killed_before_it_proposes_fails_the_barrier_with_its_name(self, roles: Roles) -> None:
        members = ["thinker", "talker"]
        thinker, talker = roles(*members)
        for role, member in zip((thinker, talker), members, strict=True):
            role.ask("join", pool="kv", members=members, member=member)
        thinker.tell("agree", pages=70)
        talker.kill()
        answer = thinker.answer()
        assert "'talker' died" in answer[CapacityFailed]

"""Choosing among the replicas of a role."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from omniflow_backend.serve.launcher import Deployment
from omniflow_backend.serve.supervisor import ModelState
from omniflow_backend.triton.replicas import Replicas


@dataclass(eq=False)
class Process:
    load: int = 0
    lost: bool = False


def test_a_new_call_goes_to_the_least_busy_replica_that_lives() -> None:
    busy, idle, dead = Process(load=5), Process(load=1), Process(load=0, lost=True)
    assert Replicas([busy, idle, dead]).choose("node", {}, None) is idle


def test_all_deliveries_of_a_call_to_one_node_go_to_one_replica() -> None:
    one, two = Process(), Process()
    replicas = Replicas([one, two])
    call: dict[str, Process] = {}
    first = replicas.choose("node", call, None)
    first.load = 100
    assert replicas.choose("node", call, None) is first
    assert replicas.choose("other node", call, None) is not first


def test_session_state_stays_on_its_replica_from_call_to_call_while_that_lives() -> None:
    one, two = Process(), Process()
    replicas = Replicas([one, two])
    first = replicas.choose("node", {}, "session")
    first.load = 100
    assert replicas.choose("node", {}, "session") is first
    assert replicas.choose("node", {}, "another session") is not first
    first.lost = True
    moved = replicas.choose("node", {}, "session")
    assert moved is not first
    first.lost, first.load = False, 0
    moved.load = 100
    assert replicas.choose("node", {}, "session") is moved


def test_only_so_many_sessions_are_remembered() -> None:
    one, two = Process(), Process()
    replicas = Replicas([one, two], remembered=2)
    first = replicas.choose("node", {}, "a")
    first.load = 1
    for session in ("b", "c"):
        replicas.choose("node", {}, session)
    assert replicas.choose("node", {}, "a") is not first


def pids(responses: list[dict[str, Any]], output: str) -> set[int]:
    (response,) = responses
    return set(map(int, np.atleast_1d(response[output])))


@pytest.mark.server
class TestOnAServer:
    """Workflow ``twins``: a role with two replicas; ``turns`` of it are session state, ``pids`` are not."""

    def test_all_deliveries_of_a_call_reach_one_replica_and_calls_at_the_same_time_different_ones(
        self, caller: Any
    ) -> None:
        both = [caller.stream("twins", n=5, seconds=0.5) for _ in range(2)]
        first, second = (pids(stream.rest(), "pids") for stream in both)
        assert len(first) == len(second) == 1
        assert first != second

    def test_a_session_stays_on_its_replica_while_others_take_the_idle_one(
        self, deployment: Deployment, caller: Any
    ) -> None:
        def turn(session: str) -> set[int]:
            return pids(caller.stream("twins", n=3, session_id=session).rest(), "turns")

        mine = turn("sticky")
        assert len(mine) == 1
        # Whichever replica is busy now, the session does not leave its own.
        for _ in range(2):
            busy = [caller.stream("twins", seconds=0.5)]
            assert turn("sticky") == mine
            busy[0].rest()

    def test_a_dead_replica_fails_what_was_in_it_and_its_sessions_move(
        self, deployment: Deployment, caller: Any
    ) -> None:
        sessions = {
            f"moving-{n}": pids(caller.stream("twins", session_id=f"moving-{n}").rest(), "turns") for n in (1, 2)
        }
        models = {s.pid: s for s in deployment.supervisor.statuses() if s.model in ("twin", "twin__2")}
        assert len(models) == 2
        # Two calls in each replica: the next goes to the one with fewer.
        inside = [caller.stream("twins", seconds=2.0) for _ in range(4)]
        (victim,) = sessions["moving-1"]
        assert caller.eventually(lambda: caller.metrics("twins")["omniflow_calls_open"] == 4)
        os.kill(victim, signal.SIGKILL)
        # The death has been noticed when those that were inside have heard of it.
        assert caller.eventually(lambda: sum(not stream.events.empty() for stream in inside) == 2)
        for name in sessions:
            moved = pids(caller.stream("twins", session_id=name).rest(), "turns")
            assert len(moved) == 1
            assert victim not in moved
        ends = [stream.rest() for stream in inside]
        failed = [stream.error for stream in inside if stream.error is not None]
        assert len(failed) == 2, "those in the dead replica fail, those in the other do not"
        assert all(error.startswith("ROLE_DIED") and str(victim) in error for error in failed)
        assert all(victim not in pids(end, "pids") for end, s in zip(ends, inside, strict=True) if s.error is None)
        model = models[victim]
        assert deployment.supervisor.wait_for(model.model, ModelState.READY, 30, restarts=model.restarts + 1)
        both = [caller.stream("twins", seconds=0.5) for _ in range(2)]
        served = [pids(stream.rest(), "pids") for stream in both]
        assert served[0] != served[1]
        assert victim not in served[0] | served[1]

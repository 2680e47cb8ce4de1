"""Choosing among the replicas of a role."""

from __future__ import annotations

from dataclasses import dataclass

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

"""What happens when processes die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from omniflow_backend.client import WorkflowClient
from omniflow_backend.serve.launcher import Deployment
from omniflow_backend.serve.supervisor import ModelState

pytestmark = pytest.mark.server

NOTICED = 0.5


def health(deployment: Deployment) -> tuple[int, dict[str, Any]]:
    assert deployment.endpoints is not None
    try:
        with urllib.request.urlopen(deployment.endpoints.health, timeout=10) as answer:
            return answer.status, dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return error.code, dict(json.load(error))


def status(deployment: Deployment, model: str) -> Any:
    return next(s for s in deployment.supervisor.statuses() if s.model == model)


def kill(deployment: Deployment, model: str) -> int:
    """SIGKILL its stub; returns how many restarts it will have had."""
    now = status(deployment, model)
    os.kill(now.pid, signal.SIGKILL)
    return int(now.restarts) + 1


def test_a_dead_role_fails_its_calls_at_once_by_name_and_comes_back(deployment: Deployment, caller: Any) -> None:
    assert health(deployment)[0] == 200
    begun = caller.infer("waiter", look=True)["begun"]
    inside = [caller.stream("waiting", seconds=60.0) for _ in range(5)]
    assert caller.eventually(lambda: caller.infer("waiter", look=True)["begun"] == begun + 5)
    pid = status(deployment, "waiter").pid

    killed = time.monotonic()
    restarts = kill(deployment, "waiter")
    for stream in inside:
        stream.rest()
    assert time.monotonic() - killed < NOTICED
    for stream in inside:
        message = str(stream.error)
        assert message.startswith("ROLE_DIED: ")
        for part in ("waiter", str(pid), "workflow=waiting", "node=waiter.wait"):
            assert part in message
    code, told = health(deployment)
    assert (code, told["ready"], told["models"]["waiter"]["state"]) == (503, False, "reloading")
    assert told["models"]["worker"]["state"] == "ready"

    # A call made now waits for the role, and calls that do not need it go on.
    waiting = caller.stream("waiting", seconds=0.0)
    assert caller.infer("diamond_unary", text="x", n=1)["both"] == b"<x0x0>"
    assert len(waiting.rest()) == 1, waiting.error
    assert deployment.supervisor.wait_for("waiter", ModelState.READY, 30, restarts=restarts)
    code, told = health(deployment)
    assert (code, told["models"]["waiter"]["restarts"]) == (200, restarts)
    assert told["models"]["waiter"]["pid"] != pid


def test_a_call_that_waits_for_a_role_keeps_its_deadline(deployment: Deployment, caller: Any) -> None:
    restarts = kill(deployment, "waiter")
    stream = caller.stream("waiting", seconds=0.0, timeout_ms=50)
    stream.rest()
    assert str(stream.error).startswith(("DEADLINE_EXCEEDED", "ROLE_DIED"))
    assert deployment.supervisor.wait_for("waiter", ModelState.READY, 30, restarts=restarts)


def test_a_dead_orchestrator_fails_the_fronts_calls_and_comes_back(deployment: Deployment, caller: Any) -> None:
    begun = caller.infer("waiter", look=True)["begun"]
    failures: list[str] = []

    def call() -> None:
        try:
            caller.infer("waiting_unary", seconds=60.0)
        except InferenceServerException as error:
            failures.append(error.message())

    thread = threading.Thread(target=call)
    thread.start()
    assert caller.eventually(lambda: caller.infer("waiter", look=True)["begun"] == begun + 1)
    cancelled = caller.infer("waiter", look=True)["cancelled"]
    restarts = kill(deployment, "waiting")
    thread.join(NOTICED + 5)
    assert failures
    assert "ROLE_DIED" in failures[0]
    # The role notices, too, that nobody wants its work any more.
    assert caller.eventually(lambda: caller.infer("waiter", look=True)["cancelled"] == cancelled + 1)
    assert caller.infer("waiting_unary", seconds=0.0)["text"].startswith(b"waited 0")
    assert deployment.supervisor.wait_for("waiting", ModelState.READY, 30, restarts=restarts)


def test_a_dead_front_comes_back(deployment: Deployment, caller: Any) -> None:
    restarts = kill(deployment, "diamond_unary")
    assert deployment.supervisor.wait_for("diamond_unary", ModelState.READY, 30, restarts=restarts)
    assert caller.infer("diamond_unary", text="x", n=1)["both"] == b"<x0x0>"


@pytest.mark.parametrize("name", ["memory_manager", "redis"])
def test_a_dead_service_is_told_started_again_and_used_again(deployment: Deployment, caller: Any, name: str) -> None:
    service = deployment.service(name)
    restarts = service.restarts
    os.kill(service.pid, signal.SIGKILL)
    assert caller.eventually(lambda: health(deployment)[1]["services"][name] is False or service.restarts > restarts)
    assert caller.eventually(lambda: health(deployment)[0] == 200 and service.restarts == restarts + 1)
    (response,) = caller.stream("big", size=100_000).rest()
    assert len(response["data"]) == 100_000


def test_a_model_that_is_not_ours_is_ready_when_triton_serves_it(deployment: Deployment) -> None:
    deployment.triton.control.unload("foreign")
    code, told = health(deployment)
    assert (code, told["models"]["foreign"]["state"]) == (503, "failed")
    deployment.triton.control.load("foreign", 30)
    assert health(deployment)[0] == 200


def test_a_clients_disconnect_kills_neither_the_orchestrator_nor_the_next_request(
    deployment: Deployment, caller: Any
) -> None:
    pid = status(deployment, "diamond").pid
    for _ in range(5):
        stream = caller.stream("diamond", text="x", n=30)
        stream.next()
        stream.cancel()
    assert caller.stream("diamond", text="y", n=2).rest()[-1]["all"] == b"y0,y1"
    assert status(deployment, "diamond").pid == pid


def test_a_call_whose_orchestrator_dies_ends_within_the_clients_own_timeout(
    deployment: Deployment, caller: Any
) -> None:
    """Triton ends no stream whose stub has died: the client has to (see docs/operations.md)."""
    assert deployment.endpoints is not None
    begun = caller.infer("waiter", look=True)["begun"]
    with WorkflowClient(deployment.endpoints.grpc, "waiting", timeout_s=3.0) as client:
        ends: list[BaseException] = []

        def call() -> None:
            try:
                list(client.stream({"seconds": 60.0}))
            except TimeoutError as error:
                ends.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        assert caller.eventually(lambda: caller.infer("waiter", look=True)["begun"] == begun + 1)
        restarts = kill(deployment, "waiting")
        thread.join(10)
        assert "no response within 3 s" in str(ends[0])
        assert deployment.supervisor.wait_for("waiting", ModelState.READY, 30, restarts=restarts)
        # The same client goes on with the orchestrator that came back.
        assert [item.output for item in client.stream({"seconds": 0.0})] == ["text"]

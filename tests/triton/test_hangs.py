"""Roles that do not let go of work that nobody wants any more, on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from omniflow_backend.serve.launcher import Deployment
from omniflow_backend.serve.supervisor import ModelState, ModelStatus

pytestmark = pytest.mark.server

# ``Stubborn.hang_timeout_s`` is 1.
HANG_SECONDS = 1.0
LONG = 600.0


def stubborn(deployment: Deployment) -> ModelStatus:
    return next(status for status in deployment.supervisor.statuses() if status.model == "stubborn")


def pid(caller: Any) -> int:
    (response,) = caller.stream("holding", how="pid").rest()
    return int(response["pid"])


@pytest.mark.parametrize("how", ["hold", "block"])
@pytest.mark.parametrize("end", ["the client goes", "deadline"])
def test_a_role_that_does_not_let_go_is_restarted_and_serves_again(
    deployment: Deployment, caller: Any, how: str, end: str
) -> None:
    hung = pid(caller)
    before = stubborn(deployment)
    began = time.monotonic()
    if end == "deadline":
        stream = caller.stream("holding", how=how, seconds=LONG, timeout_ms=300)
        stream.rest()
        assert str(stream.error).startswith("DEADLINE_EXCEEDED")
        assert time.monotonic() - began < HANG_SECONDS, "its end did not wait for the role"
    else:
        stream = caller.stream("holding", how=how, seconds=LONG, trace=True)
        # Long enough for the activation to begin; ended before, it would not hang.
        time.sleep(0.3)
        stream.cancel()
    restarts = before.restarts + 1
    assert deployment.supervisor.wait_for("stubborn", ModelState.READY, 30, restarts=restarts)
    after = stubborn(deployment)
    assert (after.restarts, after.hangs) == (restarts, before.hangs + 1)
    assert pid(caller) not in (hung, None)


def test_a_role_that_is_busy_with_wanted_work_is_left_alone_and_deadlines_of_queued_calls_are_kept(
    deployment: Deployment, caller: Any
) -> None:
    served = pid(caller)
    before = stubborn(deployment)
    # Both threads of the role are taken for longer than the time after which it would count as hung.
    wanted = [caller.stream("holding", how="hold", seconds=HANG_SECONDS * 2.5) for _ in range(2)]
    began = time.monotonic()
    queued = caller.stream("holding", how="hold", seconds=0.0, timeout_ms=200)
    queued.rest()
    assert time.monotonic() - began < HANG_SECONDS
    assert str(queued.error).startswith("DEADLINE_EXCEEDED")
    for stream in wanted:
        assert [response["pid"] for response in stream.rest()] == [served]
    after = stubborn(deployment)
    assert (after.pid, after.restarts, after.hangs) == (served, before.restarts, before.hangs)

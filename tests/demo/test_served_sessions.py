"""Sessions through the server: clients send new turns only, and a turn is there whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from typing import Any

import pytest

from omniflow_backend.client import WorkflowClient
from omniflow_backend.serve.launcher import Deployment

pytestmark = [pytest.mark.server, pytest.mark.model]

FRANCE = "What is the capital of France?"


def turn(client: WorkflowClient, prompt: str, session: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
    """The answer's text and its usage."""
    inputs = {"prompt": prompt, "sampling_parameters": {"max_tokens": 12}, **inputs}
    received = list(client.stream(inputs, session_id=session))
    text = "".join(r.value for r in received if r.output == "text")
    return text, json.loads(next(r.value for r in received if r.output == "usage"))


def test_a_role_that_is_killed_between_turns_goes_on_with_the_session(
    deployment: Deployment, chat: WorkflowClient
) -> None:
    session, undisturbed = uuid.uuid4().hex, uuid.uuid4().hex
    for name in (session, undisturbed):
        turn(chat, FRANCE, name)
    _, expected = turn(chat, "And of Germany?", undisturbed)
    pid = next(status.pid for status in deployment.health().models if status.model == "llm")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while not (deployment.health().ready and pid not in [status.pid for status in deployment.health().models]):
        assert time.monotonic() < deadline, "the role is not served again"
        time.sleep(0.02)
    answer, usage = turn(chat, "And of Germany?", session)
    assert "Berlin" in answer
    places = ("boundary", "prompt_tokens", "session_length")
    assert [usage[place] for place in places] == [expected[place] for place in places]


def test_a_step_takes_back_what_was_said_after_it(chat: WorkflowClient) -> None:
    session = uuid.uuid4().hex
    _, first = turn(chat, FRANCE, session)
    _, second = turn(chat, "And of Italy?", session)
    answer, edited = turn(chat, "And of Germany?", session, step=second["boundary"])
    assert "Berlin" in answer
    assert edited["boundary"] == second["boundary"] == first["session_length"]


def test_a_client_that_goes_away_in_mid_turn_leaves_the_session_as_before(grpc_url: str, chat: WorkflowClient) -> None:
    session = uuid.uuid4().hex
    _, before = turn(chat, FRANCE, session)
    gone = WorkflowClient(grpc_url, "chat")
    long = {"prompt": "Count from one to one thousand.", "sampling_parameters": {"max_tokens": 1500}}
    next(gone.stream(long, session_id=session))
    gone.close()
    _, after = turn(chat, "And of Germany?", session)
    assert after["boundary"] == before["session_length"]


def test_tenants_do_not_share_a_session(chat: WorkflowClient) -> None:
    session = uuid.uuid4().hex
    for salt in ("acme", "other"):
        assert turn(chat, FRANCE, session, salt=salt)[1]["boundary"] == 0
    assert turn(chat, FRANCE, session, salt="acme")[1]["boundary"] > 0

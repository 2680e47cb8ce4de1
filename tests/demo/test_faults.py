"""Clients that go away, processes that die, and what is left afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from omniflow_backend.client import ServerError, WorkflowClient
from omniflow_backend.serve.launcher import Deployment
from omniflow_backend.serve.supervisor import ModelState

pytestmark = [pytest.mark.server, pytest.mark.model]


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def pid_of(deployment: Deployment, model: str) -> int | None:
    return next(status.pid for status in deployment.health().models if status.model == model)


def answer(grpc_url: str, clip: bytes) -> str:
    with WorkflowClient(grpc_url, "voice_chat") as client:
        return "".join(r.value for r in client.stream({"audio": clip}) if r.output == "text")


class TestDeadRole:
    """A stopped process holds a call that reached it; then it is killed."""

    # What the caller has seen when the call is about to reach the role, and how long it may take from there.
    REACHED: ClassVar = {
        "audio_reader": (None, 1.0),
        "asr": (None, 2.0),
        "llm": (re.compile("France"), 1.0),
        "talker": (re.compile(r"Paris\."), 1.0),
        "vocoder": (re.compile(r"Paris\."), 4.0),
    }

    @pytest.fixture(autouse=True, scope="class")
    @staticmethod
    def attached(grpc_url: str, france: bytes) -> None:
        """One call before: an orchestrator that is not attached yet waits for a role instead of losing calls in it."""
        assert "Paris" in answer(grpc_url, france)

    @pytest.mark.parametrize("role", REACHED)
    def test_a_call_inside_it_fails_by_name_at_once_and_later_calls_succeed(
        self, role: str, deployment: Deployment, grpc_url: str, france: bytes
    ) -> None:
        pid = pid_of(deployment, role)
        assert pid is not None
        seen, delay = self.REACHED[role]
        killed_at: list[float] = []

        def kill() -> None:
            killed_at.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)

        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(delay, kill)
        text, message = "", ""
        with WorkflowClient(grpc_url, "voice_chat") as client:
            if seen is None:
                timer.start()
            try:
                for received in client.stream({"audio": france}):
                    text += str(received.value) if received.output in ("heard", "text") else ""
                    if seen is not None and seen.search(text) and not timer.ident:
                        timer.start()
            except ServerError as error:
                message = str(error)
        noticed = time.monotonic() - killed_at[0]
        assert "ROLE_DIED" in message
        assert role in message
        assert noticed < 1.0, "the bar is 0.5 s; the rest is a margin for a busy machine"
        wait_until(lambda: pid_of(deployment, role) != pid and deployment.health().ready, 120, f"{role} serves again")
        assert "Paris" in answer(grpc_url, france)

    def test_health_tells_the_truth_while_a_role_is_dead(self, deployment: Deployment) -> None:
        pid = pid_of(deployment, "vocoder")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not deployment.health().ready, 0.5, "health says not ready")
        states = {status.model: status.state for status in deployment.health().models}
        assert states["vocoder"] is not ModelState.READY
        wait_until(lambda: deployment.health().ready, 60, "vocoder is served again")


class TestDisconnect:
    def test_a_client_that_goes_away_frees_its_session_and_nobody_else_notices(self, grpc_url: str) -> None:
        long = {"prompt": "Count from one to one thousand.", "sampling_parameters": {"max_tokens": 1500}}
        gone = WorkflowClient(grpc_url, "chat")
        responses = gone.stream(long, session_id="gone")
        next(responses)
        gone.close()
        started = time.monotonic()
        with WorkflowClient(grpc_url, "chat") as client:
            short = {"prompt": "What is the capital of France?", "sampling_parameters": {"max_tokens": 10}}
            text = "".join(r.value for r in client.stream(short, session_id="gone") if r.output == "text")
        assert "Paris" in text
        assert time.monotonic() - started < 20, "the session did not wait for the abandoned answer"


class TestNothingGrows:
    def test_two_hundred_calls_leave_shared_memory_and_processes_as_they_were(self, grpc_url: str) -> None:
        def used() -> int:
            own = (entry for entry in os.scandir("/dev/shm") if entry.name.startswith(f"omniflow-{os.getpid()}-"))
            return sum(entry.stat().st_blocks * 512 for entry in own)

        inputs = {"prompt": "Hi", "sampling_parameters": {"max_tokens": 1}}
        with WorkflowClient(grpc_url, "chat") as client:
            for _ in range(20):
                list(client.stream(inputs))
            before = used()
            assert before > 0, "the server's segments are found"
            for _ in range(200):
                list(client.stream(inputs))
        assert used() <= before + (1 << 20)


class TestDemo:
    def test_the_demo_ends_well_and_leaves_only_its_results(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "omniflow_backend.cli", "demo", "--directory", str(tmp_path)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            printed, errors = process.communicate(timeout=280)
        finally:
            process.kill()
        assert process.returncode == 0, printed + errors
        assert "Paris" in printed
        assert sorted(path.name for path in tmp_path.iterdir()) == ["reply.wav", "voice_chat.svg"]
        assert (tmp_path / "reply.wav").stat().st_size > 20_000
        for place in ("/dev/shm", tempfile.gettempdir()):
            assert [name for name in os.listdir(place) if name.startswith(f"omniflow-{process.pid}-")] == []

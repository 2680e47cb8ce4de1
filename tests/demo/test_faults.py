"""Clients that go away, processes that die, and what is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from omniflow_backend.client import ServerError, WorkflowClient
from omniflow_backend.serve.launcher import Deployment
from omniflow_backend.serve.supervisor import ModelState

pytestmark = [pytest.mark.server, pytest.mark.model]

ROLES = ("audio_reader", "asr", "llm", "talker", "vocoder")


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)


def pid_of(deployment: Deployment, model: str) -> int:
    pid = next(status.pid for status in deployment.health().models if status.model == model)
    assert pid is not None
    return pid


class TestDeadRole:
    @pytest.mark.parametrize("role", ROLES)
    def test_a_call_inside_it_fails_by_name_at_once_and_later_calls_succeed(
        self, role: str, deployment: Deployment, grpc_url: str, france: bytes
    ) -> None:
        pid = pid_of(deployment, role)
        os.kill(pid, signal.SIGSTOP)
        client = WorkflowClient(grpc_url, "voice_chat")
        responses = client.stream({"audio": france})
        killed_at = 0.0
        try:
            # With the process stopped the call gets as far as this role and waits there.
            import threading

            def kill() -> None:
                nonlocal killed_at
                killed_at = time.monotonic()
                os.kill(pid, signal.SIGKILL)

            timer = threading.Timer(0.5 if role in ("audio_reader", "asr", "llm") else 6.0, kill)
            timer.start()
            with pytest.raises(ServerError) as error:
                list(responses)
            noticed = time.monotonic() - killed_at
        finally:
            timer.join()
            client.close()
        message = str(error.value)
        assert "ROLE_DIED" in message
        assert role in message
        assert noticed < 0.5 + 0.5, "0.5 s to notice, and a margin for a busy machine"
        wait_until(lambda: deployment.health().ready, 90, f"{role} is served again")
        assert pid_of(deployment, role) != pid
        with WorkflowClient(grpc_url, "voice_chat") as again:
            text = "".join(r.value for r in again.stream({"audio": france}) if r.output == "text")
        assert "Paris" in text

    def test_health_tells_the_truth_while_a_role_is_dead(self, deployment: Deployment) -> None:
        pid = pid_of(deployment, "vocoder")
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
            return sum(entry.stat().st_blocks * 512 for entry in os.scandir("/dev/shm"))

        inputs = {"prompt": "Hi", "sampling_parameters": {"max_tokens": 1}}
        with WorkflowClient(grpc_url, "chat") as client:
            for _ in range(20):
                list(client.stream(inputs))
            before = used()
            for _ in range(200):
                list(client.stream(inputs))
        assert used() <= before + (1 << 20)


class TestDemo:
    def test_the_demo_ends_well_and_leaves_only_its_results(self, tmp_path: Path) -> None:
        segments = set(os.listdir("/dev/shm"))
        command = [sys.executable, "-m", "omniflow_backend.cli", "demo", "--directory", str(tmp_path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Paris" in done.stdout
        assert sorted(path.name for path in tmp_path.iterdir()) == ["reply.wav", "voice_chat.svg"]
        assert (tmp_path / "reply.wav").stat().st_size > 20_000
        assert set(os.listdir("/dev/shm")) <= segments

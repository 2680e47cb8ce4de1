"""The ``omniflow`` command as somebody at a terminal uses it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from omniflow_backend.client import WorkflowClient

pytestmark = pytest.mark.server

OMNIFLOW = [sys.executable, "-m", "omniflow_backend.cli"]
README = Path(__file__).parents[2] / "README.md"
FREE_PORTS = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--health-port", "0"]


class Served:
    """``omniflow serve`` with the README's own workflow."""

    def __init__(self, directory: Path) -> None:
        block = next(b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "# my_workflow.py" in b)
        (directory / "my_workflow.py").write_text(block)
        command = [*OMNIFLOW, "serve", str(directory / "my_workflow.py"), *FREE_PORTS]
        # A suite that a shell started in the background ignores SIGINT, and so would all that it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        finally:
            signal.signal(signal.SIGINT, before)
        self.printed: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.rstrip())
            if "Ctrl-C" in line:
                return
        raise AssertionError(self.process.communicate()[1])

    def endpoint(self, name: str) -> str:
        return next(line.split()[1] for line in self.printed if line.startswith(name))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    running = Served(tmp_path_factory.mktemp("served"))
    yield running
    running.process.kill()
    running.process.wait()


class TestServe:
    def test_ones_own_workflow_is_served_in_three_ways(self, served: Served) -> None:
        url = f"http://{served.endpoint('HTTP')}/v2/models"
        body = {"text": "so it goes"}
        streamed = requests.post(f"{url}/report/generate_stream", json=body, timeout=30).text
        lines = [json.loads(line[6:]).get("line") for line in streamed.splitlines() if line.startswith("data: ")]
        whole = requests.post(f"{url}/report_unary/generate", json=body, timeout=30).json()["line"]
        with WorkflowClient(served.endpoint("gRPC"), "report") as client:
            values = [received.value for received in client.stream(body)]
        assert values == ["so -> SO", "it -> IT", "goes -> GOES"]
        assert [line for line in lines if line] == values
        assert whole == "".join(values)

    def test_health_and_metrics_answer(self, served: Served) -> None:
        health = requests.get(served.endpoint("health"), timeout=10)
        assert health.status_code == 200
        assert health.json()["ready"] is True
        assert "nv_inference_request_success" in requests.get(served.endpoint("metrics"), timeout=10).text

    def test_it_prints_lines_to_paste(self, served: Served) -> None:
        text = "\n".join(served.printed)
        assert "WorkflowClient" in text
        assert "report: inputs text; outputs line" in text

    def test_ctrl_c_ends_it_and_leaves_nothing(self, served: Served) -> None:
        served.process.send_signal(signal.SIGINT)
        _, errors = served.process.communicate(timeout=60)
        assert served.process.returncode == 0, errors
        assert "Traceback" not in errors
        own = [name for name in os.listdir("/dev/shm") if str(served.process.pid) in name]
        assert own == []
        children = subprocess.run(["pgrep", "-P", str(served.process.pid)], capture_output=True, text=True, check=False)
        assert children.stdout == ""

    def test_ctrl_c_that_the_kernel_gives_to_another_thread_ends_it_too(self, tmp_path: Path) -> None:
        process = Served(tmp_path).process
        try:
            threads = {int(name) for name in os.listdir(f"/proc/{process.pid}/task")} - {process.pid}
            os.kill(max(threads), signal.SIGINT)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
        finally:
            process.kill()
            process.wait()

    def test_a_taken_port_is_a_clear_error(self, tmp_path: Path) -> None:
        import socket

        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            command = [*OMNIFLOW, "serve", "chat", *FREE_PORTS[2:], "--http-port", str(port)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 1
        assert str(port) in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.model
class TestChat:
    def chat(self, grpc_url: str, *lines: str) -> subprocess.CompletedProcess[str]:
        command = [*OMNIFLOW, "chat", "--url", grpc_url, "--sampling", '{"max_tokens": 12}']
        text = "".join(line + "\n" for line in lines)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)

    def test_lines_are_turns_of_one_session(self, grpc_url: str) -> None:
        done = self.chat(grpc_url, "What is the capital of France?", "And of Italy?")
        assert done.returncode == 0, done.stderr
        assert "Paris" in done.stdout.splitlines()[0]
        assert "Italy" in done.stdout

    def test_without_a_server_it_says_so(self) -> None:
        done = self.chat("127.0.0.1:9", "hi")
        assert done.returncode == 1
        assert "no server" in done.stderr


class TestDoctor:
    def test_nothing_is_missing_here(self) -> None:
        done = subprocess.run([*OMNIFLOW, "doctor", "--json"], capture_output=True, text=True, timeout=120, check=False)
        findings = json.loads(done.stdout)
        assert [finding for finding in findings if finding["state"] == "missing"] == []
        assert done.returncode == 0
        assert {"Triton server", "MemoryManager", "Redis"} <= {finding["what"] for finding in findings}

"""A real manager process in a directory of its own, and what the tests of this folder share."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from memory_manager import MemoryManagerClient
from memory_manager.process import ManagerProcess

SMALL = ["--limit", "8MiB", "--pool-size", "2MiB"]


class ClientProcess:
    """A client in a process of its own, told line by line what to do (see `client_process.py`)."""

    def __init__(self, endpoint: Path, name: str) -> None:
        script = Path(__file__).with_name("client_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(endpoint), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        """What the other process answered."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def until() -> Callable[..., float]:
    """Waits for a condition: `until(condition, what, seconds)`; seconds until it held. Fails after the deadline."""

    def wait(condition: Callable[[], bool], what: str, seconds: float = 5.0) -> float:
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
            time.sleep(0.002)
        return time.monotonic() - start

    return wait


@pytest.fixture
def endpoint() -> Iterator[Path]:
    """A socket path in a short directory (socket paths are limited to 107 bytes)."""
    directory = Path(tempfile.mkdtemp(prefix="mm-"))
    yield directory / "memory.sock"
    shutil.rmtree(directory)


@pytest.fixture
def manager(endpoint: Path) -> Iterator[ManagerProcess]:
    """A manager of 8 MiB in pools of 2 MiB."""
    with ManagerProcess(endpoint, SMALL) as process:
        yield process
        killed_by_the_test = process.ended
        assert killed_by_the_test or process.stop() == 0


@contextmanager
def _frozen(manager: ManagerProcess) -> Iterator[None]:
    os.kill(manager.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, manager.pid, os.WSTOPPED | os.WNOWAIT)
    try:
        yield
    finally:
        os.kill(manager.pid, signal.SIGCONT)


@pytest.fixture
def frozen() -> Callable[[ManagerProcess], AbstractContextManager[None]]:
    """`with frozen(manager):` the manager's process is stopped."""
    return _frozen


@pytest.fixture
def connect(endpoint: Path) -> Iterator[Callable[..., MemoryManagerClient]]:
    """Makes clients that are closed at the end of the test."""
    clients: list[MemoryManagerClient] = []

    def new(name: str, timeout: float = 5.0) -> MemoryManagerClient:
        clients.append(MemoryManagerClient(endpoint, name, timeout))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


@pytest.fixture
def spawn(endpoint: Path) -> Iterator[Callable[[str], ClientProcess]]:
    """Makes client processes that are killed at the end of the test."""
    processes: list[ClientProcess] = []

    def new(name: str) -> ClientProcess:
        processes.append(ClientProcess(endpoint, name))
        return processes[-1]

    yield new
    for process in processes:
        if process.process.poll() is None:
            process.kill()

"""Role processes with small models, and clients of their manager."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memory_manager.weights.client import WeightClient
from tests.memory.weights.role import run

# Imports torch once for all role processes, which are forks of this server.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.memory.weights.role"])


class RoleProcess:
    """`role.Role` in a process of its own."""

    def __init__(self, endpoint: Path, name: str) -> None:
        self._pipe, theirs = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=run, args=(str(endpoint), name, theirs), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def tell(self, method: str, **arguments: Any) -> None:
        """Asks without waiting for the answer."""
        self._pipe.send((method, arguments))

    def answer(self) -> Any:
        """What it answered to the first request that is not answered yet."""
        assert self._pipe.poll(60), "no answer within 60 s"
        return self._pipe.recv()

    def ask(self, method: str, **arguments: Any) -> Any:
        """Asks and waits."""
        self.tell(method, **arguments)
        return self.answer()

    def exit_status(self) -> int | None:
        """Waits for its end."""
        self._process.join(30)
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, and gone when this returns. May be called again."""
        self._process.kill()
        self._process.join(30)
        self._pipe.close()


@pytest.fixture
def roles(endpoint: Path) -> Iterator[Callable[..., list[RoleProcess]]]:
    """Starts role processes of these names; they are killed at the end of the test."""
    processes: list[RoleProcess] = []

    def start(*names: str) -> list[RoleProcess]:
        started = [RoleProcess(endpoint, name) for name in names]
        processes.extend(started)
        return started

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def weight_client(endpoint: Path) -> Iterator[Callable[[str], WeightClient]]:
    """Makes clients that are closed at the end of the test."""
    clients: list[WeightClient] = []

    def new(name: str) -> WeightClient:
        clients.append(WeightClient(endpoint, name))
        return clients[-1]

    yield new
    for client in clients:
        client.close()

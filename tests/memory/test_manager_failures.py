"""Clients and managers die at any moment: what they held goes, what others hold stays, and errors come at once."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_manager import MemoryManagerClient, MemoryManagerUnavailable, StaleHandle, TensorHandle
from memory_manager.process import ManagerProcess

Connect = Callable[..., MemoryManagerClient]


def names(client: MemoryManagerClient) -> set[str]:
    return {one.name for one in client.statistics().clients}


@pytest.mark.usefixtures("manager")
class TestDeadClient:
    def test_exactly_its_references_go(self, connect: Connect, spawn: Any, until: Any) -> None:
        client = connect("survivor")
        handles = [client.put(np.arange(4, dtype=np.float32), "call").to_wire() for _ in range(3)]
        victim, bystander = spawn("victim"), spawn("bystander")
        victim.ask("open", handles=handles)
        bystander.ask("open", handles=handles[:2])
        assert client.statistics().references_of("victim") == 3
        victim.kill()
        until(lambda: "victim" not in names(client), "the dead client is gone", seconds=1)
        left = client.statistics()
        assert (left.references_of("bystander"), left.references, left.blocks) == (2, 5, 3)
        client.release_scope("call")
        client.put(np.zeros(100), "other")
        assert bystander.ask("read again") == [[0, 1, 2, 3]] * 2

    def test_its_half_made_blocks_go_and_handed_over_ones_stay_in_an_owned_scope(
        self, connect: Connect, spawn: Any, until: Any
    ) -> None:
        orchestrator, talker = connect("orchestrator"), spawn("talker")
        orchestrator.open_scope("call")
        handle = TensorHandle.from_wire(talker.ask("put", values=[1, 2], scope="call"))
        talker.ask("leave half made", scope="call")
        assert orchestrator.statistics().blocks == 2
        talker.kill()
        until(lambda: "talker" not in names(orchestrator), "the dead client is gone", seconds=1)
        assert orchestrator.statistics().blocks == 1
        with orchestrator.open([handle]) as (array,):
            assert array.tolist() == [1, 2]

    def test_a_tensor_handed_over_right_before_death_is_complete(self, connect: Connect, spawn: Any) -> None:
        orchestrator = connect("orchestrator")
        orchestrator.open_scope("call")
        for number in range(5):
            talker = spawn(f"talker-{number}")
            wire = talker.ask("put", values=[number], scope="call")
            talker.kill()
            with orchestrator.open([TensorHandle.from_wire(wire)]) as (array,):
                assert array.tolist() == [number]

    def test_its_blocks_go_where_nobody_owns_the_scope(self, connect: Connect, spawn: Any, until: Any) -> None:
        client, producer = connect("survivor"), spawn("producer")
        producer.ask("put", values=[1], scope="shared")
        mine = client.put(np.arange(3), "shared")
        producer.kill()
        until(lambda: client.statistics().blocks == 1, "blocks of the dead producer go", seconds=1)
        with client.open([mine]) as (array,):
            assert array.tolist() == [0, 1, 2]

    def test_the_scopes_it_owned_are_released(self, connect: Connect, spawn: Any, until: Any) -> None:
        talker, orchestrator = connect("talker"), spawn("orchestrator")
        orchestrator.ask("open scope", scope="call")
        talker.put(np.zeros(4), "call")
        orchestrator.kill()
        until(lambda: talker.statistics().blocks == 0, "the scope of the dead owner is released", seconds=1)


class TestDeadManager:
    def test_clients_learn_of_it_within_a_second(self, connect: Connect, manager: ManagerProcess) -> None:
        client = connect("client")
        client.put(np.zeros(4), "call")
        manager.kill()
        start = time.monotonic()
        with pytest.raises(MemoryManagerUnavailable, match="memory_manager"):
            client.put(np.zeros(4), "call")
        client.release_scope_soon("call")
        assert time.monotonic() - start < 1

    def test_one_that_waits_for_an_answer_learns_of_it_too(self, connect: Connect, manager: ManagerProcess) -> None:
        client = connect("client", timeout=20)
        client.statistics()
        os.kill(manager.pid, signal.SIGSTOP)
        killer = subprocess.Popen([sys.executable, "-c", f"import os; os.kill({manager.pid}, 9)"])
        start = time.monotonic()
        with pytest.raises(MemoryManagerUnavailable):
            client.statistics()
        assert time.monotonic() - start < 5
        assert killer.wait(10) == 0

    def test_a_restarted_one_is_used_by_the_same_client(
        self, connect: Connect, endpoint: Path, manager: ManagerProcess
    ) -> None:
        client = connect("client")
        old = client.put(np.arange(5), "call")
        opened = client.open([old])
        manager.kill()
        with ManagerProcess(endpoint):
            with pytest.raises(StaleHandle, match="earlier run"):
                client.open([old])
            with client.open([client.put(np.arange(3), "call")]) as (array,):
                assert array.tolist() == [0, 1, 2]
            assert opened.arrays[0].tolist() == [0, 1, 2, 3, 4]
            opened.close()
            del array
            assert client.statistics().references == 1

    def test_one_that_hangs_is_given_up_after_the_timeout_and_leaves_nothing_behind(
        self, connect: Connect, manager: ManagerProcess, frozen: Any
    ) -> None:
        client, other = connect("client", timeout=0.2), connect("other")
        handle = other.put(np.zeros(4), "call")
        client.statistics()
        with frozen(manager):
            for attempt in (lambda: client.put(np.zeros(4), "late"), lambda: client.open([handle])):
                with pytest.raises(MemoryManagerUnavailable, match="stuck"):
                    attempt()
        assert client.statistics().references_of("client") == 0
        assert other.statistics().blocks == 1

    def test_without_one_the_error_says_where_it_was_expected(self, connect: Connect, endpoint: Path) -> None:
        with pytest.raises(MemoryManagerUnavailable, match=str(endpoint)):
            connect("client").statistics()


class TestManagerProcess:
    def test_it_ends_with_its_parent_and_says_nothing(self, endpoint: Path) -> None:
        parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        ready, told = os.pipe()
        command = [sys.executable, "-m", "memory_manager", "--endpoint", str(endpoint), "--limit", "1MiB"]
        command += ["--parent-pid", str(parent.pid), "--ready-fd", str(told)]
        manager = subprocess.Popen(
            command, pass_fds=[told], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2]
        )
        os.close(told)
        assert select.select([ready], [], [], 20)[0]
        os.close(ready)
        parent.kill()
        output, _ = manager.communicate(timeout=5)
        parent.communicate()
        assert (manager.returncode, output) == (0, b"")

    def test_a_second_one_at_the_same_endpoint_refuses_to_start(
        self, connect: Connect, endpoint: Path, manager: ManagerProcess, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(MemoryManagerUnavailable):
            ManagerProcess(endpoint)
        assert "another MemoryManager serves" in capfd.readouterr().err
        assert connect("client").statistics().blocks == 0

    @pytest.mark.parametrize("size", ["0", "1GB", "-1MiB", "many"])
    def test_a_size_that_is_none_is_refused(self, endpoint: Path, size: str) -> None:
        command = [sys.executable, "-m", "memory_manager", "--endpoint", str(endpoint), f"--limit={size}"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
        assert done.returncode == 2
        assert "is not a size" in done.stderr

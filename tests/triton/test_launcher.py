"""Starting and stopping: nothing stays behind, whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from omniflow_backend.serve.echo_test import check_echo
from omniflow_backend.serve.identity import remove_leftovers
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
from omniflow_backend.serve.processes import StartFailed
from omniflow_backend.serve.supervisor import ModelState, RestartPolicy
from omniflow_backend.serve.triton_control import ControlError
from omniflow_backend.serve.triton_server import TritonInstallation, TritonOptions
from omniflow_backend.triton.references import BadReference, resolve
from omniflow_backend.triton.repository import role_directory
from tests.triton.conftest import Caller, served_role

pytestmark = pytest.mark.server

HERE = Path(__file__).parent
SERVED = HERE / "served.py"
DEADLINE = 30.0


def unloadable(flag: Path) -> Any:
    return role_directory("unloadable", resolve(f"{SERVED}:Unloadable"), {"while_exists": str(flag)})


def left_behind(prefix: str) -> list[Path]:
    """Files in the places where deployments keep any, of the process whose names begin so."""
    places = (Path(tempfile.gettempdir()), Path("/dev/shm"))
    return [path for place in places for path in place.iterdir() if path.name.startswith(prefix)]


def children() -> list[str]:
    """Those that run: a stub that was killed stays a zombie until Triton looks after it."""
    running = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            running.append(" ".join(child.cmdline()))
    return running


def test_a_role_that_dies_for_good_is_given_up_and_stop_leaves_nothing(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    before = children()
    options = DeploymentOptions(
        models=[unloadable(flag)], restarts=RestartPolicy(second_delay=0.01, longest_delay=0.01, attempts=2)
    )
    with Deployment(options) as deployment:
        runtime = deployment.runtime
        assert runtime is not None
        assert runtime.stat().st_mode & 0o777 == 0o700
        flag.touch()
        (status,) = deployment.supervisor.statuses()
        assert status.pid is not None
        os.kill(status.pid, signal.SIGKILL)
        assert deployment.supervisor.wait_for("unloadable", ModelState.FAILED, DEADLINE)
        health = deployment.health()
        assert not health.ready
        assert "given up after 2" in health.models[0].reason
        assert "the weights are not there" in health.models[0].reason
    assert not runtime.exists()
    assert left_behind(runtime.name) == []
    assert [command for command in children() if command not in before] == []


def test_stop_ends_open_calls_and_closes_roles_even_when_a_function_does_not_come_back(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    answers: list[str] = []
    options = DeploymentOptions(models=[unloadable(flag)], triton=TritonOptions(exit_timeout=20))
    with Deployment(options) as deployment:
        control = deployment.triton.control

        def call() -> None:
            seconds = {"name": "seconds", "datatype": "FP32", "shape": [1], "data": [1000.0]}
            try:
                control.infer("unloadable", {"inputs": [seconds]}, DEADLINE)
            except ControlError as error:
                answers.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        while not flag.with_suffix(".begun").exists():
            assert thread.is_alive()
        began = time.monotonic()
    assert time.monotonic() - began < 20
    thread.join(DEADLINE)
    assert "UNAVAILABLE: the server is stopping" in answers[0]
    assert flag.with_suffix(".closed").exists()


def test_a_role_that_cannot_load_stops_the_start_with_its_reason(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    before = children()
    with pytest.raises(StartFailed, match="the weights are not there"):
        Deployment(DeploymentOptions(models=[unloadable(flag)])).start()
    assert [command for command in children() if command not in before] == []


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_server_that_crashes_while_it_starts_is_started_again_twice_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashes: int
) -> None:
    real = TritonInstallation.find()
    starts, server = tmp_path / "starts", tmp_path / "tritonserver"
    server.write_text(
        f"#!/bin/bash\necho start >> {starts}\n"
        f'if [ $(wc -l < {starts}) -le {crashes} ]; then kill -ABRT $$; fi\nexec {real.binary} "$@"\n'
    )
    server.chmod(0o700)
    monkeypatch.setattr(TritonInstallation, "find", lambda: replace(real, binary=server))
    deployment = Deployment(DeploymentOptions(models=[unloadable(tmp_path / "flag")]))
    if crashes < 3:
        with deployment:
            assert starts.read_text().count("start") == crashes + 1
    else:
        with pytest.raises(StartFailed, match="ended with status -6"):
            deployment.start()
        assert starts.read_text().count("start") == 3


def test_a_reference_that_leads_nowhere_is_told_before_anything_starts() -> None:
    with pytest.raises(BadReference, match="has no 'nothing'"):
        Deployment(DeploymentOptions(workflows=[f"{SERVED}:nothing"])).start()


def test_a_server_that_changes_tensors_is_refused(deployment: Deployment) -> None:
    with pytest.raises(StartFailed, match="does not fit the installed numpy"):
        check_echo(deployment.triton.control, "corrupting_echo")
    deployment.triton.control.load("corrupting_echo", DEADLINE)


LAUNCH = """
import sys, time
sys.path[:0] = [{root!r}]
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
deployment = Deployment(DeploymentOptions())
deployment.start()
print(deployment.runtime, flush=True)
time.sleep(1000)
"""


def test_the_kernel_ends_everything_when_the_launcher_is_killed_and_the_next_start_cleans_up() -> None:
    root = str(HERE.parents[1])
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH.format(root=root)], stdout=subprocess.PIPE, text=True)
    try:
        assert launcher.stdout is not None
        runtime = Path(launcher.stdout.readline().strip())
        started = psutil.Process(launcher.pid).children(recursive=True)
        # Redis, MemoryManager, Triton and the stub of the echo test.
        assert len(started) >= 3
    finally:
        launcher.kill()
        launcher.communicate(timeout=DEADLINE)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert runtime in left_behind(runtime.name)
    remove_leftovers()
    assert left_behind(runtime.name) == []


def test_a_server_that_dies_is_started_again_on_its_ports_with_its_models(tmp_path: Path) -> None:
    calm, rash = served_role("plain", "Plain", mark="!"), unloadable(tmp_path / "flag")
    restarts = RestartPolicy(second_delay=0.01, longest_delay=0.01, attempts=1)
    with Deployment(DeploymentOptions(models=[calm, rash], restarts=restarts)) as deployment:
        endpoints, server = deployment.endpoints, deployment.service("triton")
        assert endpoints is not None
        stubs = {status.model: psutil.Process(status.pid) for status in deployment.supervisor.statuses()}
        (tmp_path / "flag").touch()
        stubs["unloadable"].kill()
        assert deployment.supervisor.wait_for("unloadable", ModelState.FAILED, DEADLINE)

        dead = server.pid
        os.kill(dead, signal.SIGKILL)
        assert deployment.supervisor.wait_for("plain", ModelState.READY, DEADLINE, restarts=1)
        assert Caller.eventually(lambda: server.restarts == 1)
        assert server.alive
        assert server.pid != dead
        caller = Caller(endpoints.grpc, endpoints.metrics)
        assert caller.infer("plain", text="a")["text"] == b"A!"
        caller.close()
        told = {model.model: model.state for model in deployment.health().models}
        # What had been given up before stays so, and does not keep the others from being served.
        assert told == {"plain": ModelState.READY, "unloadable": ModelState.FAILED}
        # A stub whose server is gone may stay a zombie.
        assert not stubs["plain"].is_running() or stubs["plain"].status() == psutil.STATUS_ZOMBIE


def test_stop_does_not_wait_for_a_server_that_is_being_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = TritonInstallation.find()
    once, server = tmp_path / "once", tmp_path / "tritonserver"
    server.write_text(
        f"#!/bin/bash\nif [ -e {once} ]; then touch {once}.again; exec sleep 1000; fi\n"
        f'touch {once}\nexec {real.binary} "$@"\n'
    )
    server.chmod(0o700)
    monkeypatch.setattr(TritonInstallation, "find", lambda: replace(real, binary=server))
    with Deployment(DeploymentOptions(models=[served_role("plain", "Plain", mark="!")])) as deployment:
        os.kill(deployment.service("triton").pid, signal.SIGKILL)
        assert Caller.eventually(once.with_suffix(".again").exists)
        began = time.monotonic()
    assert time.monotonic() - began < DEADLINE
    assert [command for command in children() if "sleep 1000" in command] == []


def test_stubs_do_not_outlive_a_server_that_was_killed(tmp_path: Path) -> None:
    with Deployment(DeploymentOptions(models=[unloadable(tmp_path / "flag")])) as deployment:
        (status,) = deployment.supervisor.statuses()
        stub = psutil.Process(status.pid)
        os.kill(deployment.service("triton").pid, signal.SIGKILL)
    _, alive = psutil.wait_procs([stub], timeout=10)
    assert alive == []


def test_a_taken_port_is_told_and_nothing_stays() -> None:
    before = children()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed, match=f"health: port {port} of 127.0.0.1: Address already in use"):
            Deployment(DeploymentOptions(health_port=port)).start()
    assert [command for command in children() if command not in before] == []

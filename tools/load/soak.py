"""Many short calls at once on a server of its own, some cancelled at random, with roles killed now and then.

``.venv/bin/python tools/load/soak.py --minutes 5``. Every value carries the id of its request and is checked. It fails
when a call hangs, gets what belongs to another, ends with an error that no kill explains, or when memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc.aio as grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from memory_manager.client import MemoryManagerClient
from omniflow_backend.serve.identity import shared_memory_prefix
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
from omniflow_backend.serve.supervisor import ModelState, ModelStatus, RestartPolicy

HERE = Path(__file__).parent
WORKFLOW = "soak"
ROLES = ("soak_source", "soak_worker", "soak_worker__2")
_MEBIBYTE = 1 << 20
_BIG = 20_000
"""Elements of a value that travels as a handle."""
_SETTLE_SECONDS = 2.5
_EXCUSED_SECONDS = 15.0
"""How long after a kill a call may still be told that its role is away."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """``seconds`` of load by ``streams`` callers at once; a role is killed every ``kill_every`` seconds.

    ``patience``: seconds after which a call that has not ended counts as hung. ``growth``: bytes by which a process, or
    all shared memory together, may grow after the first third.
    """

    seconds: float
    streams: int
    kill_every: float
    cancelled: float = 0.1
    patience: float = 60.0
    growth: int = 96 * _MEBIBYTE
    seed: int = 0


@dataclass(slots=True)
class SoakReport:
    """What came of it. ``problems`` is empty when all is well; times in seconds, memory in bytes."""

    ends: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    memory: list[dict[str, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{sum(self.ends.values())} calls: {dict(self.ends)}; {len(self.kills)} roles killed"]
        if self.latencies:
            quantiles = np.quantile(self.latencies, (0.5, 0.99, 1.0)) * 1e3
            lines.append("finished calls took {:.0f} ms at p50, {:.0f} at p99, {:.0f} at most".format(*quantiles))
        for name in self.memory[-1] if self.memory else ():
            sizes = [f"{sample[name] / _MEBIBYTE:.0f}" for sample in self.memory if name in sample]
            lines.append(f"MiB of {name}: {', '.join(sizes)}")
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems[:20])])


class Soak:
    """One run on a deployment that serves ``soak_workflow.py``."""

    def __init__(self, deployment: Deployment, options: SoakOptions) -> None:
        assert deployment.endpoints is not None
        self._deployment = deployment
        self._options = options
        self._url = deployment.endpoints.grpc
        self._end = 0.0
        self.report = SoakReport()

    async def run(self) -> SoakReport:
        """Load, then look at what is left."""
        options, report = self._options, self.report
        self._end = time.monotonic() + options.seconds
        async with grpc.InferenceServerClient(self._url) as client:
            callers = [self._caller(client, number) for number in range(options.streams)]
            await asyncio.gather(*callers, self._kill(), self._measure())
            await self._settle(client)
        return report

    async def _caller(self, client: Any, number: int) -> None:
        chance = random.Random(f"{self._options.seed}-{number}")
        serial = 0
        while time.monotonic() < self._end:
            serial += 1
            call = _Call(f"{number}-{serial}-{chance.getrandbits(32):x}", chance, self._options.cancelled)
            began = time.monotonic()
            try:
                end = await asyncio.wait_for(call.run(client), self._options.patience)
            except TimeoutError:
                self.report.problems.append(f"call {call.id} hung; it got {len(call.values)} values")
                end = "hung"
            if end == "finished":
                self.report.latencies.append(time.monotonic() - began)
            elif end.startswith("error"):
                end = self._judge(call, end, began)
            self.report.problems += call.problems
            self.report.ends[end] += 1

    def _judge(self, call: _Call, error: str, began: float) -> str:
        """What the error counts as; a problem when no kill explains it."""
        killed = any(began - _EXCUSED_SECONDS < kill for kill in self.report.kills)
        if killed and ("ROLE_DIED" in error or "UNAVAILABLE" in error):
            return "role died"
        if call.deadline and "DEADLINE_EXCEEDED" in error:
            return "deadline"
        self.report.problems.append(f"call {call.id}: {error}")
        return "error"

    async def _kill(self) -> None:
        chance = random.Random(self._options.seed)
        supervisor = self._deployment.supervisor
        while time.monotonic() + self._options.kill_every < self._end:
            await asyncio.sleep(self._options.kill_every)
            status = self._status(chance.choice(ROLES))
            if status.pid is None or status.state is not ModelState.READY:
                continue
            os.kill(status.pid, signal.SIGKILL)
            self.report.kills.append(time.monotonic())
            ready = (status.model, ModelState.READY, self._options.patience)
            if not await asyncio.to_thread(lambda: supervisor.wait_for(*ready, restarts=status.restarts + 1)):  # noqa: B023
                self.report.problems.append(f"{status.model} did not come back")

    def _status(self, model: str) -> ModelStatus:
        return next(status for status in self._deployment.supervisor.statuses() if status.model == model)

    async def _measure(self) -> None:
        for third in (1, 2, 3):
            await asyncio.sleep(max(0.0, self._end - time.monotonic() - self._options.seconds * (3 - third) / 3))
            self.report.memory.append(self._memory())

    def _memory(self) -> dict[str, int]:
        """By process, with its id where it may be restarted; and all shared memory of the deployment."""
        deployment = self._deployment
        assert deployment.runtime is not None
        prefix = shared_memory_prefix(deployment.runtime)
        shared = [path.stat().st_size for path in Path("/dev/shm").iterdir() if path.name.startswith(prefix)]
        found = {"/dev/shm": sum(shared)}
        pids = {name: deployment.service(name).pid for name in ("triton", "memory_manager")}
        pids |= {f"{s.model} ({s.pid})": s.pid for s in deployment.supervisor.statuses() if s.pid is not None}
        for name, pid in pids.items():
            try:
                memory = psutil.Process(pid).memory_full_info()
            except psutil.NoSuchProcess:
                continue
            found[name] = int(memory.uss)
        return found

    async def _settle(self, client: Any) -> None:
        """Nothing may be held any more, and the server must go on serving."""
        report, deployment = self.report, self._deployment
        for model in ROLES:
            if not deployment.supervisor.wait_for(model, ModelState.READY, self._options.patience):
                report.problems.append(f"{model} is not ready at the end")
        last = _Call("last", random.Random(0), 0.0)
        try:
            end = await asyncio.wait_for(last.run(client), self._options.patience)
        except TimeoutError:
            end = "hung"
        if end not in ("finished", "deadline"):
            report.problems.append(f"the last call: {end}")
        await asyncio.sleep(_SETTLE_SECONDS)
        assert deployment.runtime is not None
        with MemoryManagerClient(deployment.runtime / "memory.sock", "soak") as memory:
            held = memory.statistics().bytes_held
        if held:
            report.problems.append(f"MemoryManager still holds {held} bytes")
        if open_calls := _open_calls(deployment):
            report.problems.append(f"the orchestrator still has {open_calls:g} open calls")
        if not deployment.health().ready:
            report.problems.append(f"not healthy at the end: {deployment.health().to_json()}")
        first, final = report.memory[0], report.memory[-1]
        for name in first.keys() & final.keys():
            if final[name] - first[name] > self._options.growth:
                grown = (final[name] - first[name]) / _MEBIBYTE
                report.problems.append(f"{name} grew by {grown:.0f} MiB")


class _Call:
    """One call: how it goes is decided before it begins."""

    def __init__(self, id: str, chance: random.Random, cancelled: float) -> None:
        self.id = id
        self.n = chance.randint(0, 6)
        self.size = _BIG if chance.random() < 0.1 else 10
        self.leaves_after = chance.randint(0, self.n) if chance.random() < cancelled else None
        self.deadline = self.leaves_after is None and chance.random() < 0.03
        self.session = f"session-{id.partition('-')[0]}" if chance.random() < 0.3 else None
        self.values: list[dict[str, Any]] = []
        self.problems: list[str] = []

    async def run(self, client: Any) -> str:
        """``finished``, ``cancelled``, or ``error: ...``."""
        responses = client.stream_infer(self._requests())
        try:
            async for result, error in responses:
                if error is not None:
                    return f"error: {error}"
                if self.leaves_after is not None and len(self.values) >= self.leaves_after:
                    return "cancelled"
                if not self._take(result):
                    self._check_end()
                    return "finished"
        except (InferenceServerException, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and self.leaves_after is None:
                raise
            return f"error: {error}"
        finally:
            responses.cancel()
        return "error: the stream ended without SYSTEM_FINISH"

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        values: dict[str, Any] = {"id": self.id, "n": self.n, "size": self.size}
        if self.session is not None:
            values["session_id"] = self.session
        if self.deadline:
            values["timeout_ms"] = 20
        yield {"model_name": WORKFLOW, "inputs": [_tensor(*item) for item in values.items()], "request_id": self.id}

    def _take(self, result: Any) -> bool:
        """Keep one response; false when it is the last."""
        names = [output.name for output in result.get_response().outputs]
        values = {name: result.as_numpy(name).reshape(-1)[0] for name in names}
        got = result.get_response().id
        if got != self.id:
            self.problems.append(f"call {self.id} got a response of {got}")
        self.values.append(values)
        return bool(values["event"] != b"SYSTEM_FINISH")

    def _check_end(self) -> None:
        expected_both = [f"<{self.id}/{n}{self.id}/{n}>".encode() for n in range(self.n)]
        both = [values["both"] for values in self.values if "both" in values]
        totals = [int(values["total"]) for values in self.values if "total" in values]
        if both != expected_both:
            self.problems.append(f"call {self.id} got {both}, not {expected_both}")
        if totals != [(n + 1) * self.size for n in range(self.n)]:
            self.problems.append(f"call {self.id} got totals {totals} of {self.n} values of {self.size}")
        together = ",".join(f"{self.id}/{n}" for n in range(self.n)).encode()
        if self.n and self.values[-1].get("all") != together:
            self.problems.append(f"call {self.id} got {self.values[-1].get('all')!r} at the end, not {together!r}")


def _open_calls(deployment: Deployment) -> float:
    """As Triton's metrics page tells it, a second late."""
    assert deployment.endpoints is not None
    with urllib.request.urlopen(deployment.endpoints.metrics, timeout=10) as answer:
        page = answer.read().decode()
    found = re.search(rf'^omniflow_calls_open{{workflow="{WORKFLOW}"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found is not None else -1.0


def _tensor(name: str, value: str | int) -> Any:
    array = np.array([value.encode() if isinstance(value, str) else value], object if isinstance(value, str) else None)
    tensor = grpc.InferInput(name, [1], np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def soak(options: SoakOptions) -> SoakReport:
    """Start a deployment, run, stop it."""
    # However many are killed, none is given up.
    restarts = RestartPolicy(second_delay=0.0, longest_delay=0.0, attempts=1_000_000)
    workflow = f"{HERE / 'soak_workflow.py'}:soak"
    deployment = DeploymentOptions(workflows=[workflow], memory_limit="512MiB", restarts=restarts)
    with Deployment(deployment) as running:
        return asyncio.run(Soak(running, options).run())


def main() -> int:
    """The command line; the exit code says whether all was well."""
    parser = argparse.ArgumentParser(description="Load a server of its own with short calls, cancels and role kills.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--streams", type=int, default=256, help="calls at once (default: %(default)s)")
    parser.add_argument("--kill-every", type=float, default=20.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    report = soak(SoakOptions(given.minutes * 60, given.streams, given.kill_every, seed=given.seed))
    print(report)
    return int(bool(report.problems))


if __name__ == "__main__":
    sys.exit(main())

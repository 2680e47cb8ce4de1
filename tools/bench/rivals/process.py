"""A rival as a subprocess in its own environment, asked for measurements one line at a time (see ``protocol``)."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

# Up to nine processes that each import PyTorch, on two busy cores.
START_SECONDS = 300.0
CALL_SECONDS = 0.1
ANSWER_SECONDS = 60.0
END_SECONDS = 40.0

# What would reach into the rival's environment, and what would have it report home.
DROPPED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
ADDED = {"RAY_USAGE_STATS_ENABLED": "0", "LANGSMITH_TRACING": "false", "OMP_NUM_THREADS": "1"}


class RivalFailure(Exception):
    """The rival did not start or did not answer; the message ends with the last line it logged."""


@contextmanager
def running(python: Path, script: Path, arguments: Sequence[str]) -> Iterator[RivalProcess]:
    """The rival that ``script`` is, started; at the end it is stopped, with everything that it started.

    Raises ``RivalFailure`` when it does not start.
    """
    environment = {name: value for name, value in os.environ.items() if name not in DROPPED} | ADDED
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(
            [str(python), "-s", str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield RivalProcess(process, log)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its input lets a rival stop what it started; what is left of its process group is killed."""
    assert process.stdin is not None
    try:
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            process.stdin.close()
            process.wait(END_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class RivalProcess:
    """Asks a started rival. Every method raises ``RivalFailure`` when it ended or did not answer in time."""

    def __init__(self, process: subprocess.Popen[str], log: TextIO) -> None:
        self._process = process
        self._log = log
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.version = str(self._answer(START_SECONDS)["version"])

    def latencies(self, graph: str, calls: int) -> list[float]:
        """Seconds of each of ``calls`` calls, one at a time, as the rival measured them."""
        return [float(seconds) for seconds in self._ask(f"once {graph} {calls}", calls)["seconds"]]

    def rate(self, graph: str, calls: int, in_flight: int) -> float:
        """Calls per second with ``in_flight`` outstanding."""
        return float(self._ask(f"many {graph} {calls} {in_flight}", calls)["per_second"])

    def _ask(self, request: str, calls: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(f"ended before {request!r}") from None
        return self._answer(ANSWER_SECONDS + calls * CALL_SECONDS)

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise self._failed(f"did not answer within {seconds:.0f} s") from None
        if line is None:
            raise self._failed("ended")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._failed(f"answered {line.strip()!r}, which is not JSON") from None
        assert isinstance(answer, dict)
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _failed(self, what: str) -> RivalFailure:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return RivalFailure(f"{what}; it logged: {lines[-1]}" if lines else what)

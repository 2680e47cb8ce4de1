"""Child processes of a deployment: they end with it, however it ends."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from omniflow_backend.errors import OmniFlowError
from omniflow_backend.serve import guarded

log = logging.getLogger(__name__)

_LAST_LINES = 25


class StartFailed(OmniFlowError):
    """A part of the deployment did not start; the message has the end of its log."""


@dataclass(slots=True)
class Child:
    """A running program. ``log`` takes its standard output and error."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None

    def tail(self, lines: int = _LAST_LINES) -> str:
        """The end of its log."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def failed(self, reason: str) -> StartFailed:
        """The error that tells ``reason`` and the end of the log."""
        return StartFailed(f"{self.name}: {reason}; the end of its log:\n{self.tail()}")

    def stop(self, timeout: float) -> None:
        """SIGTERM, and SIGKILL after ``timeout`` seconds; then SIGKILL for what it started and left behind."""
        descendants = self._descendants()
        if self.alive:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            log.warning("%s did not end within %g s and is killed", self.name, timeout)
            self.process.kill()
            self.process.wait()
        for descendant in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                descendant.kill()
        psutil.wait_procs(descendants, timeout)

    def _descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


class Children:
    """Starts programs that the kernel kills when this process ends.

    The kernel's signal comes when the *thread* ends that started the program: so all are started from one thread,
    which lives as long as this object.
    """

    def __init__(self, log_directory: Path) -> None:
        self._log_directory = log_directory
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="process-starter")

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        working_directory: Path | None = None,
    ) -> Child:
        """Start a program. Raises ``StartFailed`` when there is no such program."""
        program = shutil.which(command[0])
        if program is None:
            raise StartFailed(f"{name}: there is no program {command[0]!r}")
        return self._starter.submit(self._start, name, [program, *command[1:]], environment, working_directory).result()

    def close(self) -> None:
        """Programs that still run are killed soon after."""
        self._starter.shutdown()

    def _start(
        self, name: str, command: list[str], environment: Mapping[str, str] | None, working_directory: Path | None
    ) -> Child:
        path = self._log_directory / f"{name}.log"
        guard = [sys.executable, "-I", "-S", guarded.__file__, str(os.getpid()), *command]
        with path.open("ab") as log_file:
            process = subprocess.Popen(
                guard,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd=working_directory,
                start_new_session=True,
            )
        return Child(name, process, path)

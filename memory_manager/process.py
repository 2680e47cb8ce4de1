"""Starts a manager as a process of its own, and ends it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from memory_manager.errors import MemoryManagerUnavailable


class ManagerProcess:
    """A manager process that serves `endpoint` when the constructor returns, and ends with this process.

    Args:
        endpoint: path of its socket; the directory must exist.
        options: further command line options, for example `["--limit", "4GiB"]`.
        timeout: seconds within which it must be ready.

    Raises:
        MemoryManagerUnavailable: if it did not start; its own message is on standard error.
    """

    def __init__(self, endpoint: Path, options: Sequence[str] = (), timeout: float = 30.0) -> None:
        self.endpoint = endpoint
        ready, told = os.pipe()
        command = [sys.executable, "-m", "memory_manager", "--endpoint", str(endpoint)]
        command += ["--parent-pid", str(os.getpid()), "--ready-fd", str(told), *options]
        # The package may be found only through this process's own path (a checkout, a test run).
        paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        try:
            self._process = subprocess.Popen(command, pass_fds=[told], env=environment, stdin=subprocess.DEVNULL)
            os.close(told)
            if not select.select([ready], [], [], timeout)[0] or os.read(ready, 1) != b"1":
                self.kill()
                raise MemoryManagerUnavailable(f"the MemoryManager at {endpoint} did not start; see its standard error")
        finally:
            os.close(ready)

    def __enter__(self) -> ManagerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._process.poll() is not None

    def stop(self, timeout: float = 10.0) -> int:
        """Ends it in an orderly way, by force after `timeout` seconds; its exit status."""
        self._process.terminate()
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Ends it with SIGKILL; its exit status."""
        self._process.kill()
        return self._process.wait()

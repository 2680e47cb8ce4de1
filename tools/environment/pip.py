"""Runs pip in the virtual environment, with progress in place of its own output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import TextIO

from environment.failure import EnvironmentFailure

INSTALL_SECONDS = 3600
_FETCHING = re.compile(r"(?:Collecting|Requirement already satisfied:|Processing) (\S+)")
_TORCH_HINT = (
    "PyTorch's CPU build comes from PyTorch's own package index: set PIP_EXTRA_INDEX_URL to its CPU index, remove the "
    "environment, then run `make env` again"
)


class Progress:
    """One line that renews itself on a terminal; elsewhere one line for every quarter of the work."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._quarter = -1
        self._terminal = sys.stdout.isatty()

    def show(self, done: int, detail: str = "") -> None:
        if self._total == 0:
            return
        if self._terminal:
            print(f"\r\033[K  {self._what} {done}/{self._total} {detail}", end="", flush=True)
        elif done * 4 // self._total > self._quarter:
            self._quarter = done * 4 // self._total
            print(f"  {self._what} {done}/{self._total}", flush=True)

    def end(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", flush=True)


class Pip:
    """pip of one virtual environment; everything it prints goes to ``log``."""

    def __init__(self, python: Path, log: Path) -> None:
        self._python = python
        self._log = log

    def install(self, arguments: list[str], packages: int) -> None:
        """Run ``pip install --no-deps`` with ``arguments``, which name ``packages`` packages.

        Modules are compiled when they are first imported: most never are. Raises ``EnvironmentFailure``.
        """
        command = [str(self._python), "-I", "-m", "pip", "install", "--no-deps", "--no-input", "--no-compile"]
        environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        tail: deque[str] = deque(maxlen=400)
        with (
            self._log.open("a", encoding="utf-8") as log,
            subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
            ) as process,
        ):
            deadline = threading.Timer(INSTALL_SECONDS, process.kill)
            deadline.start()
            try:
                self._follow(process, packages, tail, log)
            finally:
                deadline.cancel()
                process.kill()
        if process.returncode != 0:
            raise EnvironmentFailure(self._explain(list(tail)))

    def _follow(self, process: subprocess.Popen[str], packages: int, tail: deque[str], log: TextIO) -> None:
        assert process.stdout is not None
        fetching, seen = Progress("fetched", packages), 0
        installing: threading.Thread | None = None
        ended = threading.Event()
        try:
            for line in process.stdout:
                log.write(line)
                tail.append(line.rstrip())
                match = _FETCHING.match(line)
                if match:
                    fetching.show(seen, match[1])
                    seen += 1
                elif line.startswith("Installing collected packages:"):
                    fetching.show(seen)
                    fetching.end()
                    installing = threading.Thread(
                        target=self._watch_site, args=(line.count(",") + 1 if packages else 0, ended), daemon=True
                    )
                    installing.start()
            process.wait()
        finally:
            ended.set()
            if installing is not None:
                installing.join()
            fetching.end()

    def _watch_site(self, packages: int, ended: threading.Event) -> None:
        site = next(self._python.parent.parent.glob("lib/python3*/site-packages"))
        before = len(list(site.glob("*.dist-info")))
        installing = Progress("installed", packages)
        while not ended.wait(0.5):
            installing.show(min(packages, max(0, len(list(site.glob("*.dist-info"))) - before)))
        installing.end()

    def _explain(self, tail: list[str]) -> str:
        errors = [line for line in tail if line.startswith("ERROR")] or tail[-10:]
        message = "pip failed:\n  " + "\n  ".join(errors) + f"\nIts whole output is in {self._log}"
        return f"{message}\n{_TORCH_HINT}" if any("torch" in line for line in errors) else message


def refuse_cuda_build(site: Path) -> None:
    """Raise ``EnvironmentFailure`` when the PyTorch below ``site`` was built for CUDA."""
    text = (site / "torch" / "version.py").read_text(encoding="utf-8")
    built_for = re.search(r"^cuda\b[^=]*=\s*(.+)$", text, re.MULTILINE)
    if built_for is not None and built_for[1].strip() != "None":
        raise EnvironmentFailure(f"pip chose PyTorch built for CUDA {built_for[1].strip()}. {_TORCH_HINT}")

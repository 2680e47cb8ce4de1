"""Which Python 3.11 the virtual environment is built on."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from environment.failure import EnvironmentFailure

PROBE_SECONDS = 30
_PROBE = """
import importlib.util, json, sys
print(json.dumps({
    "executable": getattr(sys, "_base_executable", sys.executable),
    "prefix": sys.base_prefix,
    "version": list(sys.version_info[:3]),
    "ensurepip": importlib.util.find_spec("ensurepip") is not None,
}))
"""


@dataclass(frozen=True)
class Interpreter:
    """A Python 3.11 outside any virtual environment, and what it lacks."""

    executable: Path
    prefix: Path
    version: tuple[int, int, int]
    ensurepip: bool
    shared_library: bool

    @property
    def from_debian(self) -> bool:
        """Whether the distribution's package manager can add what is missing."""
        return self.prefix == Path("/usr")

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.executable})"


def choose(found: Iterable[Interpreter]) -> Interpreter:
    """The first interpreter that lacks nothing, else the first that can be completed.

    Raises ``EnvironmentFailure`` when there is none.
    """
    usable = list(found)
    complete = [one for one in usable if one.ensurepip and one.shared_library]
    completable = [one for one in usable if one.from_debian]
    for one in complete + completable:
        return one
    if usable:
        raise EnvironmentFailure(
            f"{usable[0]} has no {'shared library' if usable[0].ensurepip else 'ensurepip'}; Triton's Python stub "
            "needs a Python 3.11 with both. Build it with --enable-shared, or install the distribution's "
            "(apt-get install python3.11 python3.11-venv)"
        )
    raise EnvironmentFailure(
        "no Python 3.11 found on PATH. Install one (Debian 12: apt-get install python3.11 python3.11-venv), "
        "or name one: make env PYTHON=/path/to/python3.11"
    )


def interpreters(named: str | None, library_finder: Path) -> Iterator[Interpreter]:
    """Every distinct Python 3.11: the ``named`` one if given, else those on PATH, then the distribution's."""
    seen = set()
    for command in [named] if named else _commands():
        interpreter = probe(command, library_finder)
        if interpreter is not None and interpreter.executable not in seen:
            seen.add(interpreter.executable)
            yield interpreter


def probe(command: str, library_finder: Path) -> Interpreter | None:
    """What ``command`` is, or ``None`` if it is no working Python 3.11.

    ``library_finder`` is the program that exits 0 when its interpreter has a libpython.
    """
    answer = _output([command, "-I", "-c", _PROBE])
    if answer is None:
        return None
    facts = json.loads(answer)
    if facts["version"][:2] != [3, 11]:
        return None
    return Interpreter(
        executable=Path(facts["executable"]),
        prefix=Path(facts["prefix"]),
        version=tuple(facts["version"]),
        ensurepip=facts["ensurepip"],
        shared_library=_output([command, "-I", str(library_finder)]) is not None,
    )


def _commands() -> Iterator[str]:
    for directory in [*os.get_exec_path(), "/usr/bin", "/usr/local/bin"]:
        for name in ("python3.11", "python3"):
            command = Path(directory, name)
            if os.access(command, os.X_OK):
                yield str(command)


def _output(command: list[str]) -> str | None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

"""Builds the project's virtual environment: `make env`. To start, it needs only some Python 3 and its standard library.

Idempotent: an environment whose stamp matches the lock and the project's metadata is left alone.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environment.debian import LIBRARY, fetch_library, install_ensurepip
from environment.failure import EnvironmentFailure
from environment.interpreter import Interpreter, choose, interpreters, probe
from environment.pip import Pip, refuse_cuda_build

ROOT = Path(__file__).resolve().parents[2]
LOCK = "requirements/cpu.lock"
MODELS_LOCK = "requirements/models.lock"
LIBRARY_FINDER = "omniflow_backend/serve/libpython.py"
NEEDED_BYTES = 5 * 1024**3
CREATE_SECONDS = 300
TURN_SECONDS = 3600


class Builder:
    """Builds one environment from one checkout.

    Files in the environment: ``.ready`` holds what it was built from; ``.incomplete`` exists while packages are being
    installed, so that an interrupted build starts over; ``install.log`` has pip's output.
    """

    def __init__(self, root: Path, environment: Path) -> None:
        self._root = root
        self._environment = environment
        self._python = environment / "bin" / "python"
        self._stamp = environment / ".ready"
        self._incomplete = environment / ".incomplete"

    def ready(self) -> bool:
        """Whether the environment exists and was built from these very files."""
        return self._python.exists() and self._read_stamp() == self.sources()

    def sources(self) -> dict[str, str]:
        """Digests of what the environment is built from."""
        return {
            "lock": digest(self._root / LOCK, self._root / MODELS_LOCK),
            "project": digest(self._root / "pyproject.toml"),
            "root": str(self._root),
        }

    def build(self, named: str | None) -> None:
        """Bring the environment up to date, on the interpreter ``named`` or the best one found.

        Raises ``EnvironmentFailure``.
        """
        old, new = self._read_stamp(), self.sources()
        moved = old.get("root", new["root"]) != new["root"]
        if moved or self._incomplete.exists() or not self._python.exists():
            shutil.rmtree(self._environment, ignore_errors=True)
            self._create(named)
            old = {}
        pip = Pip(self._python, self._environment / "install.log")
        if old.get("lock") != new["lock"]:
            self._incomplete.touch()
            self._install_lock(pip)
            self._complete_library()
        say("installing the project")
        pip.install(["--no-build-isolation", "--editable", str(self._root)], packages=0)
        self._incomplete.unlink(missing_ok=True)
        self._stamp.write_text(json.dumps(new) + "\n", encoding="utf-8")

    def _create(self, named: str | None) -> None:
        if platform.machine() != "x86_64" or sys.platform != "linux":
            raise EnvironmentFailure(f"{LOCK} is for Linux on x86_64; here, install with: pip install '.[cpu,dev]'")
        free = shutil.disk_usage(self._environment.parent).free
        if free < NEEDED_BYTES:
            raise EnvironmentFailure(
                f"{self._environment.parent} has {free / 1024**3:.1f} GiB free, and the environment needs "
                f"{NEEDED_BYTES / 1024**3:.0f} GiB"
            )
        finder = self._root / LIBRARY_FINDER
        chosen = choose(interpreters(named, finder))
        if not chosen.ensurepip:
            say(f"adding ensurepip to {chosen}")
            install_ensurepip()
        say(f"creating {self._environment.name} with {chosen}")
        self._environment.mkdir(parents=True)
        self._incomplete.touch()
        made = subprocess.run(
            [str(chosen.executable), "-I", "-m", "venv", str(self._environment)],
            capture_output=True,
            text=True,
            timeout=CREATE_SECONDS,
            check=False,
        )
        if made.returncode != 0:
            raise EnvironmentFailure(f"{chosen} could not make a virtual environment:\n{made.stdout}{made.stderr}")

    def _install_lock(self, pip: Pip) -> None:
        for lock in (LOCK, MODELS_LOCK):
            packages = (self._root / lock).read_text(encoding="utf-8").count("==")
            say(f"installing {packages} packages of {lock}")
            pip.install(["-r", str(self._root / lock)], packages)
        refuse_cuda_build(next(self._environment.glob("lib/python3*/site-packages")))

    def _complete_library(self) -> None:
        """Make sure that the stub will find the libpython of this environment's own interpreter."""
        interpreter = self._interpreter()
        if interpreter.shared_library:
            return
        if not interpreter.from_debian:
            raise EnvironmentFailure(f"{interpreter} has no {LIBRARY}; remove {self._environment} to choose another")
        say(f"fetching {LIBRARY}")
        directory = fetch_library(self._environment / "lib" / "libpython")
        recorded = subprocess.run(
            [str(self._python), "-I", str(self._root / LIBRARY_FINDER), str(directory)],
            capture_output=True,
            text=True,
            timeout=CREATE_SECONDS,
            check=False,
        )
        if recorded.returncode != 0:
            raise EnvironmentFailure(recorded.stderr.strip())

    def _interpreter(self) -> Interpreter:
        interpreter = probe(str(self._python), self._root / LIBRARY_FINDER)
        if interpreter is None:
            raise EnvironmentFailure(
                f"{self._python} does not run as Python 3.11; remove {self._environment} and try again"
            )
        return interpreter

    def _read_stamp(self) -> dict[str, str]:
        try:
            stamp = json.loads(self._stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}


def digest(*files: Path) -> str:
    """SHA-256 of the files' contents, in order."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


def say(message: str) -> None:
    """One line of progress."""
    print(f"env: {message}", flush=True)


@contextmanager
def turn(root: Path) -> Iterator[None]:
    """Only one build at a time in a checkout. Raises ``EnvironmentFailure`` when the other one does not end."""

    def give_up(*_: object) -> None:
        raise EnvironmentFailure(
            f"another `make env` has been running for {TURN_SECONDS} s in {root}; stop it and try again"
        )

    directory = os.open(root, os.O_RDONLY)
    previous = signal.signal(signal.SIGALRM, give_up)
    try:
        signal.alarm(TURN_SECONDS)
        fcntl.flock(directory, fcntl.LOCK_EX)
        signal.alarm(0)
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
        os.close(directory)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=ROOT / ".venv", help="where to build it (default: .venv)")
    parser.add_argument("--python", default=None, help="the Python 3.11 to build it on (default: the best one found)")
    arguments = parser.parse_args()
    builder = Builder(ROOT, arguments.environment.absolute())
    if builder.ready():
        return 0
    started = time.monotonic()
    try:
        with turn(ROOT):
            if not builder.ready():
                builder.build(arguments.python or None)
    except EnvironmentFailure as failure:
        print(f"env: {failure}", file=sys.stderr)
        return 1
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

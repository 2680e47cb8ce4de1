"""What the distribution's packages add to its Python: ensurepip, and the shared library (without root)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from environment.failure import EnvironmentFailure

APT_SECONDS = 600
VENV_PACKAGE = "python3.11-venv"
LIBRARY_PACKAGE = "libpython3.11"
LIBRARY = "libpython3.11.so.1.0"


def install_ensurepip() -> None:
    """Install the package that brings ``ensurepip``.

    Raises ``EnvironmentFailure`` without root, or when the package manager fails.
    """
    command = f"apt-get install -y {VENV_PACKAGE}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise EnvironmentFailure(f"the system's Python 3.11 has no ensurepip. As root, run: {command}")
    if _run(["apt-get", "install", "-y", VENV_PACKAGE]) is None:
        _run(["apt-get", "update"])
        if _run(["apt-get", "install", "-y", VENV_PACKAGE]) is None:
            raise EnvironmentFailure(f"`{command}` failed; run it by hand to see why, then run `make env` again")


def fetch_library(into: Path) -> Path:
    """Download the distribution's libpython and unpack it below ``into``; return the directory that holds it.

    Needs no root: nothing is installed. Raises ``EnvironmentFailure``.
    """
    with tempfile.TemporaryDirectory(prefix="libpython-") as scratch:
        package = _download(Path(scratch))
        into.mkdir(parents=True, exist_ok=True)
        if package is None or _run(["dpkg", "-x", str(package), str(into)]) is None:
            raise EnvironmentFailure(
                f"the system's Python 3.11 has no {LIBRARY}, and it could not be downloaded. "
                f"As root, run: apt-get install -y {LIBRARY_PACKAGE}"
            )
    for library in into.rglob(LIBRARY):
        return library.parent
    raise EnvironmentFailure(
        f"the package {LIBRARY_PACKAGE} has no {LIBRARY}. As root, run: apt-get install -y {LIBRARY_PACKAGE}"
    )


def _download(scratch: Path) -> Path | None:
    """Of the interpreter's version if it is still served, else the newest.

    Package lists that are missing or too old are fetched into ``scratch``, which needs no root.
    """
    installed = _run(["dpkg-query", "--show", "--showformat=${Version}", "python3.11-minimal"])
    wanted = [f"{LIBRARY_PACKAGE}={installed}", LIBRARY_PACKAGE] if installed else [LIBRARY_PACKAGE]
    private = ["-o", f"Dir::State::lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch / 'cache'}"]
    for options in ([], private):
        if options:
            (scratch / "lists" / "partial").mkdir(parents=True)
            (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
            _run(["apt-get", *options, "update"])
        for package in wanted:
            _run(["apt-get", *options, "download", package], scratch)
            for file in scratch.glob("*.deb"):
                return file
    return None


def _run(command: list[str], directory: Path | None = None) -> str | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None

"""Each rival's own virtual environment, built when it is first measured: ``.venv-rivals/NAME``.

Nothing here is a dependency of the project. Every package is pinned in ``locks/NAME.lock``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from environment.failure import EnvironmentFailure
from environment.pip import Pip, refuse_cuda_build
from filelock import FileLock, Timeout

LOCKS = Path(__file__).parent / "locks"
ENVIRONMENTS = Path(__file__).resolve().parents[3] / ".venv-rivals"
CREATE_SECONDS = 300
TURN_SECONDS = 1800


def interpreter(name: str) -> Path:
    """The Python of the environment that ``locks/NAME.lock`` describes, built when it is missing or out of date.

    Raises ``EnvironmentFailure`` when it cannot be built.
    """
    ENVIRONMENTS.mkdir(exist_ok=True)
    try:
        with FileLock(ENVIRONMENTS / f"{name}.turn", timeout=TURN_SECONDS):
            return _built(name)
    except Timeout:
        raise EnvironmentFailure(
            f"another benchmark has been building {ENVIRONMENTS / name} for {TURN_SECONDS} s; stop it and try again"
        ) from None


def _built(name: str) -> Path:
    environment = ENVIRONMENTS / name
    lock = (LOCKS / f"{name}.lock").read_text(encoding="utf-8")
    python, stamp = environment / "bin" / "python", environment / ".ready"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == lock:
        return python
    shutil.rmtree(environment, ignore_errors=True)
    print(f"building {environment.relative_to(ENVIRONMENTS.parent)}", file=sys.stderr)
    _create(environment)
    Pip(python, environment / "install.log").install(["-r", str(LOCKS / f"{name}.lock")], lock.count("=="))
    site = next(environment.glob("lib/python3*/site-packages"))
    if (site / "torch").exists():
        refuse_cuda_build(site)
    stamp.write_text(lock, encoding="utf-8")
    return python


def _create(environment: Path) -> None:
    command = [sys.executable, "-I", "-m", "venv", str(environment)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=CREATE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailure(f"making {environment} took more than {CREATE_SECONDS} s; try again") from None
    if made.returncode:
        raise EnvironmentFailure(f"could not make {environment}: {made.stdout}{made.stderr}")

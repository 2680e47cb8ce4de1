"""Names for what a deployment leaves on a machine, from which a later one can tell whether it is still in use."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = "omniflow"
_NAME = re.compile(rf"^{_PREFIX}-(\d+)-(\d+)-")
_SHARED_MEMORY = Path("/dev/shm")


def owner_is_gone(name: str) -> bool:
    """Whether ``name`` is ours and the process that made it has ended."""
    found = _NAME.match(name)
    if found is None:
        return False
    pid, started = int(found[1]), int(found[2])
    return _start_time(pid) != started


def make_runtime_directory() -> Path:
    """A private directory with a short path, for sockets: ``omniflow-<pid>-<start time>-<random>`` of this process."""
    pid = os.getpid()
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}-{pid}-{_start_time(pid)}-"))


def shared_memory_prefix(runtime: Path) -> str:
    """What the names of a deployment's shared memory begin with: a process may have several deployments."""
    return f"{runtime.name}-"


def remove_leftovers() -> list[Path]:
    """Remove runtime directories and shared memory of deployments that were killed; returns what was removed."""
    removed = []
    for directory in (Path(tempfile.gettempdir()), _SHARED_MEMORY):
        if not directory.is_dir():
            continue
        for path in directory.iterdir():
            if owner_is_gone(path.name):
                _remove(path)
                removed.append(path)
    return removed


def remove_shared_memory(prefix: str) -> None:
    """Remove the shared-memory files whose name begins with ``prefix``."""
    if _SHARED_MEMORY.is_dir():
        for path in _SHARED_MEMORY.iterdir():
            if path.name.startswith(prefix):
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid it names a process for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])

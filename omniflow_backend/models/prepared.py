"""The cache of prepared checkpoints: made once, by one process, all or nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_TIMEOUT_S = 600.0


class CheckpointUnavailable(RuntimeError):
    """A checkpoint cannot be prepared; the message says what to do."""


def default_cache() -> Path:
    """``OMNIFLOW_CACHE``, or ``~/.cache/omniflow``."""
    return Path(os.environ.get("OMNIFLOW_CACHE") or Path.home() / ".cache" / "omniflow")


def prepared(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The directory ``name`` in ``cache``; ``make`` fills a new one when there is none yet.

    Several processes may call this at once: one makes it, the others wait. A directory that exists is complete: it is
    filled under another name, then renamed. Raises ``CheckpointUnavailable`` when another process holds the lock too
    long, and whatever ``make`` raises.
    """
    directory = cache.absolute() / name
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(directory.parent / f"{name}.lock", timeout=LOCK_TIMEOUT_S):
            if not directory.is_dir():
                _fill(directory, make)
    except Timeout:
        raise CheckpointUnavailable(
            f"another process has been preparing {directory} for {LOCK_TIMEOUT_S:g} s; "
            "end it or choose another OMNIFLOW_CACHE"
        ) from None
    return directory


def _fill(directory: Path, make: Callable[[Path], None]) -> None:
    prefix = f".{directory.name}-"
    for leftover in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent) as temporary:
        target = Path(temporary, "checkpoint")
        target.mkdir()
        make(target)
        target.rename(directory)

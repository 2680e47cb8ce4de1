"""The MemoryManager process of a deployment."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from omniflow_backend.serve.processes import Child, Children

_CONNECTED_SUFFIX = ".fd"


def start_memory_manager(
    children: Children,
    endpoint: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    timeout: float = 20.0,
) -> Child:
    """``python -m memory_manager`` serving ``endpoint``, ready. Raises ``StartFailed``."""
    sockets = [endpoint, endpoint.with_name(endpoint.name + _CONNECTED_SUFFIX)]
    for socket in sockets:
        # What a killed one left would look like a server that is ready.
        socket.unlink(missing_ok=True)
    command = [sys.executable, "-m", "memory_manager", "--endpoint", str(endpoint), *options]
    child = children.start("memory_manager", command, environment, Path(__file__).parents[2])
    deadline = time.monotonic() + timeout
    while not all(socket.exists() for socket in sockets):
        if not child.alive:
            raise child.failed(f"ended with status {child.process.returncode}")
        if time.monotonic() > deadline:
            child.stop(1.0)
            raise child.failed(f"not ready within {timeout:g} s")
        time.sleep(0.01)
    return child

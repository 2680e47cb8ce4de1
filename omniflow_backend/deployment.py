"""Where a process of a deployment finds what `omniflow serve` started beside it."""

from __future__ import annotations

import os
from pathlib import Path

RUNTIME_DIRECTORY = "OMNIFLOW_RUNTIME_DIR"
REDIS_URL = "OMNIFLOW_REDIS_URL"
MEMORY_SOCKET = "memory.sock"


def memory_endpoint() -> Path | None:
    """The socket of the deployment's MemoryManager; `None` outside of a deployment, or in one without it."""
    directory = os.environ.get(RUNTIME_DIRECTORY)
    socket = Path(directory, MEMORY_SOCKET) if directory else None
    return socket if socket is not None and socket.exists() else None


def redis_url() -> str | None:
    """The Redis-protocol server of the deployment; `None` where there is none."""
    return os.environ.get(REDIS_URL) or None

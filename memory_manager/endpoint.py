"""Where a manager is reached: one path, two sockets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MAX_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`path` is the ZMQ socket for requests; beside it lie the control socket and the lock of the serving process."""

    path: Path

    def __post_init__(self) -> None:
        if len(str(self.control).encode()) > _MAX_SOCKET_PATH:
            raise ValueError(f"{self.control} is longer than {_MAX_SOCKET_PATH} bytes, the most a socket path may have")

    @property
    def requests(self) -> str:
        """ZMQ address of the request socket."""
        return f"ipc://{self.path}"

    @property
    def control(self) -> Path:
        """Unix socket (SEQPACKET): passes descriptors and notices; while it is open the client is alive."""
        return self.path.with_name(self.path.name + ".fd")

    @property
    def lock(self) -> Path:
        """Locked by the process that serves this endpoint."""
        return self.path.with_name(self.path.name + ".lock")

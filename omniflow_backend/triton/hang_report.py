"""Telling a deployment's supervisor that a role process is hung, so that it ends it and loads the model again."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_SOCKET = "supervisor.sock"
_LARGEST = 65_536


@dataclass(frozen=True, slots=True)
class HangReport:
    """Process ``pid`` of ``model`` does not let go of work that nobody wants any more; ``reason`` names the work."""

    model: str
    pid: int
    reason: str

    def send(self, runtime: Path) -> None:
        """Tell the supervisor; when there is none, only the log is told. Never blocks."""
        log.error("role %s (pid %d) is hung: %s", self.model, self.pid, self.reason)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                sender.sendto(json.dumps(asdict(self)).encode(), str(runtime / _SOCKET))
            except OSError as error:
                log.error("no supervisor could be told that role %s is hung: %s", self.model, error)


class HangReports:
    """The supervisor's end: readable on ``fileno()`` when there is a report."""

    def __init__(self, runtime: Path) -> None:
        """Listen. Raises ``OSError`` when the runtime directory cannot hold a socket."""
        self._path = runtime / _SOCKET
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(str(self._path))

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def receive(self) -> HangReport | None:
        """The next report, or ``None`` when what came makes no sense."""
        try:
            return HangReport(**json.loads(self._socket.recv(_LARGEST)))
        except (OSError, ValueError, TypeError) as error:
            log.warning("a report to the supervisor could not be read: %s", error)
            return None

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

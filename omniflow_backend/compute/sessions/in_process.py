"""Sessions in this process's memory: for a process by itself; they end with it."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from omniflow_backend.compute.sessions.errors import SessionConflict, SessionFull
from omniflow_backend.compute.sessions.history import History
from omniflow_backend.compute.sessions.store import Retained, SessionName


@dataclass(slots=True)
class _Kept:
    history: History
    version: int
    ends: float


class InProcessSessions:
    """Implements `SessionStore`.

    Args:
        idle_s: seconds after its last use when a session ends.
        maximum_bytes: of all sessions together.
    """

    def __init__(self, idle_s: float, maximum_bytes: int = 2**30, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._maximum_bytes = maximum_bytes
        self._clock = clock
        self._sessions: OrderedDict[str, _Kept] = OrderedDict()
        self._taken = 0
        self._lock = threading.Lock()

    def open(self, name: SessionName, *, anew: bool) -> Retained[int]:
        with self._lock:
            self._end_idle()
            kept = self._sessions.get(name.key)
            if kept is None:
                return Retained(History(), 0)
            self._touch(name.key, kept)
            return Retained(kept.history, kept.version)

    def commit(self, name: SessionName, before: Retained[int], boundary: int, after: History) -> None:
        with self._lock:
            self._end_idle()
            kept = self._sessions.get(name.key)
            if (0 if kept is None else kept.version) != before.version:
                raise SessionConflict(str(name))
            taken = self._taken + after.nbytes - (0 if kept is None else kept.history.nbytes)
            if taken > self._maximum_bytes:
                raise SessionFull(
                    str(name), f"all sessions of this process may take {self._maximum_bytes} bytes together"
                )
            self._taken = taken
            self._touch(name.key, _Kept(after, before.version + 1, 0.0))

    def close(self) -> None:
        with self._lock:
            self._sessions.clear()
            self._taken = 0

    def _touch(self, key: str, kept: _Kept) -> None:
        kept.ends = self._clock() + self._idle_s
        self._sessions[key] = kept
        self._sessions.move_to_end(key)

    def _end_idle(self) -> None:
        now = self._clock()
        while self._sessions:
            key, kept = next(iter(self._sessions.items()))
            if kept.ends > now:
                return
            del self._sessions[key]
            self._taken -= kept.history.nbytes

"""Turns of sessions: what was said before, and the one step that adds to it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from omniflow_backend.compute.sessions.errors import SessionFull
from omniflow_backend.compute.sessions.history import History, NewPositions
from omniflow_backend.compute.sessions.pages import PAGE_POSITIONS
from omniflow_backend.compute.sessions.store import Retained, SessionName, SessionStore

MOST_POSITIONS = 1024 * PAGE_POSITIONS
"""What one message to the MemoryManager can name."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A turn that has begun: the session is as before until `Sessions.commit`, and stays so without it.

    Args:
        history: what was said, up to where the turn goes on.
    """

    name: SessionName
    history: History
    retained: Retained[Any] = field(repr=False)

    @property
    def boundary(self) -> int:
        """Positions before the new input."""
        return len(self.history)


class Sessions:
    """Begins turns and commits them; thread-safe.

    Concurrent turns of one session are the caller's to avoid: the second one to commit fails.

    Args:
        store: closed with the sessions.
        maximum_positions: of one session.
    """

    def __init__(self, store: SessionStore[Any], maximum_positions: int) -> None:
        if not 1 <= maximum_positions <= MOST_POSITIONS:
            raise ValueError(f"a session can have 1 to {MOST_POSITIONS} positions, not {maximum_positions}")
        self._store = store
        self._maximum_positions = maximum_positions
        self._lock = threading.Lock()

    def begin(self, name: SessionName, step: int | None = None) -> Turn:
        """The next turn of the session.

        Args:
            step: go on from this position, as if nothing had been said after it; from the end if absent, negative or
                behind the end.

        Raises:
            SessionLost: if its history is gone; `step=0` needs none.
            SessionsAway: if that cannot be found out now.
        """
        retained = self._store.open(name, anew=step == 0)
        history = retained.history
        return Turn(name, history if step is None or step < 0 else history.before(step), retained)

    def check_room(self, turn: Turn, positions: int) -> None:
        """Nothing, if the turn may add so many positions.

        Raises:
            SessionFull: if not.
        """
        if turn.boundary + positions > self._maximum_positions:
            raise SessionFull(
                str(turn.name),
                f"it has {turn.boundary} positions and may have {self._maximum_positions}, this turn needs {positions}",
            )

    def commit(self, turn: Turn, positions: NewPositions) -> int:
        """What was asked and answered belongs to the session now. The session's length.

        Raises:
            SessionFull, SessionConflict, SessionsAway: the session is as before.
        """
        self.check_room(turn, len(positions))
        with self._lock:
            after = turn.history.after(positions)
        self._store.commit(turn.name, turn.retained, turn.boundary, after)
        return len(after)

    def close(self) -> None:
        self._store.close()

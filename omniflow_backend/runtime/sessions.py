"""Admission: calls of one session run first in, first out, one at a time (contract section 6)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Decision:
    """``admit`` may start now; ``cancel`` were told to end first (``cancel_previous``)."""

    admit: list[str] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)


class Admission:
    """Queues of calls by session. A call without a session is admitted at once.

    A driver reports every call's terminal event with ``ended``, also for a call that was cancelled while it waited; the
    next one then starts.
    Clean-up may still go on.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[str]] = {}
        self._sessions: dict[str, str] = {}

    def submit(self, call: str, session: str | None, *, cancel_previous: bool = False) -> Decision:
        """A new call; ``call`` must be unique among those not ended. Raises ``ValueError`` when it is not."""
        if session is None:
            return Decision(admit=[call])
        if call in self._sessions:
            raise ValueError(f"call {call!r} is already known")
        queue = self._queues.setdefault(session, deque())
        cancel = list(queue) if cancel_previous else []
        queue.append(call)
        self._sessions[call] = session
        return Decision(admit=[call] if len(queue) == 1 else [], cancel=cancel)

    def ended(self, call: str) -> Decision:
        """The call has had its terminal event. Unknown calls are ignored."""
        session = self._sessions.pop(call, None)
        if session is None:
            return Decision()
        queue = self._queues[session]
        was_first = queue[0] == call
        queue.remove(call)
        if not queue:
            del self._queues[session]
        return Decision(admit=[queue[0]] if queue and was_first else [])

    def __len__(self) -> int:
        return len(self._sessions)

"""What can go wrong with a session. Each error says what happened and what the caller can do."""

from __future__ import annotations

from omniflow_backend.errors import BadInput, OmniFlowError


class SessionLost(OmniFlowError):
    """The session's history existed and is gone, though nothing that can be lost was to be lost."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(f"the history of session {session!r} is lost: {reason}; send step=0 to begin it again")


class SessionConflict(OmniFlowError):
    """Another turn of the session was committed while this one ran; the session is as the other one left it."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"another turn of session {session!r} was committed meanwhile, so this one was not; "
            "send turns of one session one after the other"
        )


class SessionFull(BadInput):
    """The session may not become longer, or no room is left for what sessions hold."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(
            f"session {session!r} cannot go on: {reason}; go back in it with step=n, or begin another session"
        )


class SessionsAway(OmniFlowError):
    """What keeps the sessions cannot be reached now. Nothing has changed; safe to try again."""

    def __init__(self, session: str, reason: str) -> None:
        super().__init__(f"session {session!r} cannot be reached now: {reason}")

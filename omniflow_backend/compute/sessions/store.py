"""What keeps histories between turns."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from omniflow_backend.compute.sessions.history import History


@dataclass(frozen=True, slots=True)
class SessionName:
    """A session of a tenant: the same id under another salt is another session."""

    session_id: str
    salt: bytes = b""

    @property
    def key(self) -> str:
        """What stands for it in stores."""
        tenant = hashlib.sha256(self.salt).hexdigest()[:32] if self.salt else ""
        return f"{tenant}:{self.session_id}"

    def __str__(self) -> str:
        return self.session_id


Version = TypeVar("Version")


@dataclass(frozen=True, slots=True)
class Retained(Generic[Version]):
    """A session's history, and where the store has it."""

    history: History
    version: Version


class SessionStore(Protocol[Version]):
    """Keeps one history for each session until it has not been used for some time. Thread-safe."""

    def open(self, name: SessionName, *, anew: bool) -> Retained[Version]:
        """The session's history, empty if there is none. It lives on from now.

        Args:
            anew: nothing of the history is needed, lost or not.

        Raises:
            SessionLost: if there was one that should still be there.
            SessionsAway: if that cannot be found out now.
        """
        ...

    def commit(self, name: SessionName, before: Retained[Version], boundary: int, after: History) -> None:
        """The session's history is `after` from now on, as one step: until then it is as before.

        Args:
            before: what `open` told.
            boundary: positions that `before` and `after` have in common.

        Raises:
            SessionConflict: if somebody else has committed since `open`.
            SessionFull: if there is no room.
            SessionsAway: if it cannot be done now.
        """
        ...

    def close(self) -> None: ...

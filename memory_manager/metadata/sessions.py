"""Page chains of sessions in Redis (paper, 4.1.3): which pages hold a session's history, in which order, until when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import redis

from memory_manager.errors import MemoryManagerError
from memory_manager.pools.requests import PageId

_RESERVED_SECONDS = 60


class SessionsUnavailable(MemoryManagerError):
    """Redis does not answer: what sessions hold is not known now. Safe to try again later."""


class SessionChanged(MemoryManagerError):
    """Another turn of the session was committed since it was opened; nothing of this one is."""


@dataclass(frozen=True, slots=True)
class SessionVersion:
    """One state of a session.

    Args:
        uid: of this life of the session; when it begins again after it ended, it gets another one.
        number: counts commits.
    """

    uid: bytes
    number: int


@dataclass(frozen=True, slots=True)
class SessionChain:
    """What a session holds.

    Args:
        length: positions in the pages; the last page may not be full.
        pages: in order; `None` if the caller knows this version.
    """

    version: SessionVersion
    length: int
    pages: list[PageId] | None


class SessionChains:
    """The sessions of one history. Each method is one script, and so one step for everybody who looks.

    A page is in one place: with those that nobody needs (from some time on), or in a session's chain::

        reserve --> unneeded in a minute --commit--> in the chain --cut, or session ends--> unneeded now --> dropped

    so that a process that dies between writing pages and committing them leaves nothing for ever.

    Args:
        client: whose timeouts bound every method; it must not decode responses.
        history: the name of the global parameter that has the pages.
        idle_s: seconds after its last use when a session ends.
        prefix: of all keys.

    Raises:
        SessionsUnavailable: from every method, see there.
    """

    def __init__(self, client: redis.Redis, history: str, idle_s: float, prefix: str = "omniflow") -> None:
        self._client = client
        self._idle_ms = round(idle_s * 1000)
        self._base = f"{prefix}:{{sessions:{history}}}"
        text = files(__package__).joinpath("sessions.lua").read_text(encoding="utf-8")
        self._script = client.register_script(text)

    def open(self, session: str, known: SessionVersion | None = None) -> SessionChain | None:
        """What the session holds, which lives on from now; `None` if there is no such session, or it ended.

        Args:
            known: the version that the caller has: if it is the current one, the pages are not told again.
        """
        uid, number = (known.uid, known.number) if known is not None else (b"", 0)
        found = self._run(session, "open", self._idle_ms, uid, number)
        if found is None:
            return None
        pages = found[3] if len(found) > 3 else None
        return SessionChain(SessionVersion(found[0], int(found[1])), int(found[2]), pages)

    def reserve(self, session: str, pages: Sequence[PageId]) -> None:
        """The pages will be written and committed within a minute; else they are dropped."""
        self._run(session, "reserve", _RESERVED_SECONDS, *pages)

    def commit(
        self, session: str, before: SessionVersion, keep: int, pages: Sequence[PageId], length: int
    ) -> list[PageId]:
        """The session's first `keep` pages stay, and `pages` follow them; costs what changes, not what stays.

        Args:
            before: what `open` told; number 0 and a new uid for a session that begins.
            pages: reserved before, and completely written.

        Returns:
            Pages that nobody needs, of this session and of others that ended: forget them, then call `dropped`.

        Raises:
            SessionChanged: if `before` is not the current version (any more).
            SessionsUnavailable: also if it took longer than the reservation lasts.
        """
        found = self._run(session, "commit", self._idle_ms, before.uid, before.number, keep, length, *pages)
        if found == b"conflict":
            raise SessionChanged("another turn of this session was committed meanwhile; nothing of this one is")
        if found == b"late":
            raise SessionsUnavailable(f"the turn's pages were not committed within {_RESERVED_SECONDS} s; try again")
        return list(found)

    def sweep(self, session: str) -> list[PageId]:
        """What `commit` returns, without a commit: for a caller that found no room for its pages."""
        return list(self._run(session, "sweep"))

    def dropped(self, pages: Sequence[PageId]) -> None:
        """The pages are forgotten: do not name them any more."""
        if pages:
            try:
                self._client.zrem(f"{self._base}:unneeded", *pages)
            except redis.RedisError as error:
                raise _unavailable(error) from error

    def _run(self, session: str, *arguments: Any) -> Any:
        keys = [f"{self._base}:of:{session}", f"{self._base}:endings", f"{self._base}:unneeded"]
        try:
            return self._script(keys=keys, args=arguments)
        except redis.RedisError as error:
            raise _unavailable(error) from error


def _unavailable(error: redis.RedisError) -> SessionsUnavailable:
    return SessionsUnavailable(f"the Redis that keeps the sessions does not answer: {error}; is it running?")

"""Page chains of sessions in Redis (paper, 4.1.3): which pages hold a session's history, in which order, until when."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import redis

from memory_manager.errors import MemoryManagerError
from memory_manager.pools.requests import PageId

_RESERVED_SECONDS = 3600


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

        reserve --> unneeded in an hour --commit--> in the chain --cut, or session ends--> unneeded now --> dropped

    so that a process that dies between writing pages and committing them leaves nothing for ever.

    Turns come between forward passes, which leave nothing of a client library in the processor's caches: so this
    speaks through one connection of its own, two messages to a turn.

    Args:
        client: whose connection settings count; timeouts bound every method, and responses must not be decoded.
        history: the name of the global parameter that has the pages.
        idle_s: seconds after its last use when a session ends.
        prefix: of all keys.

    Raises:
        SessionsUnavailable: from every method, see there.
    """

    def __init__(self, client: redis.Redis, history: str, idle_s: float, prefix: str = "omniflow") -> None:
        pool = client.connection_pool
        self._connection: Any = pool.connection_class(**pool.connection_kwargs)
        self._lock = threading.Lock()
        self._idle_ms = round(idle_s * 1000)
        self._base = f"{prefix}:{{sessions:{history}}}"
        self._text = files(__package__).joinpath("sessions.lua").read_text(encoding="utf-8")
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    def open(
        self,
        session: str,
        known: SessionVersion | None = None,
        reserve: Sequence[PageId] = (),
        dropped: Sequence[PageId] = (),
    ) -> SessionChain | None:
        """What the session holds, which lives on from now; `None` if there is no such session, or it ended.

        Args:
            known: the version that the caller has: if it is the current one, the pages are not told again.
            reserve: pages that may be written and committed within the hour; else they are dropped.
            dropped: pages that an earlier `commit` named and that are forgotten now; they are not named again.
        """
        uid, number = (known.uid, known.number) if known is not None else (b"", 0)
        note = (_RESERVED_SECONDS, len(reserve), *reserve, *dropped)
        found = self._run(session, "open", self._idle_ms, uid, number, *note)
        if found is None:
            return None
        pages = found[3] if len(found) > 3 else None
        return SessionChain(SessionVersion(found[0], int(found[1])), int(found[2]), pages)

    def reserve(self, session: str, pages: Sequence[PageId]) -> None:
        """As in `open`: for pages that were not known to be needed then."""
        self._run(session, "reserve", _RESERVED_SECONDS, len(pages), *pages)

    def commit(
        self,
        session: str,
        before: SessionVersion,
        keep: int,
        pages: Sequence[PageId],
        length: int,
        unused: Sequence[PageId] = (),
    ) -> list[PageId]:
        """The session's first `keep` pages stay, and `pages` follow them; costs what changes, not what stays.

        Args:
            before: what `open` told; number 0 and a new uid for a session that begins.
            pages: reserved before, and completely written.
            unused: reserved before, and never written.

        Returns:
            Pages that nobody needs, of this session and of others that ended: forget them, then tell `open`.

        Raises:
            SessionChanged: if `before` is not the current version (any more).
            SessionsUnavailable: also if the reservation is over.
        """
        pages_told = (len(pages), *pages, *unused)
        found = self._run(session, "commit", self._idle_ms, before.uid, before.number, keep, length, *pages_told)
        if found == b"conflict":
            raise SessionChanged("another turn of this session was committed meanwhile; nothing of this one is")
        if found == b"late":
            raise SessionsUnavailable(f"the turn's pages were not committed within {_RESERVED_SECONDS} s; try again")
        return list(found)

    def sweep(self, session: str, dropped: Sequence[PageId] = ()) -> list[PageId]:
        """What `commit` returns, without a commit: for a caller that found no room for its pages.

        Args:
            dropped: as in `open`.
        """
        return list(self._run(session, "sweep", _RESERVED_SECONDS, 0, *dropped))

    def close(self) -> None:
        """Disconnect."""
        self._connection.disconnect()

    def _run(self, session: str, transition: str, *arguments: Any) -> Any:
        keys = (f"{self._base}:of:{session}", f"{self._base}:endings", f"{self._base}:unneeded")
        given = (len(keys), *keys, transition, *arguments)
        with self._lock:
            try:
                try:
                    return self._ask("EVALSHA", self._digest, *given)
                except redis.exceptions.NoScriptError:
                    return self._ask("EVAL", self._text, *given)
                except redis.ConnectionError:
                    if transition == "commit":
                        # It may have been done: asking again would find another version.
                        raise
                    return self._ask("EVAL", self._text, *given)
            except redis.RedisError as error:
                raise _unavailable(error) from error

    def _ask(self, *command: Any) -> Any:
        self._connection.send_command(*command)
        return self._connection.read_response()


def _unavailable(error: redis.RedisError) -> SessionsUnavailable:
    return SessionsUnavailable(f"the Redis that keeps the sessions does not answer: {error}; is it running?")

"""What a session said so far, turn by turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; ``role`` is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Turn:
    """A question and its complete answer."""

    user: Message
    assistant: Message


class TurnStore(Protocol):
    """Keeps the newest turns of sessions, for some time."""

    def load(self, session: str) -> list[Turn]: ...

    def append(self, session: str, turn: Turn, *, keep: int, ttl_s: int) -> None:
        """Add a turn, forget all but the newest ``keep``, and let the session live for ``ttl_s`` more seconds; all at
        once.
        """
        ...

    def delete(self, session: str) -> None: ...

    def close(self) -> None: ...


class SessionHistory:
    """The turns of sessions, oldest first, at most ``maximum_turns`` of each.

    A turn is added whole, by ``commit``, when its answer is complete: a turn that was cancelled or failed leaves the
    session as before. When a conversation is longer than ``maximum_turns``, or than the tokens a prompt may have, its
    oldest turns are left out of the prompt (and, beyond ``maximum_turns``, forgotten); the system message always
    stays. Concurrent turns of one session are the caller's to avoid.
    """

    def __init__(self, store: TurnStore, *, maximum_turns: int = 64, ttl_s: int = 24 * 3600) -> None:
        if maximum_turns < 1 or ttl_s < 1:
            raise ValueError(f"maximum_turns={maximum_turns} and ttl_s={ttl_s} must be at least 1")
        self._store = store
        self._maximum_turns = maximum_turns
        self._ttl_s = ttl_s

    def turns(self, session: str) -> list[Turn]:
        """The session's turns, oldest first; none for an unknown session."""
        return self._store.load(session)

    def commit(self, session: str, turn: Turn) -> None:
        """Add a completed turn."""
        self._store.append(session, turn, keep=self._maximum_turns, ttl_s=self._ttl_s)

    def forget(self, session: str) -> None:
        """Drop everything of a session."""
        self._store.delete(session)

    def close(self) -> None:
        self._store.close()


def conversation(turns: Sequence[Turn], user: Message, system: Message | None) -> list[Message]:
    """The messages of a prompt: the system message if any, the turns, and the new question."""
    told = [message for turn in turns for message in (turn.user, turn.assistant)]
    return [*([system] if system else []), *told, user]


class MemoryTurnStore:
    """In this process: for tests and single-process use; nothing expires."""

    def __init__(self) -> None:
        self._sessions: dict[str, list[Turn]] = {}
        self._lock = threading.Lock()

    def load(self, session: str) -> list[Turn]:
        with self._lock:
            return list(self._sessions.get(session, ()))

    def append(self, session: str, turn: Turn, *, keep: int, ttl_s: int) -> None:
        with self._lock:
            self._sessions[session] = [*self._sessions.get(session, ()), turn][-keep:]

    def delete(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def close(self) -> None:
        with self._lock:
            self._sessions.clear()


class RedisTurnStore:
    """In Redis: one list per session, under ``omniflow:history:<session>``. Raises ``redis.RedisError`` when the
    server cannot be reached.
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)

    def load(self, session: str) -> list[Turn]:
        return [_from_json(entry) for entry in self._client.lrange(_key(session), 0, -1)]

    def append(self, session: str, turn: Turn, *, keep: int, ttl_s: int) -> None:
        key = _key(session)
        with self._client.pipeline(transaction=True) as pipeline:
            pipeline.rpush(key, json.dumps(asdict(turn)))
            pipeline.ltrim(key, -keep, -1)
            pipeline.expire(key, ttl_s)
            pipeline.execute()

    def delete(self, session: str) -> None:
        self._client.delete(_key(session))

    def close(self) -> None:
        self._client.close()


def open_store(url: str | None) -> TurnStore:
    """Redis at ``url``, or this process's memory when there is none."""
    return RedisTurnStore(url) if url else MemoryTurnStore()


def _key(session: str) -> str:
    return f"omniflow:history:{session}"


def _from_json(entry: bytes) -> Turn:
    parts = json.loads(entry)
    return Turn(Message(**parts["user"]), Message(**parts["assistant"]))

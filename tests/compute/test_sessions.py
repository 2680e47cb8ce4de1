"""Sessions: whatever happens between and within turns, a session is what was committed, or a clear error."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_manager.metadata.sessions import SessionChains, SessionChanged, SessionsUnavailable, SessionVersion
from memory_manager.pools.client import ParameterClient
from memory_manager.pools.declaration import Tier
from memory_manager.process import ManagerProcess
from omniflow_backend.compute.prefix import EmbeddedSpan, Prompt
from omniflow_backend.compute.sessions.errors import SessionConflict, SessionFull, SessionLost, SessionsAway
from omniflow_backend.compute.sessions.history import NewPositions
from omniflow_backend.compute.sessions.in_process import InProcessSessions
from omniflow_backend.compute.sessions.pages import PAGE_POSITIONS, declare_embeddings, declare_records
from omniflow_backend.compute.sessions.retained import RetainedSessions
from omniflow_backend.compute.sessions.sessions import Sessions
from omniflow_backend.compute.sessions.store import SessionName
from omniflow_backend.serve.redis_server import find_server

HIDDEN = 4
PAGE = 4096
"""Bytes that a page of either parameter takes here."""
ANN = SessionName("ann")


@dataclass
class Backends:
    """A manager and a Redis in a directory of their own."""

    directory: Path
    manager: ManagerProcess
    redis_server: Any

    @property
    def client(self) -> redis.Redis:
        return redis.Redis.from_url(f"unix://{self.directory}/redis.sock", socket_timeout=5)

    def restart_manager(self) -> None:
        self.manager.kill()
        self.manager = start_manager(self.directory)


def start_manager(directory: Path) -> ManagerProcess:
    return ManagerProcess(
        directory / "memory.sock", ["--limit", "1MiB", "--pool-size", "1MiB", "--pages-directory", str(directory)]
    )


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    directory = Path(tempfile.mkdtemp(prefix="sessions-"))
    command = [find_server(), "--port", "0", "--unixsocket", str(directory / "redis.sock"), "--save", ""]
    server = subprocess.Popen([*command, "--dir", str(directory)], stdout=subprocess.DEVNULL)
    made = Backends(directory, start_manager(directory), server)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                made.client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        yield made
    finally:
        made.manager.kill()
        server.kill()
        server.wait(10)
        shutil.rmtree(directory)


Make = Callable[..., Sessions]


@pytest.fixture
def history() -> str:
    """A history of this test alone."""
    return f"h-{uuid.uuid4().hex}"


@pytest.fixture
def retained(backends: Backends, history: str) -> Iterator[Make]:
    """Makes sessions as another process would: they share nothing but Redis and the manager."""
    yield from _retained(backends, history)


def end_of(backends: Backends, history: str, name: SessionName) -> None:
    """As if the session had not been used for too long."""
    keys = f"omniflow:{{sessions:{history}}}"
    assert backends.client.zadd(f"{keys}:endings", {f"{keys}:of:{name.key}": 1}, xx=True, ch=True) == 1


def _retained(backends: Backends, history: str) -> Iterator[Make]:
    made: list[Sessions] = []

    def new(
        *, idle_s: float = 3600.0, pages: int = 64, file_pages: int = 0, maximum: int = 10_000, **options: Any
    ) -> Sessions:
        tiers = {Tier.L2: pages * PAGE} | ({Tier.L3: file_pages * PAGE} if file_pages else {})
        store = RetainedSessions(
            SessionChains(backends.client, history, idle_s),
            ParameterClient(backends.directory / "memory.sock", "test"),
            declare_records(history, tiers),
            declare_embeddings(history, HIDDEN, tiers),
            idle_s=idle_s,
            **options,
        )
        made.append(Sessions(store, maximum))
        return made[-1]

    yield new
    for sessions in made:
        sessions.close()


@pytest.fixture(params=["in process", "retained"])
def sessions(request: pytest.FixtureRequest) -> Sessions:
    if request.param == "in process":
        return Sessions(InProcessSessions(3600.0), 10_000)
    return request.getfixturevalue("retained")()


def span(start: int, rows: int, name: int) -> EmbeddedSpan:
    values = np.arange(rows * HIDDEN, dtype=np.float32).reshape(rows, HIDDEN) + 100 * name
    return EmbeddedSpan(start, bytes([name]) * 32, values)


def say(sessions: Sessions, *tokens: int, name: SessionName = ANN, step: int | None = None) -> int:
    return sessions.commit(sessions.begin(name, step), NewPositions(tokens))


def told(sessions: Sessions, name: SessionName = ANN) -> list[int]:
    return sessions.begin(name).history.token_ids


def same(one: Prompt, other: Prompt) -> bool:
    embeddings = [[span.embeddings for span in prompt.spans] for prompt in (one, other)]
    return (
        one.position_ids == other.position_ids
        and [span.start for span in one.spans] == [span.start for span in other.spans]
        and all(np.array_equal(*pair) for pair in zip(*embeddings, strict=True))
    )


class TestTurns:
    def test_a_turn_goes_on_behind_the_turns_before(self, sessions: Sessions) -> None:
        assert (say(sessions, 1, 2), say(sessions, 3)) == (2, 3)
        turn = sessions.begin(ANN)
        assert (turn.history.token_ids, turn.history.turn_starts, turn.boundary) == ([1, 2, 3], [0, 2], 3)

    def test_sessions_and_tenants_do_not_see_each_other(self, sessions: Sessions) -> None:
        names = [ANN, SessionName("bob"), SessionName("ann", b"acme"), SessionName("ann", b"other")]
        for number, name in enumerate(names):
            say(sessions, number, name=name)
        assert [told(sessions, name) for name in names] == [[0], [1], [2], [3]]

    @pytest.mark.parametrize(("step", "before"), [(None, 4), (-1, 4), (0, 0), (1, 1), (3, 3), (4, 4), (99, 4)])
    def test_a_step_caps_what_was_said(self, sessions: Sessions, step: int | None, before: int) -> None:
        say(sessions, 1, 2)
        say(sessions, 3, 4)
        assert sessions.begin(ANN, step).boundary == before
        assert told(sessions) == [1, 2, 3, 4], "beginning a turn changes nothing"
        say(sessions, 9, step=step)
        assert told(sessions) == [*[1, 2, 3, 4][:before], 9]

    def test_a_turn_that_is_not_committed_leaves_the_session_as_before(self, sessions: Sessions) -> None:
        say(sessions, 1, 2)
        sessions.begin(ANN, 1)
        sessions.begin(ANN)
        assert told(sessions) == [1, 2]

    def test_of_two_turns_at_once_only_the_first_is_committed(self, sessions: Sessions) -> None:
        say(sessions, 1)
        first, second = sessions.begin(ANN), sessions.begin(ANN)
        sessions.commit(first, NewPositions((2,)))
        with pytest.raises(SessionConflict, match="'ann'"):
            sessions.commit(second, NewPositions((3,)))
        assert told(sessions) == [1, 2]

    def test_two_first_turns_at_once_do_not_both_begin_the_session(self, sessions: Sessions) -> None:
        first, second = sessions.begin(ANN), sessions.begin(ANN)
        sessions.commit(first, NewPositions((1,)))
        with pytest.raises(SessionConflict):
            sessions.commit(second, NewPositions((2,)))
        assert told(sessions) == [1]

    @pytest.mark.parametrize("maximum", [0, 1024 * PAGE_POSITIONS + 1])
    def test_a_bound_that_cannot_be_kept_is_refused(self, maximum: int) -> None:
        with pytest.raises(ValueError, match="positions"):
            Sessions(InProcessSessions(1.0), maximum)


class TestBounds:
    @pytest.mark.parametrize("kind", ["in process", "retained"])
    def test_a_session_does_not_grow_without_bound(self, kind: str, retained: Make) -> None:
        made = Sessions(InProcessSessions(3600.0), 3) if kind == "in process" else retained(maximum=3)
        say(made, 1, 2)
        with pytest.raises(SessionFull, match=r"2 positions and may have 3.*step=n"):
            say(made, 3, 4)
        assert told(made) == [1, 2]
        say(made, 7, 8, step=0)
        assert told(made) == [7, 8]

    def test_all_sessions_of_a_process_together_are_bounded_until_they_are_idle(self) -> None:
        now = [0.0]
        made = Sessions(InProcessSessions(10.0, maximum_bytes=3 * 40, clock=lambda: now[0]), 100)
        say(made, 1, 2)
        with pytest.raises(SessionFull, match="120 bytes"):
            say(made, 3, 4, name=SessionName("bob"))
        now[0] = 10.0
        say(made, 3, 4, name=SessionName("bob"))
        assert (told(made), told(made, SessionName("bob"))) == ([], [3, 4])

    def test_history_that_finds_no_room_is_an_error_and_ended_sessions_make_room(
        self, retained: Make, backends: Backends, history: str
    ) -> None:
        made = retained(pages=2, timeout_s=0.05)
        bob, carl = SessionName("bob"), SessionName("carl")
        say(made, 1)
        say(made, 2, name=bob)
        with pytest.raises(SessionFull, match="no room for its history"):
            say(made, 3, name=carl)
        assert [told(made, name) for name in (ANN, bob, carl)] == [[1], [2], []]
        end_of(backends, history, ANN)
        say(made, 3, name=carl)
        assert [told(retained(pages=2), name) for name in (ANN, bob, carl)] == [[], [2], [3]]

    def test_pages_that_are_replaced_or_whose_session_ended_are_given_back(
        self, retained: Make, backends: Backends, history: str
    ) -> None:
        made = retained(pages=4, timeout_s=0.05)
        for turn in range(40):
            say(made, *range(8), step=0 if turn % 4 == 0 else None)
        end_of(backends, history, ANN)
        say(made, 1, name=SessionName("bob"))
        say(made, *range(PAGE_POSITIONS * 3), name=SessionName("carl"))
        assert not list(backends.client.scan_iter(f"*{history}*:ann*"))


class TestOtherProcesses:
    def test_another_process_goes_on_with_the_session_and_the_first_one_notices(self, retained: Make) -> None:
        one, other = retained(), retained()
        say(one, *range(70))
        assert say(other, 100) == 71
        say(other, 101, step=40)
        assert told(one) == [*range(40), 101]

    def test_pictures_come_back_as_they_were_also_where_a_page_or_a_step_cuts_them(self, retained: Make) -> None:
        one = retained()
        tokens = tuple(range(90))
        first = NewPositions(tokens, (span(3, 40, 1), span(43, 2, 1), span(50, 1, 2), span(60, 30, 3)))
        one.commit(one.begin(ANN), first)
        one.commit(one.begin(ANN, 70), NewPositions((7, 7, 8), (span(0, 2, 4),)))
        expected = Prompt(
            (*tokens[:70], 7, 7, 8),
            (*first.spans[:3], replace(first.spans[3], embeddings=first.spans[3].embeddings[:10]), span(70, 2, 4)),
        )
        for reader in (one, retained()):
            turn = reader.begin(ANN)
            assert turn.history.turn_starts == [0, 70]
            found = turn.history.prompt([range(turn.boundary)], NewPositions(()))
            assert same(found, expected)

    def test_a_history_larger_than_host_memory_is_read_from_files(self, retained: Make) -> None:
        one = retained(pages=4, file_pages=64)
        names = [ANN, SessionName("bob")]
        for number, name in enumerate(names):
            say(one, *range(number, number + 10 * PAGE_POSITIONS), name=name)
            say(one, number, name=name)
        for number, name in enumerate(names):
            other = retained(pages=4, file_pages=64)
            assert told(other, name) == [*range(number, number + 10 * PAGE_POSITIONS), number]

    def test_a_turn_touches_new_pages_and_the_tail_only(self, retained: Make, backends: Backends, history: str) -> None:
        made = retained()
        say(made, *range(20 * PAGE_POSITIONS))
        (chain,) = backends.client.scan_iter(f"*{history}*:ann:pages")
        before = backends.client.lrange(chain, 0, -1)
        say(made, 1)
        after = backends.client.lrange(chain, 0, -1)
        assert (after[:20], len(after)) == (before, 21)
        say(made, 2, step=5 * PAGE_POSITIONS + 3)
        assert backends.client.lrange(chain, 0, -1)[:5] == before[:5]
        assert backends.client.llen(chain) == 6


class TestLosses:
    def test_what_this_process_knows_survives_a_restart_of_the_manager(
        self, retained: Make, backends: Backends
    ) -> None:
        one = retained()
        say(one, *range(100))
        backends.restart_manager()
        say(one, 100)
        assert told(retained()) == list(range(101))

    def test_history_that_is_gone_is_an_error_until_the_caller_begins_again(
        self, retained: Make, backends: Backends
    ) -> None:
        say(retained(), *range(100))
        backends.restart_manager()
        for _ in range(2):
            with pytest.raises(SessionLost, match=r"'ann'.*MemoryManager.*step=0"):
                retained().begin(ANN)
        say(retained(), 1, step=0)
        assert told(retained()) == [1]

    def test_a_session_that_redis_does_not_know_any_more_is_an_error_until_the_caller_begins_again(
        self, retained: Make, backends: Backends
    ) -> None:
        made = retained()
        say(made, 1)
        backends.client.flushall()
        for _ in range(2):
            with pytest.raises(SessionLost, match=r"'ann'.*Redis.*step=0"):
                made.begin(ANN)
        say(made, 2, step=0)
        assert told(made) == [2]

    def test_an_idle_session_ends_and_begins_anew(self, retained: Make, backends: Backends) -> None:
        made = retained(idle_s=0.0)
        say(made, 1)
        assert say(made, 2) == 1
        assert told(made) == []

    def test_without_a_manager_or_redis_a_turn_fails_and_the_session_is_as_before(
        self, retained: Make, backends: Backends, tmp_path: Path
    ) -> None:
        made = retained()
        say(made, 1)
        turn = made.begin(ANN)
        backends.manager.kill()
        with pytest.raises(SessionsAway, match=r"'ann'.*MemoryManager"):
            made.commit(turn, NewPositions((2,)))
        backends.restart_manager()
        assert told(made) == [1]
        nowhere = redis.Redis.from_url(f"unix://{tmp_path}/nothing")
        with pytest.raises(SessionsUnavailable, match="does not answer"):
            SessionChains(nowhere, "h", 1.0).open("s")


class TestChains:
    def test_a_commit_needs_its_reservation(self, backends: Backends) -> None:
        chains = SessionChains(backends.client, "chains", 3600.0)
        begin = SessionVersion(b"u", 0)
        with pytest.raises(SessionsUnavailable, match="not committed within 3600 s"):
            chains.commit("s", begin, 0, [b"p"], 1)
        chains.reserve("s", [b"p", b"q"])
        assert chains.commit("s", begin, 0, [b"p"], 1) == []
        assert chains.open("s") is not None
        with pytest.raises(SessionChanged):
            chains.commit("s", begin, 0, [b"q"], 1)

    def test_pages_that_were_reserved_and_never_committed_are_dropped(self, backends: Backends) -> None:
        chains = SessionChains(backends.client, "dead", 3600.0)
        chains.reserve("s", [b"dead"])
        key = next(key for key in backends.client.scan_iter("*dead*unneeded"))
        backends.client.zadd(key, {b"dead": 1})
        chains.reserve("t", [b"p"])
        assert chains.commit("t", SessionVersion(b"u", 0), 0, [b"p"], 1) == [b"dead"]
        chains.open("t", reserve=[b"q"], dropped=[b"dead"])
        assert backends.client.zrange(key, 0, -1) == [b"q"]

    def test_a_redis_that_forgot_the_script_or_the_connection_is_told_again(self, backends: Backends) -> None:
        chains = SessionChains(backends.client, "again", 3600.0)
        chains.reserve("s", [b"p"])
        backends.client.script_flush()
        assert chains.commit("s", SessionVersion(b"u", 0), 0, [b"p"], 1) == []
        backends.client.client_kill_filter(skipme=True)
        assert chains.open("s") is not None

    def test_a_turn_takes_two_messages_to_redis(self, retained: Make, backends: Backends, history: str) -> None:
        made = retained()
        say(made, 1)
        before = backends.client.info("commandstats")["cmdstat_evalsha"]["calls"]
        for number in range(5):
            say(made, number)
        assert backends.client.info("commandstats")["cmdstat_evalsha"]["calls"] - before == 10


@st.composite
def new_positions(draw: st.DrawFn) -> NewPositions:
    count = draw(st.sampled_from([1, 2, 7, PAGE_POSITIONS - 1, PAGE_POSITIONS, 2 * PAGE_POSITIONS + 1]))
    spans = []
    if count > 2 and draw(st.booleans()):
        start = draw(st.integers(0, count - 2))
        spans.append(span(start, draw(st.integers(1, count - start)), draw(st.integers(1, 3))))
    first = draw(st.integers(0, 1000))
    return NewPositions(tuple(range(first, first + count)), tuple(spans))


steps = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob"]),
        st.sampled_from(["turn", "turn", "cancel", "edit", "other process"]),
        st.integers(0, 200),
        new_positions(),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_any_sequence_of_turns_edits_cancels_and_moves_equals_what_was_said(backends: Backends, steps: Any) -> None:
    made = _retained(backends, f"h-{uuid.uuid4().hex}")
    new = next(made)
    options = {"pages": 6, "file_pages": 512}
    sessions = new(**options)
    expected: dict[str, Prompt] = {}
    for session, action, where, turn in steps:
        name = SessionName(session)
        before = expected.get(session, Prompt(()))
        if action == "other process":
            sessions = new(**options, cached_bytes=where * 40)
        begun = sessions.begin(name, where if action == "edit" else None)
        found = begun.history.prompt([range(begun.boundary)], NewPositions(()))
        if action == "edit":
            before = _before(before, where)
        assert same(found, before)
        if action != "cancel":
            length = sessions.commit(begun, turn)
            expected[session] = _joined(before, turn)
            assert length == len(expected[session])
    for reader in (sessions, new(**options)):
        for session, prompt in expected.items():
            begun = reader.begin(SessionName(session))
            assert same(begun.history.prompt([range(begun.boundary)], NewPositions(())), prompt)
    next(made, None)


def _before(prompt: Prompt, length: int) -> Prompt:
    spans = [span for span in prompt.spans if span.start < length]
    clipped = [replace(span, embeddings=span.embeddings[: length - span.start]) for span in spans]
    return Prompt(prompt.token_ids[:length], tuple(clipped))


def _joined(prompt: Prompt, turn: NewPositions) -> Prompt:
    moved = [replace(span, start=span.start + len(prompt)) for span in turn.spans]
    return Prompt((*prompt.token_ids, *turn.token_ids), (*prompt.spans, *moved))

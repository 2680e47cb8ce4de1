"""The activation channel, without Triton: one role process, one orchestrator loop, a real socket between them."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel import wire
from omniflow_backend.triton.channel.client import ChannelPeer, RoleChannel
from omniflow_backend.triton.values import Encoded, ValueEncoder

DEADLINE = 10.0

pytestmark = pytest.mark.asyncio


class RoleProcess:
    """``channel_role`` in a process of its own."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("channel_role.py")), endpoint],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        self.peer = ChannelPeer("counter", "Counter", self.process.pid, endpoint)


@contextmanager
def role_process(directory: Path) -> Iterator[RoleProcess]:
    process = RoleProcess(f"ipc://{directory}/channel-counter")
    yield process
    process.process.kill()
    process.process.communicate(timeout=DEADLINE)


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RoleProcess]:
    with role_process(tmp_path_factory.mktemp("channel")) as process:
        yield process


@pytest.fixture
def mortal_role(tmp_path: Path) -> Iterator[RoleProcess]:
    with role_process(tmp_path) as process:
        yield process


class Listener:
    """Records one activation's events."""

    def __init__(self) -> None:
        self.yields: list[tuple[int, dict[str, Any]]] = []
        self.done: asyncio.Future[tuple[ErrorCode, str] | None] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()

    def on_yield(self, ordinal: int, fields: Mapping[str, Encoded]) -> None:
        self.yields.append((ordinal, {name: value.decode() for name, value in fields.items()}))
        self.changed.set()

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        assert yields == len(self.yields)
        self.done.set_result(None)

    def on_error(self, code: ErrorCode, message: str) -> None:
        self.done.set_result((code, message))

    async def have(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(self.yields) < count:
                self.changed.clear()
                await self.changed.wait()

    async def outcome(self) -> tuple[ErrorCode, str] | None:
        async with asyncio.timeout(DEADLINE):
            return await self.done


@asynccontextmanager
async def connected(peer: ChannelPeer) -> AsyncIterator[RoleChannel]:
    channel = RoleChannel(peer, asyncio.get_running_loop())
    try:
        yield channel
    finally:
        channel.close()


class Stranger:
    """A peer that speaks to a role's socket byte by byte."""

    def __init__(self, endpoint: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(DEADLINE)
        self.socket.connect(endpoint.removeprefix("ipc://"))

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(frame)) + frame)

    def receive(self) -> bytes:
        (length,) = struct.unpack("<I", self._exactly(4))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def __enter__(self) -> Stranger:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def begin(channel: RoleChannel, interface: str, *, window: int = 4, **inputs: Any) -> tuple[int, Listener]:
    listener, encoder = Listener(), ValueEncoder(None, "call-1")
    serial = channel.start(
        interface=interface,
        inputs={name: encoder.to_wire(value) for name, value in inputs.items()},
        window=window,
        request_id="request-1",
        scope="call-1",
        node=f"counter.{interface}",
        activation_id="activation-1",
        session_id=None,
        time_left=None,
        sink=listener,
    )
    return serial, listener


async def running(channel: RoleChannel) -> int:
    """How many activations the role has, this question included."""
    _, listener = begin(channel, "running")
    await listener.outcome()
    return int(listener.yields[0][1]["n"])


async def test_an_activation_gives_its_yields_in_order_and_then_its_end(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        _, listener = begin(channel, "count", window=100, n=50)
        assert await listener.outcome() is None
        assert listener.yields == [(n, {"n": n}) for n in range(50)]
        assert channel.open_activations == 0


async def test_values_of_every_kind_come_back_equal(role: RoleProcess) -> None:
    values: dict[str, Any] = {
        "text": "grüße", "raw": b"\x00\xff", "whole": -(2**40), "real": 0.1, "flag": True, "nothing": None,
        "nested": {"list": [1, [2, {"three": 3.5}]]}, "pixels": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
        "empty": np.zeros((0, 3), np.float32), "numpy_scalar": np.float32(0.5),
    }  # fmt: skip
    async with connected(role.peer) as channel:
        _, listener = begin(channel, "echo", **values)
        assert await listener.outcome() is None
    ((_, back),) = listener.yields
    for name, value in values.items():
        assert type(back[name]) is type(value) or isinstance(value, np.generic), name
        np.testing.assert_equal(back[name], value)
        if isinstance(value, np.ndarray):
            assert back[name].dtype == value.dtype


async def test_packed_values_are_handed_on_without_being_unpacked(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        _, first = begin(channel, "echo", x=np.arange(3))
        await first.outcome()
        packed = ValueEncoder(None, "call-1").encode(np.arange(3))
        _, second = begin(channel, "echo", x=Encoded(packed), many=[Encoded(packed), Encoded(packed)])
        await second.outcome()
    _, fields = second.yields[0]
    np.testing.assert_array_equal(fields["x"], np.arange(3))
    assert [list(item) for item in fields["many"]] == [[0, 1, 2], [0, 1, 2]]


async def test_a_role_is_never_further_ahead_than_its_window(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        serial, listener = begin(channel, "count", window=3, n=10)
        await listener.have(3)
        _, after = begin(channel, "echo")
        await after.outcome()
        assert len(listener.yields) == 3
        channel.accept(serial, 2)
        await listener.have(5)
        _, after = begin(channel, "echo")
        await after.outcome()
        assert len(listener.yields) == 5
        channel.accept(serial, 100)
        assert await listener.outcome() is None
        assert len(listener.yields) == 10


async def test_a_cancelled_activation_is_silent_and_frees_the_role(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        serial, listener = begin(channel, "count", window=1, n=10)
        await listener.have(1)
        channel.cancel(serial)
        channel.accept(serial, 5)
        _, after = begin(channel, "echo")
        await after.outcome()
        assert len(listener.yields) == 1
        assert not listener.done.done()


async def test_an_orchestrator_that_disconnects_leaves_nothing_running(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        before = await running(channel)
        async with connected(role.peer) as leaving:
            _, listener = begin(leaving, "count", window=1, n=5)
            await listener.have(1)
            assert await running(channel) == before + 1
        async with asyncio.timeout(DEADLINE):
            while await running(channel) > before:
                pass


async def test_a_failed_activation_tells_code_and_message(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        _, listener = begin(channel, "refuse")
        assert await listener.outcome() == (ErrorCode.BAD_INPUT, "not this one")


async def test_death_of_the_role_fails_everything_open_within_half_a_second_by_name(mortal_role: RoleProcess) -> None:
    async with connected(mortal_role.peer) as channel:
        listeners = [begin(channel, "hang")[1] for _ in range(20)]
        _, first = begin(channel, "echo")
        await first.outcome()
        killed = time.monotonic()
        mortal_role.process.kill()
        outcomes = [await listener.outcome() for listener in listeners]
        assert time.monotonic() - killed < 0.5
        for outcome in outcomes:
            assert outcome is not None
            code, message = outcome
            assert code is ErrorCode.ROLE_DIED
            assert "counter" in message
            assert str(mortal_role.process.pid) in message
        assert not channel.alive
        _, late = begin(channel, "echo")
        outcome = await late.outcome()
        assert outcome is not None
        assert outcome[0] is ErrorCode.ROLE_DIED


async def test_malformed_frames_are_answered_and_harm_nobody(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        _, hanging = begin(channel, "count", window=1, n=2)
        await hanging.have(1)
        with Stranger(role.endpoint) as stranger:
            frames = [
                b"",
                b"\xc1",
                b"not msgpack",
                wire.encode_frame([wire.End(1, 0)]),
                b"\x92\x63\x90",
                os.urandom(500),
            ]
            for frame in frames:
                stranger.send(frame)
                answers = wire.decode_for_orchestrator(stranger.receive())
                assert isinstance(answers[0], wire.Refuse), frame
        _, after = begin(channel, "echo", x=1)
        assert await after.outcome() is None
        assert not hanging.done.done()


async def test_a_stranger_cannot_cancel_what_another_started(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        serial, listener = begin(channel, "count", window=1, n=2)
        await listener.have(1)
        with Stranger(role.endpoint) as stranger:
            stranger.send(wire.encode_frame([wire.Cancel(serial)]))
            assert wire.decode_for_orchestrator(stranger.receive()) == [wire.Stopped(serial)]
        channel.accept(serial)
        assert await listener.outcome() is None


@pytest.mark.parametrize(
    "sent",
    [b"\x05", struct.pack("<I", 100) + b"half a frame", struct.pack("<I", 2**31)],
    ids=["half a length", "half a frame", "a length beyond the bound"],
)
async def test_a_frame_that_never_ends_keeps_the_role_from_nobody(role: RoleProcess, sent: bytes) -> None:
    with Stranger(role.endpoint) as stranger:
        stranger.socket.sendall(sent)
        async with connected(role.peer) as channel:
            _, listener = begin(channel, "echo", x=1)
            assert await listener.outcome() is None
        if struct.pack("<I", 2**31) == sent:
            assert stranger.socket.recv(1) == b"", "the role disconnects"


async def test_a_frame_may_arrive_byte_by_byte_and_many_frames_at_once(role: RoleProcess) -> None:
    n = ValueEncoder(None, "s").encode(1)
    starts = [wire.encode_frame([wire.Start(k, "count", {"n": n}, 2, "r", "s", "n", "a")]) for k in (1, 2)]
    framed = b"".join(struct.pack("<I", len(frame)) + frame for frame in starts)
    with Stranger(role.endpoint) as stranger:
        for number in range(len(framed)):
            stranger.socket.sendall(framed[number : number + 1])
        stranger.socket.sendall(framed)
        ended: list[int] = []
        while len(ended) < 4:
            messages = wire.decode_for_orchestrator(stranger.receive())
            ended += [message.serial for message in messages if isinstance(message, wire.End)]
    assert ended == [1, 2, 1, 2]


async def test_big_values_arrive_whole_and_do_not_hold_up_others(role: RoleProcess) -> None:
    big = np.random.default_rng(0).integers(0, 255, 20_000_000, dtype=np.uint8)
    async with connected(role.peer) as channel:
        _, first = begin(channel, "echo", x=big)
        async with connected(role.peer) as other:
            _, small = begin(other, "echo", x=1)
            assert await small.outcome() is None
        assert await first.outcome() is None
    np.testing.assert_array_equal(first.yields[0][1]["x"], big)


async def test_an_orchestrator_that_does_not_read_holds_up_nobody_else(role: RoleProcess) -> None:
    pixels = ValueEncoder(None, "s").encode(np.zeros(4_000_000, np.uint8))
    with Stranger(role.endpoint) as deaf:
        deaf.send(wire.encode_frame([wire.Start(1, "echo", {"x": pixels}, 1, "r", "s", "n", "a")]))
        async with connected(role.peer) as channel:
            for n in range(20):
                _, listener = begin(channel, "echo", x=n)
                assert await listener.outcome() is None
        assert len(deaf.receive()) > 4_000_000, "once it reads, nothing is lost"


async def test_nobody_listening_is_a_connection_error_that_names_the_endpoint(tmp_path: Path) -> None:
    peer = ChannelPeer("counter", "Counter", os.getpid(), f"ipc://{tmp_path}/nobody")
    with pytest.raises(ConnectionError, match=r"nobody listens at ipc://.*/nobody"):
        RoleChannel(peer, asyncio.get_running_loop())


async def test_another_protocol_version_is_refused_with_both_numbers(role: RoleProcess) -> None:
    async with connected(role.peer) as channel:
        _, listener = begin(channel, "hang")
        channel._connection.send(b"\x92\x63\x90")
        outcome = await listener.outcome()
        assert outcome is not None
        assert outcome[0] is ErrorCode.INTERNAL
        assert f"protocol 99, this one {wire.PROTOCOL_VERSION}" in outcome[1]


async def test_activations_of_a_dead_orchestrator_are_cancelled(role: RoleProcess) -> None:
    orchestrator = subprocess.Popen(
        [sys.executable, "-c", _ORCHESTRATOR, role.endpoint.removeprefix("ipc://")],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    try:
        async with connected(role.peer) as channel, asyncio.timeout(DEADLINE):
            while await running(channel) < 2:
                pass
            orchestrator.kill()
            while await running(channel) > 1:
                pass
    finally:
        orchestrator.kill()
        orchestrator.communicate(timeout=DEADLINE)


_ORCHESTRATOR = """
import socket, struct, sys
from omniflow_backend.triton.channel import wire
from omniflow_backend.triton.values import ValueEncoder
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
n = ValueEncoder(None, "s").encode(5)
frame = wire.encode_frame([wire.Start(1, "count", {"n": n}, 2, "r", "s", "n", "a")])
connection.sendall(struct.pack("<I", len(frame)) + frame)
sys.stdin.read()
"""


async def test_what_is_queued_in_one_turn_of_the_loop_travels_in_one_frame(
    role: RoleProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(role.peer) as channel:
        sent: list[bytes] = []
        send = channel._connection.send

        def record(frame: bytes) -> None:
            sent.append(frame)
            send(frame)

        monkeypatch.setattr(channel._connection, "send", record)
        listeners = [begin(channel, "echo", x=n)[1] for n in range(30)]
        for listener in listeners:
            assert await listener.outcome() is None
        assert len(sent) == 1

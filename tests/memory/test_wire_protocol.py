"""Whatever arrives at a manager, it answers with a typed reply and goes on serving the others."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from memory_manager import MemoryManagerClient
from memory_manager.endpoint import Endpoint
from memory_manager.process import ManagerProcess
from memory_manager.protocol import (
    MAX_FRAME,
    VERSION,
    Acquire,
    Allocate,
    AnyOperation,
    AnyReply,
    BlockRef,
    Done,
    Failure,
    FailureCode,
    FetchPool,
    Find,
    Heartbeat,
    Hello,
    OpenScope,
    ProtocolError,
    Publish,
    Release,
    ReleaseScope,
    Seal,
    Statistics,
    StatisticsReport,
    Welcome,
    decode_operations,
    decode_replies,
    encode,
)
from memory_manager.weights.messages import (
    AcquireLoader,
    ArriveAtCapacity,
    FindWeights,
    JoinCapacity,
    ProposeCapacity,
    PublishWeights,
    ReleaseLoader,
    ReserveWeights,
    WeightSpec,
)

BLOCK = BlockRef(1, 0, 64, 10, 3)
OPERATIONS: list[AnyOperation] = [
    OpenScope("a"),
    Allocate(1, [10, 20], "a"),
    Seal(1),
    Acquire(2, [BLOCK, BLOCK]),
    Release(1),
    ReleaseScope("a"),
    Publish("k", BLOCK, "|u1", [10]),
    Find(3, ["k"]),
    Statistics(),
    AcquireLoader("cpu"),
    FindWeights("cpu", "c", "tp0/1", 0),
    ReserveWeights("cpu", "c", "tp0/1", [WeightSpec("p", "float32", [2, 3], 24)]),
    PublishWeights(1),
    JoinCapacity("kv", "cpu", ["a", "b"], "a", 1000),
    ArriveAtCapacity(1),
    ProposeCapacity(1, 1, 100),
    ReleaseLoader("cpu"),
]


class RawClient:
    """A registered client that sends any bytes."""

    def __init__(self, endpoint: Path) -> None:
        where = Endpoint(endpoint)
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(5)
        self.control.connect(str(where.control))
        (welcome,) = self.ask_control(encode(1, [Hello("raw")]))
        assert isinstance(welcome, Welcome)
        self.context = zmq.Context()
        self.requests = self.context.socket(zmq.DEALER)
        self.requests.setsockopt(zmq.ROUTING_ID, welcome.session)
        self.requests.setsockopt(zmq.RCVTIMEO, 5000)
        self.requests.connect(where.requests)

    def ask_control(self, frame: bytes) -> list[AnyReply]:
        self.control.send(frame)
        return decode_replies(self.control.recv(MAX_FRAME))[1]

    def ask(self, *frames: bytes) -> tuple[int, list[AnyReply]]:
        self.requests.send_multipart(frames)
        return decode_replies(self.requests.recv())

    def refused(self, *frames: bytes) -> tuple[int, FailureCode]:
        request_id, replies = self.ask(*frames)
        (reply,) = replies
        assert isinstance(reply, Failure), reply
        return request_id, reply.code

    def close(self) -> None:
        self.control.close()
        self.context.destroy(linger=0)


@pytest.fixture
def raw(manager: ManagerProcess, endpoint: Path) -> Iterator[RawClient]:
    client = RawClient(endpoint)
    yield client
    client.close()


@contextmanager
def unharmed(endpoint: Path) -> Iterator[MemoryManagerClient]:
    """Another client, connected before, still finds its tensor afterwards."""
    with MemoryManagerClient(endpoint, "other") as other:
        handle = other.put(np.arange(5), "other")
        yield other
        with other.open([handle]) as (array,):
            assert array.tolist() == [0, 1, 2, 3, 4]


def test_operations_survive_the_wire() -> None:
    assert decode_operations(encode(5, OPERATIONS)) == (5, OPERATIONS)


@given(st.binary(max_size=200))
def test_bytes_are_operations_or_a_protocol_error(frame: bytes) -> None:
    try:
        request_id, operations = decode_operations(frame)
    except ProtocolError:
        return
    assert decode_operations(encode(request_id, operations)) == (request_id, operations)


def test_each_kind_of_bad_message_gets_its_typed_reply(raw: RawClient, endpoint: Path) -> None:
    with unharmed(endpoint):
        assert raw.refused(b"") == (0, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(7, OPERATIONS)[:-3]) == (0, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(7, [])) == (7, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(7, [Statistics()]), b"more") == (0, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(0, [Statistics()])) == (0, FailureCode.BAD_MESSAGE)
        assert raw.refused(msgspec.msgpack.encode((VERSION, 7, [[99, "x"]]))) == (7, FailureCode.BAD_MESSAGE)
        assert raw.refused(msgspec.msgpack.encode((VERSION + 1, 7, "of tomorrow"))) == (7, FailureCode.WRONG_VERSION)
        assert raw.refused(b"\x00" * (MAX_FRAME + 1)) == (0, FailureCode.TOO_LARGE)
        assert raw.refused(encode(7, [Statistics()] * 257)) == (7, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(7, [Allocate(1, [-1], "a")])) == (7, FailureCode.BAD_MESSAGE)
        assert raw.refused(encode(7, [FetchPool(0)])) == (7, FailureCode.NOT_ALLOWED)
        assert raw.refused(encode(7, [Allocate(1, [2**62], "a")])) == (7, FailureCode.POOL_EXHAUSTED)
        assert raw.refused(encode(7, [Acquire(1, [BLOCK])])) == (7, FailureCode.STALE_HANDLE)


def test_operations_of_one_message_fail_one_by_one(raw: RawClient) -> None:
    several: list[AnyOperation] = [OpenScope("a"), Acquire(1, [BLOCK]), Statistics()]
    _, replies = raw.ask(encode(9, several))
    assert [type(reply) for reply in replies] == [Done, Failure, StatisticsReport]


def test_a_lease_number_in_use_is_refused(raw: RawClient) -> None:
    raw.ask(encode(1, [Allocate(1, [10], "a")]))
    assert raw.refused(encode(2, [Allocate(1, [10], "a")])) == (2, FailureCode.NOT_ALLOWED)


def test_who_never_said_hello_is_refused(raw: RawClient, endpoint: Path) -> None:
    stranger = raw.context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.RCVTIMEO, 5000)
    stranger.connect(Endpoint(endpoint).requests)
    stranger.send(encode(1, [Statistics()]))
    (reply,) = decode_replies(stranger.recv())[1]
    assert isinstance(reply, Failure)
    assert reply.code == FailureCode.UNKNOWN_CLIENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.settimeout(5)
        silent.connect(str(Endpoint(endpoint).control))
        silent.send(encode(1, [FetchPool(0)]))
        (reply,) = decode_replies(silent.recv(MAX_FRAME))[1]
    assert isinstance(reply, Failure)
    assert reply.code == FailureCode.UNKNOWN_CLIENT


def test_a_message_beyond_all_bounds_costs_only_its_sender(raw: RawClient, endpoint: Path) -> None:
    with unharmed(endpoint):
        raw.requests.setsockopt(zmq.RCVTIMEO, 100)
        raw.requests.send(b"\x00" * (MAX_FRAME * 17))
        with pytest.raises(zmq.Again):
            raw.requests.recv()


def test_random_damage_to_real_messages_is_survived_and_answered(raw: RawClient, endpoint: Path) -> None:
    chance = random.Random(20240611)
    with unharmed(endpoint) as other:
        for number in range(1, 1500):
            frame = bytearray(encode(number, chance.sample(OPERATIONS, chance.randint(1, len(OPERATIONS)))))
            for _ in range(chance.randint(1, 4)):
                match chance.randrange(4):
                    case 0:
                        frame[chance.randrange(len(frame))] = chance.randrange(256)
                    case 1:
                        del frame[chance.randrange(len(frame)) :]
                    case 2:
                        frame += chance.randbytes(chance.randint(1, 20))
                    case 3:
                        frame = bytearray(chance.randbytes(chance.randint(1, 60)))
                frame = frame or bytearray(b"\xc1")
            _, replies = raw.ask(bytes(frame))
            assert replies
            if number % 10 == 0:
                raw.control.send(bytes(frame))
                # Damage may have turned it into a notice, which has no reply; the question behind it always has one.
                raw.control.send(encode(number + 10_000, [Heartbeat()]))
                while decode_replies(raw.control.recv(MAX_FRAME))[0] != number + 10_000:
                    pass
        assert other.statistics().refused_messages > 500

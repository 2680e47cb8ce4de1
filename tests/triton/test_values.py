"""Values between processes: small ones inside the message, big ones in MemoryManager."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from memory_manager.process import ManagerProcess
from omniflow_backend.deployment import MEMORY_SOCKET
from omniflow_backend.triton.memory import MemoryManagerStore
from omniflow_backend.triton.values import (
    INLINE_LIMIT,
    Encoded,
    UnreadableValue,
    UntransportableValue,
    ValueEncoder,
    decode_fields,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MemoryManagerStore]:
    with ManagerProcess(tmp_path / MEMORY_SOCKET, ["--limit", "64MiB"]):
        made = MemoryManagerStore.of_deployment(tmp_path, "test")
        assert made is not None
        yield made
        made.close()


def test_small_arrays_travel_inside_and_big_ones_as_handles(store: MemoryManagerStore) -> None:
    encoder = ValueEncoder(store, "call")
    small, big = np.zeros(INLINE_LIMIT - 1, np.uint8), np.arange(INLINE_LIMIT, dtype=np.uint8)
    assert len(encoder.encode(small)) > INLINE_LIMIT - 1
    assert len(encoder.encode(big)) < 200
    values = decode_fields({"x": encoder.encode({"nested": [big, small]}), "y": encoder.encode(big)}, store)
    np.testing.assert_array_equal(values["x"]["nested"][0], big)
    np.testing.assert_array_equal(values["y"], big)
    assert not values["y"].flags.writeable


def test_a_tensor_stays_readable_while_its_array_lives_and_is_gone_after(store: MemoryManagerStore) -> None:
    packed = Encoded(ValueEncoder(store, "call").encode(np.full(INLINE_LIMIT, 7, np.uint8)))
    kept = packed.decode(store)[10:20]
    store.release_scope("call")
    assert kept.tolist() == [7] * 10
    del kept
    gc.collect()
    with pytest.raises(Exception, match=r"gone|stale|released"):
        packed.decode(store)


def test_a_handle_without_a_store_is_told() -> None:
    class OneHandle:
        def put(self, array: Any, scope: str) -> bytes:
            return b"handle"

        def open(self, handles: Any) -> Any:
            raise AssertionError

    packed = ValueEncoder(OneHandle(), "call").encode(np.zeros(INLINE_LIMIT))
    with pytest.raises(UnreadableValue, match="memory manager"):
        decode_fields({"x": packed}, None)


@pytest.mark.parametrize("value", [object(), {1, 2}.__iter__(), 2**70, np.array([object()]), [[object()]]])
def test_what_cannot_travel_is_told_with_its_field(value: Any) -> None:
    with pytest.raises(UntransportableValue, match="field 'x'"):
        ValueEncoder(None, "call").encode_fields({"x": value})


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        msgspec.msgpack.encode(msgspec.msgpack.Ext(9, b"")),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"junk")),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("|O", (1,), b"12345678")))),
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode(("<f4", (3,), b"1234")))),
    ],
)
def test_a_malformed_value_is_unreadable_and_harms_nothing(packed: bytes) -> None:
    with pytest.raises(UnreadableValue, match="field 'x'"):
        decode_fields({"x": packed}, None)


def test_a_torch_tensor_arrives_as_an_array() -> None:
    torch = pytest.importorskip("torch")
    encoder = ValueEncoder(None, "call")
    assert Encoded(encoder.encode(torch.arange(4, dtype=torch.int32))).decode().tolist() == [0, 1, 2, 3]
    with pytest.raises(UntransportableValue, match="bfloat16"):
        encoder.encode(torch.zeros(1, dtype=torch.bfloat16))


def test_lists_of_packed_values_are_not_unpacked_on_the_way() -> None:
    encoder = ValueEncoder(None, "call")
    one, two = Encoded(encoder.encode(1)), Encoded(encoder.encode("two"))
    wire = encoder.to_wire([one, [two, one]])
    assert wire == [one.wire, [two.wire, one.wire]]
    assert decode_fields({"x": wire}, None) == {"x": [1, ["two", 1]]}

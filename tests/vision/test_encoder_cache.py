"""What was encoded once on a node is not encoded again, and a cache that fails costs time only."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from memory_manager.client import MemoryManagerClient
from memory_manager.process import ManagerProcess
from omniflow_backend.compute.encoder_cache import Array, EncoderCache

ONE, TWO = b"\x01" * 32, b"\x02" * 32


class Encoder:
    """Makes an array of the content id, and remembers how often."""

    def __init__(self) -> None:
        self.encoded: list[bytes] = []

    def of(self, *content_ids: bytes) -> Callable[[list[int]], list[Array]]:
        def encode(positions: list[int]) -> list[Array]:
            self.encoded += [content_ids[position] for position in positions]
            return [self.output(content_ids[position]) for position in positions]

        return encode

    @staticmethod
    def output(content_id: bytes) -> Array:
        return np.full((4, 8), content_id[0], np.float32)


def opened(manager: ManagerProcess, model: str = "model") -> EncoderCache:
    return EncoderCache(MemoryManagerClient(manager.endpoint, "encoder", timeout=2.0), model)


def test_a_content_id_is_encoded_once_for_all_processes_of_the_node(manager: ManagerProcess) -> None:
    encoder = Encoder()
    with opened(manager) as first:
        first.encode([ONE], encoder.of(ONE))
    with opened(manager) as second:
        found = second.encode([TWO, ONE], encoder.of(TWO, ONE))
    assert encoder.encoded == [ONE, TWO]
    assert [int(array[0, 0]) for array in found] == [2, 1], "hits and misses keep the order asked for"
    assert (second.hits, second.misses) == (1, 1)


def test_two_models_never_see_each_others_outputs(manager: ManagerProcess) -> None:
    encoder = Encoder()
    with opened(manager, "a") as first, opened(manager, "b") as second:
        first.encode([ONE], encoder.of(ONE))
        second.encode([ONE], encoder.of(ONE))
    assert encoder.encoded == [ONE, ONE]


def test_entries_give_way_when_the_pool_needs_room_and_are_made_again(manager: ManagerProcess) -> None:
    encoder = Encoder()
    with opened(manager) as cache, MemoryManagerClient(manager.endpoint, "other") as other:
        cache.encode([ONE], encoder.of(ONE))
        other.put(np.zeros(64 << 20, np.uint8), "everything")
        assert int(cache.encode([ONE], encoder.of(ONE))[0][0, 0]) == 1
    assert encoder.encoded == [ONE, ONE]


@pytest.mark.parametrize("connected", [True, False], ids=["the manager dies", "no manager"])
def test_without_a_manager_everything_is_encoded(manager: ManagerProcess, connected: bool) -> None:
    encoder = Encoder()
    with opened(manager) if connected else EncoderCache(None, "model") as cache:
        cache.encode([ONE], encoder.of(ONE))
        manager.kill()
        assert int(cache.encode([ONE], encoder.of(ONE))[0][0, 0]) == 1
    assert encoder.encoded == [ONE, ONE]


def test_what_the_cache_keeps_is_held_by_nobody(manager: ManagerProcess) -> None:
    with opened(manager) as cache, MemoryManagerClient(manager.endpoint, "watcher") as watcher:
        cache.encode([ONE, TWO], Encoder().of(ONE, TWO))
        cache.encode([ONE, TWO], Encoder().of(ONE, TWO))
        cache.encode([], Encoder().of())
        report = watcher.statistics()
    assert (report.references, report.idle_blocks) == (0, 2)

"""Which page goes first: the sketch, the buckets, and both on a trace."""

from __future__ import annotations

from collections import Counter, OrderedDict

import numpy as np
import pytest

from memory_manager.pools.declaration import Tier
from memory_manager.pools.eviction import EvictionBuckets, Temperature, temperature
from memory_manager.pools.requests import Access, Granted, Holder, NodeAlone, Want
from memory_manager.pools.sketch import FrequencySketch
from memory_manager.pools.slots import SlotEngine


class TestSketch:
    """Counts are never too low within a period, saturate, and fade."""

    def test_it_never_estimates_below_the_count_and_rarely_above(self) -> None:
        sketch = FrequencySketch(256)
        random = np.random.default_rng(1)
        asked = [b"%d" % number for number in random.zipf(1.3, 1500) % 400]
        for page in asked:
            assert not sketch.record(page)
        true = Counter(asked)
        errors = [sketch.estimate(page) - min(count, 15) for page, count in true.items()]
        assert min(errors) >= 0
        assert sum(error > 0 for error in errors) < len(errors) / 20

    def test_counts_are_halved_periodically(self) -> None:
        sketch = FrequencySketch(10)
        halved = [sketch.record(b"page") for _ in range(100)]
        assert halved == [False] * 99 + [True]
        assert sketch.estimate(b"page") == 7
        assert sketch.estimate(b"never seen") == 0

    def test_what_is_not_asked_for_any_more_is_forgotten(self) -> None:
        sketch = FrequencySketch(10)
        for _ in range(15):
            sketch.record(b"old")
        number = 0
        while sketch.estimate(b"old"):
            sketch.record(b"new %d" % (number % 7))
            number += 1
            assert number < 1000
        assert sketch.estimate(b"new 0") > 0


class TestBuckets:
    """Colder first; within a bucket the least recently used first."""

    def test_order(self) -> None:
        buckets = EvictionBuckets()
        for slot, frequency in enumerate([8, 1, 4, 2, 15, 1, 3]):
            buckets.add(slot, frequency)
        assert list(buckets.coldest()) == [1, 5, 3, 6, 2, 0, 4]

    def test_halving_moves_every_slot_down_one_bucket(self) -> None:
        for frequency in range(2, 16):
            assert temperature(frequency // 2) == max(temperature(frequency) - 1, Temperature.COLD)
        buckets = EvictionBuckets()
        for slot, frequency in enumerate([2, 1, 8]):
            buckets.add(slot, frequency)
        buckets.cool()
        # The warm slot is older than the cold one, now that both are cold.
        assert list(buckets.coldest()) == [0, 1, 2]
        buckets.add(3, 4)
        assert list(buckets.coldest())[-2:] == [2, 3]

    def test_a_slot_that_could_not_go_is_asked_last_next_time(self) -> None:
        buckets = EvictionBuckets()
        for slot in range(4):
            buckets.add(slot, 1)
        assert [slot for slot, _ in zip(buckets.coldest(), range(1), strict=False)] == [0]
        assert list(buckets.coldest()) == [1, 2, 3, 0]

    def test_removed_slots_are_not_candidates(self) -> None:
        buckets = EvictionBuckets()
        for slot in range(3):
            buckets.add(slot, 1)
        buckets.remove(1)
        buckets.remove(1)
        assert list(buckets.coldest()) == [0, 2]
        assert 1 not in buckets


def trace(pages: int, length: int) -> list[bytes]:
    """Zipf requests, interrupted by scans of pages that are never asked for again."""
    random = np.random.default_rng(2024)
    found: list[bytes] = []
    while len(found) < length:
        found += [b"zipf %d" % number for number in random.zipf(1.15, 900) % pages]
        found += [b"scan %d" % (len(found) + number) for number in range(250)]
    return found


def hit_rate_of_lru(asked: list[bytes], slots: int) -> float:
    cache: OrderedDict[bytes, None] = OrderedDict()
    hits = 0
    for page in asked:
        hits += page in cache
        cache[page] = None
        cache.move_to_end(page)
        if len(cache) > slots:
            cache.popitem(last=False)
    return hits / len(asked)


def hit_rate_of_the_engine(asked: list[bytes], slots: int) -> float:
    engine = SlotEngine({Tier.L1: slots}, NodeAlone(recomputable=True), lambda: 0.0)
    hits = 0
    for number, page in enumerate(asked):
        holder = Holder(b"client", number)
        outcome = engine.request(holder, [Want(page, Access.WRITE)], tier=Tier.L1, deadline=1.0)
        assert isinstance(outcome, Granted)
        grant = outcome.grants[page]
        assert grant is not None
        if grant.writable:
            engine.finish_write(holder, grant.slot)
        else:
            hits += 1
        engine.release(holder)
    return hits / len(asked)


@pytest.mark.parametrize("slots", [100, 300])
def test_the_policy_hits_at_least_as_often_as_lru(slots: int) -> None:
    asked = trace(3000, 20_000)
    lru, ours = hit_rate_of_lru(asked, slots), hit_rate_of_the_engine(asked, slots)
    print(f"\n{slots} slots, Zipf with scans: LRU {lru:.3f}, buckets by frequency {ours:.3f}")
    assert ours >= lru

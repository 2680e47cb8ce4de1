"""Which slot goes first: four LRU buckets by frequency (paper, 4.1.2). Only slots that may go are in them."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum


class Temperature(IntEnum):
    """Buckets, in the order in which they are emptied. Each is twice as frequent as the one before."""

    COLD = 0
    WARM1 = 1
    WARM2 = 2
    HOT = 3


def temperature(frequency: int) -> Temperature:
    """0-1 cold, 2-3 warm1, 4-7 warm2, 8 and more hot: halving a frequency moves it down by exactly one bucket."""
    return Temperature(min(max(frequency, 1).bit_length() - 1, Temperature.HOT))


class EvictionBuckets:
    """Slot numbers in four LRU lists."""

    def __init__(self) -> None:
        self._buckets: list[OrderedDict[int, int]] = [OrderedDict() for _ in Temperature]
        self._bucket_of: dict[int, Temperature] = {}
        self._clock = itertools.count()

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __contains__(self, slot: int) -> bool:
        return slot in self._bucket_of

    def add(self, slot: int, frequency: int) -> None:
        """The slot may go; it was used just now, by a page of that frequency."""
        self.remove(slot)
        bucket = temperature(frequency)
        self._bucket_of[slot] = bucket
        self._buckets[bucket][slot] = next(self._clock)

    def remove(self, slot: int) -> None:
        """The slot may not go (it is held, or gone). Nothing happens if it is not here."""
        bucket = self._bucket_of.pop(slot, None)
        if bucket is not None:
            del self._buckets[bucket][slot]

    def coldest(self) -> Iterator[int]:
        """Slots in the order in which they should go, each once.

        The buckets may change meanwhile. A slot that is still here when the next one is asked for could not go: it
        becomes the most recently used of its bucket, so that the next search starts with others.
        """
        for bucket in self._buckets:
            for _ in range(len(bucket)):
                slot = next(iter(bucket), None)
                if slot is None:
                    break
                yield slot
                if slot in bucket:
                    bucket[slot] = next(self._clock)
                    bucket.move_to_end(slot)

    def cool(self) -> None:
        """All frequencies have been halved: every bucket becomes the next colder one, least recently used first."""
        cold, warm1, warm2, hot = self._buckets
        merged = heapq.merge(cold.items(), warm1.items(), key=lambda item: item[1])
        self._buckets = [OrderedDict(merged), warm2, hot, OrderedDict()]
        for bucket, slots in zip(Temperature, self._buckets, strict=True):
            self._bucket_of.update(dict.fromkeys(slots, bucket))

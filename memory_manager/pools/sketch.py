"""How often pages were asked for lately: a count-min sketch whose counters are halved now and then (TinyLFU)."""

from __future__ import annotations

import xxhash

_ROWS = 4
_MAX_COUNT = 15
_HALF = bytes(count // 2 for count in range(256))
_SAMPLE = 10
"""Requests per entry between two halvings, as in the TinyLFU paper."""


class FrequencySketch:
    """Estimates never below the true count of the present period, up to 15.

    Args:
        entries: how many pages are to be told apart; memory is a few bytes for each.
    """

    def __init__(self, entries: int) -> None:
        self._bits = max(6, (max(1, entries) * 2 - 1).bit_length())
        self._mask = (1 << self._bits) - 1
        self._rows = [bytearray(1 << self._bits) for _ in range(_ROWS)]
        self._sample = _SAMPLE * max(1, entries)
        self._recorded = 0

    def record(self, page: bytes) -> bool:
        """The page was asked for. Whether all counts have been halved by this."""
        cells = self._cells(page)
        counts = [row[cell] for row, cell in zip(self._rows, cells, strict=True)]
        lowest = min(counts)
        if lowest < _MAX_COUNT:
            # Conservative update: only the lowest counters can be exact, the others are too high already.
            for row, cell, count in zip(self._rows, cells, counts, strict=True):
                if count == lowest:
                    row[cell] = lowest + 1
        self._recorded += 1
        if self._recorded < self._sample:
            return False
        self._recorded //= 2
        self._rows = [row.translate(_HALF) for row in self._rows]
        return True

    def estimate(self, page: bytes) -> int:
        """How often the page was asked for lately, 0 to 15."""
        return min(row[cell] for row, cell in zip(self._rows, self._cells(page), strict=True))

    def _cells(self, page: bytes) -> tuple[int, int, int, int]:
        low = xxhash.xxh3_128_intdigest(page)
        mask = self._mask
        return low & mask, low >> 32 & mask, low >> 64 & mask, low >> 96 & mask

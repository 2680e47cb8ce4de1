"""Which bytes of a pool are free: best fit, coalescing."""

from __future__ import annotations

from bisect import bisect_left, insort

ALIGNMENT = 64


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines, at least one."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class FreeExtents:
    """The free stretches of `[0, capacity)`. No two of them touch: neighbours are merged as soon as they are free."""

    def __init__(self, capacity: int) -> None:
        self._end_of = {0: capacity}
        self._start_of = {capacity: 0}
        self._by_size = [(capacity, 0)]
        self.free = capacity

    @property
    def largest(self) -> int:
        """Bytes in the largest free stretch."""
        return self._by_size[-1][0] if self._by_size else 0

    def take(self, nbytes: int) -> int | None:
        """The offset of `nbytes` bytes taken from the smallest stretch that has them (the lowest of these), or `None`.

        `nbytes` must be a multiple of `ALIGNMENT`.
        """
        position = bisect_left(self._by_size, (nbytes, 0))
        if position == len(self._by_size):
            return None
        size, start = self._by_size[position]
        self._remove(start, start + size)
        if size > nbytes:
            self._insert(start + nbytes, start + size)
        return start

    def give(self, start: int, nbytes: int) -> None:
        """Bytes taken before are free again."""
        end = start + nbytes
        if (before := self._start_of.get(start)) is not None:
            self._remove(before, start)
            start = before
        if (after := self._end_of.get(end)) is not None:
            self._remove(end, after)
            end = after
        self._insert(start, end)

    def _insert(self, start: int, end: int) -> None:
        self._end_of[start] = end
        self._start_of[end] = start
        insort(self._by_size, (end - start, start))
        self.free += end - start

    def _remove(self, start: int, end: int) -> None:
        del self._end_of[start], self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        self.free -= end - start

"""What happens by itself when its time has come."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

_Event = TypeVar("_Event")


class Deadlines(Generic[_Event]):
    """Events by time. None can be taken back: whoever gets one looks whether it still matters."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Event]] = []
        self._order = itertools.count()

    @property
    def next(self) -> float | None:
        """When the next event is due; `None` if there is none."""
        return self._heap[0][0] if self._heap else None

    def add(self, when: float, event: _Event) -> None:
        """The event is due at that time."""
        heapq.heappush(self._heap, (when, next(self._order), event))

    def due(self, now: float) -> Iterator[_Event]:
        """Events that are due, each once; more may be added meanwhile."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]

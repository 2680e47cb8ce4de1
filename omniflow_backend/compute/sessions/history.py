"""One session's positions, as the model read and wrote them: all that is needed to replay them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from omniflow_backend.compute.prefix import EmbeddedSpan, Prompt

_POSITION_BYTES = 40
"""Of a list's entry and the number it refers to."""


@dataclass(frozen=True, slots=True, eq=False)
class NewPositions:
    """Positions to append: token ids, and embeddings where spans cover them, counted from the first new position."""

    token_ids: tuple[int, ...]
    spans: tuple[EmbeddedSpan, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The first `length` positions, `span_count` spans and `turn_count` turns of lists that may go on behind them.

    A history never changes. The one that goes on from it shares its lists as long as there is only one such, so that
    a turn costs what it adds; `after` must not run twice at once.
    """

    length: int = 0
    span_count: int = 0
    turn_count: int = 0
    _token_ids: list[int] = field(default_factory=list)
    _spans: list[EmbeddedSpan] = field(default_factory=list)
    _turn_starts: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return self.length

    @property
    def token_ids(self) -> list[int]:
        """Of all positions; a placeholder's under a span."""
        return self._token_ids[: self.length]

    @property
    def turn_starts(self) -> list[int]:
        """Where each turn begins, ascending."""
        return self._turn_starts[: self.turn_count]

    @property
    def spans(self) -> list[EmbeddedSpan]:
        """What is embedded."""
        return self.spans_within(0, self.length)

    @property
    def nbytes(self) -> int:
        """About what it takes in this process."""
        return _POSITION_BYTES * self.length + sum(span.embeddings.nbytes for span in self._spans[: self.span_count])

    def tokens_within(self, start: int, stop: int) -> list[int]:
        """The token ids of these positions."""
        return self._token_ids[start : min(stop, self.length)]

    def spans_within(self, start: int, stop: int) -> list[EmbeddedSpan]:
        """The spans that have one of these positions, whole."""
        first = bisect_left(self._spans, start + 1, hi=self.span_count, key=lambda span: span.end)
        last = bisect_left(self._spans, stop, hi=self.span_count, key=lambda span: span.start)
        return self._spans[first:last]

    def turn_of(self, position: int) -> int:
        """The number of the turn that has the position."""
        return bisect_left(self._turn_starts, position + 1, hi=self.turn_count) - 1

    def before(self, length: int) -> History:
        """The first `length` positions. A picture may be cut: its first rows stay."""
        if length >= self.length:
            return self
        spans = self.spans_within(0, length)
        if spans and spans[-1].end > length:
            spans[-1] = replace(spans[-1], embeddings=spans[-1].embeddings[: length - spans[-1].start])
        turn_starts = self._turn_starts[: bisect_left(self._turn_starts, length, hi=self.turn_count)]
        return History(length, len(spans), len(turn_starts), self._token_ids[:length], spans, turn_starts)

    def after(self, turn: NewPositions) -> History:
        """This history and one more turn: what was asked and what was answered."""
        token_ids, spans, turn_starts = self._token_ids, self._spans, self._turn_starts
        if len(turn_starts) > self.turn_count:
            # Another history has gone on from here.
            token_ids = token_ids[: self.length]
            spans, turn_starts = spans[: self.span_count], turn_starts[: self.turn_count]
        token_ids.extend(turn.token_ids)
        spans.extend(replace(span, start=span.start + self.length) for span in turn.spans)
        turn_starts.append(self.length)
        return History(len(token_ids), len(spans), len(turn_starts), token_ids, spans, turn_starts)

    def prompt(self, stretches: Sequence[range], turn: NewPositions, salt: bytes = b"") -> Prompt:
        """These stretches of the history, in order, none of which cuts a span, and the new positions behind them."""
        token_ids: list[int] = []
        spans: list[EmbeddedSpan] = []
        for stretch in stretches:
            moved = len(token_ids) - stretch.start
            token_ids += self._token_ids[stretch.start : stretch.stop]
            within = self.spans_within(stretch.start, stretch.stop)
            spans += within if moved == 0 else [replace(span, start=span.start + moved) for span in within]
        spans += [replace(span, start=span.start + len(token_ids)) for span in turn.spans]
        return Prompt((*token_ids, *turn.token_ids), tuple(spans), salt, boundary=len(token_ids))

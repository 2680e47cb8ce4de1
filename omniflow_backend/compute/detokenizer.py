"""Token ids to text, one token at a time: no half characters, no stop strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"


class IncrementalDetokenizer:
    """Text of a growing list of token ids; the pieces joined are the decoding of the whole list.

    A token may hold part of a character, and some tokenizers decode a token differently at the beginning of a text:
    so each new token is decoded together with those of the last piece, and text that ends within a character is held
    back.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._emitted_tokens = 0
        self._emitted_text = ""

    def push(self, token_id: int) -> str:
        """Add a token; the text that became certain, often one word, sometimes empty."""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(_REPLACEMENT):
            return ""
        return self._advance(text)

    def finish(self) -> str:
        """The text still held back: tokens that never completed a character decode to U+FFFD."""
        return self._advance(self._decode(self._window))

    def _advance(self, text: str) -> str:
        delta = text[len(self._emitted_text) :]
        if delta:
            self._window = self._window[self._emitted_tokens :]
            self._emitted_tokens = len(self._window)
            self._emitted_text = self._decode(self._window)
        return delta


class StopStringFilter:
    """Passes text through up to the first stop string, and holds back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, delta: str) -> str:
        """The text that is certainly before any stop string; after the first stop string nothing more comes."""
        if self.stopped:
            return ""
        if not self._stops:
            return delta
        text = self._held + delta
        found = [position for position in map(text.find, self._stops) if position >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = self._undecided_suffix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text held back, when the generation ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _undecided_suffix(self, text: str) -> int:
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            suffix = text[len(text) - length :]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0

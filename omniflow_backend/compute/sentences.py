"""Sentences of a text that arrives in pieces."""

from __future__ import annotations

import re

# A sentence ends after . ! ? (and closing quotes or brackets) and the white space behind, or after a line break. The
# white space must be there: in "3.14" the dot ends nothing, and at the end of a piece nobody knows yet what follows.
_END = re.compile(r"[.!?]+[\"'”’)\]]*\s+(?=\S)|\n\s*(?=\S)")


class SentenceSplitter:
    """Takes pieces of a text, gives whole sentences; joined they are the text. Pieces of white space stay with the
    sentence before.
    """

    def __init__(self) -> None:
        self._text = ""

    def push(self, piece: str) -> list[str]:
        """The sentences that this piece completed."""
        self._text += piece
        sentences = []
        while (end := _END.search(self._text, self._first_word())) is not None:
            sentences.append(self._text[: end.end()])
            self._text = self._text[end.end() :]
        return sentences

    def finish(self) -> list[str]:
        """What is left at the end of the text: one last sentence, or none."""
        rest, self._text = self._text, ""
        return [rest] if rest else []

    def _first_word(self) -> int:
        return len(self._text) - len(self._text.lstrip())

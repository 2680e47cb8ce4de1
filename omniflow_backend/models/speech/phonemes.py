"""Text into pieces of phonemes, each short enough for one run of the speech model."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

_SPACES = re.compile(r"\s+")


class Phonemizer:
    """Turns any text into pieces of at most ``limit`` phonemes, cut at sentences, then clauses, then words.

    ``split`` cuts text into sentences; ``pronounce`` gives a sentence's phonemes, and may fail on odd characters and
    endless numbers: then the words it fails on are left out, since a speaker skips what cannot be said.
    """

    def __init__(self, split: Callable[[str], list[str]], pronounce: Callable[[str], str], limit: int) -> None:
        self._split = split
        self._pronounce = pronounce
        self._limit = limit

    def pieces(self, text: str) -> Iterator[str]:
        """The pieces, in order; none for text with nothing to say (punctuation, emoji)."""
        for sentence in self._split(unicodedata.normalize("NFKC", text)):
            for piece in cut(self._phonemes(sentence), self._limit):
                if any(phoneme.isalpha() for phoneme in piece):
                    yield piece

    def _phonemes(self, sentence: str) -> str:
        try:
            return self._pronounce(sentence) or ""
        except Exception:
            logger.debug("no pronunciation of the whole of %r; trying its words", sentence, exc_info=True)
        return " ".join(filter(None, map(self._word, _SPACES.split(sentence))))

    def _word(self, word: str) -> str:
        try:
            return self._pronounce(word) or ""
        except Exception:
            logger.warning("left out of speech, for want of a pronunciation: %.80r", word)
            return ""


def cut(phonemes: str, limit: int) -> Iterator[str]:
    """``phonemes`` in pieces of at most ``limit``: cut after the last clause, else the last word, that fits."""
    rest = phonemes.strip()
    while len(rest) > limit:
        window = rest[: limit + 1]
        clause = max(window.rfind(f"{mark} ") for mark in ",;:—")
        end = clause + 1 if clause > 0 else window.rfind(" ")
        end = end if end > 0 else limit
        yield rest[:end].strip()
        rest = rest[end:].strip()
    if rest:
        yield rest

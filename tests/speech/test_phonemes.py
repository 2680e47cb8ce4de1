"""Cutting text for the voice: nothing is lost, nothing is too long, nothing fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniflow_backend.models.speech.phonemes import Phonemizer, cut


@given(phonemes=st.text(alphabet="aˈ ,;—", max_size=200), limit=st.integers(1, 50))
def test_cutting_keeps_every_phoneme_and_the_limit(phonemes: str, limit: int) -> None:
    pieces = list(cut(phonemes, limit))
    assert "".join("".join(pieces).split()) == "".join(phonemes.split())
    assert all(0 < len(piece) <= limit for piece in pieces)


def test_cuts_come_after_clauses_then_words() -> None:
    assert list(cut("aaa, bbb ccc ddd", 12)) == ["aaa,", "bbb ccc ddd"]
    assert list(cut("aaa bbb ccc", 8)) == ["aaa bbb", "ccc"]
    assert list(cut("aaaaaa", 4)) == ["aaaa", "aa"]


def test_a_word_without_pronunciation_is_left_out_and_the_rest_kept() -> None:
    def pronounce(text: str) -> str:
        if "odd" in text:
            raise IndexError(text)
        return text.upper()

    phonemizer = Phonemizer(lambda text: text.split("."), pronounce, limit=100)
    assert list(phonemizer.pieces("one odd two.three")) == ["ONE TWO", "THREE"]


@pytest.mark.model
def test_any_text_can_be_spoken() -> None:
    from hibari.tts import Hibari
    from hypothesis import settings

    voice = Hibari()
    phonemizer = Phonemizer(voice.split_sentences, voice.g2p, limit=400)

    @settings(deadline=None, max_examples=100)
    @given(text=st.text(max_size=60))
    def check(text: str) -> None:
        for piece in phonemizer.pieces(text):
            assert 0 < len(piece) <= 400

    check()

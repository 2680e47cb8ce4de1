"""Sentences for a talker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omniflow_backend.compute.sentences import SentenceSplitter


def split(pieces: list[str]) -> list[str]:
    splitter = SentenceSplitter()
    sentences = [sentence for piece in pieces for sentence in splitter.push(piece)]
    return sentences + splitter.finish()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One. ", "Two! ", "Three? ", "Four"]),
        ("Pi is 3.14 or so. Yes.", ["Pi is 3.14 or so. ", "Yes."]),
        ('He said "no." Then left.', ['He said "no." ', "Then left."]),
        ("A list:\n- one\n- two", ["A list:\n", "- one\n", "- two"]),
        ("Really?! Yes... no.", ["Really?! ", "Yes... ", "no."]),
        ("One.\n\n  Two.  ", ["One.\n\n  ", "Two.  "]),
        ("\n\nOne. Two.", ["\n\nOne. ", "Two."]),
        ("", []),
    ],
)
def test_sentences_end_where_a_reader_pauses(text: str, sentences: list[str]) -> None:
    assert split([text]) == sentences
    assert split(list(text)) == sentences


def test_a_sentence_comes_as_soon_as_the_next_one_begins() -> None:
    splitter = SentenceSplitter()
    assert splitter.push("It is 3.") == []
    assert splitter.push("14 today.") == []
    assert splitter.push(" ") == []
    assert splitter.push("Next") == ["It is 3.14 today. "]


@given(st.lists(st.text('ab.!? \n1"', max_size=6)))
def test_sentences_joined_are_the_text(pieces: list[str]) -> None:
    assert "".join(split(pieces)) == "".join(pieces)
    assert split(pieces) == split(["".join(pieces)])

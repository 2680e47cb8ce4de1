"""Text out of tokens: whole characters, no stop strings, nothing lost."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from omniflow_backend.compute.detokenizer import IncrementalDetokenizer, StopStringFilter
from omniflow_backend.compute.generation import FinishReason, SamplingParameters
from omniflow_backend.compute.output import OutputBuilder


def decode_bytes(token_ids: Sequence[int]) -> str:
    """A byte-level vocabulary, as byte-pair tokenizers have underneath."""
    return bytes(token_ids).decode("utf-8", errors="replace")


def decode_words(token_ids: Sequence[int]) -> str:
    """A vocabulary whose words lose their leading space at the beginning of a text."""
    return "".join(f" w{token}" for token in token_ids).lstrip()


class TestIncrementalDetokenizer:
    @given(st.text())
    def test_pieces_joined_are_the_text_and_no_character_is_split(self, text: str) -> None:
        detokenizer = IncrementalDetokenizer(decode_bytes)
        pieces = [detokenizer.push(byte) for byte in text.encode("utf-8", errors="replace")]
        assert "".join(pieces) + detokenizer.finish() == text.encode("utf-8", errors="replace").decode()
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in pieces)

    @given(st.binary())
    def test_bytes_that_are_no_text_are_replaced_and_nothing_is_lost(self, content: bytes) -> None:
        detokenizer = IncrementalDetokenizer(decode_bytes)
        pieces = [detokenizer.push(byte) for byte in content]
        assert "".join(pieces) + detokenizer.finish() == content.decode("utf-8", errors="replace")

    def test_a_character_comes_with_its_last_byte(self) -> None:
        detokenizer = IncrementalDetokenizer(decode_bytes)
        assert [detokenizer.push(byte) for byte in "a😀".encode()] == ["a", "", "", "", "😀"]

    @given(st.lists(st.integers(0, 9)))
    def test_words_keep_the_space_they_have_in_the_middle_of_a_text(self, token_ids: list[int]) -> None:
        detokenizer = IncrementalDetokenizer(decode_words)
        assert "".join(map(detokenizer.push, token_ids)) + detokenizer.finish() == decode_words(token_ids)


class TestStopStringFilter:
    @given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
    def test_gives_the_text_before_the_first_stop_string_however_it_is_cut(
        self, text: str, stops: list[str], data: st.DataObject
    ) -> None:
        cut = data.draw(st.integers(1, 4))
        stop_filter = StopStringFilter(stops)
        given_out = ""
        for start in range(0, len(text), cut):
            given_out += stop_filter.push(text[start : start + cut])
            assert not any(stop in given_out for stop in stops)
        was_stopped = stop_filter.stopped
        given_out += "" if was_stopped else stop_filter.finish()
        assert was_stopped is any(stop in text for stop in stops)
        assert text.startswith(given_out)
        if not was_stopped:
            assert given_out == text

    def test_holds_back_only_what_may_become_a_stop_string(self) -> None:
        stop_filter = StopStringFilter(["END"])
        assert [stop_filter.push(piece) for piece in ("say E", "N", "T or ", "EN", "D now")] == [
            "say ",
            "",
            "ENT or ",
            "",
            "",
        ]
        assert stop_filter.stopped


def build(sampling: SamplingParameters, max_tokens: int = 100) -> OutputBuilder:
    return OutputBuilder(sampling, prompt_tokens=3, max_tokens=max_tokens, end_of_text={0}, decode=decode_bytes)


class TestOutputBuilder:
    def test_the_end_of_text_token_stops_unless_ignored(self) -> None:
        assert build(SamplingParameters()).push(0).finish_reason is FinishReason.STOP
        assert build(SamplingParameters(ignore_eos=True)).push(0).finish_reason is None

    def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop(self) -> None:
        output = build(SamplingParameters(stop=("b",)), max_tokens=2)
        assert output.push(ord("a")).finish_reason is None
        last = output.push(ord("b"))
        assert (last.text_delta, last.finish_reason) == ("", FinishReason.STOP)

    def test_text_held_back_is_given_when_the_length_ends_it(self) -> None:
        output = build(SamplingParameters(stop=("bc",)), max_tokens=2)
        output.push(ord("a"))
        last = output.push(ord("b"))
        assert (last.text_delta, last.finish_reason) == ("b", FinishReason.LENGTH)

    def test_half_a_character_at_the_end_is_replaced(self) -> None:
        last = build(SamplingParameters(), max_tokens=1).push("😀".encode()[0])
        assert last.text_delta == "\ufffd"

    def test_an_abort_gives_what_was_held_back_and_the_usage(self) -> None:
        output = build(SamplingParameters(stop=("abc",)))
        output.push(ord("a"))
        last = output.abort()
        assert (last.text_delta, last.finish_reason) == ("a", FinishReason.ABORT)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 1)

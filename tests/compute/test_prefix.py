"""Prompts and page chains: an id names exactly one prefix of one model under one salt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniflow_backend.compute.prefix import EmbeddedSpan, PageChain, PageHash, PositionId, Prompt, content_id

HIDDEN = 8

positions = st.lists(st.one_of(st.integers(0, 3), st.sampled_from([b"a", b"b", b"ab"])), max_size=40)


def chain(ids: list[PositionId], page_size: int = 4, salt: bytes = b"", model: str = "m") -> PageChain:
    made = PageChain(page_size, salt, model)
    made.extend(ids)
    return made


def span(start: int, rows: int, name: bytes = b"cat") -> EmbeddedSpan:
    return EmbeddedSpan(start, name, np.ones((rows, HIDDEN), np.float32))


class TestPageChain:
    @settings(deadline=None)
    @given(ids=positions, page_size=st.integers(1, 7), cuts=st.lists(st.integers(0, 40), max_size=5))
    def test_growing_cutting_and_forking_in_any_steps_equals_all_at_once(
        self, ids: list[PositionId], page_size: int, cuts: list[int]
    ) -> None:
        grown = PageChain(page_size, b"", "m")
        for cut in cuts:
            cut = min(cut, len(ids))
            fork = grown.fork()
            if cut < len(grown):
                fork.truncate(cut)
            fork.extend(ids[len(fork) : cut])
            before = list(grown.page_ids)
            fork.extend([9] * page_size)
            assert list(grown.page_ids) == before, "a fork leaves the chain it came from alone"
            fork.truncate(cut)
            grown = fork
        grown.extend(ids[len(grown) :])
        whole = chain(ids, page_size)
        assert (grown.page_ids, grown.tail_id) == (whole.page_ids, whole.tail_id)
        assert len(whole.page_ids) == len(ids) // page_size

    @settings(deadline=None, max_examples=200)
    @given(one=positions, other=positions, page_size=st.integers(1, 4))
    def test_two_runs_share_exactly_the_ids_of_the_pages_they_share(
        self, one: list[PositionId], other: list[PositionId], page_size: int
    ) -> None:
        a, b = chain(one, page_size), chain(other, page_size)
        for number, (left, right) in enumerate(zip(a.page_ids, b.page_ids, strict=False), 1):
            assert (left == right) == (one[: number * page_size] == other[: number * page_size])
        shared = set(a.page_ids) & set(b.page_ids)
        assert shared == set(a.page_ids[: len(shared)]) == set(b.page_ids[: len(shared)])
        assert a.tail_id is None or a.tail_id not in b.page_ids

    @pytest.mark.parametrize("other", [{"salt": b"x"}, {"model": "n"}, {"page_size": 2}, {"salt": b"m", "model": ""}])
    def test_another_salt_model_or_page_size_shares_no_page(self, other: dict[str, object]) -> None:
        ids: list[PositionId] = [1] * 16
        assert not set(chain(ids).page_ids) & set(chain(ids, **other).page_ids)  # type: ignore[arg-type]

    def test_page_ids_stay_what_they_are(self) -> None:
        """Pages on disk and in other processes are found under these ids: changing them needs another version."""
        ids = chain([1, 2, 3, b"cat", 5, 6, 7, 8]).page_ids
        assert [page.hex()[:16] for page in ids] == ["c618478dca098789", "646be90a761dfe89"]

    def test_the_fast_hash_is_a_setting(self) -> None:
        fast = PageChain(2, page_hash=PageHash.XXH3_128)
        fast.extend([1, 2])
        assert len(fast.page_ids[0]) == 16

    @pytest.mark.parametrize("length", [-1, 5])
    def test_cutting_beyond_the_end_is_refused(self, length: int) -> None:
        with pytest.raises(ValueError, match="4 positions"):
            chain([1, 2, 3, 4]).truncate(length)

    def test_a_page_has_a_position(self) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            PageChain(0)


class TestPrompt:
    def test_the_same_placeholder_with_another_picture_is_another_position(self) -> None:
        cat, dog = (Prompt((1, 7, 7, 2), (span(1, 2, name),)).position_ids for name in (b"cat", b"dog"))
        assert (cat[0], cat[3]) == (dog[0], dog[3]) == (1, 2)
        assert not set(cat[1:3]) & set(dog[1:3])
        assert cat[1] != cat[2], "each row of a picture is its own position"

    def test_the_same_picture_elsewhere_has_the_same_positions(self) -> None:
        assert Prompt((7, 7), (span(0, 2),)).position_ids == Prompt((1, 7, 7), (span(1, 2),)).position_ids[1:]

    @pytest.mark.parametrize("spans", [(span(2, 2), span(0, 1)), (span(0, 2), span(1, 2)), (span(3, 2),)])
    def test_spans_must_be_ordered_apart_and_within_the_tokens(self, spans: tuple[EmbeddedSpan, ...]) -> None:
        with pytest.raises(ValueError, match="the 4 tokens"):
            Prompt((1, 2, 3, 4), spans)

    @pytest.mark.parametrize("boundary", [-1, 3])
    def test_the_boundary_lies_within_the_prompt(self, boundary: int) -> None:
        with pytest.raises(ValueError, match="the 2 tokens"):
            Prompt((1, 2), boundary=boundary)

    @pytest.mark.parametrize("rows", [np.ones((0, 4), np.float32), np.ones((2, 4), np.float64), np.ones(4, np.float32)])
    def test_embeddings_of_another_kind_are_refused(self, rows: np.ndarray) -> None:
        with pytest.raises(ValueError, match="float32"):
            EmbeddedSpan(0, b"cat", rows)

    def test_a_content_id_is_bounded(self) -> None:
        for name in (b"", b"c" * 252):
            with pytest.raises(ValueError, match="251 bytes"):
                span(0, 1, name)


def test_a_content_id_covers_payload_options_and_model_each_by_itself() -> None:
    ids = {
        content_id(payload, options=options, model=model)
        for payload, options, model in [(b"p", b"o", "m"), (b"p", b"", "mo"), (b"op", b"", "m"), (b"p", b"om", "")]
    }
    assert len(ids) == 4
    assert content_id(b"p", options=b"o", model="m") == content_id(memoryview(b"p"), options=b"o", model="m")

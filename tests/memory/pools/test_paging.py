"""Views of pages: they are the storage itself, and both arrangements show the same elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from memory_manager.pools.declaration import PAGE_ALIGNMENT, ElementType, Tier
from memory_manager.pools.paging import Arrangement, PagedStorage, RegionLayout
from tests.memory.pools.pages import LAYERS, PAGE, declare

SLOTS = 5
LABELS = list(itertools.product(LAYERS, ("k", "v"), ("left", "right")))
DECLARATION = declare({Tier.L1: SLOTS * 8192})


def storage(arrangement: Arrangement) -> tuple[np.ndarray[Any, Any], PagedStorage]:
    layout = RegionLayout(DECLARATION, arrangement, SLOTS)
    memory = np.zeros(layout.nbytes, np.uint8)
    return memory, PagedStorage(memory, layout)


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


both = pytest.mark.parametrize("arrangement", list(Arrangement))


@both
def test_a_view_is_the_storage_itself(arrangement: Arrangement) -> None:
    memory, pages = storage(arrangement)
    for page, (layer, kv, heads) in itertools.product(range(SLOTS), LABELS):
        view = pages.view((layer,), page, (kv, heads))
        stretch = pages.layout.stretch((layer,), page, (kv, heads))
        assert address(view) == address(memory) + stretch.offset
        assert np.shares_memory(view, memory)
        assert view.shape == (4, 2, 8)
    for whole in (pages.page(2), pages.stack(("1",), ("k", "left"))):
        assert np.shares_memory(whole, memory)


@both
def test_writing_through_one_view_changes_exactly_its_bytes(arrangement: Arrangement) -> None:
    memory, pages = storage(arrangement)
    memory[:] = 1
    view = pages.view(("1",), 3, ("v", "right"))
    view[...] = 0
    assert int((memory == 0).sum()) == view.nbytes == PAGE // len(LABELS)


@both
def test_all_views_together_are_every_element_once(arrangement: Arrangement) -> None:
    memory, pages = storage(arrangement)
    for page, (layer, kv, heads) in itertools.product(range(SLOTS), LABELS):
        view = pages.view((layer,), page, (kv, heads)).view(np.uint32)
        view += 1
    if arrangement is Arrangement.BLOCK_STACK:
        assert (memory.view(np.uint32) == 1).all()
    else:
        whole = memory.reshape(SLOTS, -1)
        assert (np.ascontiguousarray(whole[:, :PAGE]).view(np.uint32) == 1).all()
        assert not whole[:, PAGE:].any()


def test_a_block_stack_is_what_an_engine_indexes() -> None:
    """NHD: for each layer, k and v apart, one array `[page, token, head, size]` in one piece."""
    memory, pages = storage(Arrangement.BLOCK_STACK)
    memory.view(np.float32)[:] = np.arange(memory.nbytes // 4)
    nhd = memory.view(np.float32).reshape(len(LAYERS), 2, SLOTS, 4, 4, 8)
    assert (pages.view(("2",), 4, ("v", "right")) == nhd[2, 1, 4, :, 2:]).all()
    assert (pages.stack(("1",), ("k", "left")) == nhd[1, 0, :, :, :2]).all()


def test_a_page_major_page_lies_in_one_aligned_piece() -> None:
    memory, pages = storage(Arrangement.PAGE_MAJOR)
    raw = pages.raw(3)
    assert raw.nbytes % PAGE_ALIGNMENT == 0
    assert (address(raw) - address(memory)) % PAGE_ALIGNMENT == 0
    assert pages.page(3).flags.c_contiguous
    assert address(pages.page(3)) == address(raw)
    with pytest.raises(ValueError, match="one piece"):
        storage(Arrangement.BLOCK_STACK)[1].raw(0)


def test_views_of_read_only_memory_are_read_only() -> None:
    memory, pages = storage(Arrangement.PAGE_MAJOR)
    memory.flags.writeable = False
    assert not PagedStorage(memory, pages.layout).view(("0",), 0, ("k", "left")).flags.writeable


def test_types_that_numpy_lacks_are_carried_as_bits() -> None:
    layout = RegionLayout(declare({Tier.L1: 8192}, dtype=ElementType.BFLOAT16), Arrangement.BLOCK_STACK, 1)
    view = PagedStorage(np.zeros(layout.nbytes, np.uint8), layout).view(("0",), 0, ("k", "left"))
    assert view.dtype == np.uint16


@both
def test_a_wrong_label_or_page_is_named(arrangement: Arrangement) -> None:
    pages = storage(arrangement)[1]
    with pytest.raises(KeyError, match="'layer' has no label '9'"):
        pages.view(("9",), 0, ("k", "left"))
    with pytest.raises(KeyError, match="one label for each"):
        pages.view(("0",), 0, ("k",))
    for page in (-1, SLOTS):
        with pytest.raises(IndexError, match=f"page {page} "):
            pages.view(("0",), page, ("k", "left"))

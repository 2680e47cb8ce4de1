"""Both converters move exactly one page, and agree with the views of the paging layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memory_manager.pools.conversion import BlockStackConverter, IndexingConverter, converter_for
from memory_manager.pools.declaration import ElementType, OuterDimension, ParameterDeclaration, SliceDimension, Tier
from memory_manager.pools.paging import Arrangement, PagedStorage, RegionLayout
from tests.memory.pools.pages import declare

KV = SliceDimension("kv", ("k", "v"))
HEADS = SliceDimension("heads", ("left", "right"), axis=0)
SIZE = SliceDimension("size", ("low", "high"), axis=1)
BASE = declare({Tier.L1: 2**16})

FITTING = {
    "kv and head partitions": BASE,
    "bfloat16": replace(BASE, dtype=ElementType.BFLOAT16),
    "a latent cache": replace(BASE, slice_dims=(), shape=(1, 24)),
    "two outer dimensions": replace(BASE, sub_names=(*BASE.sub_names, OuterDimension("stage", ("x", "y")))),
    "k and v only": replace(BASE, slice_dims=(KV,)),
    "heads of matrices": replace(BASE, slice_dims=(KV, HEADS), shape=(4, 3, 5)),
}
OTHER = {
    "divided head size": replace(BASE, slice_dims=(KV, SIZE)),
    "partitions outside k and v": replace(BASE, slice_dims=(HEADS, KV)),
    "tokens without heads": replace(BASE, slice_dims=(), shape=(24,)),
}


def storage(declaration: ParameterDeclaration, arrangement: Arrangement, seed: int) -> PagedStorage:
    layout = RegionLayout(declaration, arrangement, 3)
    return PagedStorage(np.random.default_rng(seed).integers(0, 256, layout.nbytes, np.uint8), layout)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    return array.tobytes()


@pytest.mark.parametrize("declaration", [*FITTING.values(), *OTHER.values()], ids=[*FITTING, *OTHER])
def test_exactly_one_page_is_moved_bit_for_bit(declaration: ParameterDeclaration) -> None:
    for make in (IndexingConverter, converter_for):
        stacks = storage(declaration, Arrangement.BLOCK_STACK, 1)
        pages = storage(declaration, Arrangement.PAGE_MAJOR, 2)
        converter = make(stacks)
        others = [bits(pages.page(0)), bits(pages.page(2)), bits(stacks.blocks())]
        converter.store(1, pages.page(1))
        assert bits(pages.page(1)) == bits(stacks.page(1))
        assert [bits(pages.page(0)), bits(pages.page(2)), bits(stacks.blocks())] == others
        kept = [bits(stacks.page(0)), bits(stacks.page(1))]
        converter.load(pages.page(0), 2)
        assert bits(stacks.page(2)) == bits(pages.page(0))
        assert [bits(stacks.page(0)), bits(stacks.page(1))] == kept


@pytest.mark.parametrize("declaration", FITTING.values(), ids=FITTING)
def test_head_stacks_are_converted_by_compiled_code(declaration: ParameterDeclaration) -> None:
    assert isinstance(converter_for(storage(declaration, Arrangement.BLOCK_STACK, 1)), BlockStackConverter)


@pytest.mark.parametrize("declaration", OTHER.values(), ids=OTHER)
def test_other_layouts_are_converted_by_indexing(declaration: ParameterDeclaration) -> None:
    assert isinstance(converter_for(storage(declaration, Arrangement.BLOCK_STACK, 1)), IndexingConverter)

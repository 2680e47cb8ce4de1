"""Conversion, by its definition and by every path: the same bytes go to the same places, and no other byte changes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings

from memory_manager.layouts import BlockStacks, ConversionPath, Direction, PageConverter, PageLayout, PageMove
from memory_manager.layouts.moves import checked
from memory_manager.layouts.native import native

from .cases import DIM_INNERMOST, STRADDLING, Bytes, Case, cases

# How a case was converted: the stacks' allocation and the pages, afterwards.
Result = tuple[Bytes, list[Bytes]]

needs_module = pytest.mark.skipif(native() is None, reason="the conversion module is not built: run cuda/build.py")


def by_definition(case: Case, direction: Direction) -> Result:
    """One element at a time, straight from what the layouts say."""
    allocation, pages = case.stack_bytes(), case.page_bytes()
    stacks = case.stacks(allocation).arrays
    layout = case.layout
    for page, (first, stop), blocks in zip(pages, case.tokens, case.table, strict=True):
        stored = page[: layout.nbytes].view(stacks[0][0].dtype).reshape(layout.shape)
        for layer, kind, token, head in itertools.product(
            range(case.layers), range(layout.kinds), range(first, stop), range(case.heads)
        ):
            block = blocks[token // case.block_tokens - first // case.block_tokens]
            partition, in_partition = divmod(case.first_head + head, layout.heads)
            held = stacks[layer][kind][block, token % case.block_tokens, head]
            kept = stored[case.first_layer + layer, kind, partition, token, in_partition]
            if direction is Direction.STORE:
                kept[:] = held
            else:
                held[:] = kept
    return allocation, pages


def by(path: ConversionPath, case: Case, direction: Direction, threads: int = 1) -> Result:
    allocation, pages = case.stack_bytes(), case.page_bytes()
    converter = PageConverter(case.stacks(allocation), case.layout, path=path, **case.placement)
    convert = converter.store if direction is Direction.STORE else converter.load
    convert(case.moves(pages), threads=threads)
    return allocation, pages


def by_kernel_source(case: Case, direction: Direction) -> Result:
    """The kernel's source, compiled for the host, thread after thread."""
    module = native()
    assert module is not None
    allocation, pages = case.stack_bytes(), case.page_bytes()
    stacks = case.stacks(allocation)
    converter = PageConverter(stacks, case.layout, path=ConversionPath.CPU, **case.placement)
    batch = checked(case.moves(pages), stacks, case.layout, direction)
    if batch.arrays:
        way = module.Direction.STORE if direction is Direction.STORE else module.Direction.LOAD
        converter._native.as_kernel(way, converter._addresses(batch), batch.tokens, batch.blocks)
    return allocation, pages


def assert_same(found: Result, expected: Result) -> None:
    np.testing.assert_array_equal(found[0], expected[0], "block stacks")
    for index, (page, wanted) in enumerate(zip(found[1], expected[1], strict=True)):
        np.testing.assert_array_equal(page, wanted, f"page {index}")


@pytest.mark.parametrize("direction", Direction)
class TestEveryPathFollowsTheDefinition:
    @given(case=cases())
    @settings(max_examples=40, deadline=None)
    def test_indexing(self, direction: Direction, case: Case) -> None:
        assert_same(by(ConversionPath.COPY, case, direction), by_definition(case, direction))

    @needs_module
    @example(case=STRADDLING)
    @given(case=cases(DIM_INNERMOST))
    @settings(max_examples=100, deadline=None)
    def test_cpu(self, direction: Direction, case: Case) -> None:
        expected = by_definition(case, direction)
        assert_same(by(ConversionPath.CPU, case, direction), expected)
        assert_same(by(ConversionPath.CPU, case, direction, threads=3), expected)

    @needs_module
    @example(case=STRADDLING)
    @given(case=cases(DIM_INNERMOST))
    @settings(max_examples=100, deadline=None)
    def test_kernel_source(self, direction: Direction, case: Case) -> None:
        assert_same(by_kernel_source(case, direction), by_definition(case, direction))


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_what_is_stored_and_loaded_elsewhere_is_what_was_there(case: Case) -> None:
    first, second, pages = case.stack_bytes(), case.stack_bytes() ^ 0xFF, case.page_bytes()
    PageConverter(case.stacks(first), case.layout, **case.placement).store(case.moves(pages))
    PageConverter(case.stacks(second), case.layout, **case.placement).load(case.moves(pages))
    for (start, stop), blocks in zip(case.tokens, case.table, strict=True):
        for token in range(start, stop):
            where = blocks[token // case.block_tokens - start // case.block_tokens], token % case.block_tokens
            for mine, loaded in zip(
                itertools.chain(*case.stacks(first).arrays), itertools.chain(*case.stacks(second).arrays), strict=True
            ):
                np.testing.assert_array_equal(mine[where], loaded[where])


LAYOUT = PageLayout(layers=2, kinds=2, partitions=2, page_tokens=8, heads=2, head_dim=4, item_bytes=2)


def half_floats(blocks: int = 4, block_tokens: int = 4, heads: int = 4) -> list[list[Any]]:
    generator = np.random.default_rng(7)
    return [[generator.random((blocks, block_tokens, heads, 4)).astype(np.float16) for _ in range(2)] for _ in range(2)]


@needs_module
class TestTheKernelIsCutIntoLaunches:
    """By stacks, pages and blocks: each of them more than one launch takes."""

    @staticmethod
    def assert_kernel_follows_the_definition(case: Case) -> None:
        for direction in Direction:
            assert_same(by_kernel_source(case, direction), by_definition(case, direction))

    @staticmethod
    def case(layout: PageLayout, blocks: int, block_tokens: int, pages: int) -> Case:
        each = -(-layout.page_tokens // block_tokens)
        numbers = np.random.default_rng(3).permutation(blocks).tolist()
        return Case(
            *(layout, layout.layers, layout.total_heads, 0, 0, blocks, block_tokens, (0, 1, 2, 3), 0),
            tokens=((0, layout.page_tokens),) * pages,
            table=tuple(tuple(numbers[page * each : (page + 1) * each]) for page in range(pages)),
            seed=1,
        )

    def test_more_layers_than_one_launch(self) -> None:
        self.assert_kernel_follows_the_definition(self.case(PageLayout(130, 2, 1, 4, 1, 2, 2), 4, 4, 1))

    def test_more_pages_than_one_launch(self) -> None:
        self.assert_kernel_follows_the_definition(self.case(PageLayout(1, 1, 1, 2, 1, 2, 2), 300, 2, 300))

    def test_a_page_of_more_blocks_than_one_launch(self) -> None:
        self.assert_kernel_follows_the_definition(self.case(PageLayout(1, 1, 1, 4500, 1, 2, 2), 4500, 1, 1))

    def test_a_run_of_many_pieces(self) -> None:
        self.assert_kernel_follows_the_definition(self.case(PageLayout(1, 2, 1, 16, 4, 75, 4), 2, 16, 1))


def at_offset(array: Bytes, offset: int) -> Bytes:
    """A copy that starts `offset` bytes after a line of the caches."""
    spare = np.empty(array.nbytes + 128, np.uint8)
    moved = spare[-spare.ctypes.data % 64 + offset :][: array.nbytes]
    moved[:] = array
    return moved


@needs_module
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("offset", [0, 16])
@pytest.mark.parametrize(
    "layout",
    [PageLayout(8, 2, 2, 64, 2, 64, 8), PageLayout(4, 2, 1, 32, 8, 75, 4), PageLayout(16, 1, 4, 64, 5, 20, 8)],
    ids=["short-runs-of-whole-lines", "long-runs-of-odd-sizes", "short-runs-of-odd-sizes"],
)
def test_a_call_too_large_for_the_caches_follows_the_definition(
    layout: PageLayout, offset: int, direction: Direction
) -> None:
    case = TestTheKernelIsCutIntoLaunches.case(layout, blocks=8, block_tokens=16, pages=2)
    allocation = at_offset(case.stack_bytes(), offset)
    pages = [at_offset(page, offset) for page in case.page_bytes()]
    converter = PageConverter(case.stacks(allocation), layout)
    (converter.store if direction is Direction.STORE else converter.load)(case.moves(pages), threads=2)
    assert_same((allocation, pages), by_definition(case, direction))


class TestArraysOfTorch:
    def test_bf16_tensors_convert_like_their_bits(self) -> None:
        torch = pytest.importorskip("torch")
        arrays = half_floats()
        tensors = [[torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) for array in row] for row in arrays]
        pages = [np.zeros(LAYOUT.nbytes, np.uint8), torch.zeros(LAYOUT.nbytes // 2, dtype=torch.bfloat16)]
        PageConverter(BlockStacks(arrays), LAYOUT).store([PageMove(pages[0], [3, 1])])
        for path in (None, ConversionPath.COPY):
            pages[1].zero_()
            PageConverter(BlockStacks(tensors), LAYOUT, path=path).store([PageMove(pages[1], [3, 1])])
            np.testing.assert_array_equal(pages[1].view(torch.uint8).numpy(), pages[0])

    def test_a_head_that_two_dimensions_make_up_is_converted_by_indexing(self) -> None:
        torch = pytest.importorskip("torch")
        plain = half_floats()
        # The layout of kernels that keep 16 bytes of a key together: [block, head, dim / x, token, x].
        packed = [
            [
                torch.from_numpy(np.ascontiguousarray(array.reshape(4, 4, 4, 2, 2).transpose(0, 2, 3, 1, 4)))
                for array in row
            ]
            for row in plain
        ]
        converter = PageConverter(BlockStacks([[t.permute(0, 3, 1, 2, 4) for t in row] for row in packed]), LAYOUT)
        assert converter.path is ConversionPath.COPY
        expected, found = np.zeros(LAYOUT.nbytes, np.uint8), np.zeros(LAYOUT.nbytes, np.uint8)
        PageConverter(BlockStacks(plain), LAYOUT).store([PageMove(expected, [2, 0])])
        converter.store([PageMove(found, [2, 0])])
        np.testing.assert_array_equal(found, expected)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


class TestWhatDoesNotFitIsRefused:
    page = np.zeros(LAYOUT.nbytes, np.uint8)

    @pytest.mark.parametrize(
        ("move", "said"),
        [
            (PageMove(page, [0, 4]), "blocks 0 to 4"),
            (PageMove(page, [-1, 1]), "blocks -1 to 1"),
            (PageMove(page, [0]), "2 blocks of 4 tokens, but 1"),
            (PageMove(page, [0, 1], 4, 8), "1 blocks of 4 tokens, but 2"),
            (PageMove(page, [0, 1, 2], 0, 9), "tokens 0:9"),
            (PageMove(page, [0], 3, 2), "tokens 3:2"),
            (PageMove(page[1:], [0, 1]), "is 1024 contiguous bytes, not 1023"),
            (PageMove(np.zeros(2 * LAYOUT.nbytes, np.uint8)[::2], [0, 1]), "contiguous"),
            (PageMove(np.zeros(LAYOUT.nbytes + 1, np.uint8)[1:], [0, 1]), "not a multiple of 2"),
            (PageMove(read_only(np.zeros(LAYOUT.nbytes, np.uint8)), [0, 1]), "read-only"),
        ],
    )
    @pytest.mark.parametrize("path", [None, ConversionPath.COPY])
    def test_moves(self, path: ConversionPath | None, move: PageMove, said: str) -> None:
        stacks = BlockStacks(half_floats())
        converter = PageConverter(stacks, LAYOUT, path=path)
        before = [array.copy() for row in stacks.arrays for array in row]
        good = np.zeros(LAYOUT.nbytes, np.uint8)
        with pytest.raises(ValueError, match=said):
            converter.store([PageMove(good, [0, 1]), move])
        assert not good.any(), "a refused batch wrote a page"
        for array, was in zip((array for row in stacks.arrays for array in row), before, strict=True):
            np.testing.assert_array_equal(array, was)

    def test_read_only_stacks_as_a_target(self) -> None:
        converter = PageConverter(BlockStacks([[read_only(a) for a in row] for row in half_floats()]), LAYOUT)
        with pytest.raises(ValueError, match="read-only"):
            converter.load([PageMove(np.zeros(LAYOUT.nbytes, np.uint8), [0, 1])])

    @pytest.mark.parametrize(("first_layer", "first_head"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
    def test_stacks_outside_the_page(self, first_layer: int, first_head: int) -> None:
        with pytest.raises(ValueError, match="do not lie in a page"):
            PageConverter(BlockStacks(half_floats()), LAYOUT, first_layer=first_layer, first_head=first_head)

    def test_stacks_of_other_elements(self) -> None:
        wide = [[array.astype(np.float32) for array in row] for row in half_floats()]
        with pytest.raises(ValueError, match="bytes of an element"):
            PageConverter(BlockStacks(wide), LAYOUT)

    def test_stacks_that_differ(self) -> None:
        arrays = half_floats()
        arrays[1][1] = arrays[1][1][:3]
        with pytest.raises(ValueError, match="alike"):
            BlockStacks(arrays)

    def test_kernels_for_stacks_on_the_host(self) -> None:
        with pytest.raises(ValueError, match="cannot be converted by"):
            PageConverter(BlockStacks(half_floats()), LAYOUT, path=ConversionPath.KERNEL)

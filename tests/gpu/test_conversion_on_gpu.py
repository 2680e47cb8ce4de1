"""The kernels write what the indexing path writes, in device memory and in pinned host memory, on the given stream."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from memory_manager.devices.cpu import CpuMemory
from memory_manager.devices.cuda import PinnedHost
from memory_manager.layouts import BlockStacks, ConversionPath, Direction, PageConverter, PageLayout, PageMove

from ..cuda.cases import DIM_INNERMOST, Bytes, Case, cases

# The fixture that skips does nothing between examples.
ON_GPU = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
LAYOUT = PageLayout(layers=8, kinds=2, partitions=2, page_tokens=16, heads=2, head_dim=64, item_bytes=2)


def expected(case: Case, direction: Direction) -> tuple[Bytes, list[Bytes]]:
    """On the host, by indexing."""
    allocation, pages = case.stack_bytes(), case.page_bytes()
    converter = PageConverter(case.stacks(allocation), case.layout, path=ConversionPath.COPY, **case.placement)
    (converter.store if direction is Direction.STORE else converter.load)(case.moves(pages))
    return allocation, pages


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("path", [ConversionPath.KERNEL, ConversionPath.COPY])
@given(case=cases(DIM_INNERMOST))
@ON_GPU
def test_kernels_and_torch_agree_with_the_host(direction: Direction, path: ConversionPath, case: Case) -> None:
    import cupy

    allocation = cupy.asarray(case.stack_bytes())
    pages = [cupy.asarray(page) for page in case.page_bytes()]
    converter = PageConverter(case.stacks(allocation), case.layout, path=path, **case.placement)
    (converter.store if direction is Direction.STORE else converter.load)(case.moves(pages))
    cupy.cuda.runtime.deviceSynchronize()
    wanted, wanted_pages = expected(case, direction)
    np.testing.assert_array_equal(cupy.asnumpy(allocation), wanted)
    for page, wanted_page in zip(pages, wanted_pages, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(page), wanted_page)


def random_stacks(xp: Any) -> BlockStacks:
    shape = (LAYOUT.layers, LAYOUT.kinds, 8, LAYOUT.page_tokens, LAYOUT.total_heads, LAYOUT.head_dim)
    values = xp.asarray(np.random.default_rng(5).integers(-(2**15), 2**15, shape, np.int16))
    return BlockStacks([[values[layer, kind] for kind in range(LAYOUT.kinds)] for layer in range(LAYOUT.layers)])


@pytest.mark.parametrize("pinned", [True, False], ids=["kernel-into-pinned", "torch-into-pageable"])
def test_shared_host_pages_are_written_and_read_in_place(pinned: bool) -> None:
    import cupy

    export = CpuMemory().allocate(LAYOUT.nbytes * 2, prefault=True).export()
    passed = replace(export, descriptors=(os.dup(export.descriptors[0]),))
    shared = CpuMemory().import_region(passed, writable=True).view(0, export.nbytes)
    pages = [shared[: LAYOUT.nbytes], shared[LAYOUT.nbytes :]]
    moves = [PageMove(pages[0], [6]), PageMove(pages[1], [1])]
    stacks, target = random_stacks(cupy), random_stacks(cupy)
    for row in target.arrays:
        for array in row:
            array.fill(0)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    pin = PinnedHost(shared.__array_interface__["data"][0], shared.nbytes) if pinned else None
    try:
        PageConverter(stacks, LAYOUT).store(moves, stream=stream.ptr)
        stream.synchronize()
        on_host = np.zeros(LAYOUT.nbytes, np.uint8)
        PageConverter(random_stacks(np), LAYOUT).store([PageMove(on_host, [1])])
        np.testing.assert_array_equal(pages[1], on_host)
        PageConverter(target, LAYOUT).load(moves, stream=stream.ptr)
        stream.synchronize()
    finally:
        if pin is not None:
            pin.close()
    for mine, loaded in zip(stacks.arrays, target.arrays, strict=True):
        for kind in range(LAYOUT.kinds):
            for block in range(8):
                wanted = mine[kind][block] if block in (6, 1) else cupy.zeros_like(mine[kind][block])
                np.testing.assert_array_equal(cupy.asnumpy(loaded[kind][block]), cupy.asnumpy(wanted))


def test_torch_tensors_are_converted_where_they_are() -> None:
    import cupy
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    stacks = random_stacks(cupy)
    tensors = BlockStacks(
        [[torch.as_tensor(array, device="cuda").view(torch.bfloat16) for array in row] for row in stacks.arrays]
    )
    page = torch.zeros(LAYOUT.nbytes, dtype=torch.uint8, device="cuda")
    converter = PageConverter(tensors, LAYOUT)
    assert converter.path is ConversionPath.KERNEL
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    converter.store([PageMove(page, [3])], stream=stream.cuda_stream)
    stream.synchronize()
    on_host = np.zeros(LAYOUT.nbytes, np.uint8)
    PageConverter(random_stacks(np), LAYOUT).store([PageMove(on_host, [3])])
    np.testing.assert_array_equal(page.cpu().numpy(), on_host)


def test_work_queued_before_on_the_stream_is_seen() -> None:
    import cupy

    stacks = random_stacks(cupy)
    stream = cupy.cuda.Stream(non_blocking=True)
    page = cupy.zeros(LAYOUT.nbytes, cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        # Long enough for a conversion that did not wait to read the old values.
        busy = cupy.ones(64 * 1024**2, cupy.float32)
        for _ in range(50):
            cupy.sin(busy, out=busy)
        for row in stacks.arrays:
            for array in row:
                array.fill(17)
    PageConverter(stacks, LAYOUT).store([PageMove(page, [0])], stream=stream.ptr)
    stream.synchronize()
    assert bool((page.view(cupy.int16) == 17).all())

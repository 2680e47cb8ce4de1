"""The stand-in for SGLang's CPU kernels computes what SGLang expects of them."""

from __future__ import annotations

import importlib
import struct
from typing import Any

import pytest
import torch

from omniflow_backend.compute.sglang import environment


@pytest.fixture
def sgl_kernel() -> Any:
    """The package as SGLang imports it: by its own name."""
    environment.prepare()
    return importlib.import_module("sgl_kernel")


def murmur3_32(content: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, for whole 4-byte blocks, after its public definition."""
    state, mask = 0, 0xFFFFFFFF
    for (block,) in struct.iter_unpack("<I", content):
        block = block * 0xCC9E2D51 & mask
        block = (block << 15 | block >> 17) & mask
        state ^= block * 0x1B873593 & mask
        state = (state << 13 | state >> 19) & mask
        state = (state * 5 + 0xE6546B64) & mask
    state ^= len(content)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ state >> shift) * factor & mask
    return state


def test_the_reference_gives_the_published_value() -> None:
    assert murmur3_32(b"test") == 0xBA6BD213


def test_murmur_hash_of_seed_position_and_column(sgl_kernel: Any) -> None:
    seeds, positions, columns = [0, 7, 2**32 + 5, 2**62], [0, 1, 4095, 2**31], list(range(0, 49152, 997))
    hashed = torch.ops.sgl_kernel.murmur_hash32_cpu.default(
        torch.tensor(seeds, dtype=torch.uint64), torch.tensor(positions), torch.tensor(columns)
    )
    assert hashed.dtype is torch.uint32
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        for index, column in enumerate(columns):
            assert int(hashed[row, index]) == murmur3_32(struct.pack("<QII", seed, position, column))


def test_assign_writes_each_requests_slots_into_its_row(sgl_kernel: Any) -> None:
    rows = torch.zeros(3, 6, dtype=torch.int32)
    sgl_kernel.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]), rows, torch.tensor([1, 0]), torch.tensor([3, 2]), torch.tensor([10, 11, 12, 13]), 6
    )
    assert rows.tolist() == [[12, 13, 0, 0, 0, 0], [0] * 6, [0, 10, 11, 0, 0, 0]]


def test_copy_moves_slots_of_every_buffer_even_when_they_overlap(sgl_kernel: Any) -> None:
    buffers = [torch.arange(12, dtype=torch.float32).view(6, 2), torch.arange(6, dtype=torch.int64).view(6, 1)]
    expected = [buffer.clone() for buffer in buffers]
    source, target = torch.tensor([1, 2]), torch.tensor([2, 3])
    for buffer in expected:
        buffer[target] = buffer[source].clone()
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([buffer.data_ptr() for buffer in buffers]),
        torch.tensor([buffer.stride(0) * buffer.element_size() for buffer in buffers]),
        target,
        source,
    )
    assert all(torch.equal(buffer, wanted) for buffer, wanted in zip(buffers, expected, strict=True))


def test_speculative_decoding_says_that_it_is_missing(sgl_kernel: Any) -> None:
    with pytest.raises(NotImplementedError, match="verify_tree_greedy_cpu"):
        sgl_kernel.verify_tree_greedy_cpu()

"""The part of SGLang's kernel package that its CPU path needs and that PyPI has no build of.

Used only where the real package is not installed. The functions below do what their names say, in PyTorch; none
replaces a compute kernel of the model: without AMX, SGLang itself runs its native PyTorch layers. What belongs to
speculative decoding is not offered.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NoReturn

import torch

_MASK = 0xFFFFFFFF


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new slots into its row: ``req_to_token[row, start:end] = next slots`` (int32, in place)."""
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots ``src_loc`` to slots ``tgt_loc`` in every buffer, given by its address and its bytes per slot."""
    pairs = list(zip(src_loc.tolist(), tgt_loc.tolist(), strict=True))
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        saved = [ctypes.string_at(address + source * stride, stride) for source, _ in pairs]
        for (_, target), content in zip(pairs, saved, strict=True):
            ctypes.memmove(address + target * stride, content, stride)


def _rotate(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _mix(state: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    block = _rotate((block * 0xCC9E2D51) & _MASK, 15)
    block = (block * 0x1B873593) & _MASK
    return (_rotate(state ^ block, 13) * 5 + 0xE6546B64) & _MASK


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, col_indices: torch.Tensor) -> torch.Tensor:
    """MurmurHash3 (32 bit) of (seed low, seed high, position, column), as uint32 ``[len(seed), len(col_indices)]``.

    Products of two 32-bit numbers wrap in int64; their low 32 bits, all that is kept, are exact.
    """
    seed = seed.to(torch.int64).view(-1, 1)
    state = _mix(torch.zeros_like(seed), seed & _MASK)
    state = _mix(state, (seed >> 32) & _MASK)
    state = _mix(state, positions.to(torch.int64).view(-1, 1) & _MASK)
    state = _mix(state, col_indices.to(torch.int64).view(1, -1) & _MASK)
    state = state ^ 16
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _MASK
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _MASK
    return (state ^ (state >> 16)).to(torch.uint32)


def _not_offered(name: str) -> Callable[..., NoReturn]:
    def missing(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} belongs to speculative decoding, which has no CPU build here")

    return missing


rotate_input_ids_cpu = _not_offered("rotate_input_ids_cpu")
fill_accept_out_cache_loc_cpu = _not_offered("fill_accept_out_cache_loc_cpu")
fill_bonus_tokens_cpu = _not_offered("fill_bonus_tokens_cpu")
assign_draft_cache_locs_contiguous_cpu = _not_offered("assign_draft_cache_locs_contiguous_cpu")
assign_extend_cache_locs_cpu = _not_offered("assign_extend_cache_locs_cpu")
build_tree_kernel_efficient_cpu = _not_offered("build_tree_kernel_efficient_cpu")
verify_tree_greedy_cpu = _not_offered("verify_tree_greedy_cpu")

_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define("murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor")
_library.impl("murmur_hash32_cpu", murmur_hash32, "CPU")

"""Conversion by indexing, for layouts that the compiled module does not know and where it is not built.

Shares no arithmetic with the compiled module, so that tests of one against the other mean something.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from memory_manager.layouts.arrays import is_torch, strided
from memory_manager.layouts.moves import Batch, Direction
from memory_manager.layouts.page import PageLayout
from memory_manager.layouts.stacks import BlockStacks


def copy_pages(
    stacks: BlockStacks,
    layout: PageLayout,
    first_layer: int,
    first_head: int,
    batch: Batch,
    direction: Direction,
    stream: int,
) -> None:
    """Copy slice by slice: on the host in numpy, on a GPU in torch, there queued on `stream` where torch can."""
    lift: Callable[[Any, int], Any] = _on_host if stacks.gpu is None else _Torch()
    with nullcontext() if stacks.gpu is None else _on_stream(stacks.gpu, stream):
        computed = [[lift(array, layout.item_bytes) for array in layer] for layer in stacks.arrays]
        shape = (*layout.shape[:-1], *stacks.dims)
        start = 0
        for array, (first, stop) in zip(batch.arrays, batch.tokens.reshape(-1, 2).tolist(), strict=True):
            page = lift(_flat(array, layout.nbytes), layout.item_bytes).reshape(shape)
            pieces = list(_token_pieces(first, stop, stacks.block_tokens))
            blocks = batch.blocks[start : start + len(pieces)].tolist()
            start += len(pieces)
            for (in_page, in_block), block in zip(pieces, blocks, strict=True):
                for partition, in_partition, in_stack in _head_pieces(first_head, stacks.heads, layout.heads):
                    for layer, kind in itertools.product(range(stacks.layers), range(stacks.kinds)):
                        stored = page[first_layer + layer, kind, partition, in_page, in_partition]
                        held = computed[layer][kind][block, in_block, in_stack]
                        if direction is Direction.STORE:
                            stored[...] = held
                        else:
                            held[...] = stored


def _token_pieces(first: int, stop: int, block_tokens: int) -> Iterator[tuple[slice, slice]]:
    """Tokens of each block: in the page, in the block."""
    while first < stop:
        offset = first % block_tokens
        count = min(stop - first, block_tokens - offset)
        yield slice(first, first + count), slice(offset, offset + count)
        first += count


def _head_pieces(first: int, heads: int, partition_heads: int) -> Iterator[tuple[int, slice, slice]]:
    """Heads of each partition: its number, in the partition, in the stacks."""
    done = 0
    while done < heads:
        partition, offset = divmod(first + done, partition_heads)
        count = min(heads - done, partition_heads - offset)
        yield partition, slice(offset, offset + count), slice(done, done + count)
        done += count


def _flat(page: Any, nbytes: int) -> Any:
    """The first bytes of a page, one-dimensional."""
    if is_torch(page):
        import torch

        return page.detach().reshape(-1).view(torch.uint8)[:nbytes]
    return page.reshape(-1).view(np.uint8)[:nbytes]


def _on_host(array: Any, item_bytes: int) -> np.ndarray[Any, Any]:
    """A numpy view with integer elements."""
    if is_torch(array):
        import torch

        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return array.detach().view(integers[item_bytes]).numpy()
    view: np.ndarray[Any, Any] = array.view(np.uint8 if item_bytes == 1 else f"i{item_bytes}")
    return view


class _Torch:
    """Makes torch views with integer elements, of arrays on any GPU and on the host."""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError as error:
            raise ImportError(
                "without the CUDA kernels (cuda/build.py), pages on a GPU are converted by torch"
            ) from error
        self._torch = torch

    def __call__(self, array: Any, item_bytes: int) -> Any:
        torch = self._torch
        place = strided(array)
        if not is_torch(array):
            if place.gpu is None:
                # torch warns about a read-only array, even where it will only be read.
                array = torch.from_numpy(
                    np.ctypeslib.as_array((ctypes.c_uint8 * place.nbytes).from_address(place.address))
                )
            else:
                signed = array.view(np.uint8 if array.itemsize == 1 else f"i{array.itemsize}")
                array = torch.as_tensor(signed, device=f"cuda:{place.gpu}")
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return array.detach().view(integers[item_bytes])


def _on_stream(gpu: int, stream: int) -> AbstractContextManager[Any]:
    import torch

    device = torch.device("cuda", gpu)
    chosen = torch.cuda.ExternalStream(stream, device) if stream else torch.cuda.default_stream(device)
    context: AbstractContextManager[Any] = torch.cuda.stream(chosen)
    return context

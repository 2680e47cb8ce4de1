"""The compiled conversion (cuda/bindings.cpp). Addresses are checked by who calls it, not here."""

from typing import Any

import numpy as np

_Int64s = np.ndarray[Any, np.dtype[np.int64]]
_Int32s = np.ndarray[Any, np.dtype[np.int32]]

HAS_KERNELS: bool

class Direction:
    STORE: Direction
    LOAD: Direction

def device_count() -> int: ...
def device_address(address: int) -> int:
    """Through which address kernels reach it; 0 for memory that CUDA does not know."""

class Conversion:
    def __init__(
        self,
        *,
        stacks: _Int64s,
        layers: int,
        kinds: int,
        heads: int,
        first_head: int,
        head_bytes: int,
        block_tokens: int,
        stack_strides: _Int64s,
        partition_heads: int,
        page_strides: _Int64s,
    ) -> None: ...
    def on_host(self, direction: Direction, pages: _Int64s, tokens: _Int32s, blocks: _Int32s, threads: int) -> None: ...
    def on_device(
        self, direction: Direction, pages: _Int64s, tokens: _Int32s, blocks: _Int32s, device: int, stream: int
    ) -> None:
        """Queue the copies and return."""

    def as_kernel(self, direction: Direction, pages: _Int64s, tokens: _Int32s, blocks: _Int32s) -> None:
        """The kernel's threads, one after another on the host."""

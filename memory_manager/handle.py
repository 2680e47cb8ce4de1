"""The name of a tensor in the MemoryManager's memory: plain data that any process may pass on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from memory_manager.errors import InvalidHandle

MAX_DIMENSIONS = 32
_MAX_INTEGER = 2**63 - 1
_PLAIN_KINDS = "biufc"


def plain_dtype(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype of `dtype` if its elements are plain bytes (bool, integer, float, complex).

    Raises:
        InvalidHandle: for object, string, structured and unknown dtypes.
    """
    try:
        found = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise InvalidHandle(f"{dtype!r} is not a dtype") from error
    if found.kind not in _PLAIN_KINDS or found.subdtype is not None:
        raise InvalidHandle(f"dtype {found} cannot be shared; use a bool, integer, float or complex dtype")
    return found


@dataclass(frozen=True, slots=True)
class TensorHandle:
    """Names one C-contiguous tensor inside a block.

    `generation` is the serial number of the block and never names another one in the same `incarnation` (one run of
    the manager), so that a handle outliving its block is refused instead of showing somebody else's bytes. `offset` may
    lie inside the block: see `rows`.
    """

    incarnation: int
    pool: int
    offset: int
    nbytes: int
    generation: int
    dtype: str
    shape: tuple[int, ...]

    def to_wire(self) -> list[Any]:
        """The handle as a list of integers, one string and one list of integers."""
        return [
            self.incarnation,
            self.pool,
            self.offset,
            self.nbytes,
            self.generation,
            self.dtype,
            list(self.shape),
        ]

    @classmethod
    def from_wire(cls, wire: Any) -> TensorHandle:
        """The handle that `to_wire` described.

        Raises:
            InvalidHandle: if `wire` is anything else, or contradicts itself.
        """
        if not isinstance(wire, (list, tuple)) or len(wire) != 7:
            raise InvalidHandle(f"a tensor handle is a list of 7 fields, not {type(wire).__name__}")
        incarnation, pool, offset, nbytes, generation, dtype, shape = wire
        if not all(_is_count(number) for number in wire[:5]):
            raise InvalidHandle(f"a tensor handle starts with 5 non-negative integers, not {wire[:5]!r}")
        if not isinstance(dtype, str) or not isinstance(shape, (list, tuple)) or len(shape) > MAX_DIMENSIONS:
            raise InvalidHandle("a tensor handle ends with a dtype name and a list of dimensions")
        if not all(_is_count(dimension) for dimension in shape):
            raise InvalidHandle(f"dimensions are non-negative integers, not {shape!r}")
        handle = cls(incarnation, pool, offset, nbytes, generation, dtype, tuple(shape))
        expected = math.prod(handle.shape) * plain_dtype(dtype).itemsize
        if expected != handle.nbytes:
            raise InvalidHandle(f"{dtype} {handle.shape} takes {expected} bytes, but the handle says {handle.nbytes}")
        return handle

    def rows(self, start: int, stop: int) -> TensorHandle:
        """The handle of `tensor[start:stop]`, in the same bytes.

        Raises:
            InvalidHandle: unless `0 <= start <= stop <= shape[0]`.
        """
        if not self.shape or not 0 <= start <= stop <= self.shape[0]:
            raise InvalidHandle(f"rows {start}:{stop} do not lie in a tensor of shape {self.shape}")
        row = math.prod(self.shape[1:]) * plain_dtype(self.dtype).itemsize
        return replace(
            self,
            offset=self.offset + start * row,
            nbytes=(stop - start) * row,
            shape=(stop - start, *self.shape[1:]),
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_INTEGER

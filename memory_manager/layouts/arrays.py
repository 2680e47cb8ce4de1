"""Arrays of numpy, torch and CuPy seen as an address, sizes and strides. Imports none of the last two."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np


class Strided(NamedTuple):
    """Where an array's elements lie. `strides` are in bytes; `gpu` is the ordinal of its GPU, `None` on the host."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_bytes: int
    gpu: int | None
    writable: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = self.item_bytes
        for size in self.shape:
            count *= size
        return count

    def contiguous_from(self, axis: int) -> bool:
        """Whether the dimensions from `axis` on lie in C order without gaps."""
        expected = self.item_bytes
        for size, stride in zip(reversed(self.shape[axis:]), reversed(self.strides[axis:]), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


def strided(array: Any) -> Strided:
    """How `array` lies in memory.

    Raises:
        TypeError: if it is no array of numpy, torch or CuPy, or on neither the host nor a CUDA device.
    """
    if isinstance(array, np.ndarray):
        return Strided(
            array.__array_interface__["data"][0],
            array.shape,
            array.strides,
            array.itemsize,
            None,
            array.flags.writeable,
        )
    if is_torch(array):
        item = array.element_size()
        if array.device.type not in ("cpu", "cuda"):
            raise TypeError(f"a tensor on {array.device} cannot be converted; it must be on the host or a CUDA device")
        gpu = array.device.index if array.device.type == "cuda" else None
        strides = tuple(stride * item for stride in array.stride())
        return Strided(array.data_ptr(), tuple(array.shape), strides, item, gpu, True)
    if type(array).__module__.partition(".")[0] == "cupy":
        return Strided(array.data.ptr, array.shape, array.strides, array.itemsize, array.device.id, True)
    raise TypeError(f"an array of numpy, torch or CuPy is needed, not {type(array).__name__}")


def is_torch(array: Any) -> bool:
    """Whether `array` is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)

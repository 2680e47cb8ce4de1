"""Arrays over the manager's memory, on the client's side, and how long what they show is held."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from memory_manager.handle import TensorHandle

Array = np.ndarray[Any, Any]


class LeaseHold:
    """Lets a lease go exactly when none of the arrays made under it, nor any view of them, is alive any more."""

    def __init__(self, arrays: int, let_go: Callable[[], object]) -> None:
        self._tokens = [None] * arrays
        self._let_go = let_go

    def watch(self, root: Array) -> None:
        """`root` shows bytes of the lease. It must be the array that all others of these bytes are views of."""
        weakref.finalize(root, self._gone).atexit = False

    def _gone(self) -> None:
        self._tokens.pop()
        # Two threads may both come here last; letting go twice does no harm.
        if not self._tokens:
            self._let_go()


def shaped(root: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """The bytes of `root` as that dtype and shape, without a copy."""
    return root.view(np.dtype(dtype)).reshape(shape)


class OpenTensors:
    """Read-only arrays over shared memory, as a context manager or through `arrays` and `close`.

    Closing drops the arrays. The blocks are let go as soon as no array of them is left anywhere: usually at once, but
    an array that somebody kept stays valid (and keeps its block) until it is collected. It never shows other data.
    """

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays

    def __enter__(self) -> list[Array]:
        return self.arrays

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Drop the arrays. May be called again, from any thread; never blocks."""
        self.arrays.clear()


class WritableTensor:
    """A tensor in shared memory that its producer is writing: fill `array`, then `seal` it.

    Left unsealed (dropped, or its process dies) it is taken back, as if it had never been.
    """

    def __init__(self, array: Array, handle: TensorHandle, seal: Callable[[], object]) -> None:
        self._array: Array | None = array
        self._handle = handle
        self._seal = seal

    @property
    def array(self) -> Array:
        """The tensor, writable.

        Raises:
            ValueError: after `seal`.
        """
        if self._array is None:
            raise ValueError("the tensor is sealed; open its handle to read it")
        return self._array

    def seal(self) -> TensorHandle:
        """The handle. Nobody may write into the tensor after this. May be called again."""
        if self._array is not None:
            self._array.flags.writeable = False
            self._seal()
            self._array = None
        return self._handle


def copy_into(roots: Sequence[Array], arrays: Sequence[Array]) -> None:
    """The elements of each array, in C order, into the bytes of each root."""
    for root, array in zip(roots, arrays, strict=True):
        np.copyto(shaped(root, array.dtype.str, array.shape), array, casting="no")

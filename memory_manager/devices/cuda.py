"""GPU memory: allocations of one process, mapped by others through CUDA IPC. Needs CuPy (the extra `gpu`).

Where it differs from host memory, because CUDA does:

* A mapping cannot be read-only: `writable=False` is a promise of the importer, nothing enforces it.
* Nothing orders the work of two processes: a producer synchronizes its stream before it passes a tensor on.
* A region must not be closed while another process has it mapped (CUDA leaves that undefined). Close regions when the
  clients that mapped them have gone; a process that dies, on either side, is cleaned up by the driver.
"""

from __future__ import annotations

import os
import weakref
from types import ModuleType, TracebackType
from typing import Any

from memory_manager.devices.memory import Export

PREFIX = "cuda:"
# CUDA may put small allocations of a process side by side into one chunk of this size, and IPC exports whole chunks.
CHUNK_BYTES = 2 * 1024**2
_HANDLE_BYTES = 64
_OUT_OF_MEMORY = 2
_PORTABLE_AND_MAPPED = 1 | 2


def _cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise ImportError("GPU memory needs CuPy: pip install 'omniflow[gpu]'") from error
    module: ModuleType = cupy
    return module


class CudaRegion:
    """One allocation of this process."""

    def __init__(self, cupy: ModuleType, ordinal: int, device: str, nbytes: int) -> None:
        self._cupy = cupy
        self._ordinal = ordinal
        self._device = device
        self._nbytes = nbytes
        with cupy.cuda.Device(ordinal):
            try:
                self._pointer: int = cupy.cuda.runtime.malloc(-(-max(nbytes, 1) // CHUNK_BYTES) * CHUNK_BYTES)
            except cupy.cuda.runtime.CUDARuntimeError as error:
                if error.status != _OUT_OF_MEMORY:
                    raise
                free, total = cupy.cuda.runtime.memGetInfo()
                raise MemoryError(
                    f"{device} has {free} of {total} bytes left, {nbytes} are wanted in one piece"
                ) from error
            try:
                self._handle = bytes(cupy.cuda.runtime.ipcGetMemHandle(self._pointer))
            except BaseException:
                cupy.cuda.runtime.free(self._pointer)
                raise

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def pointer(self) -> int:
        """The address in this process; 0 once closed."""
        return self._pointer

    def export(self) -> Export:
        return Export(self._device, self._nbytes, payload=self._handle)

    def close(self) -> None:
        if self._pointer:
            with self._cupy.cuda.Device(self._ordinal):
                self._cupy.cuda.runtime.free(self._pointer)
            self._pointer = 0


class CudaMapping:
    """Bytes on a GPU that `owner` keeps alive."""

    def __init__(self, cupy: ModuleType, ordinal: int, pointer: int, nbytes: int) -> None:
        self._cupy = cupy
        self._ordinal = ordinal
        self._pointer = pointer
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def view(self, offset: int, nbytes: int) -> Any:
        """A `cupy.ndarray`; `torch.as_tensor(view)` shows the same bytes."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self._nbytes:
            raise ValueError(f"bytes {offset}:{offset + nbytes} do not lie in a region of {self._nbytes} bytes")
        memory = self._cupy.cuda.UnownedMemory(self._pointer + offset, nbytes, self, self._ordinal)
        return self._cupy.ndarray((nbytes,), self._cupy.uint8, self._cupy.cuda.MemoryPointer(memory, 0))


class CudaMemory:
    """`DeviceMemory` of one GPU.

    Args:
        ordinal: which of the GPUs that this process sees. Exports name the GPU by its PCI bus id instead, which is the
            same in every process, whatever `CUDA_VISIBLE_DEVICES` says there.

    Raises:
        ImportError: without CuPy.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self._cupy = _cupy()
        self._ordinal = ordinal
        self._device = PREFIX + self._cupy.cuda.runtime.deviceGetPCIBusId(ordinal).lower()
        # CUDA refuses to open a handle in the process that made it.
        self._own: weakref.WeakValueDictionary[bytes, CudaRegion] = weakref.WeakValueDictionary()

    @classmethod
    def named(cls, device: str) -> CudaMemory:
        """The GPU that an export names.

        Raises:
            ValueError: if it is not a GPU, or not one that this process sees.
        """
        if not device.startswith(PREFIX):
            raise ValueError(f"{device!r} is not a GPU")
        cupy = _cupy()
        try:
            ordinal = cupy.cuda.runtime.deviceGetByPCIBusId(device.removeprefix(PREFIX))
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise ValueError(f"this process sees no GPU {device!r} ({error}); check CUDA_VISIBLE_DEVICES") from error
        return cls(ordinal)

    @property
    def device(self) -> str:
        return self._device

    def allocate(self, nbytes: int, prefault: bool) -> CudaRegion:
        """New memory; on a GPU it is always resident, whatever `prefault` says."""
        region = CudaRegion(self._cupy, self._ordinal, self._device, nbytes)
        self._own[region.export().payload] = region
        return region

    def import_region(self, export: Export, writable: bool) -> CudaMapping:
        """Map what another process exported.

        Raises:
            ValueError: if the export is not of this GPU.
            OSError: if CUDA cannot map it; the process that exported it may have gone.
        """
        for descriptor in export.descriptors:
            os.close(descriptor)
        if export.device != self._device or len(export.payload) != _HANDLE_BYTES:
            raise ValueError(
                f"not memory of {self._device}: device {export.device!r}, a handle of {len(export.payload)} bytes"
            )
        own = self._own.get(export.payload)
        if own is not None and own.pointer:
            return CudaMapping(self._cupy, self._ordinal, own.pointer, export.nbytes)
        with self._cupy.cuda.Device(self._ordinal):
            try:
                pointer = self._cupy.cuda.runtime.ipcOpenMemHandle(export.payload)
            except self._cupy.cuda.runtime.CUDARuntimeError as error:
                raise OSError(f"{export.nbytes} bytes of {export.device} cannot be mapped: {error}") from error
        mapping = CudaMapping(self._cupy, self._ordinal, pointer, export.nbytes)
        # Views keep the mapping, and so the bytes. At exit the driver unmaps; CUDA may be gone before Python is.
        weakref.finalize(mapping, _unmap, self._cupy, self._ordinal, pointer).atexit = False
        return mapping


class PinnedHost:
    """Host memory that kernels reach, as a context manager: pages on the host can be the target of a conversion.

    Args:
        address: where it starts; the mapping must be writable.
        nbytes: its size.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        self._runtime = _cupy().cuda.runtime
        self._address = address
        self._runtime.hostRegister(address, nbytes, _PORTABLE_AND_MAPPED)

    def __enter__(self) -> PinnedHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kernels reach it no longer; what they do with it must have ended. May be called again."""
        if self._address:
            self._runtime.hostUnregister(self._address)
            self._address = 0


def _unmap(cupy: ModuleType, ordinal: int, pointer: int) -> None:
    with cupy.cuda.Device(ordinal):
        cupy.cuda.runtime.ipcCloseMemHandle(pointer)

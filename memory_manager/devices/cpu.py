"""Host memory: sealed memfds. The kernel frees them with their last map, so that no crash leaves anything behind."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from memory_manager.devices.memory import Export

DEVICE = "cpu"
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def available_bytes() -> int:
    """Memory that the host can still give without swapping."""
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


class CpuRegion:
    """A memfd of fixed size and its descriptor."""

    def __init__(self, nbytes: int, prefault: bool) -> None:
        # Memfds have no limit of their own: asking for too much would end in the kernel killing some process.
        if nbytes > (available := available_bytes()):
            raise MemoryError(f"the host has {available} bytes of memory left, {nbytes} are wanted")
        descriptor = os.memfd_create("omniflow-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, nbytes)
            # Reserves every page now: a lack of memory is an error here instead of SIGBUS in a client later.
            os.posix_fallocate(descriptor, 0, nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            populate = mmap.MAP_POPULATE if prefault else 0
            self._map = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | populate)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"the host has no {nbytes} bytes of shared memory: {error}") from error
        self._descriptor = descriptor
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def export(self) -> Export:
        return Export(DEVICE, self._nbytes, descriptors=(self._descriptor,))

    def close(self) -> None:
        # Frees the pages even while clients that have not noticed yet keep the memfd mapped.
        self._map.madvise(mmap.MADV_REMOVE)
        self._map.close()
        os.close(self._descriptor)


class CpuMapping:
    """A memfd of another process. Pages are touched on first use, outside the interpreter lock, not here."""

    def __init__(self, descriptor: int, nbytes: int, writable: bool) -> None:
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED, prot=protection)
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def view(self, offset: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if offset < 0 or nbytes < 0 or offset + nbytes > self._nbytes:
            raise ValueError(f"bytes {offset}:{offset + nbytes} do not lie in a region of {self._nbytes} bytes")
        return np.frombuffer(self._map, dtype=np.uint8, count=nbytes, offset=offset)


class CpuMemory:
    """`DeviceMemory` of the host."""

    @property
    def device(self) -> str:
        return DEVICE

    def allocate(self, nbytes: int, prefault: bool) -> CpuRegion:
        return CpuRegion(nbytes, prefault)

    def import_region(self, export: Export, writable: bool) -> CpuMapping:
        try:
            if export.device != DEVICE or len(export.descriptors) != 1:
                raise ValueError(f"not host memory: device {export.device!r}, {len(export.descriptors)} descriptors")
            return CpuMapping(export.descriptors[0], export.nbytes, writable)
        finally:
            for descriptor in export.descriptors:
                os.close(descriptor)

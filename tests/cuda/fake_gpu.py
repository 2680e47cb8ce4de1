"""A stand-in for CuPy over two GPUs and several processes: what CUDA promises about allocations and IPC handles."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

BUS_IDS = ("0000:3B:00.0", "0000:86:00.0")


class CudaError(RuntimeError):
    def __init__(self, status: int, name: str) -> None:
        super().__init__(name)
        self.status = status


@dataclass
class Machine:
    """The GPUs of one machine. `capacity` bytes can be allocated on each."""

    capacity: int = 64 * 1024**2
    allocations: dict[int, np.ndarray[Any, Any]] = field(default_factory=dict)
    exporters: dict[bytes, tuple[Process, int]] = field(default_factory=dict)
    pointers: Any = field(default_factory=lambda: itertools.count(0x7F00_0000_0000, 0x1000_0000))


class Process:
    """CuPy in one process; `visible` lists the GPUs that it sees. Has the attributes of the module that are used."""

    uint8 = np.uint8

    def __init__(self, machine: Machine, visible: tuple[int, ...] = (0, 1)) -> None:
        self.machine = machine
        self.visible = visible
        self.opened: dict[int, int] = {}
        self.cuda = self
        self.runtime = self
        self.CUDARuntimeError = CudaError
        self.current = 0

    @contextmanager
    def Device(self, ordinal: int) -> Any:
        previous, self.current = self.current, ordinal
        yield
        self.current = previous

    def deviceGetPCIBusId(self, ordinal: int) -> str:
        return BUS_IDS[self.visible[ordinal]]

    def deviceGetByPCIBusId(self, bus_id: str) -> int:
        for ordinal, gpu in enumerate(self.visible):
            if BUS_IDS[gpu].lower() == bus_id.lower():
                return ordinal
        raise CudaError(101, "cudaErrorInvalidDevice")

    def memGetInfo(self) -> tuple[int, int]:
        used = sum(array.nbytes for array in self.machine.allocations.values())
        return self.machine.capacity - used, self.machine.capacity

    def malloc(self, nbytes: int) -> int:
        if nbytes > self.memGetInfo()[0]:
            raise CudaError(2, "cudaErrorMemoryAllocation")
        pointer = next(self.machine.pointers)
        self.machine.allocations[pointer] = np.zeros(nbytes, np.uint8)
        return int(pointer)

    def free(self, pointer: int) -> None:
        del self.machine.allocations[pointer]

    def ipcGetMemHandle(self, pointer: int) -> bytes:
        handle = pointer.to_bytes(8, "little") * 8
        self.machine.exporters[handle] = (self, pointer)
        return handle

    def ipcOpenMemHandle(self, handle: bytes) -> int:
        process, pointer = self.machine.exporters.get(handle, (None, 0))
        if process is self:
            raise CudaError(201, "cudaErrorDeviceUninitialized")
        if pointer not in self.machine.allocations:
            raise CudaError(1, "cudaErrorInvalidValue")
        self.opened[pointer] = self.opened.get(pointer, 0) + 1
        return pointer

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self.opened[pointer] -= 1

    def UnownedMemory(self, pointer: int, nbytes: int, owner: object, ordinal: int) -> Any:
        return pointer, nbytes, owner

    def MemoryPointer(self, memory: Any, offset: int) -> Any:
        return memory

    def ndarray(self, shape: tuple[int, ...], dtype: Any, memory: Any) -> Any:
        return View(self.machine, *memory)


class View:
    """The bytes that a `cupy.ndarray` shows; it keeps `owner`, as CuPy does."""

    def __init__(self, machine: Machine, pointer: int, nbytes: int, owner: object) -> None:
        base = max(start for start in machine.allocations if start <= pointer)
        self.bytes = machine.allocations[base][pointer - base : pointer - base + nbytes]
        self.owner = owner

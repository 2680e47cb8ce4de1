"""GPU memory behind `DeviceMemory`, against a stand-in for CuPy; tests/gpu has the same on a real GPU."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import replace

import pytest

from memory_manager.devices.cuda import CHUNK_BYTES, CudaMemory

from .fake_gpu import Machine, Process


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def memory_of(monkeypatch: pytest.MonkeyPatch) -> object:
    def make(process: Process, ordinal: int = 0) -> CudaMemory:
        monkeypatch.setitem(sys.modules, "cupy", process)
        return CudaMemory(ordinal)

    return make


def test_another_process_sees_the_same_bytes(machine: Machine, memory_of: type[CudaMemory]) -> None:
    owner, user = memory_of(Process(machine)), memory_of(Process(machine))
    region = owner.allocate(4096, prefault=True)
    writer, reader = owner.import_region(region.export(), True), user.import_region(region.export(), False)
    writer.view(64, 3).bytes[:] = [1, 2, 3]
    assert reader.view(65, 2).bytes.tolist() == [2, 3]


def test_a_gpu_is_the_same_whatever_number_a_process_gives_it(machine: Machine, memory_of: type[CudaMemory]) -> None:
    owner, user = memory_of(Process(machine), 1), memory_of(Process(machine, visible=(1,)), 0)
    export = owner.allocate(8, prefault=True).export()
    assert user.device == owner.device
    assert user.import_region(export, False).nbytes == 8
    assert CudaMemory.named(export.device).device == owner.device


def test_memory_of_another_gpu_is_refused(machine: Machine, memory_of: type[CudaMemory]) -> None:
    owner, user = memory_of(Process(machine), 0), memory_of(Process(machine), 1)
    with pytest.raises(ValueError, match=r"not memory of cuda:0000:86:00\.0"):
        user.import_region(owner.allocate(8, prefault=True).export(), False)


def test_a_gpu_that_this_process_does_not_see_is_refused(machine: Machine, memory_of: type[CudaMemory]) -> None:
    memory_of(Process(machine, visible=(0,)))
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        CudaMemory.named("cuda:0000:86:00.0")
    with pytest.raises(ValueError, match="not a GPU"):
        CudaMemory.named("cpu")


def test_no_allocation_shares_a_chunk_with_an_exported_one(machine: Machine, memory_of: type[CudaMemory]) -> None:
    memory = memory_of(Process(machine))
    kept = [memory.allocate(nbytes, prefault=True) for nbytes in (0, 1, CHUNK_BYTES, CHUNK_BYTES + 1)]
    sizes = [machine.allocations[region.pointer].nbytes // CHUNK_BYTES for region in kept]
    assert sizes == [1, 1, 1, 2]


def test_more_than_the_gpu_has_is_a_memory_error(machine: Machine, memory_of: type[CudaMemory]) -> None:
    with pytest.raises(MemoryError, match=f"{machine.capacity} of {machine.capacity} bytes left"):
        memory_of(Process(machine)).allocate(machine.capacity + 1, prefault=True)


def test_an_export_whose_process_is_gone_cannot_be_mapped(machine: Machine, memory_of: type[CudaMemory]) -> None:
    owner, user = memory_of(Process(machine)), memory_of(Process(machine))
    region = owner.allocate(8, prefault=True)
    export = region.export()
    region.close()
    region.close()
    assert not machine.allocations
    for memory in (owner, user):
        with pytest.raises(OSError, match="cannot be mapped"):
            memory.import_region(export, False)


def test_a_mapping_lasts_as_long_as_a_view_of_it(machine: Machine, memory_of: type[CudaMemory]) -> None:
    process = Process(machine)
    region = memory_of(Process(machine)).allocate(8, prefault=True)
    view = memory_of(process).import_region(region.export(), False).view(0, 8)
    gc.collect()
    assert process.opened == {region.pointer: 1}
    del view
    gc.collect()
    assert process.opened == {region.pointer: 0}


def test_a_view_outside_the_region_is_refused(machine: Machine, memory_of: type[CudaMemory]) -> None:
    memory = memory_of(Process(machine))
    region = memory.allocate(8, prefault=True)
    mapping = memory.import_region(region.export(), True)
    for offset, nbytes in ((0, 9), (-1, 1), (8, 1), (0, -1)):
        with pytest.raises(ValueError, match="do not lie in a region of 8 bytes"):
            mapping.view(offset, nbytes)


def test_descriptors_that_come_with_a_wrong_export_are_closed(machine: Machine, memory_of: type[CudaMemory]) -> None:
    memory = memory_of(Process(machine))
    region = memory.allocate(8, prefault=True)
    reading, writing = os.pipe()
    with pytest.raises(ValueError, match="not memory of"):
        memory.import_region(replace(region.export(), device="cpu", descriptors=(writing,)), False)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"omniflow\[gpu\]"):
        CudaMemory()

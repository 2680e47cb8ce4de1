"""GPU memory of one process, mapped by another through CUDA IPC."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory_manager.devices.cuda import CudaMemory, CudaRegion

pytestmark = pytest.mark.timeout(120)

NBYTES = 3 * 1024**2
OTHER = Path(__file__).parent / "ipc_process.py"


@pytest.fixture
def memory(gpu: None) -> CudaMemory:
    return CudaMemory()


@pytest.fixture
def region(memory: CudaMemory) -> Iterator[CudaRegion]:
    region = memory.allocate(NBYTES, prefault=True)
    yield region
    region.close()


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, str(OTHER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    yield process
    process.kill()
    process.communicate(timeout=30)


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wire(region: CudaRegion) -> str:
    export = region.export()
    return json.dumps({"device": export.device, "nbytes": export.nbytes, "payload": export.payload.hex()})


def test_two_processes_share_the_bytes(memory: CudaMemory, region: CudaRegion, other: subprocess.Popen[str]) -> None:
    import cupy

    view = memory.import_region(region.export(), writable=True).view(0, NBYTES)
    view[:8] = cupy.arange(8, dtype=cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    tell(other, wire(region))
    assert json.loads(heard(other)) == list(range(8))
    assert heard(other) == "written"
    assert cupy.asnumpy(view[-8:]).tolist() == [42] * 8
    tell(other, "quit")
    assert other.wait(30) == 0


def test_a_killed_user_leaves_the_memory_to_its_owner(
    memory: CudaMemory, region: CudaRegion, other: subprocess.Popen[str]
) -> None:
    import cupy

    view = memory.import_region(region.export(), writable=True).view(0, NBYTES)
    view.fill(1)
    cupy.cuda.runtime.deviceSynchronize()
    tell(other, wire(region))
    heard(other)
    assert heard(other) == "written"
    other.kill()
    other.wait(30)
    assert cupy.asnumpy(view).sum() == NBYTES - 8 + 8 * 42


def test_closing_gives_the_memory_back(memory: CudaMemory) -> None:
    import cupy

    before = cupy.cuda.runtime.memGetInfo()[0]
    region = memory.allocate(256 * 1024**2, prefault=True)
    assert cupy.cuda.runtime.memGetInfo()[0] <= before - 256 * 1024**2
    region.close()
    assert cupy.cuda.runtime.memGetInfo()[0] >= before - 1024**2


def test_more_than_the_gpu_has_is_a_memory_error(memory: CudaMemory) -> None:
    import cupy

    total = cupy.cuda.runtime.memGetInfo()[1]
    with pytest.raises(MemoryError, match="bytes left"):
        memory.allocate(total * 2, prefault=True)


def test_torch_sees_a_view_without_a_copy(memory: CudaMemory, region: CudaRegion) -> None:
    import cupy
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch is built without CUDA")
    view = memory.import_region(region.export(), writable=True).view(0, 64)
    tensor = torch.as_tensor(view, device="cuda")
    assert tensor.data_ptr() == region.pointer
    tensor.fill_(9)
    torch.cuda.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(view), np.full(64, 9, np.uint8))

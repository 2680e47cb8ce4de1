"""Host memory: one memory seen through every map of it, of fixed size, read-only where it is opened for reading."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from memory_manager.devices.cpu import CpuMapping, CpuMemory, CpuRegion, available_bytes


@pytest.fixture
def region() -> CpuRegion:
    return CpuMemory().allocate(8192, prefault=True)


def mapped(region: CpuRegion, writable: bool) -> CpuMapping:
    export = region.export()
    passed = replace(export, descriptors=tuple(os.dup(descriptor) for descriptor in export.descriptors))
    return CpuMemory().import_region(passed, writable)


def test_what_one_map_writes_another_shows(region: CpuRegion) -> None:
    writer, reader = mapped(region, True).view(64, 4), mapped(region, False).view(64, 4)
    writer[:] = [1, 2, 3, 4]
    assert reader.tolist() == [1, 2, 3, 4]


def test_a_reader_cannot_make_its_view_writable(region: CpuRegion) -> None:
    view = mapped(region, False).view(0, 64)
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True


def test_nobody_can_change_the_size(region: CpuRegion) -> None:
    (descriptor,) = region.export().descriptors
    for size in (4096, 16384):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)


def test_closing_frees_the_memory_that_others_still_map(region: CpuRegion) -> None:
    export = region.export()
    reader = mapped(region, False).view(0, 8192)
    keep = os.dup(export.descriptors[0])
    assert os.fstat(keep).st_blocks == 16
    region.close()
    assert os.fstat(keep).st_blocks == 0
    assert not np.any(reader)
    os.close(keep)


def test_a_view_outside_the_region_is_refused(region: CpuRegion) -> None:
    with pytest.raises(ValueError, match="do not lie"):
        mapped(region, False).view(8000, 193)


def test_more_than_the_host_has_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        CpuMemory().allocate(available_bytes() * 2, prefault=False)

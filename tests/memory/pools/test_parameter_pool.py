"""Engine, memory, files and threads together: real bytes through all tiers."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from memory_manager.devices.cpu import CpuMemory, available_bytes
from memory_manager.pools.declaration import Machine, Recomputation, Tier
from memory_manager.pools.errors import DeclarationRefused
from memory_manager.pools.files import PageFile
from memory_manager.pools.paging import Array
from memory_manager.pools.parameter_pool import ParameterPool
from memory_manager.pools.requests import Access, Grant, Granted, Holder, NodeAlone, Outcome, Want
from memory_manager.pools.tiers import ParameterTiers, page_file_name, this_machine
from tests.memory.pools.pages import PAGE, declare

ME = Holder(b"me", 1)
STRIDE = 4096


class Pool:
    """A pool that is driven by hand, as the manager's event loop would."""

    def __init__(self, directory: Path, l1: int, l2: int, l3: int, recomputation: Recomputation) -> None:
        sizes = {Tier.L1: l1 * PAGE, Tier.L2: l2 * STRIDE, Tier.L3: l3 * STRIDE}
        declaration = declare({tier: size for tier, size in sizes.items() if size}, recomputation=recomputation)
        memory, self.woken = CpuMemory(), threading.Event()
        self.path = directory / page_file_name(declaration)
        tiers = ParameterTiers(declaration, memory, memory, directory, this_machine(directory, available_bytes()))
        guard = NodeAlone(recomputation is Recomputation.RECOMPUTABLE)
        self.pool = ParameterPool(tiers, guard, self.woken.set)
        self.engine = self.pool.engine

    def ask(self, *wants: Want, holder: Holder = ME, seconds: float = 10.0) -> Outcome:
        deadline = time.monotonic() + seconds
        number = self.engine.request(holder, wants, tier=Tier.L1, deadline=deadline)
        if not isinstance(number, int):
            return number
        while True:
            self.woken.clear()
            outcomes = dict(self.pool.pump())
            if number in outcomes:
                return outcomes[number]
            self.woken.wait(min(0.1, max(0.0, deadline - time.monotonic())))

    def grant(self, want: Want) -> Grant | None:
        outcome = self.ask(want)
        assert isinstance(outcome, Granted)
        return outcome.grants[want.page]

    def settle(self) -> None:
        while self.engine.in_flight:
            self.woken.clear()
            self.pool.pump()
            self.woken.wait(0.1)

    def page(self, grant: Grant) -> Array:
        return self.pool.tiers.storages[Tier.L1].page(grant.slot.position)

    def write(self, number: int) -> None:
        page = b"page %d" % number
        grant = self.grant(Want(page, Access.WRITE))
        assert grant is not None
        assert grant.writable
        self.page(grant)[...] = values(number)
        self.engine.finish_write(ME, grant.slot)
        self.engine.release(ME)
        self.pool.pump()

    def read(self, number: int) -> Array | None:
        grant = self.grant(Want(b"page %d" % number))
        found = None if grant is None else self.page(grant).copy()
        self.engine.release(ME)
        return found


def values(number: int) -> Array:
    shape = declare({Tier.L1: PAGE}).page_shape
    return np.random.default_rng(number).random(shape, np.float32)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def new(l1: int, l2: int, l3: int, recomputation: Recomputation = Recomputation.PRESERVED) -> Pool:
        pools.append(Pool(tmp_path, l1, l2, l3, recomputation))
        return pools[-1]

    yield new
    for pool in pools:
        pool.pool.close()


@pytest.mark.parametrize(("l1", "l2", "l3"), [(2, 3, 12), (2, 0, 14), (2, 14, 0)])
def test_every_page_comes_back_from_wherever_it_went(make: Callable[..., Pool], l1: int, l2: int, l3: int) -> None:
    pool = make(l1, l2, l3)
    for number in range(14):
        pool.write(number)
    for number in (*range(14), *range(13, -1, -3)):
        found = pool.read(number)
        assert found is not None
        assert np.array_equal(found, values(number))


def test_a_restarted_manager_finds_the_pages_of_the_file_again(make: Callable[..., Pool]) -> None:
    first = make(2, 2, 8)
    for number in range(8):
        first.write(number)
    first.settle()
    stored = [page for page in first.engine.table.pages() if Tier.L3 in first.engine.table.copies(page)]
    assert len(stored) >= 4
    first.pool.close()
    second = make(2, 2, 8)
    assert sorted(second.engine.table.pages()) == sorted(stored)
    for page in stored:
        number = int(page.split()[1])
        found = second.read(number)
        assert found is not None
        assert np.array_equal(found, values(number))


def test_a_corrupt_page_is_a_miss_and_is_counted(make: Callable[..., Pool]) -> None:
    pool = make(1, 0, 4)
    pool.write(1)
    pool.write(2)
    pool.settle()
    assert list(pool.engine.table.copies(b"page 1")) == [Tier.L3]
    with pool.path.open("r+b") as raw:
        raw.seek(STRIDE + 100)
        raw.write(b"\xff\x00\xff\x00\xff")
    assert pool.read(1) is None
    assert pool.engine.counters.corrupt_pages == 1
    assert pool.read(1) is None
    assert np.array_equal(pool.read(2), values(2))  # type: ignore[arg-type]


def test_an_extended_page_starts_as_its_base(make: Callable[..., Pool]) -> None:
    pool = make(2, 2, 0)
    pool.write(1)
    grant = pool.grant(Want(b"longer", Access.EXTEND, b"page 1"))
    assert grant is not None
    assert grant.writable
    page = pool.page(grant)
    assert np.array_equal(page, values(1))
    page[:, :, :, 3] = 7
    pool.engine.finish_write(ME, grant.slot)
    pool.engine.release(ME)
    assert np.array_equal(pool.read(1), values(1))  # type: ignore[arg-type]


def test_a_file_that_stops_working_loses_no_preserved_page(make: Callable[..., Pool]) -> None:
    pool = make(1, 0, 4)
    pool.write(1)
    assert pool.pool.tiers.file is not None
    pool.pool.tiers.file.close()
    refused = pool.ask(Want(b"page 2", Access.WRITE), seconds=0.3)
    assert "no slot became free" in str(refused)
    assert pool.engine.counters.failed_migrations >= 1
    assert np.array_equal(pool.read(1), values(1))  # type: ignore[arg-type]
    pool.pool.tiers.file = None


def test_a_machine_that_cannot_have_the_tiers_refuses_and_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declaration = declare({Tier.L1: PAGE, Tier.L3: 4 * STRIDE})
    file_bytes, plain = PageFile.nbytes(4, STRIDE), os.posix_fallocate

    def full(descriptor: int, offset: int, nbytes: int) -> None:
        if nbytes == file_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", full)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DeclarationRefused, match=r"cannot give .* No space left"):
        ParameterTiers(declaration, CpuMemory(), CpuMemory(), tmp_path, this_machine(tmp_path, available_bytes()))
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(DeclarationRefused, match="host memory wanted"):
        ParameterTiers(declaration, CpuMemory(), CpuMemory(), tmp_path, Machine(100, 2**60))

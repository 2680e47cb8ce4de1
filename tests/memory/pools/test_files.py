"""Page files: what is read is what was written, whatever dies when."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory_manager.pools.errors import PageCorrupt, PageFileUnusable
from memory_manager.pools.files import Array, FileDisk, PageFile

LAYOUT = "ab" * 16
STRIDE = 16 * 1024
SLOTS = 4
NBYTES = PageFile.nbytes(SLOTS, STRIDE)
BLOCK = 4096


def room(nbytes: int = STRIDE) -> Array:
    """Aligned memory."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


def content(page: bytes, version: int) -> Array:
    """Bytes that tell, in every block, whose they are."""
    data = room()
    data[:] = np.random.default_rng([*page, version]).integers(0, 256, STRIDE, np.uint8)
    return data


def read(file: PageFile, slot: int, page: bytes) -> Array:
    data = room()
    file.read(slot, page, data)
    return data


def versions(file: PageFile) -> dict[bytes, int]:
    """Which version of each page is found. Fails if what is found is not a version of the page, in full."""
    found = {}
    for slot, page in file.recover().items():
        data = read(file, slot, page)
        matching = [version for version in range(1, 40) if np.array_equal(content(page, version), data)]
        assert matching, f"garbage in slot {slot}"
        found[page] = matching[0]
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.pages"


class MemoryDisk:
    """A disk that loses power: writes since the last `sync` are kept block by block, as chance has it."""

    def __init__(self) -> None:
        self.safe = bytearray(NBYTES)
        self.blocks: dict[int, list[bytes]] = {}
        self.operations_left = -1

    def step(self) -> None:
        if self.operations_left == 0:
            raise InterruptedError("the power is gone")
        self.operations_left -= 1

    def read(self, buffers: Sequence[Array], offset: int) -> None:
        for buffer in buffers:
            for start in range(0, buffer.nbytes, BLOCK):
                at = offset + start
                block = self.blocks.get(at, [bytes(self.safe[at : at + BLOCK])])[-1]
                buffer[start : start + BLOCK] = np.frombuffer(block, np.uint8)
            offset += buffer.nbytes

    def write(self, buffers: Sequence[Array], offset: int) -> None:
        torn = self.operations_left == 0
        for buffer in buffers:
            # When the power goes in the middle of a write, its first half is on its way.
            for start in range(0, buffer.nbytes // 2 if torn else buffer.nbytes, BLOCK):
                block = buffer[start : start + BLOCK].tobytes()
                self.blocks.setdefault(offset + start, [bytes(self.safe[offset + start :][:BLOCK])]).append(block)
            offset += buffer.nbytes
        self.step()

    def sync(self) -> None:
        self.step()
        for at, block in self.blocks.items():
            self.safe[at : at + BLOCK] = block[-1]
        self.blocks.clear()

    def lose_power(self, chance: random.Random) -> None:
        for at, block in self.blocks.items():
            self.safe[at : at + BLOCK] = chance.choice(block)
        self.blocks.clear()
        self.operations_left = -1

    def close(self) -> None:
        pass


class TestReading:
    """A read gives the page, or says that there is none."""

    def test_pages_come_back_also_to_another_process(self, path: Path) -> None:
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        for slot in range(SLOTS):
            file.write(slot, b"page %d" % slot, content(b"page", slot))
        file.close()
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        assert file.recover() == {slot: b"page %d" % slot for slot in range(SLOTS)}
        for slot in range(SLOTS):
            assert np.array_equal(read(file, slot, b"page %d" % slot), content(b"page", slot))

    @pytest.mark.parametrize("at", [0, 100, BLOCK, BLOCK + STRIDE - 1])
    def test_one_flipped_bit_anywhere_is_noticed(self, path: Path, at: int) -> None:
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        file.write(0, b"page" * 30, content(b"page", 1))
        with path.open("r+b") as raw:
            raw.seek(at)
            byte = raw.read(1)[0]
            raw.seek(at)
            raw.write(bytes([byte ^ 4]))
        with pytest.raises(PageCorrupt, match="does not hold page"):
            read(file, 0, b"page" * 30)
        file.close()
        assert PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE).recover() == {}

    def test_another_page_than_the_one_asked_for_is_not_a_hit(self, path: Path) -> None:
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        file.write(0, b"one", content(b"one", 1))
        with pytest.raises(PageCorrupt):
            read(file, 0, b"two")

    def test_pages_of_another_layout_are_not_found(self, path: Path) -> None:
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        file.write(0, b"one", content(b"one", 1))
        file.close()
        assert PageFile(FileDisk(path, NBYTES), "cd" * 16, SLOTS, STRIDE).recover() == {}

    def test_the_newest_of_two_copies_counts_and_the_older_one_is_gone(self, path: Path) -> None:
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        file.write(3, b"page", content(b"page", 1))
        file.write(1, b"page", content(b"page", 2))
        file.close()
        file = PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE)
        assert file.recover() == {1: b"page"}
        with pytest.raises(PageCorrupt):
            read(file, 3, b"page")


class TestOpening:
    """A file has its space from the start, and one user."""

    def test_two_managers_never_use_one_file(self, path: Path) -> None:
        disk = FileDisk(path, NBYTES)
        with pytest.raises(PageFileUnusable, match="in use by another MemoryManager"):
            FileDisk(path, NBYTES)
        disk.close()
        FileDisk(path, NBYTES).close()

    def test_space_is_reserved(self, path: Path) -> None:
        FileDisk(path, NBYTES).close()
        found = path.stat()
        assert found.st_size == NBYTES
        assert found.st_blocks * 512 >= NBYTES

    def test_without_space_there_is_an_error_and_no_file(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int, offset: int, nbytes: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(PageFileUnusable, match="No space left"):
            FileDisk(path, NBYTES)
        assert not path.exists()

    def test_where_direct_access_is_refused_it_goes_through_the_cache(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = os.open

        def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return plain(name, flags, mode)

        monkeypatch.setattr(os, "open", refuse)
        disk = FileDisk(path, NBYTES)
        assert not disk.direct
        file = PageFile(disk, LAYOUT, SLOTS, STRIDE)
        file.write(2, b"page", content(b"page", 1))
        assert np.array_equal(read(file, 2, b"page"), content(b"page", 1))


class DyingDisk(FileDisk):
    """Kills its process with SIGKILL at its n-th operation, which is done in part."""

    operations_left = 0

    def write(self, buffers: Sequence[Array], offset: int) -> None:
        if self.operations_left == 0:
            half = buffers[0].nbytes // 2 // BLOCK * BLOCK
            if half:
                super().write([buffers[0][:half]], offset)
            os.kill(os.getpid(), signal.SIGKILL)
        self.operations_left -= 1
        super().write(buffers, offset)


@pytest.mark.parametrize("seed", range(25))
def test_a_killed_process_leaves_the_old_or_the_new_page(path: Path, seed: int) -> None:
    """Versions of two pages go round the slots, as an engine would send them; the process dies in the middle of it."""
    said, told = os.pipe()
    child = os.fork()
    if child == 0:
        disk = DyingDisk(path, NBYTES)
        disk.operations_left = random.Random(seed).randrange(1, 60)
        file = PageFile(disk, LAYOUT, SLOTS, STRIDE)
        for version in range(1, 40):
            for number, page in enumerate((b"a", b"b")):
                file.write(number * 2 + version % 2, page, content(page, version))
                os.write(told, bytes([number, version]))
        os._exit(1)
    os.close(told)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with os.fdopen(said, "rb") as pipe:
        log = pipe.read()
    written = {page: max(log[i + 1] for i in range(0, len(log), 2) if log[i] == n) if bytes([n]) in log[::2] else 0
               for n, page in enumerate((b"a", b"b"))}  # fmt: skip
    found = versions(PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE))
    for page, version in written.items():
        # What a write has returned for is there, unless the next one, to the other slot, is there already.
        assert found.get(page, 0) in (version, version + 1)


@pytest.mark.parametrize("steps", range(7))
def test_a_process_killed_while_it_reuses_a_slot_leaves_one_page_or_none(path: Path, steps: int) -> None:
    child = os.fork()
    if child == 0:
        disk = DyingDisk(path, NBYTES)
        disk.operations_left = steps
        file = PageFile(disk, LAYOUT, SLOTS, STRIDE)
        for version, page in enumerate((b"a", b"b", b"c"), 1):
            file.write(0, page, content(page, version))
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    found = versions(PageFile(FileDisk(path, NBYTES), LAYOUT, SLOTS, STRIDE))
    # Two operations for the first page, three for the next: the old header goes, the data, the new header.
    assert found == {2: {b"a": 1}, 5: {b"b": 2}}.get(steps, {})


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(operations=st.integers(1, 60), chance=st.randoms(use_true_random=False), durable=st.booleans())
def test_a_loss_of_power_leaves_whole_pages_and_the_durable_ones(
    operations: int, chance: random.Random, durable: bool
) -> None:
    disk = MemoryDisk()
    disk.operations_left = operations
    file = PageFile(disk, LAYOUT, SLOTS, STRIDE, durable)
    written = 0
    try:
        for version in range(1, 20):
            file.write(version % 2, b"page", CONTENT[version])
            written = version
    except InterruptedError:
        pass
    disk.lose_power(chance)
    file = PageFile(disk, LAYOUT, SLOTS, STRIDE, durable)
    found = {}
    for slot, page in file.recover().items():
        try:
            data = read(file, slot, page)
        except PageCorrupt:
            assert not durable, "a durable page was half written and yet found"
            continue
        (found[page],) = [version for version in CONTENT if np.array_equal(CONTENT[version], data)]
    if durable:
        assert found.get(b"page", 0) in (written, written + 1)


CONTENT = {version: content(b"page", version) for version in range(1, 20)}

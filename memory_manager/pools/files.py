"""The file of a parameter's third tier: fixed slots, a checksum for every page, nothing half written after a crash."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from memory_manager.pools.declaration import PAGE_ALIGNMENT
from memory_manager.pools.errors import PageCorrupt, PageFileUnusable

Array = np.ndarray[Any, np.dtype[np.uint8]]

_MAGIC = b"OMNIPAGE"
_VERSION = 1
# magic, version, layout id, sequence, bytes of data, checksum of data, length of the page id
_HEADER = struct.Struct("<8sI16sQQ16sH")
_HEADER_CHECKSUM = struct.Struct("<Q")
MAX_PAGE_ID = 1024
"""Bytes that a page's id may have."""


class Disk(Protocol):
    """Positioned reads and writes of whole, aligned blocks."""

    def read(self, buffers: Sequence[Array], offset: int) -> None:
        """Fill the buffers, one after the other, from that offset.

        Raises:
            OSError: also if the file ends before.
        """

    def write(self, buffers: Sequence[Array], offset: int) -> None:
        """All bytes of the buffers, from that offset.

        Raises:
            OSError: also if the disk is full.
        """

    def sync(self) -> None:
        """What was written before outlives a loss of power."""

    def close(self) -> None:
        """Nobody uses the file any more."""


class FileDisk:
    """A preallocated file, read and written past the page cache where the file system allows it.

    Raises:
        PageFileUnusable: if it cannot be opened or allocated, or another process uses it.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        existed = path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                self._descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
                self.direct = True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._descriptor = os.open(path, flags, 0o600)
                self.direct = False
        except OSError as error:
            raise PageFileUnusable(f"cannot open {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.posix_fallocate(self._descriptor, 0, nbytes)
            os.ftruncate(self._descriptor, nbytes)
        except OSError as error:
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError):
                raise PageFileUnusable(f"{path} is in use by another MemoryManager") from error
            if not existed:
                path.unlink(missing_ok=True)
            raise PageFileUnusable(f"cannot give {path} {nbytes} bytes: {error.strerror}") from error

    def read(self, buffers: Sequence[Array], offset: int) -> None:
        expected = sum(buffer.nbytes for buffer in buffers)
        done = os.preadv(self._descriptor, [buffer.data for buffer in buffers], offset)
        if done != expected:
            raise OSError(errno.EIO, f"read {done} of {expected} bytes")

    def write(self, buffers: Sequence[Array], offset: int) -> None:
        expected = sum(buffer.nbytes for buffer in buffers)
        done = os.pwritev(self._descriptor, [buffer.data for buffer in buffers], offset)
        if done != expected:
            raise OSError(errno.ENOSPC, f"wrote {done} of {expected} bytes")

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class PageFile:
    """Slots of one header block and the data of one page each.

    Writing takes the old header away first and puts the new one in last, so that a slot whose process died in between
    is empty when the file is opened again. The header has a checksum of itself and one of the data: whatever a loss of
    power leaves is recognized, at the latest when it is read. A page is never rewritten in place: written again, it
    goes to another slot, and the newest of two complete copies counts.

    Methods may be called from several threads, for different slots.

    Args:
        layout_id: 32 hexadecimal digits; pages of another layout are not found.
        stride: bytes of data of one page, a multiple of `PAGE_ALIGNMENT`.
        durable: order the steps on the disk itself, so that a page whose writing has returned outlives a loss of
            power. Without it such a page may be lost, but is never wrong.
    """

    def __init__(self, disk: Disk, layout_id: str, slots: int, stride: int, durable: bool = False) -> None:
        self._disk = disk
        self._layout = bytes.fromhex(layout_id)
        self._slots = slots
        self._stride = stride
        self._durable = durable
        self._lock = threading.Lock()
        self._headers = threading.local()
        self._used = [False] * slots
        self._sequence = 0

    @staticmethod
    def nbytes(slots: int, stride: int) -> int:
        """Bytes of the whole file."""
        return slots * (PAGE_ALIGNMENT + stride)

    def recover(self) -> dict[int, bytes]:
        """Slots with a complete page and their page ids, as the last process left them. Reads headers only.

        Raises:
            OSError: if the disk cannot be read.
        """
        found: list[tuple[int, int, bytes]] = []
        for slot in range(self._slots):
            with self._header() as header:
                self._disk.read([header], self._offset(slot))
                header_found = self._parse(header)
            if header_found is not None:
                page, sequence, _ = header_found
                found.append((sequence, slot, page))
                self._used[slot] = True
        newest = {page: slot for _, slot, page in sorted(found)}
        self._sequence = max((sequence for sequence, _, _ in found), default=0)
        for _, slot, page in found:
            if newest[page] != slot:
                with self._header() as header:
                    self._erase(slot, header)
        return {slot: page for page, slot in newest.items()}

    def write(self, slot: int, page: bytes, data: Array) -> None:
        """The page into the slot. `data` has `stride` bytes and lies on a `PAGE_ALIGNMENT` boundary.

        Raises:
            OSError: if the disk does not take it. Then the slot is empty, or holds the page.
        """
        if not 0 < len(page) <= MAX_PAGE_ID:
            raise ValueError(f"a page id has 1 to {MAX_PAGE_ID} bytes")
        offset = self._offset(slot)
        with self._header() as header:
            if self._used[slot]:
                self._erase(slot, header)
            self._disk.write([data], offset + PAGE_ALIGNMENT)
            if self._durable:
                self._disk.sync()
            self._compose(header, page, data)
            self._used[slot] = True
            self._disk.write([header], offset)
            if self._durable:
                self._disk.sync()

    def read(self, slot: int, page: bytes, data: Array) -> None:
        """The page out of the slot, straight into `data` (as for `write`), which is undefined after an error.

        Raises:
            PageCorrupt: if anything but this page lies there. The slot is empty from now on.
            OSError: if the disk cannot be read now.
        """
        with self._header() as header:
            self._disk.read([header, data], self._offset(slot))
            found = self._parse(header)
            if found is None or found[0] != page or found[2] != xxhash.xxh3_128_digest(data.data):
                with contextlib.suppress(OSError):
                    self._erase(slot, header)
                raise PageCorrupt(f"slot {slot} of the page file does not hold page {page.hex()} (any more)")

    def close(self) -> None:
        """Nobody uses the file any more."""
        self._disk.close()

    def _offset(self, slot: int) -> int:
        if not 0 <= slot < self._slots:
            raise IndexError(f"slot {slot} does not lie in a file of {self._slots} slots")
        return slot * (PAGE_ALIGNMENT + self._stride)

    def _erase(self, slot: int, header: Array) -> None:
        header[:] = 0
        self._disk.write([header], self._offset(slot))
        if self._durable:
            self._disk.sync()
        self._used[slot] = False

    @contextlib.contextmanager
    def _header(self) -> Iterator[Array]:
        """An aligned block of this thread."""
        block = getattr(self._headers, "block", None)
        if block is None:
            block = self._headers.block = np.frombuffer(mmap.mmap(-1, PAGE_ALIGNMENT), np.uint8)
        yield block

    def _compose(self, header: Array, page: bytes, data: Array) -> None:
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        checksum = xxhash.xxh3_128_digest(data.data)
        fields = (_MAGIC, _VERSION, self._layout, sequence, self._stride, checksum, len(page))
        content = _HEADER.pack(*fields) + page
        content += _HEADER_CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))
        header[:] = 0
        header[: len(content)] = np.frombuffer(content, np.uint8)

    def _parse(self, header: Array) -> tuple[bytes, int, bytes] | None:
        """Page id, sequence and checksum of the data, if the header is one of this file, and whole."""
        content = header.tobytes()
        magic, version, layout, sequence, nbytes, checksum, length = _HEADER.unpack_from(content)
        if (magic, version, layout, nbytes) != (_MAGIC, _VERSION, self._layout, self._stride) or length > MAX_PAGE_ID:
            return None
        end = _HEADER.size + length
        if _HEADER_CHECKSUM.unpack_from(content, end)[0] != xxhash.xxh3_64_intdigest(content[:end]):
            return None
        return content[_HEADER.size : end], sequence, checksum

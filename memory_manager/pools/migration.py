"""Moves the bytes of migrations: between arrangements of memory, and between memory and files, on a few threads."""

from __future__ import annotations

import errno
import logging
import mmap
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from memory_manager.pools.conversion import LayoutConverter
from memory_manager.pools.declaration import Tier
from memory_manager.pools.errors import PageCorrupt
from memory_manager.pools.files import PageFile
from memory_manager.pools.paging import Arrangement, Array, PagedStorage, RegionLayout
from memory_manager.pools.requests import Migration, MigrationFailure, PageId, SlotRef
from memory_manager.pools.tiers import ParameterTiers

logger = logging.getLogger(__name__)

_THREADS = 2


class Migrator:
    """Executes the migrations of one parameter on threads of its own; what has ended waits in `take_ended`.

    Args:
        converter: between L1 and the other tiers; not needed without L1.
        threads: 2 to 4 keep a disk busy.
        wake: called, from one of the threads, after every migration.
    """

    def __init__(
        self,
        tiers: ParameterTiers,
        converter: LayoutConverter | None,
        wake: Callable[[], None],
        threads: int = _THREADS,
    ) -> None:
        self._tiers = tiers
        self._converter = converter
        self._wake = wake
        self._ended: queue.SimpleQueue[tuple[int, MigrationFailure | None]] = queue.SimpleQueue()
        self._staging = threading.local()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"migrate-{tiers.declaration.name}")

    def start(self, migration: Migration) -> None:
        """Begin; returns at once."""
        self._threads.submit(self._execute, migration)

    def take_ended(self) -> list[tuple[int, MigrationFailure | None]]:
        """Numbers of migrations that have ended since the last call, and how they failed, if they did."""
        ended = []
        # Nobody else takes anything out.
        while not self._ended.empty():
            ended.append(self._ended.get_nowait())
        return ended

    def close(self) -> None:
        """Wait for what moves now, forget what has not begun."""
        self._threads.shutdown(cancel_futures=True)

    def _execute(self, migration: Migration) -> None:
        failure: MigrationFailure | None = None
        try:
            self.move(migration)
        except PageCorrupt as error:
            failure = MigrationFailure.SOURCE_CORRUPT
            logger.warning("corrupt page", extra={"parameter": self._tiers.declaration.name, "reason": str(error)})
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            failure = MigrationFailure.DESTINATION_FULL if full else MigrationFailure.FAILED
            logger.exception("migration failed", extra={"parameter": self._tiers.declaration.name})
        self._ended.put((migration.number, failure))
        self._wake()

    def move(self, migration: Migration) -> None:
        """Move the bytes of one migration, in this thread.

        Raises:
            PageCorrupt: if the source is not the page it should be.
            OSError: if the file cannot be read or written now.
        """
        source, destination = migration.source, migration.destination
        if destination.tier is Tier.L3:
            self._file.write(destination.position, migration.becomes, self._to_write(source))
        elif source.tier is Tier.L3:
            self._read(source, migration.page, destination)
        elif source.tier is destination.tier:
            np.copyto(self._page(destination), self._page(source))
        elif source.tier is Tier.L1:
            self._convert.store(source.position, self._page(destination))
        else:
            self._convert.load(self._page(source), destination.position)

    @property
    def _file(self) -> PageFile:
        if self._tiers.file is None:
            raise OSError(errno.EBADF, "the page file is closed")
        return self._tiers.file

    @property
    def _convert(self) -> LayoutConverter:
        if self._converter is None:
            raise ValueError(f"parameter {self._tiers.declaration.name!r} has no L1, so that nothing is converted")
        return self._converter

    def _to_write(self, source: SlotRef) -> Array:
        if source.tier is Tier.L2:
            return self._tiers.storages[Tier.L2].raw(source.position)
        staged = self._staged()
        self._convert.store(source.position, staged.page(0))
        return staged.raw(0)

    def _read(self, source: SlotRef, page: PageId, destination: SlotRef) -> None:
        if destination.tier is Tier.L2:
            self._file.read(source.position, page, self._tiers.storages[Tier.L2].raw(destination.position))
            return
        staged = self._staged()
        self._file.read(source.position, page, staged.raw(0))
        self._convert.load(staged.page(0), destination.position)

    def _page(self, slot: SlotRef) -> Array:
        return self._tiers.storages[slot.tier].page(slot.position)

    def _staged(self) -> PagedStorage:
        """Room for one page of a file, aligned; one for each thread, made once."""
        staged: PagedStorage | None = getattr(self._staging, "page", None)
        if staged is None:
            layout = RegionLayout(self._tiers.declaration, Arrangement.PAGE_MAJOR, 1)
            staged = PagedStorage(np.frombuffer(mmap.mmap(-1, layout.nbytes), np.uint8), layout)
            self._staging.page = staged
        return staged

"""What a role process, an orchestrator or a tool uses to keep tensors in the MemoryManager."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from memory_manager.connection import Connection, expect
from memory_manager.devices.cpu import CpuMemory
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerUnavailable
from memory_manager.handle import TensorHandle, plain_dtype
from memory_manager.protocol import (
    Acquire,
    Allocate,
    Allocated,
    BlockRef,
    Disconnect,
    Done,
    Find,
    Found,
    Heartbeat,
    OpenScope,
    Publish,
    Release,
    ReleaseScope,
    Seal,
    Statistics,
    StatisticsReport,
)
from memory_manager.reconnecting import Reconnecting
from memory_manager.tensors import Array, LeaseHold, OpenTensors, WritableTensor, copy_into, shaped

_HEARTBEAT_SECONDS = 0.25


class MemoryManagerClient:
    """A client of the manager at `endpoint`; thread-safe. Connects on first use, and again after the manager restarts.

    What the manager keeps for this client ends with this process, however it ends: the kernel closes the connection.
    After a restart of the manager every old handle is stale, scopes must be opened anew, and arrays that are still
    open stay readable.

    Round trips: `put`, `put_many`, `allocate`, `open`, `open_published`, `publish`, `open_scope`, `release_scope` and
    `statistics` take one each (and one more the first time a pool is used). Sealing, closing and `release_scope_soon`
    take none: they are notices, executed in order and before any later request of this client.

    Args:
        endpoint: path of the manager's socket.
        name: shown in the manager's statistics and logs.
        timeout: seconds after which a manager that is stuck counts as unavailable. A dead one is noticed at once.
    """

    def __init__(self, endpoint: str | Path, name: str, timeout: float = 5.0) -> None:
        self._endpoint = Endpoint(Path(endpoint))
        self._timeout = timeout
        self._lock = threading.Lock()
        self._connection = Reconnecting(self._endpoint, CpuMemory(), name)
        self._leases = itertools.count(1)
        self._scopes_to_release: deque[str] = deque()
        self._closed = threading.Event()
        self._heart = threading.Thread(
            target=_beat, args=(weakref.ref(self), self._closed), name=f"memory-manager-{name}", daemon=True
        )
        self._heart.start()

    def __enter__(self) -> MemoryManagerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def put(self, array: Array, scope: str) -> TensorHandle:
        """A copy of `array` in shared memory, kept until `scope` is released.

        Raises:
            InvalidHandle: if its dtype is not plain (bool, integer, float, complex).
            PoolExhausted, ScopeReleased, MemoryManagerUnavailable: see `errors`.
        """
        return self.put_many([array], scope)[0]

    def put_many(self, arrays: Sequence[Array], scope: str) -> list[TensorHandle]:
        """Like `put` for several arrays, all or none, in one round trip."""
        if not arrays:
            return []
        for array in arrays:
            plain_dtype(array.dtype)
        with self._connected() as (connection, deadline):
            lease = next(self._leases)
            roots, blocks = self._allocate(connection, lease, [array.nbytes for array in arrays], scope, deadline)
        hold = LeaseHold(len(roots), lambda: connection.notify(Release(lease)))
        for root in roots:
            hold.watch(root)
        copy_into(roots, arrays)
        connection.notify(Seal(lease))
        return [_handle(block, array.dtype.str, array.shape) for block, array in zip(blocks, arrays, strict=True)]

    def allocate(self, shape: int | tuple[int, ...], dtype: Any = np.uint8, *, scope: str) -> WritableTensor:
        """A tensor to write straight into shared memory; undefined before that. An `int` shape is one dimension.

        Raises: as `put`.
        """
        found = plain_dtype(dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = math.prod(shape) * found.itemsize
        with self._connected() as (connection, deadline):
            lease = next(self._leases)
            (root,), (block,) = self._allocate(connection, lease, [nbytes], scope, deadline)
        LeaseHold(1, lambda: connection.notify(Release(lease))).watch(root)
        return WritableTensor(
            shaped(root, found.str, shape), _handle(block, found.str, shape), lambda: connection.notify(Seal(lease))
        )

    def open(self, handles: Sequence[TensorHandle]) -> OpenTensors:
        """Read-only arrays over the very bytes of the handles, in order, each with a reference until closed.

        Use it as a context manager (see `OpenTensors` for what becomes of arrays that are kept after it).

        Raises:
            StaleHandle: if any of them is gone; then no reference is taken.
            MemoryManagerUnavailable: see `errors`.
        """
        if not handles:
            return OpenTensors([])
        with self._connected() as (connection, deadline):
            lease = next(self._leases)
            operation = Acquire(lease, [_reference(handle) for handle in handles])
            expect(connection.request([operation], deadline, undo=[Release(lease)])[0], Done)
            return self._views(connection, lease, list(handles), deadline)

    def publish(self, handle: TensorHandle, key: str) -> None:
        """Keep the tensor under `key` after its scope is released, as long as its bytes are not needed otherwise.

        Raises:
            StaleHandle, MemoryManagerUnavailable: see `errors`.
        """
        operation = Publish(key, _reference(handle), handle.dtype, list(handle.shape))
        with self._connected() as (connection, deadline):
            expect(connection.request([operation], deadline)[0], Done)

    @contextlib.contextmanager
    def open_published(self, keys: Sequence[str]) -> Iterator[list[Array | None]]:
        """Like `open`, for what was published under the keys; `None` where nothing is (any more)."""
        if not keys:
            yield []
            return
        with self._connected() as (connection, deadline):
            lease = next(self._leases)
            reply = connection.request([Find(lease, list(keys))], deadline, undo=[Release(lease)])[0]
            tensors = expect(reply, Found).tensors
            handles = [_handle(found.block, found.dtype, tuple(found.shape)) for found in tensors if found is not None]
            opened = self._views(connection, lease, handles, deadline)
        remaining = iter(list(opened.arrays))
        arrays: list[Array | None] = [None if found is None else next(remaining) for found in tensors]
        del remaining
        try:
            yield arrays
        finally:
            arrays.clear()
            opened.close()

    def open_scope(self, scope: str) -> None:
        """This client owns `scope`: its blocks outlive their producers, and go when it is released or this client dies.

        Without an owner, a scope begins with the first allocation in it, and its blocks go with their producers.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._connected() as (connection, deadline):
            expect(connection.request([OpenScope(scope)], deadline)[0], Done)

    def release_scope(self, scope: str) -> None:
        """The first references of all blocks of `scope` are gone when this returns. Idempotent; any client may do it.

        If the scope had an owner, later allocations in it raise `ScopeReleased`. Blocks that somebody has open stay.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._connected() as (connection, deadline):
            expect(connection.request([ReleaseScope(scope)], deadline)[0], Done)

    def release_scope_soon(self, scope: str) -> None:
        """Like `release_scope`, without waiting: never blocks, never raises, may be called on an event loop.

        It is executed before any later request of this client; within a second if this client is not connected now.
        If no manager is there, nothing is left to release.
        """
        connection = self._connection.current
        if connection is None or not connection.notify(ReleaseScope(scope)):
            self._scopes_to_release.append(scope)

    def statistics(self) -> StatisticsReport:
        """What the manager holds now.

        Raises:
            MemoryManagerUnavailable: see `errors`.
        """
        with self._connected() as (connection, deadline):
            return expect(connection.request([Statistics()], deadline)[0], StatisticsReport)

    def close(self) -> None:
        """Release everything this client holds, open arrays included: they must not be used any more. Idempotent."""
        self._closed.set()
        if threading.current_thread() is not self._heart:
            self._heart.join()
        with self._lock:
            if self._connection.current is not None:
                with contextlib.suppress(MemoryManagerUnavailable):
                    self._connection.current.request([Disconnect()], time.monotonic() + self._timeout)
            self._connection.close()

    def beat(self) -> None:
        """Tell the manager that this process runs, and deliver what it could not take before."""
        if self._scopes_to_release:
            with contextlib.suppress(MemoryManagerUnavailable), self._connected():
                pass
            self._scopes_to_release.clear()
        connection = self._connection.current
        if connection is not None:
            connection.notify(Heartbeat())
            connection.flush()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[tuple[Connection, float]]:
        """The connection, locked, and the deadline of the call."""
        deadline = time.monotonic() + self._timeout
        if not self._lock.acquire(timeout=self._timeout):
            raise MemoryManagerUnavailable(
                f"the MemoryManager at {self._endpoint.path} keeps another thread waiting; is it stuck?"
            )
        try:
            connection = self._connection.get(deadline)
            while self._scopes_to_release:
                connection.notify(ReleaseScope(self._scopes_to_release.popleft()))
            yield connection, deadline
        finally:
            self._lock.release()

    def _allocate(
        self, connection: Connection, lease: int, sizes: list[int], scope: str, deadline: float
    ) -> tuple[list[Array], list[BlockRef]]:
        operation = Allocate(lease, sizes, scope)
        reply = connection.request([operation], deadline, undo=[Release(lease)])[0]
        blocks = expect(reply, Allocated).blocks
        try:
            return [
                connection.mapping(block.pool, True, deadline).view(block.offset, block.nbytes) for block in blocks
            ], blocks
        except BaseException:
            connection.notify(Release(lease))
            raise

    def _views(self, connection: Connection, lease: int, handles: list[TensorHandle], deadline: float) -> OpenTensors:
        try:
            roots = [
                connection.mapping(handle.pool, False, deadline).view(handle.offset, handle.nbytes)
                for handle in handles
            ]
        except BaseException:
            connection.notify(Release(lease))
            raise
        hold = LeaseHold(len(roots), lambda: connection.notify(Release(lease)))
        for root in roots:
            hold.watch(root)
        return OpenTensors(
            [shaped(root, handle.dtype, handle.shape) for root, handle in zip(roots, handles, strict=True)]
        )


def _beat(client: weakref.ref[MemoryManagerClient], closed: threading.Event) -> None:
    while not closed.wait(_HEARTBEAT_SECONDS):
        alive = client()
        if alive is None:
            return
        alive.beat()
        del alive


def _reference(handle: TensorHandle) -> BlockRef:
    return BlockRef(handle.incarnation, handle.pool, handle.offset, handle.nbytes, handle.generation)


def _handle(block: BlockRef, dtype: str, shape: tuple[int, ...]) -> TensorHandle:
    return TensorHandle(block.incarnation, block.pool, block.offset, block.nbytes, block.generation, dtype, shape)

"""The tensor store of a deployment: MemoryManager, as ``values`` wants it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memory_manager.client import MemoryManagerClient
from memory_manager.handle import TensorHandle
from omniflow_backend.deployment import MEMORY_SOCKET
from omniflow_backend.triton.values import Array

log = logging.getLogger(__name__)


class MemoryManagerStore:
    """Keeps big tensors in MemoryManager. May be used from any thread."""

    def __init__(self, client: MemoryManagerClient) -> None:
        self._client = client

    @classmethod
    def of_deployment(cls, runtime: Path, name: str) -> MemoryManagerStore | None:
        """The store of the deployment in ``runtime``, or ``None`` when it runs without MemoryManager (all values
        travel inline)."""
        socket = runtime / MEMORY_SOCKET
        return cls(MemoryManagerClient(socket, name)) if socket.exists() else None

    def put(self, array: Array, scope: str) -> bytes:
        return msgspec.msgpack.encode(self._client.put(array, scope).to_wire())

    def open(self, handles: Sequence[bytes]) -> Sequence[Array]:
        opened = self._client.open([TensorHandle.from_wire(msgspec.msgpack.decode(handle)) for handle in handles])
        return list(opened.arrays)

    def open_scope(self, scope: str) -> None:
        """Keep what is put under ``scope`` from now on, whoever puts it, until it is released or this process ends."""
        self._client.open_scope(scope)

    def release_scope(self, scope: str) -> None:
        """Let go of all that was put under ``scope``. Never blocks."""
        self._client.release_scope_soon(scope)

    def close(self) -> None:
        """Disconnect."""
        self._client.close()

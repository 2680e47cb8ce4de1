"""The one connection of a client: made on first use, and again after the manager has restarted."""

from __future__ import annotations

import zmq

from memory_manager.connection import Connection
from memory_manager.devices.memory import DeviceMemory
from memory_manager.endpoint import Endpoint
from memory_manager.errors import MemoryManagerUnavailable


class Reconnecting:
    """All methods need the client's lock; `current` does not.

    Args:
        name: the client's, shown by the manager.
        memory: where what it maps lies.
    """

    def __init__(self, endpoint: Endpoint, memory: DeviceMemory, name: str) -> None:
        self.current: Connection | None = None
        """The connection there is, which may have died; `None` before the first and after the end."""
        self._endpoint = endpoint
        self._memory = memory
        self._name = name
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._closed = False

    def get(self, deadline: float) -> Connection:
        """A connection that was alive just now: the one there is, or a new one.

        Args:
            deadline: for a new one; monotonic seconds.

        Raises:
            MemoryManagerUnavailable: if none can be made, or the client is closed.
        """
        if self._closed:
            raise MemoryManagerUnavailable(f"client {self._name!r} is closed")
        if self.current is not None and not self.current.alive:
            self._disconnect()
        if self.current is None:
            self.current = Connection(self._context, self._endpoint, self._memory, self._name, deadline)
        return self.current

    def close(self) -> None:
        """Disconnect for good: the manager lets go of what the client held. Idempotent."""
        self._closed = True
        self._disconnect()
        self._context.destroy(linger=0)

    def _disconnect(self) -> None:
        if self.current is not None:
            self.current.close()
            self.current = None

"""What the MemoryManager needs from a kind of memory: own it, export it, import it elsewhere, look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Export:
    """What another process needs to map a region: a device name, its size in bytes, opaque bytes and descriptors.

    The descriptors stay open and owned by the region; they are duplicated on their way through the socket.
    """

    device: str
    nbytes: int
    payload: bytes = b""
    descriptors: tuple[int, ...] = ()


class Region(Protocol):
    """Memory in the process that owns it."""

    @property
    def nbytes(self) -> int: ...

    def export(self) -> Export:
        """How another process maps this region."""

    def close(self) -> None:
        """Give the memory back to the device, also while others have it mapped. Nobody may use its bytes any more."""


class Mapping(Protocol):
    """A region of another process, mapped here. It stays mapped as long as any view of it is alive."""

    @property
    def nbytes(self) -> int: ...

    def view(self, offset: int, nbytes: int) -> Any:
        """A one-dimensional uint8 array of those bytes: no copy; read-only unless imported writable.

        Raises:
            ValueError: if they do not lie inside the region.
        """


class DeviceMemory(Protocol):
    """One kind of memory."""

    @property
    def device(self) -> str:
        """Its name in exports and statistics."""

    def allocate(self, nbytes: int, prefault: bool) -> Region:
        """New memory of this process. With `prefault` its pages exist and are mapped before the call returns.

        Raises:
            MemoryError: if the device has not that much left.
        """

    def import_region(self, export: Export, writable: bool) -> Mapping:
        """Map what another process exported; takes over (closes) the descriptors.

        Raises:
            ValueError: if the export is not of this device.
        """

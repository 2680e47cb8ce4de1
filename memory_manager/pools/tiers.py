"""The tiers of one parameter on this machine: device memory, host memory and a file, as the declaration sizes them."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from memory_manager.devices.memory import DeviceMemory, Region
from memory_manager.pools.declaration import Machine, ParameterDeclaration, Recomputation, Tier
from memory_manager.pools.errors import DeclarationRefused, PageFileUnusable
from memory_manager.pools.files import FileDisk, PageFile
from memory_manager.pools.paging import PagedStorage, RegionLayout, arrangement_of


class ParameterTiers:
    """Memory and file of one parameter. L1 and L2 are `PagedStorage`, L3 is a `PageFile`; `None` where there is none.

    Args:
        device: the memory of L1.
        host: the memory of L2.
        directory: where the file of L3 lies. It is found again by name and layout, and its pages are in `recovered`.
        machine: what can still be had.

    Raises:
        DeclarationRefused: if the machine cannot have the tiers, or the file cannot be used. Nothing is left behind.
    """

    def __init__(
        self,
        declaration: ParameterDeclaration,
        device: DeviceMemory,
        host: DeviceMemory,
        directory: Path,
        machine: Machine,
    ) -> None:
        path = directory / page_file_name(declaration)
        # A file that is there already has its space.
        kept = path.stat().st_size if path.exists() else 0
        replace(machine, disk_bytes=machine.disk_bytes + kept).refuse(declaration)
        self.declaration = declaration
        self.regions: dict[Tier, Region] = {}
        self.storages: dict[Tier, PagedStorage] = {}
        self.file: PageFile | None = None
        self.recovered: dict[int, bytes] = {}
        try:
            for tier, memory in ((Tier.L1, device), (Tier.L2, host)):
                if declaration.slots(tier):
                    self._add_memory(tier, memory)
            if slots := declaration.slots(Tier.L3):
                disk = FileDisk(path, PageFile.nbytes(slots, declaration.page_stride))
                durable = declaration.recomputation is Recomputation.PRESERVED
                self.file = PageFile(disk, declaration.layout_id, slots, declaration.page_stride, durable)
                self.recovered = self.file.recover()
        except (MemoryError, OSError, PageFileUnusable) as error:
            self.close()
            raise DeclarationRefused(declaration.name, [str(error)]) from error

    @property
    def capacities(self) -> dict[Tier, int]:
        """Slots of the tiers that exist."""
        return {tier: slots for tier in Tier if (slots := self.declaration.slots(tier))}

    def close(self) -> None:
        """Give memory back and close the file, which stays."""
        self.storages.clear()
        for region in self.regions.values():
            region.close()
        self.regions.clear()
        if self.file is not None:
            self.file.close()
            self.file = None

    def _add_memory(self, tier: Tier, memory: DeviceMemory) -> None:
        layout = RegionLayout(self.declaration, arrangement_of(tier), self.declaration.slots(tier))
        region = memory.allocate(layout.nbytes, prefault=False)
        self.regions[tier] = region
        export = region.export()
        # Importing closes the descriptors it gets; the region keeps its own.
        mine = replace(export, descriptors=tuple(os.dup(descriptor) for descriptor in export.descriptors))
        mapping = memory.import_region(mine, writable=True)
        self.storages[tier] = PagedStorage(mapping.view(0, layout.nbytes), layout)


def page_file_name(declaration: ParameterDeclaration) -> str:
    """The name of a parameter's file: one for each name and layout."""
    readable = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in declaration.name)
    digest = hashlib.sha256(declaration.name.encode()).hexdigest()[:8]
    return f"{readable[:64]}-{digest}-{declaration.layout_id}.pages"


def this_machine(directory: Path, host_bytes: int) -> Machine:
    """What this machine can still give: host memory as said, disk space in that directory."""
    found = os.statvfs(directory)
    return Machine(host_bytes=host_bytes, disk_bytes=found.f_bavail * found.f_frsize)

"""Executes what clients ask about weights and KV capacity: messages on one side, the pure registries on the other."""

from __future__ import annotations

import time
from collections.abc import Mapping

from memory_manager.devices.memory import DeviceMemory
from memory_manager.errors import RequestRefused
from memory_manager.weights.capacity import CapacityRounds
from memory_manager.weights.loader import LoaderLeases
from memory_manager.weights.messages import (
    AcquireLoader,
    ArriveAtCapacity,
    CapacityRound,
    FetchWeights,
    FindWeights,
    JoinCapacity,
    LoaderState,
    ProposeCapacity,
    PublishWeights,
    ReleaseLoader,
    ReserveWeights,
    WeightsFound,
    WeightsOperation,
    WeightsRegion,
    WeightsReply,
    WeightsReserved,
)
from memory_manager.weights.registry import WeightRegistry, WeightsKey


class SharedWeights:
    """The weights of one manager, who loads, and who negotiates.

    Args:
        devices: by name.
        idle_budget: see `WeightRegistry`.
    """

    def __init__(self, devices: Mapping[str, DeviceMemory], idle_budget: int) -> None:
        self.registry = WeightRegistry(devices, idle_budget)
        self._leases = LoaderLeases()
        self._capacity = CapacityRounds(self._leases)

    def execute(self, client: bytes, name: str, operation: WeightsOperation) -> WeightsReply | None:
        """The reply, at once; `None` is done. `name` is the client's, for people.

        Raises:
            RequestRefused: for an operation that makes no sense, or for which there is no room.
        """
        now = time.monotonic()
        match operation:
            case AcquireLoader(device):
                loader = self._leases.acquire(client, name, device, now)
                return LoaderState(loader.client == client, loader.name, now - loader.since)
            case ReleaseLoader(device):
                self.registry.give_up(client, device)
                self._leases.release(client, device)
            case FindWeights(device, checkpoint, partition, after):
                found = self.registry.find(client, name, WeightsKey(device, checkpoint, partition), after)
                return WeightsFound(0, []) if found is None else WeightsFound(*found)
            case ReserveWeights(device, checkpoint, partition, parameters):
                if not self._leases.is_loader(client, device):
                    raise RequestRefused(f"this client does not load on {device}: acquire the loader first")
                key = WeightsKey(device, checkpoint, partition)
                return WeightsReserved(*self.registry.reserve(client, key, parameters))
            case PublishWeights(publication):
                self.registry.publish(client, name, publication)
            case JoinCapacity(pool, device, members, member, timeout):
                return CapacityRound(self._capacity.join(client, pool, device, members, member, timeout / 1000, now))
            case ArriveAtCapacity(number):
                return self._capacity.arrive(client, number, now)
            case ProposeCapacity(number, epoch, pages):
                return self._capacity.propose(client, number, epoch, pages, now)
        return None

    def fetch(self, client: bytes, operation: FetchWeights) -> tuple[WeightsRegion, tuple[int, ...]]:
        """How to import the region of a publication, and the descriptors to pass.

        Raises:
            RequestRefused: see `WeightRegistry.region`.
        """
        region = self.registry.region(client, operation.publication)
        if region is None:
            return WeightsRegion(False), ()
        export = region.export()
        return WeightsRegion(True, export.device, export.nbytes, export.payload), export.descriptors

    def drop_client(self, client: bytes) -> None:
        """The client is gone, and with it what it held."""
        self._capacity.drop_client(client)
        self._leases.drop_client(client)
        self.registry.drop_client(client)

    def close(self) -> None:
        """See `WeightRegistry.close`."""
        self.registry.close()

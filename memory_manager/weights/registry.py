"""Weights in memory of the manager: published once, found by everybody with the same checkpoint (paper, 4.3)."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from memory_manager.devices.memory import DeviceMemory, Region
from memory_manager.errors import RequestRefused
from memory_manager.tmp_buffers.extents import aligned
from memory_manager.weights.messages import WeightEntry, WeightSpec

logger = logging.getLogger(__name__)


class WeightsKey(NamedTuple):
    """Parameters of the same name under the same key are the same bytes.

    `checkpoint` stands for their content and how it was processed (see `identity`), `partition` for the part of each
    parameter that a rank of a parallel group holds.
    """

    device: str
    checkpoint: str
    partition: str


class WeightsInUse(RequestRefused):
    """A publication cannot go: clients use it."""


@dataclass(slots=True)
class _Publication:
    """Written by `owner` until it is complete; then it has no owner, only holders."""

    number: int
    key: WeightsKey
    entries: list[WeightEntry]
    nbytes: int
    owner: bytes | None
    region: Future[Region]
    last_used: float
    holders: dict[bytes, str] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return self.owner is None and not self.holders


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """One publication for people.

    Args:
        nbytes: size of its region.
        complete: whether it is written.
        holders: the clients that use it.
        idle: seconds since the last of them went; 0 while it is used or written.
    """

    number: int
    key: WeightsKey
    parameters: int
    nbytes: int
    complete: bool
    holders: tuple[str, ...]
    idle: float


class WeightRegistry:
    """Publications: some parameters of a checkpoint in one region.

    reserve -> (the owner writes) -> publish -> found and held by clients -> idle when the last of them is gone -> the
    least recently used go when idle ones exceed the budget. An owner that dies before `publish` takes its reservation
    with it. A held publication never goes.

    Args:
        devices: by name.
        idle_budget: bytes that publications which nobody uses may occupy.
        clock: monotonic seconds.
    """

    def __init__(
        self, devices: Mapping[str, DeviceMemory], idle_budget: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices = devices
        self._idle_budget = idle_budget
        self._clock = clock
        # A number of an earlier run must not name another publication of this one.
        self._numbers = itertools.count(secrets.randbits(48))
        self._publications: dict[int, _Publication] = {}
        # Making gigabytes takes seconds, in which the manager has others to serve.
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="weights")

    def find(self, client: bytes, name: str, key: WeightsKey, after: int) -> tuple[int, list[WeightEntry]] | None:
        """The first complete publication with a number above `after`; the client (`name`, for people) holds it."""
        for number, publication in self._publications.items():
            if number > after and publication.key == key and publication.owner is None:
                publication.holders[client] = name
                return number, publication.entries
        return None

    def reserve(self, client: bytes, key: WeightsKey, wanted: Sequence[WeightSpec]) -> tuple[int, list[WeightEntry]]:
        """Number and places of a new publication that `client` writes.

        Raises:
            RequestRefused: for a device that this manager does not have, and for parameters that are there already.
        """
        if key.device not in self._devices:
            raise RequestRefused(f"this manager has no device {key.device!r}, only {', '.join(self._devices)}")
        taken = {
            entry.name
            for publication in self._publications.values()
            if publication.key == key
            for entry in publication.entries
        }
        names = [spec.name for spec in wanted]
        if taken.intersection(names) or len(set(names)) < len(names):
            raise RequestRefused(f"parameters of {key.checkpoint} are there already; find them first")
        ends = list(itertools.accumulate(aligned(spec.nbytes) for spec in wanted))
        entries = [
            WeightEntry(spec.name, spec.dtype, spec.shape, offset, spec.nbytes)
            for spec, offset in zip(wanted, [0, *ends], strict=False)
        ]
        number = next(self._numbers)
        region = self._build(key.device, ends[-1])
        self._publications[number] = _Publication(number, key, entries, ends[-1], client, region, self._clock())
        return number, entries

    def publish(self, client: bytes, name: str, number: int) -> None:
        """The owner has written everything, and goes on using it.

        Raises:
            RequestRefused: if the client does not write such a publication.
        """
        publication = self._publications.get(number)
        if publication is None or publication.owner != client or not publication.region.done():
            raise RequestRefused(f"this client does not write publication {number}")
        publication.owner = None
        publication.holders[client] = name
        logger.info("weights published", extra={"checkpoint": publication.key.checkpoint, "bytes": publication.nbytes})

    def region(self, client: bytes, number: int) -> Region | None:
        """The memory of a publication that the client holds or writes; `None` while it is being made.

        Raises:
            RequestRefused: if it neither holds nor writes such a one, or the device has no room.
        """
        publication = self._publications.get(number)
        if publication is None or (publication.owner != client and client not in publication.holders):
            raise RequestRefused(f"this client has no publication {number}")
        if not publication.region.done():
            return None
        try:
            return publication.region.result()
        except MemoryError as error:
            idle = [other for other in self._publications.values() if other.idle]
            if not idle:
                del self._publications[number]
                raise RequestRefused(f"no room for weights: {error}") from None
        # What nobody uses makes room for what somebody does.
        for other in idle:
            self._remove(other)
        publication.region = self._build(publication.key.device, publication.nbytes)
        return None

    def give_up(self, client: bytes, device: str) -> None:
        """What the client was writing on the device is gone."""
        for publication in list(self._publications.values()):
            if publication.owner == client and publication.key.device == device:
                self._remove(publication)

    def drop_client(self, client: bytes) -> None:
        """The client is gone: it holds and writes nothing any more."""
        for publication in list(self._publications.values()):
            if publication.owner == client:
                self._remove(publication)
            elif publication.holders.pop(client, None) is not None:
                publication.last_used = self._clock()
        self._keep_idle_within(self._idle_budget)

    def entries(self) -> list[PublicationReport]:
        """What there is."""
        now = self._clock()
        return [
            PublicationReport(
                publication.number,
                publication.key,
                len(publication.entries),
                publication.nbytes,
                publication.owner is None,
                tuple(publication.holders.values()),
                now - publication.last_used if publication.idle else 0.0,
            )
            for publication in self._publications.values()
        ]

    def drop(self, number: int) -> None:
        """The publication goes.

        Raises:
            RequestRefused: if there is no such one.
            WeightsInUse: if somebody holds or writes it.
        """
        publication = self._publications.get(number)
        if publication is None:
            raise RequestRefused(f"there are no weights with the number {number}")
        if not publication.idle:
            users = ", ".join(publication.holders.values()) or "the client that loads them"
            raise WeightsInUse(f"weights {number} are in use by {users}; end it first")
        self._remove(publication)

    def clear(self) -> None:
        """All publications that nobody uses go."""
        self._keep_idle_within(0)

    def close(self) -> None:
        """Give back what nobody uses. What is used stays mapped in its users, and ends with them."""
        for publication in list(self._publications.values()):
            if not publication.holders:
                self._remove(publication)
        self._builder.shutdown()

    def _build(self, device: str, nbytes: int) -> Future[Region]:
        return self._builder.submit(self._devices[device].allocate, nbytes, False)

    def _remove(self, publication: _Publication) -> None:
        del self._publications[publication.number]
        if not publication.region.cancel():
            publication.region.add_done_callback(_close)

    def _keep_idle_within(self, budget: int) -> None:
        idle = sorted(
            (publication for publication in self._publications.values() if publication.idle),
            key=lambda publication: publication.last_used,
        )
        nbytes = sum(publication.nbytes for publication in idle)
        for publication in idle:
            if nbytes <= budget:
                return
            self._remove(publication)
            nbytes -= publication.nbytes


def _close(region: Future[Region]) -> None:
    if not region.cancelled() and region.exception() is None:
        region.result().close()

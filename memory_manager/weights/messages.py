"""The part of the wire protocol that is about weights and KV capacity. Numbers are never reused."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

from memory_manager.bounds import Count, Name

MAX_ENTRIES = 256
MAX_MEMBERS = 64

Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=24 * 3600 * 1000)]
Shape: TypeAlias = Annotated[list[Count], msgspec.Meta(max_length=32)]


class WeightOperation(IntEnum):
    """What a client can ask."""

    ACQUIRE_LOADER = 30
    RELEASE_LOADER = 31
    FIND_WEIGHTS = 32
    RESERVE_WEIGHTS = 33
    PUBLISH_WEIGHTS = 34
    FETCH_WEIGHTS = 35
    JOIN_CAPACITY = 36
    ARRIVE_AT_CAPACITY = 37
    PROPOSE_CAPACITY = 38


class WeightReply(IntEnum):
    """What the manager answers."""

    LOADER_STATE = 30
    WEIGHTS_FOUND = 31
    WEIGHTS_RESERVED = 32
    WEIGHTS_REGION = 33
    CAPACITY_ROUND = 34
    CAPACITY_STATE = 35


class WeightSpec(msgspec.Struct, array_like=True, frozen=True):
    """A parameter that is to be published."""

    name: Name
    dtype: Name
    shape: Shape
    nbytes: Count


class WeightEntry(msgspec.Struct, array_like=True, frozen=True):
    """A parameter and where it lies in the region of its publication."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    nbytes: int


# Operations


class AcquireLoader(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.ACQUIRE_LOADER)):
    """Be the one that loads on the device, if nobody is. Answered at once by `LoaderState`; ask again to wait."""

    device: Name


class ReleaseLoader(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.RELEASE_LOADER)):
    """The client loads no more. What it reserved and did not publish is gone."""

    device: Name


class FindWeights(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.FIND_WEIGHTS)):
    """The first complete publication of that checkpoint and partition with a number above `after`.

    The client holds it from then on, until its connection ends. Answered by `WeightsFound`.
    """

    device: Name
    checkpoint: Name
    partition: Name
    after: Count


class ReserveWeights(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.RESERVE_WEIGHTS)):
    """Room for these parameters, to be written by this client, which must be the loader of the device."""

    device: Name
    checkpoint: Name
    partition: Name
    parameters: Annotated[list[WeightSpec], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]


class PublishWeights(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.PUBLISH_WEIGHTS)):
    """What this client reserved is written completely: others find it."""

    publication: Count


class FetchWeights(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.FETCH_WEIGHTS)):
    """Control connection only: pass the region of a publication that the client holds or writes."""

    publication: Count


class JoinCapacity(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.JOIN_CAPACITY)):
    """This client is `member` of the pool, whose capacity must be final in `timeout` milliseconds.

    Every member joins before it loads, and names all members. Answered by `CapacityRound`.
    """

    pool: Name
    device: Name
    members: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    member: Name
    timeout: Milliseconds


class ArriveAtCapacity(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.ARRIVE_AT_CAPACITY)):
    """This client has loaded. Answered at once by `CapacityState`; ask again to wait."""

    round: Count


class ProposeCapacity(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightOperation.PROPOSE_CAPACITY)):
    """What the client measured, when it was told to measure in that `epoch`. Answered by `CapacityState`."""

    round: Count
    epoch: Count
    pages: Count


# Replies


class LoaderState(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.LOADER_STATE)):
    """Whether the client is the loader now; who is, and for how many seconds."""

    granted: bool
    holder: str
    held: float


class WeightsFound(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.WEIGHTS_FOUND)):
    """A publication; without entries if there is none."""

    publication: int
    entries: list[WeightEntry]


class WeightsReserved(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.WEIGHTS_RESERVED)):
    """Where to write what: see `FetchWeights`."""

    publication: int
    entries: list[WeightEntry]


class WeightsRegion(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.WEIGHTS_REGION)):
    """How to import a region (see `devices`); ask again if it is not `ready`."""

    ready: bool
    device: str = ""
    nbytes: int = 0
    payload: bytes = b""


class CapacityRound(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.CAPACITY_ROUND)):
    """The number of the round that the client has joined."""

    round: int


class CapacityPhase(IntEnum):
    """How far a round is, for one member."""

    WAIT = 1
    MEASURE = 2
    FINAL = 3
    FAILED = 4


class CapacityState(msgspec.Struct, array_like=True, frozen=True, tag=int(WeightReply.CAPACITY_STATE)):
    """`pages` in the phase FINAL, `epoch` in MEASURE; else `reason`: what is waited for, or what failed.

    `members` are those waited for, or at fault.
    """

    phase: CapacityPhase
    epoch: int = 0
    pages: int = 0
    members: list[str] = []
    reason: str = ""


WeightControl: TypeAlias = FetchWeights
WeightsOperation: TypeAlias = (
    AcquireLoader
    | ReleaseLoader
    | FindWeights
    | ReserveWeights
    | PublishWeights
    | JoinCapacity
    | ArriveAtCapacity
    | ProposeCapacity
)
WeightsReply: TypeAlias = LoaderState | WeightsFound | WeightsReserved | WeightsRegion | CapacityRound | CapacityState

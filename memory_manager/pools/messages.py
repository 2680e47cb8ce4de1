"""The part of the wire protocol that is about global parameters: what clients ask, what the manager answers.

Field by field the same as `declaration` and `requests`, with bounds. Numbers are part of the protocol: never reused.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeAlias

import msgspec

from memory_manager.bounds import Count, Name

MAX_PAGES = 1024
MAX_PAGE_ID = 256
_MAX_DIMENSIONS = 16
_MAX_LABELS = 4096

Page: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_PAGE_ID)]
TierNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=3)]
Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=24 * 3600 * 1000)]
Labels: TypeAlias = Annotated[list[Name], msgspec.Meta(min_length=1, max_length=_MAX_LABELS)]


class PoolOperation(IntEnum):
    """What a client can ask about parameters."""

    DECLARE = 20
    ACQUIRE_PAGES = 21
    FINISH_PAGES = 22
    RELEASE_PAGES = 23
    PARAMETER_STATUS = 24
    FETCH_REGION = 25
    FORGET_PAGES = 26


class PoolReply(IntEnum):
    """What the manager answers."""

    DECLARED = 20
    PAGES_GRANTED = 21
    PARAMETER_REPORT = 22
    REGION = 23


class Dimension(msgspec.Struct, array_like=True, frozen=True):
    """An outer or a slice dimension; only the latter may have an `axis`."""

    name: Name
    labels: Labels
    axis: Annotated[int, msgspec.Meta(ge=0, le=31)] | None = None


class TierSize(msgspec.Struct, array_like=True, frozen=True):
    """Bytes of a tier."""

    tier: TierNumber
    nbytes: Count


class SlotName(msgspec.Struct, array_like=True, frozen=True):
    """A slot while one page lies in it."""

    tier: TierNumber
    position: Count
    generation: Count


class PageGrant(msgspec.Struct, array_like=True, frozen=True):
    """Where a page lies; it is complete if not `writable`."""

    slot: SlotName
    writable: bool


# Operations


class Declare(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.DECLARE)):
    """A parameter from now on. Declaring the same again is answered alike; anything else under its name is refused."""

    name: Name
    sub_names: Annotated[list[Dimension], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    slice_dims: Annotated[list[Dimension], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    page_size: Count
    shape: Annotated[list[Count], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    dtype: Name
    recomputation: Name
    tiers: Annotated[list[TierSize], msgspec.Meta(min_length=1, max_length=3)]


class WantedPage(msgspec.Struct, array_like=True, frozen=True):
    """One page of a request: `access` is that of `requests.Access`; `base` is what it extends."""

    page: Page
    access: Name = "read"
    base: Page | None = None


class AcquirePages(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.ACQUIRE_PAGES)):
    """All pages, or none, held under `lease`. Answered when they are there, or `timeout` milliseconds have passed.

    Without a tier nothing moves: a look-up. With `hold`, the lease holds them for so many milliseconds at most.
    """

    parameter: Count
    lease: Count
    pages: Annotated[list[WantedPage], msgspec.Meta(min_length=1, max_length=MAX_PAGES)]
    tier: TierNumber | None
    timeout: Milliseconds
    hold: Milliseconds | None = None


class FinishPages(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.FINISH_PAGES)):
    """What the lease was writing into these slots is complete. Fails at the first slot that it does not write."""

    parameter: Count
    lease: Count
    slots: Annotated[list[SlotName], msgspec.Meta(min_length=1, max_length=MAX_PAGES)]


class ReleasePages(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.RELEASE_PAGES)):
    """The lease holds these pages (all, if `None`) no more; what it was writing there is given up."""

    parameter: Count
    lease: Count
    pages: Annotated[list[Page], msgspec.Meta(max_length=MAX_PAGES)] | None = None


class ForgetPages(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.FORGET_PAGES)):
    """The pages are needed no more, whatever the policy; who holds one keeps its bytes. Unknown ones are ignored."""

    parameter: Count
    pages: Annotated[list[Page], msgspec.Meta(min_length=1, max_length=MAX_PAGES)]


class ParameterStatus(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.PARAMETER_STATUS)):
    """Answered by `ParameterReport`."""

    parameter: Count


class FetchRegion(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolOperation.FETCH_REGION)):
    """Control connection only: pass a tier's memory. Answered by `RegionGranted` with its descriptors attached."""

    parameter: Count
    tier: TierNumber


# Replies


class Declared(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolReply.DECLARED)):
    """The parameter's number in this run of the manager, the id of its layout, and how many slots its tiers have."""

    parameter: Count
    layout_id: str
    slots: dict[TierNumber, int]


class PagesGranted(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolReply.PAGES_GRANTED)):
    """What each wanted page got, in order; `None` is a miss."""

    grants: list[PageGrant | None]


class TierReport(msgspec.Struct, array_like=True, frozen=True):
    """Slots of one tier."""

    tier: TierNumber
    slots: int
    free: int
    held: int


class ParameterReport(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolReply.PARAMETER_REPORT)):
    """A parameter at one moment, and what has happened to it since it was declared."""

    tiers: list[TierReport]
    waiting: int
    in_flight: int
    counters: dict[str, int]


class RegionGranted(msgspec.Struct, array_like=True, frozen=True, tag=int(PoolReply.REGION)):
    """How to import a region (see `devices`)."""

    device: str
    nbytes: int
    payload: bytes


ParameterOperation: TypeAlias = Declare | AcquirePages | FinishPages | ReleasePages | ForgetPages | ParameterStatus
PoolsReply: TypeAlias = Declared | PagesGranted | ParameterReport | RegionGranted

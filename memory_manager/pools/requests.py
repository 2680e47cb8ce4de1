"""What clients ask of the slot engine, and what they get."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from memory_manager.pools.declaration import Tier

PageId: TypeAlias = bytes
"""Identity of a page's content. A page never changes under its id."""


class HolderKind(IntEnum):
    """The four holder sets of a slot (paper, 4.1.2)."""

    INFERENCE = 0
    """A computation reads or writes the slot."""
    LOAD = 1
    """Bytes come up from files, or from another node."""
    OFFLOAD = 2
    """Bytes go to a slower tier."""
    UPLOAD = 3
    """Bytes go to the device, or to another node."""


class Holder(NamedTuple):
    """Who holds: a client, and its own number for what it is doing. Holding twice under one id is holding once."""

    client: bytes
    number: int


class Access(Enum):
    """What a client wants of a page."""

    READ = "read"
    """The complete page; a miss if there is none."""
    WRITE = "write"
    """A slot to write the page into, or the complete page if there is one.

    A miss only if that could not be loaded; ask again.
    """
    EXTEND = "extend"
    """Copy on write: a slot with a copy of `base`, to be published under a new id; a miss if there is no base."""


@dataclass(frozen=True, slots=True)
class Want:
    """One page of a request."""

    page: PageId
    access: Access = Access.READ
    base: PageId | None = None

    def __post_init__(self) -> None:
        if (self.access is Access.EXTEND) != (self.base is not None):
            raise ValueError("a base is given exactly when a page extends another one")
        if self.base == self.page:
            raise ValueError("an extended page needs an id of its own; the old one stays valid")


class SlotRef(NamedTuple):
    """A slot while one page lies in it. Generations are never used again, so that nobody finishes another's write."""

    tier: Tier
    position: int
    generation: int


@dataclass(frozen=True, slots=True)
class Grant:
    """The slot holds the page (complete if not `writable`) as long as the holder holds it."""

    page: PageId
    slot: SlotRef
    writable: bool


@dataclass(frozen=True, slots=True)
class Granted:
    """What each page of the request got; `None` is a miss."""

    grants: dict[PageId, Grant | None]


class Obstacle(Enum):
    """Why a request was not granted before its deadline."""

    TOO_LARGE = "more pages than the tier has slots"
    NO_SPACE = "no slot became free that could be used safely"
    WRITER = "another client was still writing one of the pages"
    MIGRATION = "a page was still on its way"
    GIVEN_UP = "its holder released the pages, or is gone"


@dataclass(frozen=True, slots=True)
class Refused:
    """The request failed as a whole; it holds nothing. All numbers are slots of the request's tier.

    Args:
        asked: slots that the request needs.
        held: slots that somebody holds now.
        free: slots with nothing in them now.
    """

    obstacle: Obstacle
    tier: Tier
    asked: int
    held: int
    free: int

    def __str__(self) -> str:
        return (
            f"{self.obstacle.value}: {self.asked} slots of {self.tier.name} asked, {self.held} held, {self.free} free; "
            "release pages, wait longer, or give the tier more bytes"
        )


Outcome: TypeAlias = Granted | Refused


@dataclass(slots=True, eq=False)
class Request:
    """Pages that are granted together. `tier` is `None` where any tier will do (a look-up: nothing moves).

    Args:
        deadline: of the answer.
        hold_until: until when the slots are held at most; `None` for as long as the client lives.
    """

    number: int
    holder: Holder
    wants: dict[PageId, Want]
    tier: Tier | None
    kind: HolderKind
    deadline: float
    hold_until: float | None
    obstacle: Obstacle = Obstacle.NO_SPACE
    asked: int = 0
    grants: dict[PageId, Grant | None] = field(default_factory=dict)
    migrations: set[int] = field(default_factory=set)
    fresh: set[PageId] = field(default_factory=set)
    """Pages that this request alone made the holder hold."""


@dataclass(frozen=True, slots=True)
class Migration:
    """Bytes to move from one slot to another. Both are held by the migration until it is finished or aborted."""

    number: int
    kind: HolderKind
    page: PageId
    source: SlotRef
    becomes: PageId
    destination: SlotRef


class MigrationFailure(Enum):
    """Why a migration was aborted."""

    FAILED = "the bytes could not be moved; the source is as good as before"
    SOURCE_CORRUPT = "the source is not the page it should be"
    DESTINATION_FULL = "the destination cannot take anything now"


@dataclass(slots=True)
class Counters:
    """What has happened since the start."""

    hits: int = 0
    misses: int = 0
    joined: int = 0
    migrations: int = 0
    failed_migrations: int = 0
    corrupt_pages: int = 0
    refused_requests: int = 0
    expired_holds: int = 0


class EvictionGuard(Protocol):
    """What the cluster knows. Asked before the last copy of this node is dropped."""

    def withdraw(self, page: PageId) -> bool:
        """Whether the copy of this node may go. If so, nobody is told any more that this node has the page.

        It must not raise: the answer is `False` if the cluster cannot be asked, and for preserved pages unless another
        complete copy exists elsewhere.
        """


class NodeAlone:
    """The guard of a node that shares nothing: recomputable pages may go, preserved ones never."""

    def __init__(self, recomputable: bool) -> None:
        self._recomputable = recomputable

    def withdraw(self, page: PageId) -> bool:
        return self._recomputable

"""The plan: a workflow with every decision made that does not need a request (contract section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omniflow_backend.dsl.interface import InterfaceSpec, Role
from omniflow_backend.dsl.types import FieldType
from omniflow_backend.dsl.workflow import GlobalParam, Placeholder
from omniflow_backend.errors import Place

ENTRY = -1
"""Index of the call's entry, as if it were a node."""


class AlternativeKind(Enum):
    """How one input alternative of a node becomes an activation."""

    ENTRY = "entry"
    DIRECT = "direct"
    PREFIX_JOIN = "prefix join"
    COUNT_JOIN = "count join"


class TargetKind(Enum):
    """What outstanding work is counted towards."""

    JOIN = "join"
    ORDER = "order"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Target:
    """Something that has to know whether work which may still reach it is outstanding.

    ``anchor`` is the node whose yields open its occurrences, or ``None`` where only order among siblings matters.
    ``owner`` is the node of a join or ordered interface, the output index of a stream.
    """

    index: int
    kind: TargetKind
    owner: int
    alternative: int = 0
    anchor: int | None = None


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """One field carried along a route. ``wrap``: a direct ``Many(T)`` field makes a list of one from a ``T``."""

    source: str
    field: str
    required: bool
    wrap: bool


@dataclass(frozen=True, slots=True)
class Route:
    """The mappings from one source node into one alternative; ``windowed`` ones hold back a producer that is too far
    ahead.
    """

    source: int
    node: int
    alternative: int
    mappings: tuple[FieldMapping, ...]
    windowed: bool


@dataclass(frozen=True, slots=True)
class CountSource:
    """Where the count of a trigger field is learned: a constant, a placeholder, or an output field of a node."""

    field: str
    constant: int | None = None
    placeholder: str | None = None
    node: int | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """One input alternative of a node, planned.

    ``ranks[field][node]`` orders values of one field whose paths part at different nodes: by the position of the source
    in the ``bind`` call.
    """

    node: int
    index: int
    kind: AlternativeKind
    place: Place
    constants: Mapping[str, Placeholder | GlobalParam]
    fields: tuple[str, ...]
    routes: tuple[Route, ...]
    anchor: int | None = None
    target: int | None = None
    ranks: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    triggers: tuple[str, ...] = ()
    counts: tuple[CountSource, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputBinding:
    """A value of ``field`` of the owning node is (part of) an output.

    ``windowed`` as in ``Route``, for as long as the value waits to be presented.
    """

    output: int
    field: str
    windowed: bool


@dataclass(slots=True)
class PlannedNode:
    """One node with everything the runtime asks about it.

    ``work`` are the targets a pending activation of the node counts for; ``yields`` those a yield of it may count for.
    """

    index: int
    name: str
    role: str | None
    spec: InterfaceSpec
    place: Place
    alternatives: tuple[Alternative, ...] = ()
    routes: tuple[Route, ...] = ()
    outputs: tuple[OutputBinding, ...] = ()
    count_routes: tuple[tuple[int, CountSource], ...] = ()
    order_target: int | None = None
    is_anchor: bool = False
    anchored_joins: tuple[int, ...] = ()
    work: tuple[int, ...] = ()
    yields: tuple[int, ...] = ()
    gated_yields: tuple[int, ...] = ()

    @property
    def is_count_join(self) -> bool:
        """Whether the node collects by declared counts (at most one activation by count per call)."""
        return any(a.kind is AlternativeKind.COUNT_JOIN for a in self.alternatives)


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """A named result. ``type`` is the common type of its sources."""

    index: int
    name: str
    type: FieldType
    sources: tuple[tuple[int, str], ...]
    stream: bool
    required: bool
    many: bool
    target: int | None
    ranks: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class PlannedRole:
    """A role the workflow needs: which class, with which options, how many replicas."""

    name: str
    role: type[Role]
    replicas: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A compiled workflow: immutable, shared by all its calls."""

    name: str
    placeholders: Mapping[str, Placeholder]
    roles: Mapping[str, PlannedRole]
    nodes: tuple[PlannedNode, ...]
    outputs: tuple[PlannedOutput, ...]
    targets: tuple[Target, ...]
    window: int
    buffered_values: int

    def node(self, name: str) -> PlannedNode:
        """The node called ``role.interface``, or a Triton model's name. Raises ``KeyError``."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def target_name(self, index: int) -> str:
        """What a target waits for: the name of a join or ordered interface, or of a streamed output."""
        target = self.targets[index]
        names = self.outputs if target.kind is TargetKind.STREAM else self.nodes
        return names[target.owner].name

    def node_name(self, index: int) -> str:
        """The name of a node, ``call`` for the entry."""
        return "call" if index == ENTRY else self.nodes[index].name

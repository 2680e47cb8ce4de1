"""What a picture of a plan shows, before anything is said about where and how.

A join is a box of its own between its sources and its node: arrows into it wait for each other, while every arrow
straight into a node starts that node by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from omniflow_backend.dsl.workflow import GlobalParam, Placeholder
from omniflow_backend.planning.explain import count_text, explain_node, explain_output
from omniflow_backend.planning.plan import ENTRY, Alternative, AlternativeKind, Plan, PlannedNode, PlannedOutput, Route


class Shape(Enum):
    """What a box stands for."""

    CALL = "call"
    PLACEHOLDER = "placeholder"
    GLOBAL_PARAM = "global parameter"
    INTERFACE = "interface"
    TRITON_MODEL = "triton model"
    JOIN = "join"
    COUNT_JOIN = "count join"
    OUTPUT = "output"


class LineKind(Enum):
    """What an arrow stands for."""

    VALUE = "value"
    ATTACHED = "attached"
    COUNT = "count"
    JOINED = "joined"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class Box:
    """``key`` is unique in a diagram; ``anchor`` of a join is whose yields it runs for (``ENTRY``: the call)."""

    key: str
    shape: Shape
    title: str
    notes: tuple[str, ...] = ()
    tooltip: str = ""
    node: int | None = None
    anchor: int | None = None
    is_anchor: bool = False
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """An arrow between two boxes' keys; ``labels`` are the fields it carries, one a row."""

    source: str
    target: str
    kind: LineKind
    labels: tuple[str, ...] = ()
    closes_loop: bool = False


@dataclass(frozen=True, slots=True)
class Diagram:
    """``anchors`` are the nodes at which joins are anchored (``ENTRY`` included), in the order of the nodes."""

    name: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    anchors: tuple[int, ...]

    def box(self, key: str) -> Box:
        """The box with this key. Raises ``KeyError``."""
        for box in self.boxes:
            if box.key == key:
                return box
        raise KeyError(key)


def diagram(plan: Plan) -> Diagram:
    """The boxes and arrows of ``plan``, callers' values first."""
    alternatives = [alternative for node in plan.nodes for alternative in node.alternatives]
    boxes: dict[str, Box] = {}
    lines: dict[tuple[str, str, tuple[str, ...]], Line] = {}
    if any(a.kind is AlternativeKind.ENTRY and not a.constants for a in alternatives):
        boxes["call"] = Box("call", Shape.CALL, "call", is_anchor=any(a.anchor == ENTRY for a in alternatives))
    for constant in [*plan.placeholders.values(), *(c for a in alternatives for c in a.constants.values())]:
        boxes.setdefault(_constant_key(constant), _constant_box(constant))
    for node in plan.nodes:
        for alternative in node.alternatives:
            if alternative.kind in (AlternativeKind.PREFIX_JOIN, AlternativeKind.COUNT_JOIN):
                boxes[_join_key(node, alternative)] = _join_box(plan, node, alternative)
        boxes[_node_key(node)] = _node_box(plan, node)
    for output in plan.outputs:
        boxes[f"output:{output.name}"] = _output_box(plan, output)
    for line in _lines(plan):
        lines.setdefault((line.source, line.target, line.labels), line)
    anchors = sorted({a.anchor for a in alternatives if a.anchor is not None})
    return Diagram(plan.name, tuple(boxes.values()), tuple(lines.values()), tuple(anchors))


def _node_box(plan: Plan, node: PlannedNode) -> Box:
    notes = ["Triton model"] if node.role is None else []
    if node.role is not None and plan.roles[node.role].replicas > 1:
        notes.append(f"{plan.roles[node.role].replicas} replicas")
    if node.spec.style.repeats:
        notes.append("yields many times")
    return Box(
        _node_key(node),
        Shape.TRITON_MODEL if node.role is None else Shape.INTERFACE,
        node.name,
        tuple(notes),
        "\n".join([node.name, *explain_node(plan, node)]),
        node=node.index,
        is_anchor=node.is_anchor,
        ordered=node.spec.load_balance is not None,
    )


def _join_box(plan: Plan, node: PlannedNode, alternative: Alternative) -> Box:
    key = _join_key(node, alternative)
    if alternative.kind is AlternativeKind.COUNT_JOIN:
        counts = tuple(f"{count.field}: {count_text(plan, count)}" for count in alternative.counts)
        return Box(key, Shape.COUNT_JOIN, "count join @ call", counts, f"count join of {node.name}")
    assert alternative.anchor is not None
    anchor = plan.node_name(alternative.anchor)
    occurrence = "call" if alternative.anchor == ENTRY else f"yield of {anchor}"
    tooltip = f"join of {node.name}, once per {occurrence}"
    return Box(key, Shape.JOIN, f"join @ {anchor}", (), tooltip, anchor=alternative.anchor)


def _output_box(plan: Plan, output: PlannedOutput) -> Box:
    at_the_end = "all, at the end" if output.many else "at the end"
    note = "streamed" if output.stream else at_the_end
    return Box(f"output:{output.name}", Shape.OUTPUT, output.name, (note,), explain_output(plan, output))


def _constant_box(constant: Placeholder | GlobalParam) -> Box:
    key = _constant_key(constant)
    if isinstance(constant, GlobalParam):
        return Box(key, Shape.GLOBAL_PARAM, constant.name, ("session state",))
    return Box(key, Shape.PLACEHOLDER, constant.name, (f"{constant.type}{', optional' if constant.optional else ''}",))


def _lines(plan: Plan) -> Iterator[Line]:
    for node in plan.nodes:
        for alternative in node.alternatives:
            yield from _alternative_lines(plan, node, alternative)
    for output in plan.outputs:
        for source, field in output.sources:
            labels = (_label(field, output.name),)
            yield Line(_node_key(plan.nodes[source]), f"output:{output.name}", LineKind.RESULT, labels)


def _alternative_lines(plan: Plan, node: PlannedNode, alternative: Alternative) -> Iterator[Line]:
    target = _node_key(node)
    if alternative.kind in (AlternativeKind.PREFIX_JOIN, AlternativeKind.COUNT_JOIN):
        target = _join_key(node, alternative)
        yield Line(target, _node_key(node), LineKind.JOINED)
    if alternative.kind is AlternativeKind.ENTRY and not alternative.constants:
        yield Line("call", target, LineKind.VALUE)
    attached = LineKind.VALUE if alternative.kind is AlternativeKind.ENTRY else LineKind.ATTACHED
    for constant in dict.fromkeys(alternative.constants.values()):
        labels = tuple(_label(constant.name, field) for field, c in alternative.constants.items() if c is constant)
        yield Line(_constant_key(constant), target, attached, labels)
    for route in alternative.routes:
        source = _node_key(plan.nodes[route.source])
        yield Line(source, target, LineKind.VALUE, _route_labels(route), not route.windowed)
    for count in alternative.counts:
        told = f"= count of {count.field}"
        if count.node is not None:
            yield Line(_node_key(plan.nodes[count.node]), target, LineKind.COUNT, (str(count.output), told))
        elif count.placeholder is not None:
            yield Line(f"input:{count.placeholder}", target, LineKind.COUNT, (count.placeholder, told))


def _route_labels(route: Route) -> tuple[str, ...]:
    return tuple(_label(m.source, m.field) + ("" if m.required else "?") for m in route.mappings)


def _label(source: str, target: str) -> str:
    return source if source == target else f"{source} → {target}"


def _node_key(node: PlannedNode) -> str:
    return f"node:{node.name}"


def _join_key(node: PlannedNode, alternative: Alternative) -> str:
    return f"join:{node.name}:{alternative.index}"


def _constant_key(constant: Placeholder | GlobalParam) -> str:
    return f"input:{constant.name}" if isinstance(constant, Placeholder) else f"global:{constant.name}"

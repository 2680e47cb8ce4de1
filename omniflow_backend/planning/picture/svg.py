"""A plan as one self-contained SVG, readable on light and dark pages."""

from __future__ import annotations

from itertools import pairwise
from unicodedata import east_asian_width
from xml.etree import ElementTree

from omniflow_backend.planning.picture.diagram import Box, Diagram, Line, LineKind, Shape, diagram
from omniflow_backend.planning.picture.layout import Arrow, Placement, Point, Size, layered
from omniflow_backend.planning.picture.palette import anchor_colour
from omniflow_backend.planning.plan import ENTRY, Plan

_TITLE, _NOTE, _LABEL = 13.0, 10.5, 11.0
_CELL = 0.605
"""Width of a character of a monospaced font, in parts of its size."""
_PAD = 12.0
_MARGIN = 24.0
_BADGE = 17.0

_STYLE = """
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace }
text { fill: #212529; text-anchor: middle }
.title { font-size: 13px; font-weight: 600 }
.note { font-size: 10.5px; fill: #495057 }
.field { font-size: 11px }
.legend { font-size: 10.5px; fill: #495057; text-anchor: start }
.name { font-size: 15px; font-weight: 700; text-anchor: start }
.badge { font-size: 10.5px; fill: #fff; font-weight: 600 }
.line { fill: none; stroke: #495057; stroke-width: 1.5 }
.attached { stroke: #adb5bd }
.count { stroke: #8a6d00; stroke-dasharray: 2 3 }
.joined { stroke-width: 3 }
.loop { stroke-dasharray: 7 4 }
.interface { fill: #eef3fb; stroke: #3b5b92; stroke-width: 1.5 }
.triton-model { fill: #eff7e6; stroke: #4f7d2b; stroke-width: 1.5 }
.placeholder, .call { fill: #f1f3f5; stroke: #868e96; stroke-width: 1.5 }
.global-parameter { fill: #f1f3f5; stroke: #868e96; stroke-width: 1.5; stroke-dasharray: 4 3 }
.output { fill: #343a40; stroke: #343a40 }
.on-output { fill: #fff }
.join { fill: #fff; stroke-width: 2 }
.count-join { fill: #fff9db; stroke: #8a6d00; stroke-width: 2 }
"""


def to_svg(plan: Plan) -> str:
    """The graph from the call's values (top) to its outputs (bottom); hovering over a box tells what makes it run."""
    picture = diagram(plan)
    return _Drawing(picture).text()


class _Drawing:
    def __init__(self, picture: Diagram) -> None:
        self._picture = picture
        position = {box.key: index for index, box in enumerate(picture.boxes)}
        self._sizes = [_box_size(box) for box in picture.boxes]
        self._label_sizes = [_label_size(line) for line in picture.lines]
        arrows = [
            Arrow(position[line.source], position[line.target], label, line.closes_loop)
            for line, label in zip(picture.lines, self._label_sizes, strict=True)
        ]
        self._placement: Placement = layered(self._sizes, arrows)
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})

    def text(self) -> str:
        picture, placement = self._picture, self._placement
        legend = _legend(picture)
        texts = [_text_width(picture.name, 15), *(_text_width(row, _NOTE) for row in legend)]
        widest = max(placement.size.width, *texts)
        header = 34.0
        width = widest + 2 * _MARGIN
        height = placement.size.height + header + 2 * _MARGIN + (len(legend) * 16 + 20 if legend else 0)
        self._root.attrib |= {
            "width": _n(width),
            "height": _n(height),
            "viewBox": f"0 0 {_n(width)} {_n(height)}",
            "aria-label": f"workflow {picture.name}",
        }
        _add(self._root, "title", {}, f"workflow {picture.name}")
        _add(self._root, "style", {}, _STYLE)
        _add(self._root, "rect", {"width": "100%", "height": "100%", "fill": "#fff"})
        self._text_at(self._root, (_MARGIN, _MARGIN + 12), picture.name, "name")
        left = _MARGIN + (widest - placement.size.width) / 2
        graph = _add(self._root, "g", {"transform": f"translate({_n(left)} {_n(_MARGIN + header)})"})
        self._arrowheads()
        for index in range(len(picture.lines)):
            self._line(graph, index)
        for index in range(len(picture.lines)):
            self._label(graph, index)
        for index in range(len(picture.boxes)):
            self._box(graph, index)
        below = _MARGIN + header + placement.size.height + 34
        for row, text in enumerate(legend):
            self._text_at(self._root, (_MARGIN, below + row * 16), text, "legend")
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _colour(self, line: Line) -> str:
        if line.kind is LineKind.JOINED:
            source = self._picture.box(line.source)
            return "#8a6d00" if source.anchor is None else anchor_colour(self._picture.anchors, source.anchor)
        return {LineKind.ATTACHED: "#adb5bd", LineKind.COUNT: "#8a6d00"}.get(line.kind, "#495057")

    def _arrowheads(self) -> None:
        definitions = _add(self._root, "defs", {})
        for colour in dict.fromkeys(self._colour(line) for line in self._picture.lines):
            marker = _add(
                definitions,
                "marker",
                {
                    "id": f"arrow-{colour[1:]}",
                    "viewBox": "0 0 8 8",
                    "refX": "7.5",
                    "refY": "4",
                    "markerWidth": "8",
                    "markerHeight": "8",
                    "markerUnits": "userSpaceOnUse",
                    "orient": "auto",
                },
            )
            _add(marker, "path", {"d": "M0 0 L8 4 L0 8 z", "fill": colour})

    def _line(self, graph: ElementTree.Element, index: int) -> None:
        line, curve = self._picture.lines[index], self._placement.curves[index]
        classes = ["line", line.kind.value] + (["loop"] if line.closes_loop else [])
        colour = self._colour(line)
        _add(
            graph,
            "path",
            {
                "class": " ".join(classes),
                "data-source": line.source,
                "data-target": line.target,
                "d": _self_loop(curve) if line.source == line.target else _path(curve),
                "style": f"stroke: {colour}",
                "marker-end": f"url(#arrow-{colour[1:]})",
            },
        )

    def _label(self, graph: ElementTree.Element, index: int) -> None:
        line, size, centre = self._picture.lines[index], self._label_sizes[index], self._placement.labels[index]
        if size is None or centre is None:
            return
        group = _add(graph, "g", {"class": "label"})
        _add(group, "rect", {**_rectangle(centre, size), "fill": "#fff"})
        top = centre[1] - size.height / 2
        for row, text in enumerate(line.labels):
            self._text_at(group, (centre[0], top + 12 + row * 15), text, "field")

    def _box(self, graph: ElementTree.Element, index: int) -> None:
        box, size, (x, y) = self._picture.boxes[index], self._sizes[index], self._placement.boxes[index]
        group = _add(graph, "g", {"class": "box", "data-key": box.key})
        if box.anchor is not None:
            group.set("data-anchor", "call" if box.anchor == ENTRY else self._name(box.anchor))
        if box.tooltip:
            _add(group, "title", {}, box.tooltip)
        outline = self._outline(group, box, (x, y), size)
        if box.is_anchor:
            outline.set("style", f"stroke: {self._anchor_colour(box)}; stroke-width: 3.5")
        if box.shape is Shape.JOIN:
            assert box.anchor is not None
            outline.set("style", f"stroke: {anchor_colour(self._picture.anchors, box.anchor)}")
        row = y - size.height / 2 + 9
        on_output = " on-output" if box.shape is Shape.OUTPUT else ""
        self._text_at(group, (x, row + 12), box.title, "title" + on_output)
        row += 18
        for note in box.notes:
            self._text_at(group, (x, row + 10), note, "note" + on_output)
            row += 15
        for text, colour in self._badges(box):
            row += 3
            badge = Size(_text_width(text, _NOTE) + 12, _BADGE)
            _add(group, "rect", {**_rectangle((x, row + _BADGE / 2), badge), "rx": "8", "fill": colour})
            self._text_at(group, (x, row + 12), text, "badge")
            row += _BADGE

    def _outline(self, group: ElementTree.Element, box: Box, centre: Point, size: Size) -> ElementTree.Element:
        attributes = {"class": box.shape.value.replace(" ", "-")}
        if box.shape is Shape.TRITON_MODEL:
            (x, y), w, h, cut = centre, size.width / 2, size.height / 2, _PAD
            corners = [(-w, 0.0), (-w + cut, -h), (w - cut, -h), (w, 0.0), (w - cut, h), (-w + cut, h)]
            points = " ".join(f"{_n(x + dx)},{_n(y + dy)}" for dx, dy in corners)
            return _add(group, "polygon", attributes | {"points": points})
        radius = 7.0 if box.shape is Shape.INTERFACE else min(18.0, size.height / 2)
        return _add(group, "rect", attributes | _rectangle(centre, size) | {"rx": _n(radius)})

    def _badges(self, box: Box) -> list[tuple[str, str]]:
        badges = [("anchor", self._anchor_colour(box))] if box.is_anchor else []
        return badges + ([("session order", "#343a40")] if box.ordered else [])

    def _anchor_colour(self, box: Box) -> str:
        return anchor_colour(self._picture.anchors, ENTRY if box.node is None else box.node)

    def _name(self, node: int) -> str:
        return next(box.title for box in self._picture.boxes if box.node == node)

    @staticmethod
    def _text_at(parent: ElementTree.Element, at: Point, text: str, style: str) -> None:
        _add(parent, "text", {"class": style, "x": _n(at[0]), "y": _n(at[1])}, text)


def _box_size(box: Box) -> Size:
    badges = [text for text, on in (("anchor", box.is_anchor), ("session order", box.ordered)) if on]
    widths = [_text_width(box.title, _TITLE)]
    widths += [_text_width(note, _NOTE) for note in box.notes]
    widths += [_text_width(badge, _NOTE) + 12 for badge in badges]
    sides = 2 * _PAD + (_PAD if box.shape is Shape.TRITON_MODEL else 0.0)
    return Size(max(widths) + sides, 34.0 + 15 * len(box.notes) + (_BADGE + 3) * len(badges))


def _label_size(line: Line) -> Size | None:
    if not line.labels:
        return None
    return Size(max(_text_width(label, _LABEL) for label in line.labels) + 6, 15.0 * len(line.labels) + 2)


def _legend(picture: Diagram) -> list[str]:
    """One row for every kind of mark that this picture has."""
    shapes = {box.shape for box in picture.boxes}
    kinds = {line.kind for line in picture.lines}
    rows = []
    if shapes & {Shape.JOIN, Shape.COUNT_JOIN}:
        rows.append("an arrow into a node starts it by itself; arrows into a join wait for each other")
    if any(box.anchor not in (None, ENTRY) for box in picture.boxes):
        rows.append("join @ A: runs once per yield of its anchor A, with all that this yield caused")
    if any(box.anchor == ENTRY for box in picture.boxes):
        rows.append("join @ call: runs once, with the values of the whole call")
    if Shape.COUNT_JOIN in shapes:
        rows.append("count join: runs once per call, as soon as its counts are reached")
    if LineKind.ATTACHED in kinds:
        rows.append("grey arrow: given with the call, attached to every activation, starts nothing")
    if any(line.closes_loop for line in picture.lines):
        rows.append("dashed arrow: closes a loop")
    if any(box.ordered for box in picture.boxes):
        rows.append("session order: one activation at a time per session, in yield order")
    if any(label.endswith("?") for line in picture.lines for label in line.labels):
        rows.append("field?: optional")
    return rows


def _path(points: tuple[Point, ...]) -> str:
    """Upright where it passes a layer, bent only between layers."""
    parts = [f"M{_n(points[0][0])} {_n(points[0][1])}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x0 - x1) < 0.05:
            parts.append(f"L{_n(x1)} {_n(y1)}")
        else:
            bend = (y0 + y1) / 2
            parts.append(f"C{_n(x0)} {_n(bend)} {_n(x1)} {_n(bend)} {_n(x1)} {_n(y1)}")
    return " ".join(parts)


def _self_loop(points: tuple[Point, ...]) -> str:
    (x0, y0), (x1, _), (x2, y2) = points
    return f"M{_n(x0)} {_n(y0)} C{_n(x1)} {_n(y0 + 14)} {_n(x1)} {_n(y2 - 14)} {_n(x2)} {_n(y2)}"


def _rectangle(centre: Point, size: Size) -> dict[str, str]:
    return {
        "x": _n(centre[0] - size.width / 2),
        "y": _n(centre[1] - size.height / 2),
        "width": _n(size.width),
        "height": _n(size.height),
    }


def _text_width(text: str, size: float) -> float:
    return size * _CELL * sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _add(
    parent: ElementTree.Element, tag: str, attributes: dict[str, str], text: str | None = None
) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, attributes)
    element.text = text
    return element

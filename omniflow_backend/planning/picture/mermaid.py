"""A plan as a Mermaid flowchart, for documents that draw it themselves."""

from __future__ import annotations

from omniflow_backend.planning.picture.diagram import Box, Diagram, Line, LineKind, Shape, diagram
from omniflow_backend.planning.picture.palette import anchor_colour
from omniflow_backend.planning.plan import ENTRY, Plan

_BRACKETS = {
    Shape.CALL: ("((", "))"),
    Shape.PLACEHOLDER: ("([", "])"),
    Shape.GLOBAL_PARAM: ("[(", ")]"),
    Shape.INTERFACE: ("[", "]"),
    Shape.TRITON_MODEL: ("[[", "]]"),
    Shape.JOIN: ("{{", "}}"),
    Shape.COUNT_JOIN: ("{{", "}}"),
    Shape.OUTPUT: ("([", "])"),
}
_ARROWS = {
    LineKind.VALUE: "-->",
    LineKind.RESULT: "-->",
    LineKind.JOINED: "==>",
    LineKind.ATTACHED: "-->",
    LineKind.COUNT: "-.->",
}
_STYLES = {
    Shape.CALL: "fill:#f1f3f5,color:#222,stroke:#868e96",
    Shape.PLACEHOLDER: "fill:#f1f3f5,color:#222,stroke:#868e96",
    Shape.GLOBAL_PARAM: "fill:#f1f3f5,color:#222,stroke:#868e96,stroke-dasharray:4 3",
    Shape.INTERFACE: "fill:#eef3fb,color:#222,stroke:#3b5b92",
    Shape.TRITON_MODEL: "fill:#eff7e6,color:#222,stroke:#4f7d2b",
    Shape.COUNT_JOIN: "fill:#fff9db,color:#222,stroke:#8a6d00,stroke-width:2px",
    Shape.OUTPUT: "fill:#343a40,color:#fff,stroke:#343a40",
}


def to_mermaid(plan: Plan) -> str:
    """A ``flowchart TD``: joins are hexagons before their node, in their anchor's colour; dotted arrows close loops."""
    picture = diagram(plan)
    names = {box.key: f"b{position}" for position, box in enumerate(picture.boxes)}
    lines = ["---", f"title: {plan.name}", "---", "flowchart TD"]
    lines += [f"    {names[box.key]}{_text(box)}" for box in picture.boxes]
    lines += [f"    {names[line.source]} {_arrow(line)} {names[line.target]}" for line in picture.lines]
    lines += [f"    style {names[box.key]} {_style(picture, box)}" for box in picture.boxes]
    return "\n".join(lines) + "\n"


def _text(box: Box) -> str:
    opening, closing = _BRACKETS[box.shape]
    marks = [*(["anchor"] if box.is_anchor else []), *(["session order"] if box.ordered else [])]
    rows = [f"<b>{_escape(box.title)}</b>", *map(_escape, box.notes), *(f"<i>{mark}</i>" for mark in marks)]
    return f'{opening}"{"<br/>".join(rows)}"{closing}'


def _arrow(line: Line) -> str:
    arrow = "-.->" if line.closes_loop else _ARROWS[line.kind]
    return arrow + (f'|"{"<br/>".join(map(_escape, line.labels))}"|' if line.labels else "")


def _style(picture: Diagram, box: Box) -> str:
    if box.shape is Shape.JOIN:
        assert box.anchor is not None
        return f"fill:#fff,color:#222,stroke:{anchor_colour(picture.anchors, box.anchor)},stroke-width:2px"
    if box.is_anchor:
        anchor = ENTRY if box.node is None else box.node
        return f"fill:#eef3fb,color:#222,stroke:{anchor_colour(picture.anchors, anchor)},stroke-width:4px"
    return _STYLES[box.shape]


def _escape(text: str) -> str:
    """Mermaid's own entity codes for what would end a quoted text or read as markup."""
    for character, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(character, code)
    return text

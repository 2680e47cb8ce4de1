"""A timeline as one self-contained SVG: rows for nodes, bars for activations, marks for yields and buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from xml.etree import ElementTree

from omniflow_backend.runtime.timeline import ActivationSpan, BucketSpan, End, NodeRow, Timeline, lanes
from omniflow_backend.runtime.trace import RecordedTrace

_WIDTH = 1000.0
"""Of the part that shows time."""
_LEFT_MOST, _LEFT_LEAST = 300.0, 120.0
_MARGIN = 20.0
_LANE, _BAR = 19.0, 13.0
_HEADER = 62.0
_CELL = 6.7
_SEEN = 1.5
"""Phases of an activation that are narrower are left out."""
_MOST_LANES = 40
_COLOURS = ("#3b5b92", "#2b8a3e", "#b35900", "#0b7285", "#9c36b5", "#5f3dc4", "#a61e4d", "#5c940d")
_GREY, _RED, _INK = "#868e96", "#c92a2a", "#212529"

_STYLE = """
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 11px }
text { fill: #212529 }
.name { font-size: 15px; font-weight: 700 }
.note { fill: #495057 }
.axis { fill: #495057; text-anchor: middle; font-size: 10px }
.node { font-weight: 600; text-anchor: end }
.side { fill: #868e96; text-anchor: end; font-size: 10px }
.on-bar { fill: #fff; font-size: 9.5px }
.grid { stroke: #e9ecef }
.rule { stroke: #ced4da }
"""


@dataclass(frozen=True, slots=True)
class _Look:
    fill: str
    stroke: str
    opacity: str = "1"
    dashed: bool = False

    @property
    def attributes(self) -> dict[str, str]:
        dashes = {"stroke-dasharray": "3 2"} if self.dashed else {}
        return {"fill": self.fill, "stroke": self.stroke, "fill-opacity": self.opacity, "stroke-width": "0.8", **dashes}


def timeline_svg(trace: RecordedTrace) -> str:
    """The picture; hovering over a mark tells what it is."""
    return _Drawing(trace, Timeline.of(trace)).text()


class _Drawing:
    def __init__(self, trace: RecordedTrace, timeline: Timeline) -> None:
        self._trace = trace
        self._timeline = timeline
        names = [row.name for row in timeline.rows] + [f"output {name}" for name in timeline.outputs]
        longest = max((len(name) for name in names), default=0) * _CELL + 16
        self._left = _MARGIN + min(_LEFT_MOST, max(_LEFT_LEAST, longest))
        self._seconds = max(timeline.end, 1e-6)
        self._root = ElementTree.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img"})
        self._colours: dict[str, str] = {}
        self._y = _MARGIN + _HEADER

    def text(self) -> str:
        _add(self._root, "title", {}, f"call of {self._trace.workflow}")
        _add(self._root, "style", {}, _STYLE)
        _add(self._root, "rect", {"width": "100%", "height": "100%", "fill": "#fff"})
        self._heading()
        grid = _add(self._root, "g", {})
        self._call()
        for row in self._timeline.rows:
            self._row(row)
        for name, events in self._timeline.outputs.items():
            self._rule()
            self._label(f"output {name}")
            for event in events:
                self._output_mark(event.time, f"{name}: a value of {event.path or 'the call'}")
            self._y += _LANE + 4
        bottom = self._y
        self._axis(grid, bottom)
        self._legend(bottom + 22)
        width, height = self._left + _WIDTH + 2 * _MARGIN, bottom + 66 + _MARGIN
        self._root.attrib |= {"width": _n(width), "height": _n(height), "viewBox": f"0 0 {_n(width)} {_n(height)}"}
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _x(self, seconds: float) -> float:
        return self._left + seconds / self._seconds * _WIDTH

    def _heading(self) -> None:
        trace, timeline = self._trace, self._timeline
        _text(self._root, _MARGIN, _MARGIN + 12, trace.workflow, "name")
        facts = [
            f"request {trace.request}" if trace.request else "",
            f"session {trace.session}" if trace.session else "",
        ]
        facts.append(f"{shown(self._seconds)} in all")
        if trace.left_out:
            facts.append(f"{trace.left_out} events left out")
        end = timeline.failure or ("SYSTEM_FINISH" if timeline.finished else "not ended")
        most = int((self._left + _WIDTH - _MARGIN) / _CELL)
        line = " · ".join([*filter(None, facts), end])
        style = {"style": f"fill: {_RED}"} if timeline.failure else {}
        _text(self._root, _MARGIN, _MARGIN + 30, line if len(line) <= most else line[: most - 1] + "…", "note", style)

    def _axis(self, grid: ElementTree.Element, bottom: float) -> None:
        top = _MARGIN + _HEADER
        step = tick_step(self._seconds)
        for number in range(int(self._seconds / step + 1e-9) + 1):
            x = _n(self._x(number * step))
            _add(grid, "line", {"class": "grid", "x1": x, "x2": x, "y1": _n(top - 6), "y2": _n(bottom)})
            _text(grid, float(x), top - 10, shown(number * step, step), "axis")

    def _call(self) -> None:
        timeline, y = self._timeline, self._y
        self._label("call")
        admitted = timeline.admitted if timeline.admitted is not None else timeline.end
        if admitted > self._seconds / 1000:
            self._bar(0.0, admitted, "waits for its session", _Look("#f1f3f5", _GREY, dashed=True))
        colour = _RED if timeline.failure else "#343a40"
        bar = {"x": _n(self._x(admitted)), "y": _n(y + 7), "height": "5", "fill": colour}
        _add(self._root, "rect", bar | {"width": _n(max(1.0, self._x(timeline.end) - self._x(admitted)))})
        self._y += _LANE + 4

    def _rule(self) -> None:
        ends = {"x1": _n(_MARGIN), "x2": _n(self._left + _WIDTH), "y1": _n(self._y), "y2": _n(self._y)}
        _add(self._root, "line", {"class": "rule", **ends})
        self._y += 3

    def _label(self, text: str, style: str = "node") -> None:
        most = int((self._left - _MARGIN - 8) / _CELL)
        _text(self._root, self._left - 10, self._y + 13, text if len(text) <= most else "…" + text[1 - most :], style)

    def _row(self, row: NodeRow) -> None:
        self._rule()
        self._label(row.name)
        gap = 3 / _WIDTH * self._seconds
        top = self._y
        colour = self._colour(row.name)
        for lane in lanes(row.buckets, 4 * gap, _MOST_LANES):
            for bucket, following in zip_longest(lane, lane[1:]):
                self._bucket(bucket, self._left + _WIDTH if following is None else self._x(following.opened) - 10)
            self._y += _LANE
        for event in row.skips:
            self._skip(event.time, f"skipped {event.path}: no {', '.join(event.fields)}")
        if row.skips and not row.buckets and not row.activations:
            self._y += _LANE
        for activation_lane in lanes(row.activations, gap, _MOST_LANES):
            for span in activation_lane:
                self._activation(span, colour)
            self._y += _LANE
        if len(row.activations) > 1 and self._y - top > _LANE:
            _text(self._root, self._left - 10, top + 27, f"{len(row.activations)} activations", "side")
        self._y += 3

    def _colour(self, node: str) -> str:
        """One for each role."""
        role = node.partition(".")[0]
        return self._colours.setdefault(role, _COLOURS[len(self._colours) % len(_COLOURS)])

    def _activation(self, span: ActivationSpan, colour: str) -> None:
        parts = self._parts(span)
        for begin, end, what, look in parts:
            if look != "run" and self._x(end) - self._x(begin) < _SEEN:
                continue
            tip = f"#{span.number} {span.node} after {span.path or 'the call'}: {what} {shown(end - begin)}"
            self._bar(begin, end, tip, _look(look, colour, span.end))
        begin, end, _, look = parts[-1]
        room = int((self._x(end) - self._x(begin) - 8) / 5.9)
        name = span.path.rpartition(":")[2] or "call"
        told = next((text for text in (f"#{span.number} {name}", f"#{span.number}") if len(text) <= room), None)
        if told is not None and look == "run":
            _text(self._root, self._x(begin) + 4, self._y + 13, told, "on-bar")
        for at, path in span.yields:
            x = _n(self._x(at))
            tick = {"x1": x, "x2": x, "y1": _n(self._y + _LANE - 8), "y2": _n(self._y + _LANE), "stroke": _INK}
            _tip(_add(self._root, "line", {"class": "yield", "stroke-width": "1.5", **tick}), f"yield {path}")

    @staticmethod
    def _parts(span: ActivationSpan) -> list[tuple[float, float, str, str]]:
        """Begin, end, words and look of each phase that it reached."""
        if span.started is None:
            return [(span.queued, span.ended, "held back by order for", "held")]
        begun = span.begun if span.begun is not None else span.started
        parts = [(begun, span.ended, f"ran ({span.end.value}) for", "run")]
        if begun > span.started:
            parts.insert(0, (span.started, begun, "waited in its role for", "wait"))
        if span.started > span.queued:
            parts.insert(0, (span.queued, span.started, "held back by order for", "held"))
        return parts

    def _bar(self, begin: float, end: float, tip: str, look: _Look) -> None:
        x = self._x(begin)
        width = max(1.5, self._x(end) - x)
        where = {"x": _n(x), "y": _n(self._y + (_LANE - _BAR) / 2), "width": _n(width), "height": _n(_BAR)}
        _tip(_add(self._root, "rect", {**where, **look.attributes}), tip)

    def _bucket(self, bucket: BucketSpan, room_until: float = 0.0) -> None:
        good = bucket.end is End.WELL
        colour = "#2b8a3e" if good else _RED if bucket.end is End.IMPOSSIBLE else _GREY
        y, begin, end = self._y + _LANE / 2, self._x(bucket.opened), self._x(bucket.closed)
        came = len(bucket.contributions)
        words = {End.WELL: "fired", End.IMPOSSIBLE: f"impossible, no {', '.join(bucket.missing)}"}.get(
            bucket.end, "open when the call ended"
        )
        tip = (
            f"bucket of {bucket.path or 'the call'}: {words} after {shown(bucket.closed - bucket.opened)}, {came} came"
        )
        group = _add(self._root, "g", {"class": "bucket"})
        _tip(group, tip)
        line = {"x1": _n(begin), "x2": _n(max(end, begin + 1)), "y1": _n(y), "y2": _n(y)}
        _add(group, "line", {**line, "stroke": colour, "stroke-width": "1.5", "stroke-dasharray": "4 2"})
        for at, _ in bucket.contributions:
            _add(group, "circle", {"cx": _n(self._x(at)), "cy": _n(y), "r": "2.6", "fill": colour})
        if good:
            points = f"{_n(end - 5)},{_n(y)} {_n(end)},{_n(y - 5)} {_n(end + 5)},{_n(y)} {_n(end)},{_n(y + 5)}"
            _add(group, "polygon", {"points": points, "fill": colour})
        elif bucket.end is End.IMPOSSIBLE:
            cross = f"M{_n(end - 4)} {_n(y - 4)}l8 8m0 -8l-8 8"
            _add(
                group,
                "path",
                {"class": "impossible", "d": cross, "stroke": colour, "stroke-width": "2.2", "fill": "none"},
            )
            if end + 9 + len(words) * _CELL < room_until:
                _text(group, end + 9, y + 4, words, "note", {"style": f"fill: {_RED}"})

    def _skip(self, at: float, tip: str) -> None:
        x, y = self._x(at), self._y + 5
        shape = {"points": f"{_n(x - 3.5)},{_n(y - 4)} {_n(x + 3.5)},{_n(y - 4)} {_n(x)},{_n(y + 2)}"}
        _tip(_add(self._root, "polygon", {"class": "skip", **shape, "fill": "#fff", "stroke": _GREY}), tip)

    def _output_mark(self, at: float, tip: str) -> None:
        mark = {"cx": _n(self._x(at)), "cy": _n(self._y + _LANE / 2), "r": "3.2", "fill": "#343a40"}
        _tip(_add(self._root, "circle", {"class": "emitted", **mark}), tip)

    def _legend(self, y: float) -> None:
        kept, x = self._y, self._left
        items: list[tuple[str, str]] = [("held", "held back by order"), ("wait", "waits in its role"), ("run", "runs")]
        items += [("tick", "yield"), ("fired", "bucket: opened, contributions, fired"), ("cross", "impossible bucket")]
        items += [("skip", "skipped yield"), ("output", "streamed to the caller")]
        for kind, words in items:
            if x + 30 + len(words) * _CELL > self._left + _WIDTH:
                x, y = self._left, y + 20
            self._y = y - _LANE / 2
            self._swatch(kind, x)
            _text(self._root, x + 28, y + 4, words, "note")
            x += 28 + len(words) * _CELL + 18
        self._y = kept

    def _swatch(self, kind: str, x: float) -> None:
        seconds = self._seconds / _WIDTH
        begin, end = (x - self._left) * seconds, (x - self._left + 22) * seconds
        middle = (begin + end) / 2
        if kind in ("held", "wait", "run"):
            self._bar(begin, end, "", _look(kind, _COLOURS[0], End.WELL))
        elif kind == "tick":
            place = {"x1": _n(x + 11), "x2": _n(x + 11), "y1": _n(self._y + _LANE - 8), "y2": _n(self._y + _LANE)}
            _add(self._root, "line", {**place, "stroke": _INK, "stroke-width": "1.5"})
        elif kind == "fired":
            self._bucket(
                BucketSpan("", "", begin, end - 4 * seconds, End.WELL, contributions=[(begin, ""), (middle, "")])
            )
        elif kind == "cross":
            y = self._y + _LANE / 2
            cross = {"d": f"M{_n(x + 7)} {_n(y - 4)}l8 8m0 -8l-8 8", "stroke": _RED, "stroke-width": "2.2"}
            _add(self._root, "path", {**cross, "fill": "none"})
        elif kind == "skip":
            self._y += 5
            self._skip(middle, "")
        else:
            self._output_mark(middle, "")


def _look(phase: str, colour: str, end: End) -> _Look:
    if phase == "held":
        return _Look("#fff", colour, dashed=True)
    if phase == "wait":
        return _Look(colour, colour, "0.22")
    if end is End.WELL:
        return _Look(colour, colour, "0.85")
    other = _RED if end is End.FAILED else _GREY
    return _Look(other, other, "0.75")


def tick_step(seconds: float) -> float:
    """A round step (1, 2 or 5 times a power of ten) that gives at most ten ticks."""
    power = 10.0 ** math.floor(math.log10(seconds / 10))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 10 >= seconds)


def shown(seconds: float, step: float | None = None) -> str:
    """A duration for people; on an axis in the unit of its ``step``."""
    unit, factor = next(
        (unit for unit in (("µs", 1e6), ("ms", 1e3)) if (step if step is not None else seconds) * unit[1] < 1000),
        ("s", 1.0),
    )
    if step is not None:
        return f"{seconds * factor:.10g} {unit}"
    return f"{seconds * factor:.3g} {unit}"


def _text(
    parent: ElementTree.Element, x: float, y: float, text: str, style: str, more: dict[str, str] | None = None
) -> None:
    _add(parent, "text", {"class": style, "x": _n(x), "y": _n(y), **(more or {})}, text)


def _tip(element: ElementTree.Element, text: str) -> None:
    if text:
        _add(element, "title", {}, text)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _add(
    parent: ElementTree.Element, tag: str, attributes: dict[str, str], text: str | None = None
) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, attributes)
    element.text = text
    return element

"""Traces of calls, as a table and as a picture."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from omniflow_backend import Int, Role, SessionLoadBalance, Workflow, interface
from omniflow_backend.cli import main
from omniflow_backend.errors import OmniFlowError
from omniflow_backend.runtime.timeline import ActivationSpan, End, Timeline, lanes
from omniflow_backend.runtime.timeline_picture import shown, tick_step, timeline_svg
from omniflow_backend.runtime.trace import RecordedTrace, Trace, TraceEvent, TraceKind
from omniflow_backend.testing import run

LEASES = (TraceKind.HELD, TraceKind.CLOSED)
SVG = "{http://www.w3.org/2000/svg}"


class Numbers(Role):
    """Yields ``n`` items, and a total at the end."""

    @interface(inputs={"n": Int}, outputs={"item": Int, "total": Int})
    async def count(self, ctx: Any, n: int) -> Any:
        for item in range(n):
            yield {"item": item}
        yield {"total": n}

    @interface(inputs={"item": Int}, outputs={"even": Int})
    async def even(self, ctx: Any, item: int) -> Any:
        if item == self.options.get("fails_at"):
            raise RuntimeError("not this one")
        return {"even": item} if item % 2 == 0 else {}

    @interface(inputs={"item": Int}, outputs={"twice": Int})
    async def twice(self, ctx: Any, item: int) -> Any:
        return {"twice": 2 * item}

    @interface(inputs={"even": Int, "twice": Int}, outputs={"sum": Int}, load_balance=SessionLoadBalance())
    async def add(self, ctx: Any, even: int, twice: int) -> Any:
        return {"sum": even + twice}


def trace_of(n: int, **options: Any) -> RecordedTrace:
    """Items 0 to ``n`` - 1; the join is impossible for odd ones."""
    flow = Workflow("sums")
    role = flow.role("numbers", Numbers, **options)
    count = role.count(n=flow.placeholder("n", Int))
    flow.output(
        "sum", role.add(even=role.even(item=count.item).even, twice=role.twice(item=count.item).twice).sum, stream=True
    )
    result = run(flow.compile(), {"n": n})
    trace = Trace(time.monotonic)
    trace.events, trace.began = result.trace, result.trace[0].time
    return RecordedTrace.of(trace, "numbers", "r1", None)


def row(trace: RecordedTrace, node: str) -> Any:
    return next(row for row in Timeline.of(trace).rows if row.name == node)


class TestLeaseChanges:
    def test_what_a_join_waits_for_is_held_first_and_closed_last(self) -> None:
        events = trace_of(3).events
        for item in range(3):
            path = f"numbers.count[{item}]"
            changes = [e.kind for e in events if e.detail == "join" and e.path == path and e.kind in LEASES]
            assert changes[0] is TraceKind.HELD
            assert changes[-1] is TraceKind.CLOSED

    def test_every_lease_that_is_held_is_closed_before_the_call_ends(self) -> None:
        held: set[tuple[str, str, str]] = set()
        events = trace_of(4).events
        for event in events:
            lease = (event.node, event.detail, event.path)
            if event.kind is TraceKind.HELD:
                assert lease not in held
                held.add(lease)
            elif event.kind is TraceKind.CLOSED:
                held.remove(lease)
        assert not held
        assert {event.node for event in events if event.kind is TraceKind.HELD} == {"numbers.add", "sum"}

    def test_a_bucket_fires_or_is_found_impossible_after_its_lease_was_closed(self) -> None:
        events = trace_of(3).events
        for number, event in enumerate(events):
            if event.kind in (TraceKind.FIRED, TraceKind.IMPOSSIBLE):
                assert any(
                    e.kind is TraceKind.CLOSED and e.detail == "join" and e.node == "numbers.add"
                    for e in events[:number]
                )


class TestTimeline:
    def test_an_activation_goes_through_its_phases_in_order_and_has_its_yields(self) -> None:
        (span,) = row(trace_of(3), "numbers.count").activations
        assert span.queued <= span.started <= span.begun <= span.ended
        assert span.end is End.WELL
        assert [path for _, path in span.yields] == [f"numbers.count[{n}]" for n in range(4)]
        assert all(span.begun <= at <= span.ended for at, _ in span.yields)

    def test_buckets_know_their_contributions_and_whether_they_fired(self) -> None:
        buckets = {bucket.path: bucket for bucket in row(trace_of(3), "numbers.add").buckets}
        assert {path: bucket.end for path, bucket in buckets.items()} == {
            "numbers.count[0]": End.WELL,
            "numbers.count[1]": End.IMPOSSIBLE,
            "numbers.count[2]": End.WELL,
        }
        assert buckets["numbers.count[1]"].missing == ("even",)
        assert [path for _, path in buckets["numbers.count[1]"].contributions] == ["numbers.count[1]:numbers.twice[0]"]
        assert len(buckets["numbers.count[2]"].contributions) == 2

    def test_skips_stand_at_the_node_that_was_passed_over(self) -> None:
        (skip,) = row(trace_of(2), "numbers.twice").skips
        assert (skip.path, skip.fields) == ("numbers.count[2]", ("item",))

    def test_of_a_failed_call_the_activation_that_failed_is_told_from_those_that_were_stopped(self) -> None:
        trace = trace_of(4, fails_at=1)
        ends = {span.path: span.end for span in row(trace, "numbers.even").activations}
        assert ends["numbers.count[1]"] is End.FAILED
        assert list(ends.values()).count(End.FAILED) == 1
        assert "not this one" in str(Timeline.of(trace).failure)

    def test_lanes_hold_what_does_not_overlap_and_are_no_more_than_needed(self) -> None:
        spans = [ActivationSpan(n, "", "", float(n), ended=n + 1.5) for n in range(6)]
        packed = lanes(spans, 0.1, 10)
        assert len(packed) == 2
        assert all(a.ended < b.queued for lane in packed for a, b in pairwise(lane))
        assert [len(lane) for lane in lanes(spans, 0.1, 1)] == [6]


class TestRecord:
    def test_it_survives_json(self) -> None:
        trace = trace_of(2)
        again = RecordedTrace.from_json(trace.to_json())
        assert [(e.kind, e.activation, e.node, e.path, e.fields, e.detail) for e in again.events] == [
            (e.kind, e.activation, e.node, e.path, e.fields, e.detail) for e in trace.events
        ]
        assert all(abs(a.time - b.time) < 1e-6 for a, b in zip(again.events, trace.events, strict=True))

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"events": [{"kind": "unheard of", "time": 0}]}'])
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(OmniFlowError, match="not a trace of a call"):
            RecordedTrace.from_json(text)

    def test_a_long_call_leaves_out_events_but_never_its_end(self) -> None:
        trace = Trace(time.monotonic, limit=3)
        for number in range(10):
            trace.ended(number)
        trace.finished([])
        recorded = RecordedTrace.of(trace, "", "", None)
        assert [event.kind for event in recorded.events] == [TraceKind.ENDED] * 3 + [TraceKind.FINISHED]
        assert recorded.left_out == 7


class TestPicture:
    def marks(self, trace: RecordedTrace, of_class: str) -> list[ElementTree.Element]:
        root = ElementTree.fromstring(timeline_svg(trace))
        return [element for element in root.iter() if element.get("class") == of_class]

    def test_every_yield_bucket_impossible_bucket_skip_and_emission_has_its_mark(self) -> None:
        trace = trace_of(4)
        # The legend shows one bucket, one skip and one emission, too.
        assert len(self.marks(trace, "yield")) == 5 + 4 + 4 + 2
        assert len(self.marks(trace, "bucket")) == 4 + 1
        assert len(self.marks(trace, "impossible")) == 2
        # The total, for two nodes; and two empty yields, for the join.
        assert len(self.marks(trace, "skip")) == 4 + 1
        assert len(self.marks(trace, "emitted")) == 2 + 1

    def test_everything_lies_inside_the_picture(self) -> None:
        root = ElementTree.fromstring(timeline_svg(trace_of(30)))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        for element in root.iter():
            for name, most in (
                ("x", width),
                ("x1", width),
                ("x2", width),
                ("cx", width),
                ("y", height),
                ("cy", height),
            ):
                assert 0 <= float(element.get(name, 0)) <= most

    def test_a_failed_call_shows_its_error(self) -> None:
        assert "not this one" in timeline_svg(trace_of(4, fails_at=1))

    def test_an_empty_trace_is_a_picture_too(self) -> None:
        ElementTree.fromstring(timeline_svg(RecordedTrace("w", "", "", 0.0, 0, ())))

    @pytest.mark.parametrize(("seconds", "step"), [(0.113, 0.02), (1.0, 0.1), (7.0, 1.0), (0.0005, 0.00005)])
    def test_the_axis_has_round_steps(self, seconds: float, step: float) -> None:
        assert tick_step(seconds) == pytest.approx(step)

    @pytest.mark.parametrize(("seconds", "text"), [(0.0000123, "12.3 µs"), (0.0123, "12.3 ms"), (12.3, "12.3 s")])
    def test_durations_are_told_in_a_fitting_unit(self, seconds: float, text: str) -> None:
        assert shown(seconds) == text


class TestCommand:
    def test_the_table_has_every_event_and_the_sums_of_every_node(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        trace = trace_of(3)
        file = tmp_path / "trace.json"
        file.write_text(trace.to_json())
        assert main(["trace", str(file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum(bool(re.match(r" *\d+\.\d{3}  ", line)) for line in lines) == len(trace.events)
        (sums,) = (line.split() for line in lines if line.startswith("numbers.add "))
        assert sums[:5] == ["numbers.add", "2", "2", "1", "1"]

    def test_the_picture_is_written_where_asked(self, tmp_path: Path) -> None:
        file, target = tmp_path / "trace.json", tmp_path / "trace.svg"
        file.write_text(trace_of(3).to_json())
        assert main(["trace", str(file), "--svg", "-o", str(target)]) == 0
        assert ElementTree.parse(target).getroot().tag == f"{SVG}svg"

    def test_a_file_that_is_no_trace_is_a_clear_error(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "other.json"
        assert main(["trace", str(file)]) == 1
        file.write_text("{}")
        assert main(["trace", str(file)]) == 1
        assert "not a trace of a call" in capsys.readouterr().err


def test_events_without_activation_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.write_text(RecordedTrace("w", "r", "s", 0.0, 5, (TraceEvent(0.0, TraceKind.ADMITTED),)).to_json())
    assert main(["trace", str(file)]) == 0
    assert "w · request r · session s · 5 events left out" in capsys.readouterr().out

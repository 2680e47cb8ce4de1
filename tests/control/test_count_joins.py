"""Count joins (ABC): paper 3.5 and A.2, contract section 5 and ruling 8."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from omniflow_backend import Int, Many, Optional, Role, Text, Workflow, interface
from omniflow_backend.errors import ErrorCode
from omniflow_backend.testing import CallResult, run


class Frames(Role):
    """Tells ``told`` (when given) and yields ``made`` frames; ``last`` tells the count after the frames."""

    @interface(inputs={"made": Int}, outputs={"frame": Text, "count": Int})
    def parse(self, ctx: Any, made: int) -> Iterator[dict[str, Any]]:
        told = self.options.get("told", [made])
        if not self.options.get("last"):
            yield from ({"count": count} for count in told)
        for index in range(made):
            yield {"frame": f"f{index}"}
        if self.options.get("last"):
            yield from ({"count": count} for count in told)


class Encode(Role):
    @interface(inputs={"frame": Text}, outputs={"code": Text})
    async def encode(self, ctx: Any, frame: str) -> dict[str, Any]:
        await asyncio.sleep(0.001 * (9 - int(frame[-1])) * self.options.get("reverse", 0))
        return {"code": frame.upper()}


class Draw(Role):
    @interface(inputs={"codes": Many(Text), "frames": Optional(Many(Text))}, outputs={"drawn": Text})
    def draw(self, ctx: Any, codes: list[str], frames: list[str] | None) -> dict[str, Any]:
        return {"drawn": ",".join(codes) + ("/" + ",".join(frames) if frames else "")}


def drawing(*, companions: bool = False, reverse: bool = False, **frames: Any) -> Workflow:
    workflow = Workflow("drawing")
    parse = workflow.role("frames", Frames, **frames).parse(made=workflow.placeholder("made", Int))
    encode = workflow.role("encode", Encode, reverse=int(reverse)).encode(frame=parse.frame)
    fields: dict[str, Any] = {"codes": encode.code} | ({"frames": parse.frame} if companions else {})
    drawn = workflow.role("draw", Draw).draw(activate_by_count={"codes": parse.count}, **fields)
    workflow.output("drawn", drawn.drawn)
    return workflow


def draw(made: int, **options: Any) -> CallResult:
    return run(drawing(**options).compile(), {"made": made})


class TestCounts:
    def test_it_fires_once_with_the_declared_number(self) -> None:
        assert draw(3).outputs == {"drawn": "F0,F1,F2"}

    def test_a_count_told_after_the_contributions_counts_the_same(self) -> None:
        assert draw(3, last=True).outputs == {"drawn": "F0,F1,F2"}

    def test_the_first_n_admitted_are_selected_then_sorted(self) -> None:
        assert draw(4, told=[2], reverse=True).outputs == {"drawn": "F2,F3"}

    def test_zero_does_not_run_it_and_is_no_error(self) -> None:
        assert draw(0).raise_for_failure().outputs == {}

    def test_a_count_told_twice_with_two_values_is_an_error(self) -> None:
        failure = draw(1, told=[1, 2]).failure
        assert failure is not None
        assert failure.code is ErrorCode.JOIN_FAILED
        assert "'codes' was told twice: first 1, then 2" in failure.message

    def test_too_few_events_are_an_error_that_names_field_wanted_and_seen(self) -> None:
        failure = draw(2, told=[3]).failure
        assert failure is not None
        assert failure.node == "draw.draw"
        assert "'codes' wanted 3 and saw 2" in failure.message

    def test_events_without_a_count_are_an_error(self) -> None:
        failure = draw(2, told=[]).failure
        assert failure is not None
        assert "never told" in failure.message

    def test_a_branch_not_taken_is_no_error(self) -> None:
        assert draw(0, told=[]).raise_for_failure().outputs == {}


class TestCompanions:
    def test_each_selected_event_brings_the_nearest_companion_on_its_path(self) -> None:
        assert draw(3, companions=True, reverse=True).outputs == {"drawn": "F0,F1,F2/f0,f1,f2"}

    def test_companions_follow_their_sorted_events(self) -> None:
        assert draw(4, told=[2], companions=True, reverse=True).outputs == {"drawn": "F2,F3/f2,f3"}

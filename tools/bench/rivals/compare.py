"""Ours against each rival on the two graphs that all of them can run, interleaved in one run."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten

from bench.callers import InProcessCaller, StreamCaller
from bench.graphs.rivals import chain, diamond
from bench.report import Report, Row, timed_row
from bench.rivals.environment import interpreter
from bench.rivals.process import RivalFailure, RivalProcess, running
from environment.failure import EnvironmentFailure

from omniflow_backend import Workflow

SCRIPTS = Path(__file__).parent
ROUNDS = 5
RATE_ROUNDS = 3
WARM_UP = 20
REASON_LENGTH = 240


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival, how it is set up if there are several ways, and ``lock``, which names its environment and script."""

    name: str
    variant: str
    lock: str
    arguments: tuple[str, ...] = ()

    def title(self, version: str = "") -> str:
        """The name to show."""
        return ", ".join(part for part in (f"{self.name} {version}".strip(), self.variant) if part)


@dataclass(frozen=True, slots=True)
class Contender:
    """Something that runs one graph: ``latencies(calls)`` in seconds, ``rate(calls)`` in calls per second."""

    name: str
    latencies: Callable[[int], list[float]]
    rate: Callable[[int], float]


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contender showed."""

    name: str
    seconds: list[float]
    rate: float


RIVALS = (
    Rival("LangGraph", "", "langgraph"),
    Rival("Ray", "actors", "ray"),
    Rival("SGLang-Omni", "one process", "sglang_omni", ("one",)),
    Rival("SGLang-Omni", "one process, tuned", "sglang_omni", ("tuned",)),
    Rival("SGLang-Omni", "processes", "sglang_omni", ("processes",)),
)
GRAPHS: dict[str, tuple[str, Workflow]] = {"diamond": ("diamond", diamond), "chain": ("chain of 5", chain)}


def against_rivals(report: Report, url: str, calls: int, in_flight: int) -> None:
    """Add, for each rival and graph, its figures and ours beside them.

    Latency ratios below 1 and rate ratios above 1 mean that ours is faster. Only one rival runs at a time: an idle one
    still costs the machine something. One that cannot be installed or run gets a row with the reason.
    """
    for rival in RIVALS:
        print(f"measuring {rival.title()}", file=sys.stderr)
        try:
            rows = _against(rival, url, calls, in_flight)
        except (EnvironmentFailure, RivalFailure) as failure:
            rows = [Row(rival.title(), note=shorten(f"not measured: {failure}", REASON_LENGTH))]
        report.rows += rows


def _against(rival: Rival, url: str, calls: int, in_flight: int) -> list[Row]:
    rows: list[Row] = []
    script = SCRIPTS / f"{rival.lock}_rival.py"
    with running(interpreter(rival.lock), script, rival.arguments) as process:
        for graph in GRAPHS:
            rows += _on_graph(process, rival.title(process.version), graph, url, calls, in_flight)
    return rows


def _on_graph(process: RivalProcess, name: str, graph: str, url: str, calls: int, in_flight: int) -> list[Row]:
    title, workflow = GRAPHS[graph]
    with ExitStack() as stack:
        alone, served = InProcessCaller(workflow.compile()), StreamCaller(url, graph)
        stack.callback(alone.close)
        stack.callback(served.close)
        theirs, *ours = _measure(
            [
                Contender(
                    f"{title}, {name}",
                    lambda count: process.latencies(graph, count),
                    lambda count: process.rate(graph, count, in_flight),
                ),
                *(
                    Contender(
                        f"{title}, {where}",
                        lambda count, caller=caller: [caller.once() for _ in range(count)],  # type: ignore[misc]
                        lambda count, caller=caller: caller.many(count, in_flight),  # type: ignore[misc]
                    )
                    for where, caller in (("in process", alone), ("stream", served))
                ),
            ],
            calls,
        )
    return _rows(theirs, ours, in_flight)


def _measure(contenders: list[Contender], calls: int) -> list[Measured]:
    for contender in contenders:
        contender.latencies(WARM_UP)
    seconds: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for samples, contender in zip(seconds, contenders, strict=True):
            samples += contender.latencies(max(1, calls // ROUNDS))
    rates = [[contender.rate(calls) for contender in contenders] for _ in range(RATE_ROUNDS)]
    return [
        Measured(contender.name, samples, statistics.median(rate))
        for contender, samples, rate in zip(contenders, seconds, zip(*rates, strict=True), strict=True)
    ]


def _rows(theirs: Measured, ours: list[Measured], in_flight: int) -> list[Row]:
    row = replace(
        timed_row(theirs.name, theirs.seconds, note=f"calls/s with {in_flight} in flight"), per_second=theirs.rate
    )
    latencies = [timed_row(our.name, our.seconds, reference=row) for our in ours]
    rates = [
        Row(f"{our.name}, {in_flight} in flight", None, None, our.rate, our.rate / theirs.rate, row.name)
        for our in ours
    ]
    return [row, *latencies, *rates]

"""``omniflow trace``: what happened in one call, as a table or as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omniflow_backend.errors import OmniFlowError

if TYPE_CHECKING:
    from omniflow_backend.runtime.trace import RecordedTrace, TraceEvent


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "trace", help="show the trace of a call: the output 'trace' of a call made with trace=true, saved to a file"
    )
    parser.add_argument("file", type=Path, help="the trace as JSON; - reads standard input")
    parser.add_argument("--svg", action="store_true", help="a timeline picture instead of a table")
    parser.add_argument("--output", "-o", type=Path, help="write to this file instead of standard output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from omniflow_backend.runtime.timeline_picture import timeline_svg
    from omniflow_backend.runtime.trace import RecordedTrace

    try:
        text = sys.stdin.read() if str(arguments.file) == "-" else arguments.file.read_text(encoding="utf-8")
    except OSError as error:
        raise OmniFlowError(f"{arguments.file}: {error.strerror}") from None
    trace = RecordedTrace.from_json(text)
    shown = timeline_svg(trace) if arguments.svg else table(trace)
    if arguments.output is None:
        sys.stdout.write(shown)
    else:
        arguments.output.write_text(shown, encoding="utf-8")
        print(arguments.output.resolve())
    return 0


def table(trace: RecordedTrace) -> str:
    """Every event on a line, then a line for each node with its sums. Times in milliseconds."""
    head = [trace.workflow, f"request {trace.request}" * bool(trace.request)]
    head.append(f"session {trace.session}" * bool(trace.session))
    head.append(f"{trace.left_out} events left out" * bool(trace.left_out))
    title = " · ".join(filter(None, head))
    nodes = {event.activation: event.node for event in trace.events if event.activation is not None and event.node}
    events = [["ms", "event", "activation", "node", "fields", "path or detail"]]
    events += [_event(event, nodes) for event in trace.events]
    return "\n".join([title, "", *_columns(events), "", *_columns(list(_sums(trace)))]) + "\n"


def _event(event: TraceEvent, nodes: dict[int, str]) -> list[str]:
    number, node = "", event.node
    if event.activation is not None:
        number, node = f"#{event.activation}", node or nodes.get(event.activation, "")
    what = event.detail or event.path
    return [f"{event.time * 1e3:.3f}", event.kind.value, number, node, ", ".join(event.fields), what]


def _sums(trace: RecordedTrace) -> Iterator[list[str]]:
    from omniflow_backend.runtime.timeline import End, Timeline

    yield ["node", "activations", "yields", "skipped", "impossible", "queued ms", "run ms"]
    for row in Timeline.of(trace).rows:
        begun = [(a, a.begun if a.begun is not None else a.started) for a in row.activations]
        queued = sum((at if at is not None else a.ended) - a.queued for a, at in begun)
        ran = sum(a.ended - at for a, at in begun if at is not None)
        impossible = sum(bucket.end is End.IMPOSSIBLE for bucket in row.buckets)
        counts = [len(row.activations), sum(len(a.yields) for a in row.activations), len(row.skips), impossible]
        yield [row.name, *map(str, counts), f"{queued * 1e3:.3f}", f"{ran * 1e3:.3f}"]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned; numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = [all(row[column].replace(".", "", 1).isdigit() for row in rows[1:]) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    ]

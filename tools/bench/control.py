"""Control flow: what orchestration costs above a plain no-op model, by graph (``make bench``).

``PYTHONPATH=tools python -m bench.control [--quick] [--json FILE] [--plot FILE] [--rivals]``
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from bench.callers import InProcessCaller, StreamCaller, UnaryCaller, interleaved
from bench.graphs.builder import edges
from bench.graphs.shapes import build_all
from bench.report import Bar, Report, Row, timed_row
from bench.rivals.compare import against_rivals
from tqdm import tqdm

from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
from omniflow_backend.triton.repository import ModelDirectory, workflow_directories

HERE = Path(__file__).parent
IN_FLIGHT = 16
QUICK_GRAPHS = ("chat_stream", "guarded_chat", "unified_generation", "everything")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer graphs and calls: under 60 s")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="write latency against edges here, as SVG")
    parser.add_argument(
        "--rivals",
        action="store_true",
        help="also LangGraph, Ray and SGLang-Omni, installed when missing: minutes",
    )
    arguments = parser.parse_args()
    calls = 100 if arguments.quick else 300
    graphs = {name: w for name, w in build_all().items() if not arguments.quick or name in QUICK_GRAPHS}
    report = Report("control flow: no-op stages")
    in_process(report, calls)
    references = [f"bench.graphs.rivals:{name}" for name in ("chain", "diamond")]
    references += [f"bench.graphs.workflows:{name}" for name in graphs]
    models = [model for reference in references for model in served(reference)]
    print(f"starting Triton with {len({model.name for model in models}) + 1} models", file=sys.stderr)
    with Deployment(DeploymentOptions(models=models, repositories=[HERE / "plain_models"])) as deployment:
        assert deployment.endpoints is not None
        url = deployment.endpoints.grpc
        above_plain(report, url, calls)
        if arguments.rivals:
            against_rivals(report, url, calls, IN_FLIGHT)
        points = by_edges(report, url, {name: edges(w.compile()) for name, w in graphs.items()}, calls)
    report.show()
    if arguments.json:
        report.write(arguments.json)
    if arguments.plot:
        arguments.plot.write_text(plot(points))
    return 0


def served(reference: str) -> list[ModelDirectory]:
    """A graph's models; without the unary front, which would be one more process for each."""
    return [model for model in workflow_directories(reference) if not model.name.endswith("_unary")]


def in_process(report: Report, calls: int) -> None:
    """The runtime alone."""
    from bench.graphs.rivals import chain, diamond

    with ExitStack() as stack:
        callers = {
            f"{name}, in process": InProcessCaller(w.compile())
            for name, w in (("diamond", diamond), ("chain of 5", chain))
        }
        for caller in callers.values():
            stack.callback(caller.close)
        samples = interleaved(dict(callers), calls * 3)
        for name, caller in callers.items():
            row = timed_row(name, samples[name])
            rate = max(caller.many(calls * 10, IN_FLIGHT) for _ in range(3))
            report.rows += [row, Row(f"{name}, {IN_FLIGHT} in flight", per_second=rate)]
            if name.startswith("diamond"):
                report.bars.append(Bar("runtime alone, diamond, p50", row.p50_ms or 0.0, 0.3, "ms"))
                report.bars.append(Bar("runtime alone, diamond, 16 in flight", rate, 5000, "calls/s", below=False))


def above_plain(report: Report, url: str, calls: int) -> None:
    """Chain and diamond through Triton, each role a process, against one plain no-op model."""
    with ExitStack() as stack:
        callers = {
            "plain no-op infer": UnaryCaller(url, "noop"),
            "diamond, stream": StreamCaller(url, "diamond"),
            "chain of 5, stream": StreamCaller(url, "chain"),
        }
        for caller in callers.values():
            stack.callback(caller.close)
        samples = interleaved(dict(callers), calls)
        plain = timed_row("plain no-op infer", samples["plain no-op infer"])
        report.rows.append(plain)
        for name in list(callers)[1:]:
            row = timed_row(name, samples[name], reference=plain)
            rate = max(callers[name].many(calls * 4, IN_FLIGHT) for _ in range(3))
            report.rows += [row, Row(f"{name}, {IN_FLIGHT} in flight", per_second=rate)]
            if name.startswith("diamond"):
                above = (row.p50_ms or 0.0) - (plain.p50_ms or 0.0)
                report.bars.append(Bar("diamond through Triton, above a plain infer, p50", above, 0.8, "ms"))
                report.bars.append(Bar("diamond through Triton, 16 in flight", rate, 2000, "calls/s", below=False))


def by_edges(report: Report, url: str, graphs: dict[str, int], calls: int) -> list[tuple[int, float, str]]:
    """Mean latency of every graph against its edges, with a line fitted (paper, figure 12)."""
    points = []
    for name, count in tqdm(sorted(graphs.items(), key=lambda item: item[1]), desc="graphs", file=sys.stderr):
        caller = StreamCaller(url, name)
        samples = interleaved({name: caller}, calls)[name]
        caller.close()
        report.rows.append(timed_row(name, samples, note=f"{count} edges, mean {np.mean(samples) * 1e3:.2f} ms"))
        points.append((count, float(np.mean(samples)) * 1e3, name))
    slope, start = np.polyfit([p[0] for p in points], [p[1] for p in points], 1)
    report.rows.append(Row("fit", note=f"{start:.2f} ms + {slope:.3f} ms per edge"))
    report.bars.append(Bar("smallest graphs, mean", min(p[1] for p in points if p[0] == points[0][0]), 0.9, "ms"))
    report.bars.append(Bar("largest graph, mean", points[-1][1], 3.0, "ms"))
    report.bars.append(Bar("slope per edge, half of the paper's (7.00 - 1.79) / 18", float(slope), 0.145, "ms"))
    return points


def plot(points: list[tuple[int, float, str]]) -> str:
    """Latency against edges as SVG."""
    width, height, left, bottom = 640, 400, 60, 50
    most_edges, most_ms = max(p[0] for p in points), max(p[1] for p in points) * 1.1

    def place(count: float, ms: float) -> tuple[float, float]:
        return left + count / most_edges * (width - left - 20), height - bottom - ms / most_ms * (height - bottom - 20)

    slope, start = np.polyfit([p[0] for p in points], [p[1] for p in points], 1)
    (x0, y0), (x1, y1) = place(0, max(start, 0)), place(most_edges, start + slope * most_edges)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left},20V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
        f'<path d="M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}" stroke="#c33" stroke-dasharray="5 3"/>',
    ]
    for count, ms, name in points:
        x, y = place(count, ms)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="#36c"><title>{name}: {ms:.2f} ms</title></circle>')
    for count in range(0, most_edges + 1, 3):
        parts.append(
            f'<text x="{place(count, 0)[0]:.1f}" y="{height - bottom + 18}" text-anchor="middle">{count}</text>'
        )
    for tenth in range(1, 6):
        ms = most_ms * tenth / 5
        parts.append(f'<text x="{left - 8}" y="{place(0, ms)[1] + 4:.1f}" text-anchor="end">{ms:.1f}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">scheduling edges</text>')
    parts.append(
        f'<text x="16" y="{height / 2}" text-anchor="middle" transform="rotate(-90 16 {height / 2})">mean ms</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())

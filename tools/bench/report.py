"""What every benchmark prints and writes: a table of rows, and bars with whether they hold."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing. Times in milliseconds; ``ratio`` against ``reference`` of the same run."""

    name: str
    p50_ms: float | None = None
    p95_ms: float | None = None
    per_second: float | None = None
    ratio: float | None = None
    reference: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A figure and the bound it has to keep; ``below`` says on which side."""

    name: str
    value: float
    bar: float
    unit: str
    below: bool = True

    @property
    def holds(self) -> bool:
        """Whether the figure keeps the bound."""
        return self.value <= self.bar if self.below else self.value >= self.bar


@dataclass(slots=True)
class Report:
    """Collects rows and bars of one benchmark run, and by name what was measured again and again, as it came."""

    title: str
    rows: list[Row] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    series: dict[str, list[list[float]]] = field(default_factory=dict)

    def show(self) -> None:
        """Print both tables."""
        console = Console()
        table = Table(title=self.title)
        for column in ("what", "p50 ms", "p95 ms", "calls/s", "ratio", "against", "note"):
            table.add_column(column, justify="left" if column in ("what", "against", "note") else "right")
        for row in self.rows:
            table.add_row(
                row.name, *map(_figure, (row.p50_ms, row.p95_ms, row.per_second, row.ratio)), row.reference, row.note
            )
        console.print(table)
        if self.bars:
            bars = Table(title="bars")
            for column in ("bar", "measured", "bound", "holds"):
                bars.add_column(column)
            for bar in self.bars:
                sign = "<=" if bar.below else ">="
                bars.add_row(
                    bar.name,
                    f"{bar.value:.3g} {bar.unit}",
                    f"{sign} {bar.bar:g} {bar.unit}",
                    "yes" if bar.holds else "NO",
                )
            console.print(bars)

    def write(self, path: Path) -> None:
        """The run as JSON."""
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        }
        bars = [{**asdict(bar), "holds": bar.holds} for bar in self.bars]
        figures = {"machine": machine, "rows": [asdict(row) for row in self.rows], "bars": bars}
        if self.series:
            figures["series"] = self.series
        path.write_text(json.dumps(figures, indent=1) + "\n")


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which ``share`` of all lie; nearest rank."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed_row(name: str, seconds: Sequence[float], *, note: str = "", reference: Row | None = None) -> Row:
    """A row from latency samples, in seconds, against another row's median."""
    p50 = statistics.median(seconds) * 1e3
    ratio = p50 / reference.p50_ms if reference is not None and reference.p50_ms else None
    return Row(
        name,
        p50,
        percentile(seconds, 0.95) * 1e3,
        ratio=ratio,
        reference=reference.name if reference else "",
        note=note,
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"

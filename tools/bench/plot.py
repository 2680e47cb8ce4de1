"""Lines with bands as SVG, for what grows over turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 400, 60, 50, 40
_COLOURS = ("#0b7285", "#c2255c", "#364fc7")


@dataclass(frozen=True, slots=True)
class Series:
    """One line: ``runs`` is float ``[runs, points]``; the band is one sample standard deviation around their mean."""

    name: str
    runs: npt.NDArray[np.float64]

    @property
    def mean(self) -> npt.NDArray[np.float64]:
        return self.runs.mean(axis=0)

    @property
    def deviation(self) -> npt.NDArray[np.float64]:
        return self.runs.std(axis=0, ddof=1) if len(self.runs) > 1 else np.zeros(self.runs.shape[1])


def lines_with_bands(title: str, across: str, up: str, series: Sequence[Series]) -> str:
    """The picture; points are numbered from 1."""
    points = max(one.runs.shape[1] for one in series)
    most = max(float((one.mean + one.deviation).max()) for one in series) * 1.1

    def place(point: float, value: float) -> str:
        x = _LEFT + (point - 1) / max(points - 1, 1) * (_WIDTH - _LEFT - 20)
        y = _HEIGHT - _BOTTOM - max(value, 0.0) / most * (_HEIGHT - _BOTTOM - _TOP)
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_WIDTH / 2}" y="16" text-anchor="middle">{title}</text>',
        f'<path d="M{_LEFT},{_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - 20}" fill="none" stroke="black"/>',
    ]
    for number, (one, colour) in enumerate(zip(series, _COLOURS, strict=False)):
        mean, deviation = one.mean, one.deviation
        upper = [place(point, value) for point, value in enumerate(mean + deviation, 1)]
        lower = [place(point, value) for point, value in enumerate(mean - deviation, 1)]
        line = "L".join(place(point, value) for point, value in enumerate(mean, 1))
        parts += [
            f'<path d="M{"L".join([*upper, *lower[::-1]])}Z" fill="{colour}" opacity="0.2"/>',
            f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{_LEFT + 12}" y="{_TOP + 16 * number + 6}" fill="{colour}">{one.name}</text>',
        ]
    for point in sorted({1, *range(10, points + 1, 10), points}):
        x = place(point, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{point}</text>')
    for fifth in range(1, 6):
        y = float(place(1, most * fifth / 5).split(",")[1]) + 4
        parts.append(f'<text x="{_LEFT - 8}" y="{y:.1f}" text-anchor="end">{most * fifth / 5:.3g}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{across}</text>')
    middle = _HEIGHT / 2
    parts.append(f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{up}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"

"""Layout conversion on the CPU against memcpy of pages of the same size: `python -m bench.conversion`.

Every page is touched once per round, in buffers much larger than the caches, so that both sides are bound by memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.report import Bar, Report, Row, timed_row

from memory_manager.layouts import BlockStacks, ConversionPath, PageConverter, PageLayout, PageMove

PAGE_BYTES = 1024**2
PAGE_ALIGNMENT = 4096
BATCH = 16
BAR = 0.7
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to keep the 1 MiB of a page (32 layers, k and v, 16 tokens, 4 heads of 128, bf16) on both sides."""

    name: str
    partitions: int = 1
    block_tokens: int = 16
    heads_first: bool = False
    barred: bool = True

    @property
    def layout(self) -> PageLayout:
        return PageLayout(32, 2, self.partitions, 16, 4 // self.partitions, 128, 2)

    def stacks(self, memory: Bytes) -> BlockStacks:
        """Stacks over all of `memory`."""
        layout = self.layout
        items = memory.view(np.int16).reshape(layout.layers, layout.kinds, -1)
        tokens = items.shape[2] // (layout.total_heads * layout.head_dim)
        if self.heads_first:
            shaped = items.reshape(*items.shape[:2], -1, layout.total_heads, self.block_tokens, layout.head_dim)
            shaped = shaped.swapaxes(3, 4)
        else:
            shaped = items.reshape(
                *items.shape[:2], tokens // self.block_tokens, self.block_tokens, layout.total_heads, layout.head_dim
            )
        return BlockStacks([[shaped[layer, kind] for kind in range(layout.kinds)] for layer in range(layout.layers)])


SHAPES = (
    Shape("NHD blocks of 16 tokens"),
    Shape("NHD blocks of 16 tokens, 2 head partitions", partitions=2),
    Shape("NHD blocks of 16 tokens, 4 head partitions", partitions=4),
    # Not what a page allocator gives: every 1 KiB read or written in another place.
    Shape("single token slots, all scattered", block_tokens=1, barred=False),
    Shape("heads before tokens (HND)", heads_first=True),
)


def memory(nbytes: int, generator: np.random.Generator) -> Bytes:
    """Random bytes at a page boundary, as in shared memory."""
    spare = np.empty(nbytes + PAGE_ALIGNMENT, np.uint8)
    aligned = spare[-spare.ctypes.data % PAGE_ALIGNMENT :][:nbytes]
    aligned[:] = generator.integers(0, 256, nbytes, np.uint8)
    return aligned


class Rounds:
    """Buffers of some pages, and what is timed over them."""

    def __init__(self, pages: int) -> None:
        generator = np.random.default_rng(1)
        self.pages = pages
        self._stacks = memory(pages * PAGE_BYTES, generator)
        self._pages = memory(pages * PAGE_BYTES, generator).reshape(pages, PAGE_BYTES)
        self._order = generator.permutation(pages)
        self._scatter = generator.permutation(pages * 16)

    def memcpy(self) -> float:
        """Seconds to copy all pages."""
        plain = self._stacks.reshape(self._pages.shape)
        start = time.perf_counter()
        for index in self._order:
            np.copyto(self._pages[index], plain[index])
        return time.perf_counter() - start

    def conversion(self, shape: Shape, store: bool, threads: int, path: ConversionPath | None) -> Callable[[], float]:
        """What converts all pages once and returns the seconds it took."""
        converter = PageConverter(shape.stacks(self._stacks), shape.layout, path=path)
        each = 16 // shape.block_tokens
        blocks = (self._order if each == 1 else self._scatter).reshape(-1, each).tolist()
        moves = [PageMove(self._pages[index], blocks[index]) for index in range(len(self._pages))]
        convert = converter.store if store else converter.load

        def run() -> float:
            start = time.perf_counter()
            for first in range(0, len(moves), BATCH):
                convert(moves[first : first + BATCH], threads=threads)
            return time.perf_counter() - start

        return run


def measure(quick: bool) -> Report:
    """Times every shape in both directions, each round beside a memcpy of the same bytes."""
    rounds, repeats = Rounds(128 if quick else 256), 9 if quick else 25
    report = Report("conversion of 1 MiB pages on the CPU (times per page)")
    pages = rounds.pages
    cases: list[tuple[str, bool, Callable[[], float]]] = []
    for shape in SHAPES:
        for store in (True, False):
            way = "store" if store else "load"
            cases.append((f"{shape.name}: {way}", shape.barred, rounds.conversion(shape, store, 1, None)))
    cases.append((f"{SHAPES[0].name}: store, 2 threads", False, rounds.conversion(SHAPES[0], True, 2, None)))
    cases.append((f"{SHAPES[0].name}: store, numpy", False, rounds.conversion(SHAPES[0], True, 1, ConversionPath.COPY)))
    times: list[list[float]] = [[] for _ in cases]
    copies: list[list[float]] = [[] for _ in cases]
    for _ in range(repeats):
        for index, (_, _, run) in enumerate(cases):
            copies[index].append(rounds.memcpy() / pages)
            times[index].append(run() / pages)
    every_copy = [sample for samples in copies for sample in samples]
    report.rows.append(timed_row("memcpy", every_copy, note=rate(every_copy)))
    for (name, barred, _), mine, copied in zip(cases, times, copies, strict=True):
        # Against the memcpy right before it: what else the machine does changes from second to second.
        ratio = statistics.median(copy / own for copy, own in zip(copied, mine, strict=True))
        row = timed_row(name, mine, note=rate(mine))
        report.rows.append(Row(name, row.p50_ms, row.p95_ms, ratio=ratio, reference="memcpy rate", note=row.note))
        if barred:
            report.bars.append(Bar(f"{name}, of the memcpy rate", ratio, BAR, "x", below=False))
    return report


def rate(seconds: Sequence[float]) -> str:
    """Median bytes copied in a second."""
    return f"{PAGE_BYTES / statistics.median(seconds) / 1e9:.2f} GB/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds over fewer pages")
    parser.add_argument("--json", type=Path, default=None, help="write the figures here too")
    arguments = parser.parse_args()
    report = measure(arguments.quick)
    report.show()
    if arguments.json is not None:
        report.write(arguments.json)


if __name__ == "__main__":
    main()

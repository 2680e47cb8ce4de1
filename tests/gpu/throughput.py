"""Prints how fast 1 MiB pages are converted on the GPU, as a share of what cudaMemcpyAsync does, in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import cupy
import numpy as np

from memory_manager.devices.cuda import PinnedHost
from memory_manager.layouts import BlockStacks, PageConverter, PageLayout, PageMove

PAGES = 256
ROUNDS = 20


def seconds(work: Callable[[int], None], stream: cupy.cuda.Stream, scratch: cupy.ndarray) -> float:
    """What `work`, which queues on `stream`, takes on the GPU."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    # Keeps the GPU busy until everything is queued: the time to prepare a launch is not the kernel's.
    for _ in range(100):
        cupy.cuda.runtime.memsetAsync(scratch.data.ptr, 0, scratch.nbytes, stream.ptr)
    start.record(stream)
    work(stream.ptr)
    stop.record(stream)
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / 1e3


def main() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    scratch = cupy.zeros(512 * 1024**2, cupy.uint8)
    on_device = cupy.zeros((PAGES, 1024**2), cupy.uint8)
    on_host = np.zeros((PAGES, 1024**2), np.uint8)
    blocks = np.random.default_rng(1).permutation(PAGES).tolist()
    with PinnedHost(on_host.__array_interface__["data"][0], on_host.nbytes):
        for partitions in (1, 4):
            layout = PageLayout(32, 2, partitions, 16, 4 // partitions, 128, 2)
            values = cupy.zeros((layout.layers, 2, PAGES, 16, 4, 128), cupy.int16)
            converter = PageConverter(BlockStacks([[layer[0], layer[1]] for layer in values]), layout)
            for name, pages, kind in (("device", on_device, 3), ("pinned host", on_host, 2)):
                moves = [PageMove(pages[page], [blocks[page]]) for page in range(PAGES)]
                target = on_device.data.ptr if kind == 3 else on_host.__array_interface__["data"][0]

                def copy(handle: int, target: int = target, kind: int = kind, source: int = values.data.ptr) -> None:
                    cupy.cuda.runtime.memcpyAsync(target, source, PAGES * 1024**2, kind, handle)

                def convert(handle: int, converter: PageConverter = converter, moves: list[PageMove] = moves) -> None:
                    converter.store(moves, stream=handle)

                cupy.cuda.runtime.deviceSynchronize()
                times = [(seconds(copy, stream, scratch), seconds(convert, stream, scratch)) for _ in range(ROUNDS)][3:]
                copied, converted = (statistics.median(column) for column in zip(*times, strict=True))
                print(
                    f"store to {name}, {partitions} partitions: {PAGES / 1024 / converted:.0f} GiB/s, "
                    f"{copied / converted:.2f} of memcpy ({PAGES / 1024 / copied:.0f} GiB/s)",
                    flush=True,
                )


if __name__ == "__main__":
    main()

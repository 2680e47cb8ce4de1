"""Global parameters: holding resident pages, and moving pages to a file and back: `python -m bench.data`.

A resident page is acquired, held longer and released: three messages to the manager and back, whatever their number.
Three empty messages are measured in turns with them. Pages of 1 MiB go from host memory to a file and back, with their
checksums; plain direct writes and reads of the same bytes, by as many threads, are measured in turns with them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zmq
from bench.report import Bar, Report, Row, timed_row

from memory_manager.connection import Connection
from memory_manager.devices.cpu import CpuMemory, available_bytes
from memory_manager.endpoint import Endpoint
from memory_manager.pools.client import PageRequest, ParameterClient
from memory_manager.pools.declaration import (
    ElementType,
    OuterDimension,
    ParameterDeclaration,
    Recomputation,
    SliceDimension,
    Tier,
)
from memory_manager.pools.files import FileDisk, PageFile
from memory_manager.pools.migration import Migrator
from memory_manager.pools.requests import Access, HolderKind, Migration, SlotRef, Want
from memory_manager.pools.tiers import ParameterTiers, this_machine
from memory_manager.process import ManagerProcess
from memory_manager.protocol import Heartbeat

MEAN_BAR_MS = 0.5
DISK_BAR = 0.7
THREADS = 3
MIB = 2**20
_WARM_UP = 200


def parameter(name: str, tiers: dict[Tier, int], recomputation: Recomputation) -> ParameterDeclaration:
    """A KV cache with pages of 1 MiB: 32 layers, k and v, 16 tokens, 4 heads of 128, bf16."""
    return ParameterDeclaration(
        name=name,
        sub_names=(OuterDimension("layer", tuple(str(number) for number in range(32))),),
        slice_dims=(SliceDimension("kv", ("k", "v")),),
        page_size=16,
        shape=(4, 128),
        dtype=ElementType.BFLOAT16,
        recomputation=recomputation,
        tiers=tiers,
    )


def measure_resident(report: Report, directory: Path, rounds: int) -> None:
    """Acquire, hold longer, release: 1, 2 and 3 resident resources, in turns."""
    endpoint = directory / "memory.sock"
    parameters = [parameter(name, {Tier.L1: 8 * MIB}, Recomputation.RECOMPUTABLE) for name in ("kv", "audio", "state")]
    with (
        ManagerProcess(endpoint, ["--limit", "1MiB", "--pool-size", "1MiB"]),
        ParameterClient(endpoint, "bench") as client,
    ):
        leases = client.acquire([PageRequest(p, (Want(b"page", Access.WRITE),)) for p in parameters], 10.0)
        client.finish(leases)
        client.release(leases)
        held = [True]
        requests = [PageRequest(found, (Want(b"page"),), hold=5.0) for found in parameters]
        seconds: dict[int, list[float]] = {0: [], 1: [], 2: [], 3: []}
        empty = Connection(zmq.Context.instance(), Endpoint(endpoint), CpuMemory(), "empty", time.monotonic() + 5)
        for number in range(rounds * 4 + _WARM_UP):
            count = number % 4
            start = time.perf_counter()
            if count:
                leases = client.acquire(requests[:count], 1.0)
                held = client.renew(leases, 10.0)
                client.release(leases)
            else:
                for _ in range(3):
                    empty.request([Heartbeat()], time.monotonic() + 5)
            if number >= _WARM_UP:
                seconds[count].append(time.perf_counter() - start)
            if not all(held):
                raise RuntimeError("a page was not held any more: the figures would be of misses")
        empty.close()
    reference: Row | None = None
    for count, samples in seconds.items():
        mean = statistics.fmean(samples) * 1e3
        name = f"acquire + update + release of {count}" if count else "three empty messages"
        row = timed_row(name, samples, note=f"mean {mean:.3f} ms", reference=reference)
        reference = reference or row
        report.rows.append(row)
    report.bars.append(Bar("acquire + update + release of 3, mean", mean, MEAN_BAR_MS, "ms"))


def measure_files(report: Report, directory: Path, pages: int, rounds: int) -> None:
    """L2 -> L3 -> L2 against plain direct writes and reads of the same sizes."""
    tiers = {Tier.L2: pages * MIB, Tier.L3: pages * MIB}
    found = parameter("files", tiers, Recomputation.RECOMPUTABLE)
    memory = CpuMemory()
    store = ParameterTiers(found, memory, memory, directory, this_machine(directory, available_bytes()))
    migrator = Migrator(store, None, lambda: None)
    plain = FileDisk(directory / "plain", PageFile.nbytes(pages, MIB))
    host = store.storages[Tier.L2]
    for page in range(pages):
        host.raw(page)[:] = np.random.default_rng(page).integers(0, 256, MIB, np.uint8)
    down = [_migration(page, Tier.L2, Tier.L3) for page in range(pages)]
    up = [_migration(page, Tier.L3, Tier.L2) for page in range(pages)]
    names = ("plain write", "L2 -> L3", "plain read", "L3 -> L2")
    rates: dict[str, list[float]] = {name: [] for name in names}
    with ThreadPoolExecutor(THREADS) as threads:
        for number in range(rounds + 1):
            for name, work in zip(
                names,
                (
                    lambda: threads.map(lambda page: plain.write([host.raw(page)], page * (MIB + 4096)), range(pages)),
                    lambda: threads.map(migrator.move, down),
                    lambda: threads.map(lambda page: plain.read([host.raw(page)], page * (MIB + 4096)), range(pages)),
                    lambda: threads.map(migrator.move, up),
                ),
                strict=True,
            ):
                rate = _rate(work, pages)
                # The first round touches every block of both files once.
                if number:
                    rates[name].append(rate)
    direct = "direct" if plain.direct else "through the page cache"
    for ours, theirs in (("L2 -> L3", "plain write"), ("L3 -> L2", "plain read")):
        ratio = statistics.median(mine / other for mine, other in zip(rates[ours], rates[theirs], strict=True))
        reference = Row(theirs, note=f"{statistics.median(rates[theirs]):.2f} GB/s, {direct}, {THREADS} threads")
        row = Row(ours, ratio=ratio, reference=theirs, note=f"{statistics.median(rates[ours]):.2f} GB/s with checksums")
        report.rows += [reference, row]
        report.bars.append(Bar(f"{ours} of {theirs}", ratio, DISK_BAR, "x", below=False))
    migrator.close()
    plain.close()
    store.close()


def _migration(page: int, source: Tier, destination: Tier) -> Migration:
    name = b"page %d" % page
    kind = HolderKind.OFFLOAD if destination > source else HolderKind.LOAD
    return Migration(page, kind, name, SlotRef(source, page, 1), name, SlotRef(destination, page, 1))


def _rate(work: Callable[[], Iterable[None]], pages: int) -> float:
    start = time.perf_counter()
    for _ in work():
        pass
    return pages * MIB / (time.perf_counter() - start) / 1e9


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples and pages")
    parser.add_argument("--directory", type=Path, help="on the disk to measure; default: the temporary directory")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    report = Report("global parameters")
    with tempfile.TemporaryDirectory(prefix="data-", dir=arguments.directory) as directory:
        measure_resident(report, Path(directory), 300 if arguments.quick else 2000)
        measure_files(report, Path(directory), 64 if arguments.quick else 256, rounds=5)
    report.show()
    if arguments.json:
        report.write(arguments.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

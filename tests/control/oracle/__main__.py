"""Many random schedules: ``python -m tests.control.oracle --schedules 1000000 --seed 7``; or one: ``--replay SEED``."""

from __future__ import annotations

import argparse
import sys

from tqdm import tqdm

from tests.control.oracle.cases import Failed, Tally, replay, run_graph


def main() -> int:
    """Returns 1 when a schedule failed; it is printed with the seed that replays it."""
    parser = argparse.ArgumentParser(prog="python -m tests.control.oracle", description=__doc__)
    parser.add_argument(
        "--schedules", type=int, default=20_000, help="how many schedules to run (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="where to start; runs with other seeds see other graphs")
    parser.add_argument(
        "--replay", type=int, metavar="SEED", help="run the one schedule that was reported with this seed"
    )
    options = parser.parse_args()
    tally = Tally()
    try:
        if options.replay is not None:
            replay(options.replay, tally)
        else:
            _run(options.schedules, options.seed, tally)
    except Failed as failure:
        print(f"{failure}\n\nreplay: python -m tests.control.oracle --replay {failure.seed}", file=sys.stderr)
        return 1
    finally:
        print(tally)
    return 0


def _run(schedules: int, seed: int, tally: Tally) -> None:
    graph = seed * 10_000_000
    with tqdm(total=schedules, unit=" schedules", disable=not sys.stderr.isatty()) as progress:
        while tally.schedules < schedules:
            before = tally.schedules
            run_graph(graph, tally)
            graph += 1
            progress.update(tally.schedules - before)


if __name__ == "__main__":
    sys.exit(main())

"""``PYTHONPATH=tools python -m bench [--quick] [--json DIRECTORY]``: every benchmark, one after another."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS = ("control", "data", "conversion", "session")


def main() -> int:
    """Stops at the first that does not run; a bar that does not hold is a result, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer samples")
    parser.add_argument("--json", type=Path, help="write each benchmark's figures into this directory")
    arguments = parser.parse_args()
    for name in BENCHMARKS:
        command = [sys.executable, "-m", f"bench.{name}", *(["--quick"] if arguments.quick else [])]
        if arguments.json is not None:
            arguments.json.mkdir(parents=True, exist_ok=True)
            command += ["--json", str(arguments.json / f"{name}.json")]
        done = subprocess.run(command, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

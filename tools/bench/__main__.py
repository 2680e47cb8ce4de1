"""``PYTHONPATH=tools python -m bench``: every benchmark, one after another."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("control", "data", "conversion")


def main() -> int:
    """Stops at the first that does not run; a bar that does not hold is a result, not a failure."""
    for name in BENCHMARKS:
        done = subprocess.run([sys.executable, "-m", f"bench.{name}", *sys.argv[1:]], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

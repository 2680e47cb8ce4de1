"""``python tools/bench``: every benchmark, one after another, with the options given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

for script in ("control.py",):
    done = subprocess.run([sys.executable, str(Path(__file__).with_name(script)), *sys.argv[1:]], check=False)
    if done.returncode:
        sys.exit(done.returncode)

"""Starts a program that the kernel kills when its parent ends: ``python guarded.py PARENT_PID PROGRAM ARGUMENT...``.

A program of its own, because code between fork and exec in a process with threads may deadlock. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the program. Exits with 1 when the parent has gone already."""
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Finds the libpython that belongs to this interpreter.

Triton's Python stub embeds libpython, and the first one on ``LD_LIBRARY_PATH`` wins. One of another patch release
breaks C extensions of this interpreter's standard library at import (``undefined symbol``), so only a library of
exactly this version counts.

Standard library only: the environment is built with it, before anything is installed. As a program it prints the
directory.
"""

from __future__ import annotations

import ctypes
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

LIBRARY = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
RECORD = "libpython.json"


class LibpythonMissing(RuntimeError):
    """This interpreter has no shared library that the stub could embed."""


def libpython_directory() -> Path:
    """The directory to put first on ``LD_LIBRARY_PATH`` of a Triton server whose roles use this interpreter.

    A directory recorded in the virtual environment (``make env`` records one when it had to fetch the library) comes
    before the interpreter's own. Raises ``LibpythonMissing``.
    """
    looked = []
    for directory in _places():
        found = library_version(directory / LIBRARY)
        if found == sys.hexversion:
            return directory
        looked.append(f"{directory} ({'none' if found is None else f'version {found:#010x}'})")
    version = ".".join(map(str, sys.version_info[:3]))
    raise LibpythonMissing(
        f"no {LIBRARY} of Python {version} belongs to {sys.executable}; looked in {', '.join(looked)}. "
        "Install the shared library of this Python (Debian: apt-get install libpython3.11), or run `make env`"
    )


def library_version(library: Path) -> int | None:
    """The ``sys.hexversion`` that ``library`` was built as, or ``None`` if it is missing or no libpython."""
    try:
        return ctypes.c_ulong.in_dll(ctypes.CDLL(str(library)), "Py_Version").value
    except (OSError, ValueError):
        return None


def record(directory: Path) -> None:
    """Make ``libpython_directory`` of this virtual environment answer ``directory`` first."""
    Path(sys.prefix, RECORD).write_text(json.dumps({"directory": str(directory)}) + "\n", encoding="utf-8")


def _places() -> Iterator[Path]:
    recorded = Path(sys.prefix, RECORD)
    if recorded.is_file():
        yield Path(json.loads(recorded.read_text(encoding="utf-8"))["directory"])
    library_directory = Path(sysconfig.get_config_var("LIBDIR") or Path(sys.base_prefix, "lib"))
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        yield library_directory / multiarch
    yield library_directory
    yield Path(sys.base_prefix, "lib")


def main(arguments: list[str]) -> int:
    """Record the directory given, if one is; print the one to use, or exit 1 with the reason on stderr."""
    try:
        for directory in arguments:
            record(Path(directory))
        print(libpython_directory())
    except LibpythonMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

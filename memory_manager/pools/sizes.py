"""Byte sizes as people write them, and rounding."""

from __future__ import annotations

import re

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(r"\s*(\d+)\s*([KMGT]iB|)\s*")


def parse_size(text: str) -> int:
    """Bytes of a size such as `4GiB`, `64 MiB` or `4096`.

    Raises:
        ValueError: if it is not a size above 0.
    """
    found = _SIZE.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is not a size; write for example 4GiB, 64MiB or 4096")
    return int(found[1]) * _UNITS[found[2]]


def show_size(nbytes: int) -> str:
    """The size in the largest unit that leaves it above 1, for messages."""
    unit, factor = next(((u, f) for u, f in reversed(_UNITS.items()) if nbytes >= f and u), ("bytes", 1))
    return f"{nbytes} bytes" if factor == 1 else f"{nbytes / factor:.4g} {unit}"


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple that is not below `nbytes`."""
    return -(-nbytes // multiple) * multiple

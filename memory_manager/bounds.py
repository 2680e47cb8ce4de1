"""Bounds of what may stand in a message."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

MAX_NAME = 256

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]

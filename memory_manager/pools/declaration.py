"""What a global parameter is: its dimensions, its pages, its policy, and the tiers that keep it (paper, 4.1.1)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

import numpy as np

from memory_manager.pools.errors import DeclarationRefused
from memory_manager.pools.sizes import parse_size, round_up, show_size

PAGE_ALIGNMENT = 4096
"""Bytes. Pages lie on these boundaries in host memory and files, so that files are read and written directly."""
_MAX_NAME = 256
_MAX_DIMENSIONS = 16
_MAX_SLOTS = 2**20


class Tier(IntEnum):
    """Where copies of pages lie; the fastest first."""

    L1 = 1
    """Device memory, in the layout of the computation."""
    L2 = 2
    """Host memory, one page after the other."""
    L3 = 3
    """A file, one page after the other."""


class Recomputation(Enum):
    """What the loss of the last copy of a page would mean."""

    RECOMPUTABLE = "recomputable"
    """A cache: the producer can make the page again."""
    PRESERVED = "preserved"
    """State nobody can make again: the last complete copy in the cluster is never dropped."""


class ElementType(Enum):
    """Element types of pages. The value is the numpy dtype that carries the bits where numpy has no such type."""

    FLOAT64 = ("float64", "<f8")
    FLOAT32 = ("float32", "<f4")
    FLOAT16 = ("float16", "<f2")
    BFLOAT16 = ("bfloat16", "<u2")
    FLOAT8_E4M3 = ("float8_e4m3", "|u1")
    FLOAT8_E5M2 = ("float8_e5m2", "|u1")
    INT64 = ("int64", "<i8")
    INT32 = ("int32", "<i4")
    INT16 = ("int16", "<i2")
    INT8 = ("int8", "|i1")
    UINT8 = ("uint8", "|u1")

    @property
    def carrier(self) -> np.dtype:
        """The numpy dtype of views."""
        return np.dtype(self.value[1])

    @classmethod
    def named(cls, name: str) -> ElementType:
        """The type of that name, for example `bfloat16`.

        Raises:
            ValueError: if there is none.
        """
        for found in cls:
            if found.value[0] == name:
                return found
        raise ValueError(f"{name!r} is not an element type; use one of {', '.join(t.value[0] for t in cls)}")


@dataclass(frozen=True, slots=True)
class OuterDimension:
    """A named outer dimension (the paper's `sub_names`), for example layers, and the labels along it."""

    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SliceDimension:
    """A named slice dimension, for example k and v, or head partitions.

    Args:
        labels: of the slices that this parameter has, in order. A shard names only its own.
        axis: the axis of the token's shape that the slices divide; `None` if each slice has the whole shape.
    """

    name: str
    labels: tuple[str, ...]
    axis: int | None = None


@dataclass(frozen=True, slots=True)
class ParameterDeclaration:
    """One global parameter, as an upper layer declares it.

    A page holds `page_size` tokens; for every combination of outer labels and slice labels a token is an array of
    `slice_shape`. The layout (everything but name, policy and tiers) has a deterministic id.

    Args:
        shape: of one token, all slices of divided axes together; for example `(heads, head_dim)`.
        tiers: bytes of each tier. A tier that is missing does not exist for this parameter.

    Raises:
        DeclarationRefused: if it contradicts itself.
    """

    name: str
    sub_names: tuple[OuterDimension, ...]
    slice_dims: tuple[SliceDimension, ...]
    page_size: int
    shape: tuple[int, ...]
    dtype: ElementType
    recomputation: Recomputation
    tiers: Mapping[Tier, int]

    def __post_init__(self) -> None:
        if reasons := self._contradictions() or self._tier_contradictions():
            raise DeclarationRefused(self.name, reasons)

    @property
    def dimensions(self) -> tuple[OuterDimension | SliceDimension, ...]:
        """Outer and slice dimensions, in the order of the logical axes."""
        return (*self.sub_names, *self.slice_dims)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """The shape of one slice of one token."""
        shape = list(self.shape)
        for dimension in self.slice_dims:
            if dimension.axis is not None:
                shape[dimension.axis] //= len(dimension.labels)
        return tuple(shape)

    @property
    def page_shape(self) -> tuple[int, ...]:
        """A whole page: outer dimensions, slice dimensions, tokens, shape of a slice."""
        return (*(len(dimension.labels) for dimension in self.dimensions), self.page_size, *self.slice_shape)

    @property
    def stack_dimensions(self) -> tuple[int, ...]:
        """Sizes of the dimensions that tell block stacks apart: outer ones, and slices that divide no axis."""
        outer = [len(dimension.labels) for dimension in self.sub_names]
        return (*outer, *(len(dimension.labels) for dimension in self.slice_dims if dimension.axis is None))

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page."""
        return math.prod(self.page_shape) * self.dtype.carrier.itemsize

    @property
    def page_stride(self) -> int:
        """Bytes from one page to the next in host memory and files."""
        return round_up(self.page_nbytes, PAGE_ALIGNMENT)

    @property
    def components(self) -> frozenset[tuple[str, ...]]:
        """What of a page this layout has: all combinations of outer and slice labels. Unions of these cover a page."""
        labels = [dimension.labels for dimension in self.dimensions]
        return frozenset(itertools.product(*labels))

    @property
    def layout_metadata(self) -> str:
        """The canonical description of the layout: the same text for the same layout, on every machine."""
        layout = {
            "version": 1,
            "sub_names": [[dimension.name, dimension.labels] for dimension in self.sub_names],
            "slice_dims": [[dimension.name, dimension.labels, dimension.axis] for dimension in self.slice_dims],
            "page_size": self.page_size,
            "shape": self.shape,
            "dtype": self.dtype.value[0],
        }
        return json.dumps(layout, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def layout_id(self) -> str:
        """32 hexadecimal digits that depend on nothing but the layout."""
        return hashlib.sha256(self.layout_metadata.encode()).hexdigest()[:32]

    def slots(self, tier: Tier) -> int:
        """How many pages a tier holds."""
        return self.tiers.get(tier, 0) // self._stride(tier)

    def _stride(self, tier: Tier) -> int:
        return self.page_nbytes if tier is Tier.L1 else self.page_stride

    def _contradictions(self) -> list[str]:
        reasons = []
        if not 1 <= len(self.name) <= _MAX_NAME:
            reasons.append(f"its name must have 1 to {_MAX_NAME} characters")
        dimensions = self.dimensions
        if len({dimension.name for dimension in dimensions}) < len(dimensions) or len(dimensions) > _MAX_DIMENSIONS:
            reasons.append(f"its dimensions need different names, and there may be {_MAX_DIMENSIONS} at most")
        for dimension in dimensions:
            if not dimension.labels or len(set(dimension.labels)) < len(dimension.labels):
                reasons.append(f"dimension {dimension.name!r} needs labels, all different")
        if self.page_size < 1 or not all(size >= 1 for size in self.shape):
            reasons.append(f"page size {self.page_size} and shape {self.shape} must be positive")
            return reasons
        divided = [dimension for dimension in self.slice_dims if dimension.axis is not None]
        for dimension in divided:
            parts, axis = len(dimension.labels), dimension.axis or 0
            if not 0 <= axis < len(self.shape) or not parts or self.shape[axis] % parts:
                reasons.append(
                    f"{dimension.name!r} cannot divide axis {axis} of shape {self.shape} into {parts} slices"
                )
        if len({dimension.axis for dimension in divided}) < len(divided):
            reasons.append("two slice dimensions divide one axis")
        return reasons

    def _tier_contradictions(self) -> list[str]:
        if not self.tiers:
            return ["it needs at least one tier"]
        reasons = []
        for tier, nbytes in self.tiers.items():
            if nbytes < self._stride(tier):
                reasons.append(f"{tier.name} has {show_size(nbytes)}, one page takes {show_size(self._stride(tier))}")
            elif self.slots(tier) > _MAX_SLOTS:
                reasons.append(
                    f"{tier.name} would have {self.slots(tier)} pages, {_MAX_SLOTS} at most; use larger pages"
                )
        return reasons


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine can still give, in bytes. `device_bytes` is `None` where the device's memory is the host's."""

    host_bytes: int
    disk_bytes: int
    device_bytes: int | None = None

    def refuse(self, declaration: ParameterDeclaration) -> None:
        """Nothing, if this machine can have the tiers.

        Raises:
            DeclarationRefused: with a reason for each kind of memory that does not suffice.
        """
        wanted = {tier: declaration.tiers.get(tier, 0) for tier in Tier}
        host = wanted[Tier.L2] + (wanted[Tier.L1] if self.device_bytes is None else 0)
        checks = [
            ("device memory", wanted[Tier.L1] if self.device_bytes is not None else 0, self.device_bytes or 0),
            ("host memory", host, self.host_bytes),
            ("disk space", wanted[Tier.L3], self.disk_bytes),
        ]
        reasons = [
            f"{show_size(asked)} of {what} wanted, the machine has {show_size(left)} left"
            for what, asked, left in checks
            if asked > left
        ]
        if reasons:
            raise DeclarationRefused(declaration.name, reasons)


def tier_sizes(**sizes: str) -> dict[Tier, int]:
    """`tier_sizes(L1="1GiB", L3="40GiB")`.

    Raises:
        ValueError: if a name is not a tier, or a text not a size.
    """
    unknown = set(sizes) - {tier.name for tier in Tier}
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such tier; there are {', '.join(t.name for t in Tier)}")
    return {Tier[name]: parse_size(text) for name, text in sizes.items()}

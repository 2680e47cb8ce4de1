"""The storage layout: what one page of a parameter looks like on every tier below the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

ITEM_BYTES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class PageLayout:
    """One contiguous page in C order: `[layers, kinds, partitions, page_tokens, heads, head_dim]`.

    Named outer dimensions and slice dimensions come first, so that the slice of one (layer, kind, partition) is one
    contiguous region. `kinds` is 2 for k and v, 1 for a latent cache. `heads` counts those of one partition: heads
    `[p * heads, (p + 1) * heads)` of the model lie in partition `p`. Elements are bytes to a conversion: only their
    size matters, so that bf16 and fp8 need no support of their own.

    Raises:
        ValueError: for a size below 1, or elements of another size than 1, 2, 4 or 8 bytes.
    """

    layers: int
    kinds: int
    partitions: int
    page_tokens: int
    heads: int
    head_dim: int
    item_bytes: int

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"a page layout needs {field.name} of at least 1, not {getattr(self, field.name)}")
        if self.item_bytes not in ITEM_BYTES:
            raise ValueError(f"elements of {self.item_bytes} bytes are not supported; their size is 1, 2, 4 or 8")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions, in elements."""
        return (self.layers, self.kinds, self.partitions, self.page_tokens, self.heads, self.head_dim)

    @property
    def nbytes(self) -> int:
        """Size of a page."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one index to the next, for each dimension."""
        return tuple(math.prod(self.shape[axis + 1 :]) * self.item_bytes for axis in range(len(self.shape)))

    @property
    def total_heads(self) -> int:
        """Heads of all partitions."""
        return self.partitions * self.heads

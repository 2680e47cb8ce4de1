"""Small declarations that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Mapping

from memory_manager.pools.declaration import (
    ElementType,
    OuterDimension,
    ParameterDeclaration,
    Recomputation,
    SliceDimension,
    Tier,
)

LAYERS = ("0", "1", "2")
PAGE = 3 * 2 * 2 * 4 * 2 * 8 * 4
"""Bytes of a page of `declare`: layers, k and v, head partitions, tokens, heads of a partition, head size, float32."""


def declare(
    tiers: Mapping[Tier, int],
    *,
    name: str = "kv",
    layers: tuple[str, ...] = LAYERS,
    recomputation: Recomputation = Recomputation.RECOMPUTABLE,
    dtype: ElementType = ElementType.FLOAT32,
) -> ParameterDeclaration:
    """A KV cache: layers, k and v, two head partitions of two heads each, pages of four tokens."""
    return ParameterDeclaration(
        name=name,
        sub_names=(OuterDimension("layer", layers),),
        slice_dims=(SliceDimension("kv", ("k", "v")), SliceDimension("heads", ("left", "right"), axis=0)),
        page_size=4,
        shape=(4, 8),
        dtype=dtype,
        recomputation=recomputation,
        tiers=tiers,
    )


def shared(name: str = "kv", slots: int = 3, file_slots: int = 0) -> ParameterDeclaration:
    """A parameter that several processes declare alike."""
    tiers = {Tier.L1: slots * PAGE, Tier.L3: file_slots * 4096}
    return declare({tier: nbytes for tier, nbytes in tiers.items() if nbytes}, name=name)

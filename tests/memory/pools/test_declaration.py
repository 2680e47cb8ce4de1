"""Declarations: what a layout id depends on, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memory_manager.pools.declaration import (
    ElementType,
    Machine,
    OuterDimension,
    Recomputation,
    SliceDimension,
    Tier,
    tier_sizes,
)
from memory_manager.pools.errors import DeclarationRefused
from tests.memory.pools.pages import PAGE, declare

GIB = 2**30
SIZES = {Tier.L1: 64 * 1024, Tier.L2: 64 * 1024}


class TestLayoutId:
    """The id says how a page is represented, and nothing else."""

    def test_it_is_the_same_in_every_process(self) -> None:
        script = (
            "import sys; sys.path.insert(0, sys.argv[1]); from tests.memory.pools.pages import declare; "
            "from memory_manager.pools.declaration import Tier; print(declare({Tier.L1: 65536}).layout_id)"
        )
        command = [sys.executable, "-c", script, str(Path(__file__).parents[3])]
        found = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
        assert found.stdout.strip() == declare({Tier.L1: 65536}).layout_id

    def test_name_policy_and_sizes_do_not_matter(self) -> None:
        same = declare({Tier.L3: GIB}, name="other", recomputation=Recomputation.PRESERVED)
        assert same.layout_id == declare(SIZES).layout_id

    @pytest.mark.parametrize(
        "change",
        [
            {"page_size": 8},
            {"shape": (4, 16)},
            {"dtype": ElementType.INT32},
            {"sub_names": (OuterDimension("layer", ("0", "1", "3")),)},
            {"sub_names": (OuterDimension("block", ("0", "1", "2")),)},
            {"slice_dims": (SliceDimension("kv", ("v", "k")), SliceDimension("heads", ("left", "right"), axis=0))},
            {"slice_dims": (SliceDimension("kv", ("k", "v")), SliceDimension("heads", ("left", "right"), axis=1))},
        ],
    )
    def test_everything_about_the_bytes_matters(self, change: dict[str, Any]) -> None:
        assert replace(declare(SIZES), **change).layout_id != declare(SIZES).layout_id

    def test_shards_cover_a_page_together(self) -> None:
        whole = declare(SIZES)
        shards = [
            replace(
                whole, slice_dims=(SliceDimension("kv", ("k", "v")), SliceDimension("heads", (part,))), shape=(2, 8)
            )
            for part in ("left", "right")
        ]
        assert shards[0].components | shards[1].components == whole.components
        assert not shards[0].components & shards[1].components
        assert sum(shard.page_nbytes for shard in shards) == whole.page_nbytes == PAGE


class TestRefusal:
    """A declaration that cannot work is refused at once, with every reason."""

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"tiers": {}}, "at least one tier"),
            ({"tiers": {Tier.L1: 100}}, "L1 has 100 bytes, one page takes 3 KiB"),
            ({"tiers": {Tier.L1: 64 * GIB}}, "L1 would have 22369621 pages, 1048576 at most"),
            ({"page_size": 0}, "must be positive"),
            ({"name": ""}, "name"),
            ({"sub_names": (OuterDimension("kv", ("0",)),)}, "different names"),
            ({"sub_names": (OuterDimension("layer", ("0", "0")),)}, "labels, all different"),
            ({"sub_names": (OuterDimension("layer", ()),)}, "labels"),
            ({"slice_dims": (SliceDimension("heads", ("a", "b", "c"), axis=0),)}, "cannot divide axis 0"),
            ({"slice_dims": (SliceDimension("heads", ("a", "b"), axis=5),)}, "cannot divide axis 5"),
            ({"slice_dims": tuple(SliceDimension(n, ("a", "b"), axis=0) for n in "xy")}, "divide one axis"),
        ],
    )
    def test_a_contradiction_is_named(self, change: dict[str, Any], reason: str) -> None:
        with pytest.raises(DeclarationRefused, match=reason):
            replace(declare(SIZES), **change)

    def test_all_tiers_a_machine_cannot_have_are_named(self) -> None:
        wanted = replace(declare(SIZES), page_size=1024, tiers=tier_sizes(L1="2GiB", L2="4GiB", L3="40GiB"))
        with pytest.raises(DeclarationRefused) as refused:
            Machine(host_bytes=5 * GIB, disk_bytes=10 * GIB).refuse(wanted)
        assert refused.value.reasons == (
            "6 GiB of host memory wanted, the machine has 5 GiB left",
            "40 GiB of disk space wanted, the machine has 10 GiB left",
        )

    def test_device_memory_is_counted_apart_where_it_is_apart(self) -> None:
        wanted = replace(declare(SIZES), page_size=1024, tiers=tier_sizes(L1="2GiB", L2="4GiB"))
        Machine(host_bytes=4 * GIB, disk_bytes=0, device_bytes=2 * GIB).refuse(wanted)
        with pytest.raises(DeclarationRefused, match="2 GiB of device memory wanted, the machine has 1 GiB left"):
            Machine(host_bytes=4 * GIB, disk_bytes=0, device_bytes=GIB).refuse(wanted)

    @pytest.mark.parametrize("attempt", [lambda: tier_sizes(L4="1GiB"), lambda: tier_sizes(L1="much")])
    def test_sizes_are_written_with_binary_units(self, attempt: Callable[[], object]) -> None:
        with pytest.raises(ValueError, match=r"L4: no such tier|is not a size"):
            attempt()
        assert tier_sizes(L1="4GiB", L2="512 MiB") == {Tier.L1: 4 * GIB, Tier.L2: GIB // 2}

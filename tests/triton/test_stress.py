"""Many short calls at once on a real server, with cancels and dying roles; ``tools/load/soak.py`` does it longer."""

from __future__ import annotations

import pytest
from load.soak import SoakOptions, soak

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_64_streams_with_cancels_and_dying_roles_neither_hang_nor_mix_nor_leave_anything() -> None:
    report = soak(SoakOptions(seconds=12, streams=64, kill_every=4))
    print(report)
    assert report.problems == []
    assert len(report.kills) >= 1
    # That it went through all of this at all.
    assert min(report.ends["finished"], report.ends["cancelled"], report.ends["deadline"]) > 0

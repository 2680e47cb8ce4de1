"""One deployment for all tests that need a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
from omniflow_backend.triton.references import resolve
from omniflow_backend.triton.repository import role_directory

HERE = Path(__file__).parent
SERVED = HERE / "served.py"
WORKFLOWS = ("diamond", "waiting", "big", "counting", "wrapping")
ROLES = {"plain": ("Plain", {"mark": "!"}), "stream": ("Stream", {})}


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    options = DeploymentOptions(
        workflows=[f"{SERVED}:{name}" for name in WORKFLOWS],
        models=[role_directory(name, resolve(f"{SERVED}:{cls}"), options) for name, (cls, options) in ROLES.items()],
        repositories=[HERE / "foreign_repository"],
        memory_limit="256MiB",
    )
    with Deployment(options) as running:
        yield running

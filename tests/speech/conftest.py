"""Loaded roles, once for all tests, and a way to call them as a workflow does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from omniflow_backend.models.speech.roles import Asr, Talker, Vocoder


@pytest.fixture(scope="session")
def asr() -> Iterator[Asr]:
    role = Asr()
    role.load()
    yield role
    role.close()


@pytest.fixture(scope="session")
def talker() -> Iterator[Talker]:
    role = Talker()
    role.load()
    yield role
    role.close()


@pytest.fixture(scope="session")
def vocoder() -> Iterator[Vocoder]:
    role = Vocoder()
    role.load()
    yield role
    role.close()

"""Tests that need a GPU. Where there is none, each is skipped by name, with what is missing."""

from __future__ import annotations

import functools

import pytest

from memory_manager.layouts.native import native


@functools.cache
def missing() -> str | None:
    """What a test on a GPU lacks here."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed"
    try:
        if cupy.cuda.runtime.getDeviceCount() < 1:
            return "there is no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"there is no usable GPU: {error}"
    module = native()
    return None if module is not None and module.HAS_KERNELS else "the kernels are not built: run cuda/build.py"


@pytest.fixture(autouse=True)
def gpu() -> None:
    """Skips the test without one."""
    if (reason := missing()) is not None:
        pytest.skip(reason)

"""The module is built where its tools are; without it, everything works by indexing and says so once."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import memory_manager.layouts
from memory_manager.layouts import BlockStacks, ConversionPath, PageConverter, PageLayout, PageMove
from memory_manager.layouts.native import native

BUILD = Path(__file__).resolve().parents[2] / "cuda" / "build.py"
TOOLS = (
    shutil.which("c++")
    and (shutil.which("cmake") or (Path(sys.executable).parent / "cmake").exists())
    and importlib.util.find_spec("pybind11")
    and (Path(sysconfig.get_path("include")) / "Python.h").exists()
)

KERNELS_NEED = (12, 8)


def nvcc_release() -> tuple[int, ...]:
    """(0,) where there is no nvcc."""
    if shutil.which("nvcc") is None:
        return (0,)
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", said)
    assert found is not None
    return tuple(map(int, found.groups()))


def run_build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BUILD), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.skipif(not TOOLS, reason="CMake, a C++ compiler, pybind11 or Python's headers are not installed")
def test_the_module_is_there_where_it_can_be_built() -> None:
    module = native()
    assert module is not None, "run cuda/build.py"
    assert nvcc_release() < KERNELS_NEED or module.HAS_KERNELS


@pytest.mark.parametrize(("arguments", "status"), [((), 0), (("--require",), 1)])
def test_a_missing_compiler_is_named_and_fails_only_where_the_module_is_required(
    arguments: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    cmake = tmp_path / "cmake"
    cmake.touch(mode=0o755)
    done = run_build(*arguments, PATH=str(tmp_path), CXX="no-such-compiler")
    assert done.returncode == status
    assert "a C++ compiler is not installed" in done.stderr


@pytest.fixture
def no_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if the module had not been built."""
    monkeypatch.setitem(sys.modules, "memory_manager.layouts._conversion", None)
    monkeypatch.delattr(memory_manager.layouts, "_conversion", raising=False)
    native.cache_clear()
    yield
    native.cache_clear()


@pytest.mark.usefixtures("no_module")
def test_without_the_module_pages_are_converted_by_indexing(caplog: pytest.LogCaptureFixture) -> None:
    layout = PageLayout(layers=1, kinds=1, partitions=1, page_tokens=2, heads=1, head_dim=3, item_bytes=1)
    stack = np.arange(12, dtype=np.uint8).reshape(4, 1, 1, 3)
    page = np.zeros(6, np.uint8)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            converter = PageConverter(BlockStacks([[stack]]), layout)
            converter.store([PageMove(page, [3, 1])])
    assert converter.path is ConversionPath.COPY
    assert page.tolist() == [9, 10, 11, 3, 4, 5]
    assert [record.name for record in caplog.records] == ["memory_manager.layouts.native"]
    assert "cuda/build.py" in caplog.text

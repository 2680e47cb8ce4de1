"""A small model that is loaded as engines load: every parameter by a loader of its own."""

from __future__ import annotations

import torch
from torch import nn

NAMES = ["first.bias", "scale", "second.weight", "tied"]


class Small(nn.Module):
    """Four parameters, one of them tied, and a buffer that belongs to the process."""

    def __init__(self, width: int = 8, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, dtype=dtype)
        self.second = nn.Linear(width, width, bias=False, dtype=dtype)
        self.tied = self.first.weight
        scale = nn.Parameter(torch.empty(width, dtype=dtype), requires_grad=False)
        self.register_parameter("scale", scale)
        # Engines attach this to a parameter after it is registered.
        scale.loader = load_halves  # type: ignore[attr-defined]
        self.register_buffer("positions", torch.arange(width), persistent=False)


def load_halves(parameter: nn.Parameter, loaded: torch.Tensor) -> None:
    """Fills the parameter part by part, as loaders of fused parameters do."""
    half = len(loaded) // 2
    parameter.data.narrow(0, 0, half).copy_(loaded[:half])
    parameter.data[half:] = loaded[half:]


def load(model: Small, value: float) -> None:
    """Every parameter is `value` after this."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "scale":
                parameter.loader(parameter, torch.full_like(parameter, value, device="cpu"))
            else:
                parameter.fill_(value)


def values(model: Small) -> dict[str, list[float]]:
    """The different values of each parameter."""
    return {name: sorted(set(parameter.detach().reshape(-1).tolist())) for name, parameter in model.named_parameters()}

"""Makes PyPI's torchvision importable without CUDA, which importing ``transformers`` models needs."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def declare_torchvision_operators() -> Any:
    """Declare what only torchvision's CUDA library declares; call it before importing ``transformers`` models.

    Returns the library that holds the declarations, which has to stay alive: the cache keeps it.
    """
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library

"""The vision tower and its projector: a picture in, a few embeddings of the text model out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

SIDE = 64
"""Pixels; pictures are scaled to squares of this size."""
IMAGE_TOKENS = 4
"""Positions that a picture takes in the prompt."""
HIDDEN_SIZE = 576
"""Of SmolLM2-135M, for whose embedding space the projector was trained."""
FEATURES = 64

WEIGHTS = Path(__file__).parent / "easy_vqa_tower.safetensors"


class VisionTower(nn.Module):
    """Four strided convolutions, and a projector of two layers; 0.3 million parameters.

    ``forward``: float32 ``[pictures, 3, 64, 64]`` in -1..1 to float32 ``[pictures, IMAGE_TOKENS, HIDDEN_SIZE]``.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64 * (SIDE // 16) ** 2, FEATURES), nn.ReLU())
        self.projector = nn.Sequential(
            nn.Linear(FEATURES, FEATURES), nn.GELU(), nn.Linear(FEATURES, IMAGE_TOKENS * HIDDEN_SIZE)
        )

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """What the convolutions make of pictures: float32 ``[pictures, FEATURES]``."""
        return self.features(self.convolutions(pixels))

    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Features in the text model's embedding space: float32 ``[pictures, IMAGE_TOKENS, HIDDEN_SIZE]``."""
        return self.projector(features).unflatten(-1, (IMAGE_TOKENS, HIDDEN_SIZE))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.project(self.see(pixels))


def to_pixels(picture: np.ndarray) -> torch.Tensor:
    """uint8 ``[height, width, 3]`` of any size as float32 ``[3, SIDE, SIDE]`` in -1..1."""
    pixels = torch.tensor(picture).permute(2, 0, 1).float().div(127.5).sub(1.0)
    if pixels.shape[1:] != (SIDE, SIDE):
        pixels = nn.functional.interpolate(
            pixels[None], size=(SIDE, SIDE), mode="bilinear", align_corners=False, antialias=True
        )[0]
    return pixels


def load_tower(weights: Path = WEIGHTS) -> VisionTower:
    """The trained tower, ready to see.

    Raises:
        FileNotFoundError: without the file of weights; ``tools/checkpoints/train_vision.py`` makes it.
    """
    from safetensors.torch import load_file

    tower = VisionTower()
    tower.load_state_dict({name: value.float() for name, value in load_file(weights).items()})
    return tower.eval()

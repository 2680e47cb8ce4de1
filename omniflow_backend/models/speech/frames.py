"""Spectral frames: the one tensor that travels from the talker to the vocoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omniflow_backend import BadInput
from omniflow_backend.models.speech.waveform import described

if TYPE_CHECKING:
    import numpy as np

BINS = 601
PARTS = 5
# Harmonic magnitude and phase, noise magnitude, free magnitude and phase (each of BINS); then the pitch in Hz.
WIDTH = PARTS * BINS + 1


def pack(parts: list[np.ndarray]) -> np.ndarray:
    """The model's outputs (five ``[1, 601, frames]`` and the pitch ``[1, frames]``) as float32 ``[frames, WIDTH]``."""
    import numpy as np

    *spectra, pitch = parts
    return np.ascontiguousarray(np.concatenate([*(part[0] for part in spectra), pitch], axis=0).T)


def unpack(frames: Any) -> list[np.ndarray]:
    """Five arrays ``[601, frames]`` and the pitch ``[frames]``. Raises ``BadInput`` for what ``pack`` cannot make."""
    import numpy as np

    if not isinstance(frames, np.ndarray) or frames.dtype != np.float32 or frames.ndim != 2 or frames.shape[1] != WIDTH:
        raise BadInput(f"frames must be float32 [frames, {WIDTH}], got {described(frames)}")
    if not len(frames):
        raise BadInput("there are no frames to make sound of")
    if not np.isfinite(frames).all():
        raise BadInput("frames hold NaN or infinite values")
    columns = np.ascontiguousarray(frames.T)
    return [*np.split(columns[:-1], PARTS), columns[-1]]

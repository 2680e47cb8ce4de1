"""Waveforms: mono float32 samples in [-1, 1] with a rate; checking and resampling them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omniflow_backend import BadInput

if TYPE_CHECKING:
    import numpy as np

MIN_RATE, MAX_RATE = 4_000, 192_000


def check_rate(sample_rate: int) -> None:
    """Raises ``BadInput`` for a rate, in Hz, that no speech has."""
    if not MIN_RATE <= sample_rate <= MAX_RATE:
        raise BadInput(f"the sample rate must be {MIN_RATE} to {MAX_RATE} Hz, got {sample_rate}")


def check_waveform(waveform: Any, sample_rate: int, max_seconds: float) -> None:
    """Raises ``BadInput`` unless ``waveform`` is float32 ``[samples]``, finite, not empty and not too long."""
    import numpy as np

    if not isinstance(waveform, np.ndarray) or waveform.dtype != np.float32 or waveform.ndim != 1:
        raise BadInput(f"the waveform must be float32 [samples], got {described(waveform)}")
    check_rate(sample_rate)
    if not waveform.size:
        raise BadInput("the waveform has no samples")
    check_length(waveform.size, sample_rate, max_seconds)
    if not np.isfinite(waveform).all():
        raise BadInput("the waveform holds NaN or infinite samples")


def described(value: Any) -> str:
    """dtype and shape of an array, the type of anything else: for messages."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return type(value).__name__ if dtype is None or shape is None else f"{dtype} {list(shape)}"


def check_length(samples: int, sample_rate: int, max_seconds: float) -> None:
    """Raises ``BadInput`` when ``samples`` at ``sample_rate`` last longer than ``max_seconds``."""
    seconds = samples / sample_rate
    if seconds > max_seconds:
        raise BadInput(
            f"the audio is {seconds:.1f} s long; at most {max_seconds:g} s are accepted (option max_seconds)"
        )


def resample(waveform: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """``waveform`` (float32 ``[samples]``, ``source_rate`` Hz) at ``target_rate`` Hz, band-limited."""
    import av
    import numpy as np

    if source_rate == target_rate or not waveform.size:
        return waveform
    resampler = av.AudioResampler(format="flt", layout="mono", rate=target_rate)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(waveform)[None, :], format="flt", layout="mono")
    frame.sample_rate = source_rate
    parts = [part.to_ndarray()[0] for part in (*resampler.resample(frame), *resampler.resample(None))]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)

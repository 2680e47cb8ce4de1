"""WAV files in memory: reading what clients send, writing what they play."""

from __future__ import annotations

import base64
import binascii
import io
import wave
from typing import TYPE_CHECKING, Any

from omniflow_backend import BadInput
from omniflow_backend.models.speech.waveform import check_length, check_rate

if TYPE_CHECKING:
    import numpy as np

_ENCODINGS = frozenset({"pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le"})
_MAX_CHANNELS = 2
_HEADER_BYTES = 12
# Writers that do not know the length yet (pipes) put these in the size field.
_UNKNOWN_SIZES = frozenset({0, 0xFFFFFFFF, 0x7FFFFFFF})


def wav_bytes(data: bytes) -> bytes:
    """``data`` itself, or what it encodes in base64: JSON cannot carry raw bytes. Raises ``BadInput``."""
    if data[:4] == b"RIFF":
        return data
    try:
        decoded = base64.b64decode(b"".join(data.split()), validate=True)
    except binascii.Error:
        decoded = b""
    if decoded[:4] != b"RIFF":
        raise BadInput("the audio is neither a WAV file nor the base64 text of one (a WAV file starts with RIFF)")
    return decoded


def read_wav(data: bytes, max_seconds: float) -> tuple[np.ndarray, int]:
    """The samples, mono float32 ``[samples]`` in [-1, 1], and their rate in Hz; stereo is averaged.

    Reads integer PCM of 8, 16, 24 and 32 bits and floats. Raises ``BadInput`` for anything else, for a file that is
    truncated, empty or longer than ``max_seconds``, and for samples that are not finite.
    """
    import av
    import numpy as np

    _check_header(data)
    try:
        with av.open(io.BytesIO(data), format="wav") as container:
            parts, sample_rate = _decode(container, max_seconds)
    except av.error.FFmpegError as error:
        raise BadInput(f"the WAV file cannot be read: {error.strerror or error}") from None
    if not parts:
        raise BadInput("the WAV file holds no samples")
    waveform = np.concatenate(parts)
    if not np.isfinite(waveform).all():
        raise BadInput("the WAV file holds NaN or infinite samples")
    return np.clip(waveform, -1.0, 1.0), sample_rate


def write_wav(waveform: np.ndarray, sample_rate: int) -> bytes:
    """``waveform`` (float ``[samples]``, clipped to [-1, 1]) as a mono WAV file of 16 bits."""
    import numpy as np

    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((np.clip(waveform, -1.0, 1.0) * 32767.0).round().astype("<i2").tobytes())
    return buffer.getvalue()


def _check_header(data: bytes) -> None:
    if len(data) < _HEADER_BYTES or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise BadInput("the audio is not a WAV file (it does not start with RIFF ... WAVE)")
    declared = int.from_bytes(data[4:8], "little")
    # The last byte may be padding that the writer counted but left out.
    missing = declared + 8 - len(data) - 1
    if declared not in _UNKNOWN_SIZES and missing > 0:
        raise BadInput(f"the WAV file is truncated: it says {declared + 8} bytes and has {len(data)}")


def _decode(container: Any, max_seconds: float) -> tuple[list[np.ndarray], int]:
    """The samples in parts, mono, and the rate."""
    import av

    if not container.streams.audio:
        raise BadInput("the WAV file has no audio")
    stream = container.streams.audio[0]
    encoding = "an unknown codec" if stream.codec_context is None else stream.codec_context.name
    if encoding not in _ENCODINGS:
        raise BadInput(f"the WAV file is encoded as {encoding}; PCM of 8 to 32 bits or float is needed")
    sample_rate, channels = stream.rate, stream.channels
    check_rate(sample_rate)
    if not 1 <= channels <= _MAX_CHANNELS:
        raise BadInput(f"the WAV file has {channels} channels; 1 or {_MAX_CHANNELS} are accepted")
    if stream.duration is not None and stream.time_base is not None:
        check_length(round(stream.duration * stream.time_base * sample_rate), sample_rate, max_seconds)
    to_float = av.AudioResampler(format="fltp", layout=stream.layout, rate=sample_rate)
    parts, samples = [], 0
    for frame in container.decode(stream):
        for converted in to_float.resample(frame):
            part = converted.to_ndarray().mean(axis=0, dtype="float32")
            samples += part.size
            check_length(samples, sample_rate, max_seconds)
            parts.append(part)
    return parts, sample_rate

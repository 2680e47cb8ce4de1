"""Reading WAV files: every encoding gives the same sound; what is no sound is refused with the reason."""

from __future__ import annotations

import base64
import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omniflow_backend import BadInput
from omniflow_backend.models.speech.wav import read_wav, wav_bytes, write_wav
from omniflow_backend.models.speech.waveform import resample

RATE = 16_000
TONE = (0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE // 4) / RATE)).astype(np.float32)
PCM, FLOAT, MULAW = 1, 3, 7


def wav(
    data: bytes, *, bits: int, encoding: int = PCM, channels: int = 1, rate: int = RATE, size: int | None = None
) -> bytes:
    """A WAV file of ``data``, by the format's definition; ``size`` overrides the length it claims."""
    block = channels * bits // 8
    layout = struct.pack("<HHIIHH", encoding, channels, rate, rate * block, block, bits)
    body = b"WAVE" + b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body) if size is None else size) + body


def integers(samples: np.ndarray, bits: int) -> bytes:
    scaled = np.round(samples.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
    if bits == 8:
        return (scaled + 128).astype("u1").tobytes()
    return scaled.view("u1").reshape(-1, 4)[:, : bits // 8].tobytes()


@pytest.mark.parametrize(("bits", "tolerance"), [(8, 1e-2), (16, 1e-4), (24, 1e-6), (32, 1e-6)])
def test_integer_pcm_of_every_width_gives_the_same_sound(bits: int, tolerance: float) -> None:
    samples, rate = read_wav(wav(integers(TONE, bits), bits=bits), 1)
    assert rate == RATE
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, TONE, atol=tolerance)


def test_floats_are_read_as_they_are_and_clipped() -> None:
    samples, _ = read_wav(wav((TONE * 4).astype("<f4").tobytes(), bits=32, encoding=FLOAT), 1)
    np.testing.assert_array_equal(samples, np.clip(TONE * 4, -1, 1))


def test_stereo_is_averaged() -> None:
    both = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    samples, _ = read_wav(wav(integers(both.reshape(-1), 16), bits=16, channels=2), 1)
    np.testing.assert_allclose(samples, TONE / 2, atol=1e-4)


def test_what_is_written_is_read_back() -> None:
    samples, rate = read_wav(write_wav(TONE, 24_000), 1)
    assert rate == 24_000
    np.testing.assert_allclose(samples, TONE, atol=1e-4)


def test_base64_text_of_a_file_is_the_file() -> None:
    data = write_wav(TONE, RATE)
    assert wav_bytes(data) == data
    assert wav_bytes(base64.encodebytes(data)) == data


def test_a_pipe_s_file_of_unknown_length_is_read_whole() -> None:
    data = wav(integers(TONE, 16), bits=16, size=0xFFFFFFFF)
    assert read_wav(data, 1)[0].size == TONE.size


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a WAV file"),
        (b"RIFF\x04\x00\x00\x00AVI ", "not a WAV file"),
        (wav(integers(TONE, 16), bits=16)[:-100], "truncated"),
        (wav(integers(TONE, 16), bits=16)[:30], "truncated"),
        (wav(b"", bits=16), "no samples"),
        (wav(integers(TONE, 16), bits=16, channels=4), "4 channels"),
        (wav(bytes(100), bits=8, encoding=MULAW), "encoded as pcm_mulaw"),
        (wav(integers(TONE, 16), bits=16, rate=100), "4000 to 192000"),
        (wav(integers(np.tile(TONE, 5), 16), bits=16), "1.2 s long; at most 1 s"),
        (wav(np.array([np.nan] * 9, "<f4").tobytes(), bits=32, encoding=FLOAT), "NaN"),
    ],
    ids=["nothing", "AVI", "cut", "cut header", "no samples", "channels", "mu-law", "rate", "long", "nan"],
)
def test_what_is_no_sound_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_wav(data, 1)


@pytest.mark.parametrize("data", [b"", b"hello", b"aGVsbG8=", b"\xff\xfe"])
def test_neither_wav_nor_its_base64_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match="neither a WAV file nor the base64"):
        wav_bytes(data)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_damaged_files_are_read_or_refused_never_a_crash(data: st.DataObject) -> None:
    damaged = bytearray(wav(integers(TONE[:64], 16), bits=16))
    for place in data.draw(st.lists(st.integers(12, len(damaged) - 1), max_size=8)):
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        samples, rate = read_wav(bytes(damaged), 1)
    except BadInput:
        return
    assert samples.ndim == 1
    assert samples.size <= rate
    assert np.isfinite(samples).all()


def test_the_standard_library_reads_what_is_written() -> None:
    with wave.open(io.BytesIO(write_wav(TONE, RATE))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, RATE)
        assert file.getnframes() == TONE.size


@pytest.mark.parametrize("source", [8_000, 24_000, 44_100])
def test_resampling_keeps_length_and_pitch(source: int) -> None:
    seconds, pitch = 1.0, 440.0
    tone = np.sin(2 * np.pi * pitch * np.arange(int(source * seconds)) / source).astype(np.float32)
    resampled = resample(tone, source, RATE)
    assert resampled.dtype == np.float32
    assert abs(resampled.size - RATE * seconds) <= 2
    loudest = np.argmax(np.abs(np.fft.rfft(resampled))) * RATE / resampled.size
    assert loudest == pytest.approx(pitch, abs=1.5)


def test_resampling_down_removes_what_would_fold_back() -> None:
    above = np.sin(2 * np.pi * 11_000 * np.arange(24_000) / 24_000).astype(np.float32)
    assert np.abs(resample(above, 24_000, RATE)[1000:-1000]).max() < 0.02

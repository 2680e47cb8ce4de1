"""Spoken questions for demos and tests, made by the same voice that answers."""

from __future__ import annotations

from omniflow_backend.models.speech.wav import write_wav

CAPITAL_OF_FRANCE = "What is the capital of France?"
AND_OF_ITALY = "And of Italy?"


def question_clip(text: str, *, speed: float = 1.0) -> bytes:
    """``text`` spoken: a mono WAV file, 16 bits, 24,000 Hz; the same bytes every time. Loads the voice (0.5 s).

    Raises ``ValueError`` when there is nothing to say in ``text``.
    """
    from hibari import SAMPLE_RATE, Hibari

    waveform = Hibari()(text, speed=speed, seed=0)
    if not waveform.size:
        raise ValueError(f"nothing can be spoken of {text!r}")
    return write_wav(waveform, SAMPLE_RATE)

"""The roles of speech: reading audio, recognising speech, and speaking in two steps.

Heavy packages are imported when a role loads: a process that only knows the workflow stays light.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omniflow_backend import (
    ActivationContext,
    Audio,
    BadInput,
    Bytes,
    Float,
    Int,
    Optional,
    Role,
    Tensor,
    Text,
    interface,
)
from omniflow_backend.models.speech.checkpoint import prepare
from omniflow_backend.models.speech.frames import WIDTH, pack, unpack
from omniflow_backend.models.speech.phonemes import Phonemizer
from omniflow_backend.models.speech.wav import read_wav, wav_bytes
from omniflow_backend.models.speech.waveform import check_waveform, resample

LISTENING_RATE = 16_000
SPEAKING_RATE = 24_000
Frames = Tensor("float32", (-1, WIDTH))


@dataclass(frozen=True)
class AudioReaderOptions:
    """``max_seconds`` bounds the audio that is accepted."""

    max_seconds: float = 120.0


class AudioReader(Role):
    """Reads the WAV file that a client sends."""

    def load(self) -> None:
        """Check the options. Raises ``TypeError`` for one that does not exist."""
        self._options = AudioReaderOptions(**self.options)

    @interface(inputs={"data": Bytes}, outputs={"waveform": Audio, "sample_rate": Int})
    def decode(self, ctx: ActivationContext, data: bytes) -> dict[str, Any]:
        """A WAV file, or its base64 text, as mono float32 samples in [-1, 1] and their rate in Hz.

        Raises ``BadInput`` for what is no such file, or is truncated, empty or too long.
        """
        waveform, sample_rate = read_wav(wav_bytes(bytes(data)), self._options.max_seconds)
        return {"waveform": waveform, "sample_rate": sample_rate}


@dataclass(frozen=True)
class AsrOptions:
    """``checkpoint`` is another Whisper model for CTranslate2; without it tiny.en is prepared in the cache.

    ``language`` is ``None`` for a multilingual model that shall find out by itself.
    """

    checkpoint: str | None = None
    language: str | None = "en"
    max_seconds: float = 120.0
    threads: int = 1


class Asr(Role):
    """Speech recognition: Whisper in int8, greedy, so that the same audio gives the same text."""

    @classmethod
    def prepare(cls, **options: Any) -> None:
        """Make the checkpoint in the cache, unless the options name another. Raises ``CheckpointUnavailable``."""
        if not AsrOptions(**options).checkpoint:
            prepare()

    def load(self) -> None:
        """Load the model, preparing it first if need be. Raises ``CheckpointUnavailable``."""
        from faster_whisper import WhisperModel

        self._options = AsrOptions(**self.options)
        checkpoint = Path(self._options.checkpoint) if self._options.checkpoint else prepare()
        self._model = WhisperModel(
            str(checkpoint), device="cpu", compute_type="int8", cpu_threads=self._options.threads, local_files_only=True
        )

    @interface(
        inputs={"waveform": Audio, "sample_rate": Optional(Int)},
        outputs={"text": Text, "language": Text, "seconds": Float},
    )
    def transcribe(self, ctx: ActivationContext, waveform: Any, sample_rate: int | None) -> dict[str, Any]:
        """What is said in ``waveform`` (float32 ``[samples]``; ``sample_rate`` in Hz, 16,000 if not given).

        ``seconds`` is the audio's length. Raises ``BadInput`` for samples that cannot be heard, and when no speech is.
        """
        rate = LISTENING_RATE if sample_rate is None else sample_rate
        check_waveform(waveform, rate, self._options.max_seconds)
        segments, about = self._model.transcribe(
            resample(waveform, rate, LISTENING_RATE),
            language=self._options.language,
            beam_size=1,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        heard = []
        for segment in segments:
            ctx.raise_if_cancelled()
            heard.append(segment.text.strip())
        text = " ".join(filter(None, heard))
        if not text:
            raise BadInput("no speech was recognised in the audio")
        return {"text": text, "language": about.language, "seconds": waveform.size / rate}


@dataclass(frozen=True)
class TalkerOptions:
    """``speed`` 1.0 is the voice's own pace, 0.5 slow, 2.0 fast. ``max_characters`` bounds one text."""

    speed: float = 1.0
    max_characters: int = 20_000
    threads: int = 1


class Talker(Role):
    """The first step of speaking: text into spectral frames, sentence by sentence.

    The model says one sentence at a time, so an activation yields once per sentence (long ones are cut at clauses),
    and the first can sound while the next is made. Text with nothing to say ("...", emoji) yields nothing.
    """

    def load(self) -> None:
        """Load the voice and the pronunciation dictionary."""
        from hibari.tts import MAX_PHONEMES, Hibari

        self._options = TalkerOptions(**self.options)
        self._voice = Hibari(threads=self._options.threads)
        self._phonemizer = Phonemizer(self._voice.split_sentences, self._voice.g2p, MAX_PHONEMES)

    @interface(inputs={"text": Text}, outputs={"frames": Frames, "sample_rate": Int})
    def speak(self, ctx: ActivationContext, text: str) -> Iterator[dict[str, Any]]:
        """Frames (float32 ``[frames, WIDTH]``, 12.5 ms each) and the rate in Hz of the sound they describe.

        Raises ``BadInput`` for text longer than the option ``max_characters``.
        """
        import numpy as np

        if len(text) > self._options.max_characters:
            raise BadInput(
                f"the text has {len(text)} characters; at most {self._options.max_characters} are spoken "
                "(option max_characters)"
            )
        speed = np.asarray([self._options.speed], np.float32)
        for phonemes in self._phonemizer.pieces(text):
            ctx.raise_if_cancelled()
            ids = np.asarray([self._voice.ids(phonemes)], np.int64)
            parts = self._voice.sess.run(None, {"ids": ids, "speed": speed})
            yield {"frames": pack(parts), "sample_rate": SPEAKING_RATE}


@dataclass(frozen=True)
class VocoderOptions:
    """``seed`` fixes the noise in the voice: the same frames give the same samples."""

    seed: int = 0


class Vocoder(Role):
    """The second step of speaking: spectral frames into a waveform."""

    def load(self) -> None:
        """Import the signal processing."""
        from hibari import dsp

        self._options = VocoderOptions(**self.options)
        self._dsp = dsp

    @interface(inputs={"frames": Frames, "sample_rate": Int}, outputs={"audio": Audio, "sample_rate": Int})
    def synthesize(self, ctx: ActivationContext, frames: Any, sample_rate: int) -> dict[str, Any]:
        """The sound of ``frames``: float32 ``[300 * frames]`` in [-1, 1], at 24,000 Hz. Raises ``BadInput``."""
        import numpy as np

        if sample_rate != SPEAKING_RATE:
            raise BadInput(f"these frames describe sound at {SPEAKING_RATE} Hz, not {sample_rate}")
        audio = self._dsp.synth(*unpack(frames), np.random.default_rng(self._options.seed))
        return {"audio": np.clip(audio, -1.0, 1.0).astype(np.float32, copy=False), "sample_rate": SPEAKING_RATE}

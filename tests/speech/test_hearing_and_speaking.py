"""What the roles say is what the roles hear: real weights, run as workflows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from omniflow_backend import Audio, Bytes, Int, Text, Workflow
from omniflow_backend.errors import ErrorCode
from omniflow_backend.models.speech.clips import AND_OF_ITALY, CAPITAL_OF_FRANCE, question_clip
from omniflow_backend.models.speech.frames import WIDTH, unpack
from omniflow_backend.models.speech.roles import (
    LISTENING_RATE,
    SPEAKING_RATE,
    Asr,
    AudioReader,
    Frames,
    Talker,
    Vocoder,
)
from omniflow_backend.models.speech.wav import write_wav
from omniflow_backend.planning.plan import Plan
from omniflow_backend.testing import CallResult, run

pytestmark = pytest.mark.model

SENTENCE = "The quick brown fox jumps over the lazy dog."


def speaking() -> Plan:
    workflow = Workflow("speaking")
    frames = workflow.role("talker", Talker).speak(text=workflow.placeholder("text", Text))
    sound = workflow.role("vocoder", Vocoder).synthesize(frames=frames.frames, sample_rate=frames.sample_rate)
    workflow.output("frames", frames.frames, stream=True)
    workflow.output("audio", sound.audio, stream=True)
    workflow.output("sample_rate", sound.sample_rate, stream=True)
    return workflow.compile()


def hearing() -> Plan:
    workflow = Workflow("hearing")
    audio = workflow.role("reader", AudioReader).decode(data=workflow.placeholder("data", Bytes))
    heard = workflow.role("asr", Asr).transcribe(waveform=audio.waveform, sample_rate=audio.sample_rate)
    for name in ("text", "language", "seconds"):
        workflow.output(name, getattr(heard, name))
    return workflow.compile()


def transcribing() -> Plan:
    workflow = Workflow("transcribing")
    rate = workflow.placeholder("sample_rate", Int, optional=True)
    heard = workflow.role("asr", Asr).transcribe(waveform=workflow.placeholder("waveform", Audio), sample_rate=rate)
    workflow.output("text", heard.text)
    workflow.output("seconds", heard.seconds)
    return workflow.compile()


def synthesizing() -> Plan:
    workflow = Workflow("synthesizing")
    frames, rate = workflow.placeholder("frames", Frames), workflow.placeholder("sample_rate", Int)
    workflow.output("audio", workflow.role("vocoder", Vocoder).synthesize(frames=frames, sample_rate=rate).audio)
    return workflow.compile()


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


@pytest.fixture
def say(talker: Talker, vocoder: Vocoder) -> Any:
    def say(text: str) -> CallResult:
        return run(speaking(), {"text": text}, roles={"talker": talker, "vocoder": vocoder}).raise_for_failure()

    return say


@pytest.fixture
def hear(asr: Asr) -> Any:
    return lambda data: run(hearing(), {"data": data}, roles={"asr": asr})


def test_a_spoken_sentence_is_heard_word_for_word(say: Any, hear: Any) -> None:
    spoken = say(SENTENCE)
    assert spoken.values("sample_rate") == [SPEAKING_RATE]
    heard = hear(write_wav(spoken.values("audio")[0], SPEAKING_RATE)).raise_for_failure()
    assert words(heard.outputs["text"]) == words(SENTENCE)
    assert heard.outputs["language"] == "en"
    assert heard.outputs["seconds"] == pytest.approx(spoken.values("audio")[0].size / SPEAKING_RATE)


@pytest.mark.parametrize("question", [CAPITAL_OF_FRANCE, AND_OF_ITALY])
def test_the_demo_questions_are_heard_word_for_word(hear: Any, question: str) -> None:
    heard = hear(question_clip(question)).raise_for_failure()
    assert words(heard.outputs["text"]) == words(question)


def test_a_clip_is_the_same_bytes_every_time() -> None:
    assert question_clip(AND_OF_ITALY) == question_clip(AND_OF_ITALY)


def test_a_clip_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing can be spoken"):
        question_clip("😀")


def test_each_sentence_is_one_yield_in_reading_order(say: Any, hear: Any) -> None:
    spoken = say("The first one is red. The second one is blue.").values("audio")
    heard = [hear(write_wav(audio, SPEAKING_RATE)).raise_for_failure().outputs["text"] for audio in spoken]
    assert [words(text) for text in heard] == [words("the first one is red"), words("the second one is blue")]


def test_sound_and_frames_have_the_declared_shapes_and_last_equally_long(say: Any) -> None:
    spoken = say(SENTENCE)
    (frames,), (audio,) = spoken.values("frames"), spoken.values("audio")
    assert frames.dtype == audio.dtype == np.float32
    assert frames.shape == (len(frames), WIDTH)
    assert audio.shape == (300 * len(frames),)
    assert 0.05 < np.abs(audio).max() <= 1.0


def test_the_two_steps_sound_exactly_as_the_voice_in_one_step(say: Any, talker: Talker) -> None:
    from hibari import Hibari

    expected = Hibari()(SENTENCE, seed=0)
    np.testing.assert_array_equal(say(SENTENCE).values("audio")[0], np.clip(expected, -1.0, 1.0))


@pytest.mark.parametrize("text", ["", "   ", "...", "!?", "😀", "—", "你好"])
def test_text_with_nothing_to_say_is_silent_and_no_error(say: Any, text: str) -> None:
    assert say(text).streamed == []


@pytest.mark.parametrize("odd", ["¹A", "1" * 3000, "\x00", "x" * 3000, "ﷺ"])
def test_odd_words_do_not_keep_the_rest_from_being_heard(say: Any, hear: Any, odd: str) -> None:
    spoken = say(f"{odd[:3000]}\nThe weather is lovely today.")
    last = hear(write_wav(spoken.values("audio")[-1], SPEAKING_RATE)).raise_for_failure()
    assert words(last.outputs["text"])[-5:] == words("The weather is lovely today.")


def test_text_that_is_too_long_is_refused_with_both_lengths(talker: Talker, vocoder: Vocoder) -> None:
    result = run(speaking(), {"text": "a " * 10_001}, roles={"talker": talker, "vocoder": vocoder})
    assert result.failure is not None
    assert result.failure.code is ErrorCode.BAD_INPUT
    assert "20002" in result.failure.message
    assert "20000" in result.failure.message


@pytest.mark.parametrize(
    ("waveform", "rate", "reason"),
    [
        (np.full(16_000, np.nan, np.float32), None, "NaN"),
        (np.full(16_000, np.inf, np.float32), None, "infinite"),
        (np.zeros(0, np.float32), None, "no samples"),
        (np.zeros(16_000, np.float32), 7, "4000 to 192000"),
        (np.zeros(121 * 16_000, np.float32), None, "max_seconds"),
        (np.zeros(16_000, np.float32), None, "no speech was recognised"),
        (np.zeros(1, np.float32), None, "no speech was recognised"),
        (np.random.default_rng(0).normal(0, 0.05, 48_000).astype(np.float32), None, "no speech was recognised"),
        (np.zeros(16_000, np.float64), None, "float32"),
        (np.zeros((16_000, 2), np.float32), None, "shape"),
    ],
    ids=["nan", "infinite", "empty", "rate", "long", "silence", "one sample", "noise", "float64", "stereo"],
)
def test_audio_that_cannot_be_heard_is_bad_input(asr: Asr, waveform: np.ndarray, rate: int | None, reason: str) -> None:
    inputs = {"waveform": waveform} if rate is None else {"waveform": waveform, "sample_rate": rate}
    result = run(transcribing(), inputs, roles={"asr": asr})
    assert result.failure is not None
    assert result.failure.code is ErrorCode.BAD_INPUT
    assert reason in result.failure.message


def test_the_rate_is_16_kHz_unless_said_otherwise(asr: Asr, say: Any) -> None:
    audio = say(SENTENCE).values("audio")[0]
    told = run(transcribing(), {"waveform": audio, "sample_rate": SPEAKING_RATE}, roles={"asr": asr})
    untold = run(transcribing(), {"waveform": audio}, roles={"asr": asr})
    assert words(told.raise_for_failure().outputs["text"]) == words(SENTENCE)
    assert told.outputs["seconds"] == pytest.approx(audio.size / SPEAKING_RATE)
    assert untold.raise_for_failure().outputs["seconds"] == pytest.approx(audio.size / LISTENING_RATE)


@pytest.mark.parametrize(
    ("frames", "rate", "reason"),
    [
        (np.zeros((0, WIDTH), np.float32), SPEAKING_RATE, "no frames"),
        (np.zeros((4, WIDTH), np.float32), 16_000, "24000"),
        (np.full((4, WIDTH), np.nan, np.float32), SPEAKING_RATE, "NaN"),
        (np.zeros((4, WIDTH - 1), np.float32), SPEAKING_RATE, "shape"),
    ],
    ids=["empty", "rate", "nan", "width"],
)
def test_frames_that_are_none_are_bad_input(vocoder: Vocoder, frames: np.ndarray, rate: int, reason: str) -> None:
    result = run(synthesizing(), {"frames": frames, "sample_rate": rate}, roles={"vocoder": vocoder})
    assert result.failure is not None
    assert result.failure.code is ErrorCode.BAD_INPUT
    assert reason in result.failure.message


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_fewest_frames_make_sound(vocoder: Vocoder, count: int) -> None:
    frames = np.zeros((count, WIDTH), np.float32)
    result = run(synthesizing(), {"frames": frames, "sample_rate": SPEAKING_RATE}, roles={"vocoder": vocoder})
    assert result.raise_for_failure().outputs["audio"].shape == (300 * count,)


def test_frames_unpack_into_what_was_packed() -> None:
    frames = np.arange(2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)
    *spectra, pitch = unpack(frames)
    assert [part.shape for part in spectra] == [(601, 2)] * 5
    assert pitch.tolist() == frames[:, -1].tolist()
    assert spectra[1][0].tolist() == frames[:, 601].tolist()


@pytest.mark.parametrize("role", [AudioReader, Asr, Talker, Vocoder])
def test_an_unknown_option_is_refused_when_the_role_loads(role: type) -> None:
    with pytest.raises(TypeError, match="colour"):
        role(colour="blue").load()

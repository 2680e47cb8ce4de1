"""Each bad input gets one clear error in bounded time, and the server goes on serving."""

from __future__ import annotations

import io
import json
import time
import wave
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from omniflow_backend.client import ServerError, WorkflowClient

pytestmark = [pytest.mark.server, pytest.mark.model]


def wav(samples: np.ndarray[Any, Any], rate: int = 16_000) -> bytes:
    target = io.BytesIO()
    with wave.open(target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return target.getvalue()


def refusal(client: WorkflowClient, inputs: dict[str, Any], **options: Any) -> str:
    """The one error with which the call ends, within bounded time."""
    started = time.monotonic()
    with pytest.raises(ServerError) as error:
        list(client.stream(inputs, **options))
    assert time.monotonic() - started < 30
    return str(error.value)


class TestChat:
    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ({"prompt": ""}, ["BAD_INPUT", "prompt"]),
            ({"prompt": "word " * 20_000}, ["BAD_INPUT", "context"]),
            ({"prompt": "hi", "sampling_parameters": {"temprature": 1}}, ["BAD_INPUT", "temprature", "temperature"]),
            ({"prompt": "hi", "sampling_parameters": {"top_p": 7}}, ["BAD_INPUT", "top_p"]),
            ({"prompt": "hi", "sampling_parameters": b"{no json"}, ["BAD_INPUT", "sampling_parameters"]),
            ({}, ["prompt"]),
        ],
        ids=["empty prompt", "over the context", "unknown option", "out of range", "no JSON", "no prompt"],
    )
    def test_it_is_refused_by_name(self, chat: WorkflowClient, inputs: dict[str, Any], words: list[str]) -> None:
        message = refusal(chat, inputs)
        assert [word for word in words if word not in message] == [], message

    def test_a_deadline_that_passes_ends_the_call(self, chat: WorkflowClient) -> None:
        inputs = {"prompt": "Tell me a very long story.", "sampling_parameters": {"max_tokens": 500}}
        assert "DEADLINE_EXCEEDED" in refusal(chat, inputs, timeout_ms=300)

    @pytest.mark.parametrize(("name", "value"), [("prompt", [1, 2]), ("prompt", 5)])
    def test_a_wrong_datatype_over_http_is_refused(self, http_url: str, name: str, value: Any) -> None:
        answer = requests.post(f"http://{http_url}/v2/models/chat_unary/generate", json={name: value}, timeout=30)
        assert answer.status_code >= 400
        assert answer.json()["error"]

    def test_an_unknown_field_in_json_is_refused(self, http_url: str) -> None:
        body = {"prompt": "hi", "temprature": 0.5}
        answer = requests.post(f"http://{http_url}/v2/models/chat_unary/generate", json=body, timeout=60)
        assert answer.status_code >= 400
        assert "temprature" in answer.text

    def test_an_unknown_workflow_is_refused(self, http_url: str) -> None:
        answer = requests.post(f"http://{http_url}/v2/models/no_such/generate", json={"prompt": "hi"}, timeout=30)
        assert answer.status_code >= 400


class TestAudio:
    @pytest.mark.parametrize(
        ("audio", "word"),
        [
            (b"this is no WAV file at all", "WAV"),
            (wav(np.zeros(0)), "audio"),
            (wav(np.zeros(16_000)), "speech"),
            (wav(np.zeros(600 * 8_000), 8_000), "600"),
            (b"", "audio"),
        ],
        ids=["no WAV", "0 s", "silence", "600 s", "nothing"],
    )
    def test_it_is_refused_in_words(self, voice_chat: WorkflowClient, audio: bytes, word: str) -> None:
        message = refusal(voice_chat, {"audio": audio})
        assert "BAD_INPUT" in message
        assert word.lower() in message.lower()

    @pytest.mark.parametrize(
        ("waveform", "datatype", "word"),
        [
            (np.full(1600, np.nan, np.float32), "FP32", "nan"),
            (np.zeros((2, 800), np.float32), "FP32", "waveform"),
            (np.zeros(1600, np.int64), "INT64", "waveform"),
        ],
        ids=["NaN", "two dimensions", "wrong dtype"],
    )
    def test_a_role_called_directly_refuses_wrong_tensors(
        self, http_url: str, waveform: np.ndarray[Any, Any], datatype: str, word: str
    ) -> None:
        tensor = http.InferInput("waveform", list(waveform.shape), datatype).set_data_from_numpy(waveform)
        with pytest.raises(InferenceServerException) as error:
            http.InferenceServerClient(http_url, network_timeout=30).infer("asr", [tensor])
        assert word in error.value.message().lower()


def test_the_server_goes_on_serving(chat: WorkflowClient, deployment: Any) -> None:
    inputs = {"prompt": "What is the capital of France?", "sampling_parameters": json.dumps({"max_tokens": 10})}
    assert "Paris" in "".join(r.value for r in chat.stream(inputs) if r.output == "text")
    assert deployment.health().ready

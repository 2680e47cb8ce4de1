"""What somebody who calls the shipped workflows gets."""

from __future__ import annotations

import base64
import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.http as http

from omniflow_backend.client import WorkflowClient
from omniflow_backend.models.speech.clips import question_clip

pytestmark = [pytest.mark.server, pytest.mark.model]

SHORT = {"max_tokens": 12}


def say(client: WorkflowClient, prompt: str, session: str | None = None, **sampling: Any) -> str:
    """The whole text of one chat call."""
    inputs = {"prompt": prompt, "sampling_parameters": sampling or SHORT}
    return "".join(r.value for r in client.stream(inputs, session_id=session) if r.output == "text")


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def string_input(name: str, value: bytes) -> http.InferInput:
    return http.InferInput(name, [1], "BYTES").set_data_from_numpy(np.array([value], dtype=object))


class TestVoiceChat:
    def test_a_spoken_question_is_heard_answered_and_spoken(
        self, voice_chat: WorkflowClient, http_url: str, france: bytes
    ) -> None:
        received = list(voice_chat.stream({"audio": france}))
        heard = next(r.value for r in received if r.output == "heard")
        text = "".join(r.value for r in received if r.output == "text")
        speech = np.concatenate([r.value for r in received if r.output == "speech"])
        rate = next(r.value for r in received if r.output == "sample_rate")
        assert words(heard) == words("What is the capital of France?")
        assert "Paris" in text
        assert words(self.recognise(http_url, speech, rate)) == words(text)

    def test_a_follow_up_is_understood_in_its_session(self, voice_chat: WorkflowClient, france: bytes) -> None:
        session = uuid.uuid4().hex
        answers = []
        for clip in (france, question_clip("And of Italy?")):
            received = voice_chat.stream({"audio": clip}, session_id=session)
            answers.append("".join(r.value for r in received if r.output == "text"))
        assert "Paris" in answers[0]
        assert "Italy" in answers[1]

    def test_speech_may_be_sent_as_base64_from_json(self, http_url: str, france: bytes) -> None:
        body = {"audio": base64.b64encode(france).decode()}
        answer = requests.post(f"http://{http_url}/v2/models/voice_chat_unary/generate", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert "Paris" in answer.json()["text"]
        assert len(answer.json()["speech"]) > 10_000

    @staticmethod
    def recognise(http_url: str, speech: np.ndarray[Any, Any], rate: int) -> str:
        """The role ``asr``, called directly as the Triton model it is."""
        waveform = http.InferInput("waveform", list(speech.shape), "FP32").set_data_from_numpy(speech)
        sample_rate = http.InferInput("sample_rate", [1], "INT64").set_data_from_numpy(np.array([rate]))
        client = http.InferenceServerClient(http_url, network_timeout=60)
        return client.infer("asr", [waveform, sample_rate]).as_numpy("text")[0].decode()


class TestChat:
    def test_the_answer_is_the_same_by_every_way_of_calling(self, chat: WorkflowClient, http_url: str) -> None:
        body = {"prompt": "What is the capital of France?", "sampling_parameters": json.dumps(SHORT)}
        url = f"http://{http_url}/v2/models"
        streamed = requests.post(f"{url}/chat/generate_stream", json=body, stream=True, timeout=60)
        events = [json.loads(line[6:]) for line in streamed.iter_lines() if line.startswith(b"data: ")]
        unary = http.InferenceServerClient(http_url, network_timeout=60).infer(
            "chat_unary", [string_input(name, value.encode()) for name, value in body.items()]
        )
        answers = {
            "grpc stream": say(chat, body["prompt"]),
            "generate_stream": "".join(event.get("text", "") for event in events),
            "generate": requests.post(f"{url}/chat_unary/generate", json=body, timeout=60).json()["text"],
            "http infer": unary.as_numpy("text")[0].decode(),
        }
        assert "Paris" in answers["grpc stream"]
        assert set(answers.values()) == {answers["grpc stream"]}
        assert events[-1]["event"] == "SYSTEM_FINISH"
        assert [event["event"] for event in events[:-1]] == ["OUTPUT"] * (len(events) - 1)

    def test_eight_sessions_of_three_turns_side_by_side_equal_each_one_alone(self, grpc_url: str) -> None:
        def converse(number: int, prefix: str) -> list[str]:
            turns = (f"My name is Person{number}.", f"I have {number + 2} dogs.", "What is my name?")
            with WorkflowClient(grpc_url, "chat") as client:
                return [say(client, turn, f"{prefix}-{number}", max_tokens=8) for turn in turns]

        together = f"together-{uuid.uuid4().hex}"
        with ThreadPoolExecutor(8) as pool:
            mixed = list(pool.map(lambda number: converse(number, together), range(8)))
        alone = [converse(number, f"alone-{uuid.uuid4().hex}") for number in range(8)]
        assert mixed == alone

    def test_two_calls_in_one_session_at_once_are_both_answered_in_turn(self, grpc_url: str) -> None:
        session = uuid.uuid4().hex

        def one(prompt: str) -> str:
            with WorkflowClient(grpc_url, "chat") as client:
                return say(client, prompt, session)

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(one, ["What is the capital of France?", "What is the capital of Italy?"]))
        assert all(answers)

"""``omniflow demo``: everything once, on free ports, with nothing to choose and nothing left behind."""

from __future__ import annotations

import argparse
import sys
import time
import uuid
import wave
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omniflow_backend.cli.serve import Loading, prepare_roles
from omniflow_backend.cli.workflows import find_workflow
from omniflow_backend.client import WorkflowClient
from omniflow_backend.serve.launcher import Deployment, DeploymentOptions

QUESTIONS = ("What is the capital of France?", "And of Italy?")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo", help="ask a spoken question, hear the answer; then chat; then draw the workflow"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path.cwd(), help="where reply.wav and voice_chat.svg go (default: here)"
    )
    parser.set_defaults(run=run)


@dataclass(slots=True)
class SpokenAnswer:
    """What one voice call gave; times in seconds since the question was sent."""

    heard: str = ""
    text: str = ""
    speech: list[NDArray[np.float32]] = field(default_factory=list)
    sample_rate: int = 0
    first_token_s: float | None = None
    first_audio_s: float | None = None
    total_s: float = 0.0


def run(arguments: argparse.Namespace) -> int:
    from omniflow_backend.models.speech.clips import question_clip
    from omniflow_backend.planning.picture import to_svg

    named = [find_workflow(name) for name in ("voice_chat", "chat")]
    plans = [workflow.workflow.compile() for workflow in named]
    prepare_roles(plans)
    with Loading(named):
        clips = [question_clip(question) for question in QUESTIONS]
        deployment = Deployment(DeploymentOptions(workflows=[workflow.reference for workflow in named]))
        endpoints = deployment.start()
    try:
        print(f"Triton serves voice_chat and chat at {endpoints.http} (HTTP) and {endpoints.grpc} (gRPC).")
        session = uuid.uuid4().hex[:8]
        answers = []
        with WorkflowClient(endpoints.grpc, "voice_chat") as client:
            for question, clip in zip(QUESTIONS, clips, strict=True):
                print(f'\n[voice_chat, session {session}] a clip says "{question}"')
                answers.append(ask(client, clip, session))
        target = arguments.directory / "reply.wav"
        write_wav(target, answers[0])
        print(f"\nThe first answer as speech: {target.resolve()}")
        print('\n[chat] "Name three fruits."')
        with WorkflowClient(endpoints.grpc, "chat") as client:
            print("answer:  ", end="")
            for received in client.stream({"prompt": "Name three fruits.", "sampling_parameters": {"max_tokens": 48}}):
                if received.output == "text":
                    print(received.value, end="", flush=True)
            print()
    finally:
        deployment.stop()
    picture = arguments.directory / "voice_chat.svg"
    picture.write_text(to_svg(plans[0]))
    print(f"\nThe workflow as a picture: {picture.resolve()}")
    print("Keep it running with: omniflow serve")
    return check(answers)


def ask(client: WorkflowClient, clip: bytes, session: str) -> SpokenAnswer:
    """Send one clip; print what was heard and the answer as it streams."""
    answer = SpokenAnswer()
    started = time.monotonic()
    for received in client.stream({"audio": clip}, session_id=session):
        elapsed = time.monotonic() - started
        match received.output:
            case "heard":
                answer.heard = received.value
                print(f"heard:   {received.value}\nanswer:  ", end="", flush=True)
            case "text":
                answer.first_token_s = elapsed if answer.first_token_s is None else answer.first_token_s
                answer.text += received.value
                print(received.value, end="", flush=True)
            case "speech":
                answer.first_audio_s = elapsed if answer.first_audio_s is None else answer.first_audio_s
                answer.speech.append(np.atleast_1d(received.value))
            case "sample_rate":
                answer.sample_rate = int(received.value)
    answer.total_s = time.monotonic() - started
    first = f"first token {_seconds(answer.first_token_s)}, first audio {_seconds(answer.first_audio_s)}"
    print(f"\n{first}, total {answer.total_s:.2f} s")
    return answer


def write_wav(target: Path, answer: SpokenAnswer) -> None:
    """16-bit mono PCM."""
    samples = np.concatenate(answer.speech) if answer.speech else np.zeros(0, np.float32)
    with wave.open(str(target), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(answer.sample_rate or 24_000)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def check(answers: list[SpokenAnswer]) -> int:
    """Exit code: a demo that shows nothing has failed."""
    for question, answer in zip(QUESTIONS, answers, strict=True):
        if not (answer.heard and answer.text and answer.speech):
            print(f"the demo failed: {question!r} got no {'text' if not answer.text else 'speech'}", file=sys.stderr)
            return 1
    return 0


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"

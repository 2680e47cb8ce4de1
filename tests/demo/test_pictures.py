"""Questions about pictures, asked of the served workflow."""

from __future__ import annotations

import base64
import io
import json
import random
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import easy_vqa
import pytest
import requests
from PIL import Image, ImageDraw

from omniflow_backend.client import ServerError, WorkflowClient

pytestmark = [pytest.mark.server, pytest.mark.model]

DATA = Path(easy_vqa.__file__).parent / "data" / "test"
GREEDY = {"max_tokens": 6, "temperature": 0.0}
CALLERS = 4


def drawn(shape: str, colour: str) -> bytes:
    """A PNG as the data set draws them: 64 x 64, a shape on a light ground."""
    picture = Image.new("RGB", (64, 64), (240, 240, 240))
    draw = ImageDraw.Draw(picture)
    (draw.ellipse if shape == "circle" else draw.rectangle)([16, 18, 46, 48], fill=colour)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def answer(client: WorkflowClient, prompt: str, images: list[bytes] | None = None, session: str | None = None) -> str:
    inputs = {"prompt": prompt, "images": images, "sampling_parameters": GREEDY}
    return "".join(r.value for r in client.stream(inputs, session_id=session) if r.output == "text").strip()


def test_at_least_four_in_five_of_easy_vqas_test_questions_are_answered_right(grpc_url: str) -> None:
    asked = random.Random(0).sample(json.loads((DATA / "questions.json").read_text()), 100)

    def right(part: list[tuple[str, str, int]]) -> int:
        with WorkflowClient(grpc_url, "vision_chat") as client:
            return sum(
                answer(client, text, [(DATA / "images" / f"{picture}.png").read_bytes()]) == wanted
                for text, wanted, picture in part
            )

    with ThreadPoolExecutor(CALLERS) as pool:
        total = sum(pool.map(right, [asked[caller::CALLERS] for caller in range(CALLERS)]))
    assert total >= 80


def test_the_same_question_about_another_picture_gets_another_answer(vision_chat: WorkflowClient) -> None:
    question = "What color is the shape?"
    assert [answer(vision_chat, question, [drawn("circle", colour)]) for colour in ("red", "blue", "red")] == [
        "red",
        "blue",
        "red",
    ]


def test_a_picture_is_remembered_in_its_session_and_nowhere_else(vision_chat: WorkflowClient) -> None:
    session = uuid.uuid4().hex
    assert answer(vision_chat, "What color is the shape?", [drawn("circle", "red")], session) == "red"
    assert answer(vision_chat, "What shape is in the image?", None, session) == "circle"
    assert answer(vision_chat, "What color is the shape?", [drawn("rectangle", "blue")], session) == "blue"
    assert answer(vision_chat, "What shape is in the image?", None, session) == "rectangle"


def test_a_picture_may_come_as_base64_over_plain_http(http_url: str) -> None:
    body = {
        "prompt": "What color is the shape?",
        "images": [base64.b64encode(drawn("circle", "red")).decode()],
        "sampling_parameters": json.dumps(GREEDY),
    }
    reply = requests.post(f"http://{http_url}/v2/models/vision_chat_unary/generate", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert "red" in reply.text


@pytest.mark.parametrize(
    ("images", "reason"),
    [([b"no picture"], "picture 0 cannot be read"), ([b""] * 17, "17 pictures were sent; at most 16")],
)
def test_what_is_no_picture_is_refused_in_words(vision_chat: WorkflowClient, images: list[bytes], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        answer(vision_chat, "What is it?", images)

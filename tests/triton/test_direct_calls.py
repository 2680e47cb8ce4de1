"""Role models called directly, without a workflow."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from omniflow_backend.serve.launcher import Deployment

pytestmark = pytest.mark.server


def generate(deployment: Deployment, model: str, values: dict[str, Any]) -> dict[str, Any]:
    assert deployment.endpoints is not None
    url = f"http://{deployment.endpoints.http}/v2/models/{model}/generate"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(values).encode()), timeout=30) as answer:
        return dict(json.load(answer))


def test_a_plain_interface_answers_grpc_and_json_clients(deployment: Deployment, caller: Any) -> None:
    assert caller.infer("plain", text="hello")["text"] == b"HELLO!"
    assert generate(deployment, "plain", {"text": "grüße"})["text"] == "GRÜSSE!"


def test_an_interface_that_answers_once_serves_json_clients_also_beside_one_that_streams(
    deployment: Deployment,
) -> None:
    assert generate(deployment, "stream", {"look": True})["pid"] > 0


def test_every_type_comes_back_as_it_was_sent(caller: Any) -> None:
    sent: dict[str, Any] = {
        "samples": np.array([0.5, -1.0, 3.0], np.float32),
        "picture": np.arange(24, dtype=np.uint8).reshape(2, 4, 3),
        "matrix": np.array([[1, 2], [3, -4]], np.int32),
        "texts": ["one", "zwei", "três"],
        "whole": -(2**40),
        "flag": True,
        "raw": b"\x00\xff\x10",
        "data": '{"a": [1, null]}',
    }
    got = caller.infer("plain", **sent)
    for name in ("samples", "picture", "matrix"):
        np.testing.assert_array_equal(got[name], sent[name])
        assert got[name].dtype == sent[name].dtype
    assert [text.decode() for text in got["texts"]] == sent["texts"]
    assert (got["whole"], got["flag"], got["raw"]) == (sent["whole"], True, sent["raw"])
    assert json.loads(got["data"]) == {"a": [1, None]}
    assert "maybe" not in got


def test_an_optional_input_is_passed_on_when_it_is_given(caller: Any) -> None:
    values = {
        "samples": np.zeros(0, np.float32),
        "picture": np.zeros((1, 1, 3), np.uint8),
        "matrix": np.zeros((0, 2), np.int32),
        "texts": ["x"],
        "whole": 1,
        "flag": False,
        "raw": b"",
        "data": "[]",
        "maybe": 0.25,
    }
    assert caller.infer("plain", **values)["maybe"] == 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "x", "seconds": 0.0}, "fit no interface"),
        ({"interface": "nothing", "text": "x"}, "no interface 'nothing'"),
        ({"interface": "shout"}, "input 'text' (Text) of 'shout' is missing"),
        ({"text": ["a", "b"]}, "unexpected shape"),
        ({"text": b"\xff\xfe"}, "'text' must be UTF-8"),
        ({"seconds": float("nan")}, "'seconds' contains NaN"),
        ({"text": "bad"}, "BAD_INPUT: this text is not wanted"),
    ],
)
def test_bad_input_is_the_callers_error_and_says_what_is_wrong(
    caller: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InferenceServerException) as failure:
        caller.infer("plain", **values)
    assert message in failure.value.message()
    assert failure.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_failing_interface_is_told_with_the_authors_line_and_the_role_goes_on(caller: Any) -> None:
    with pytest.raises(InferenceServerException) as failure:
        caller.infer("plain", text="broken", request_id="request-7")
    message = failure.value.message()
    assert message.startswith("ROLE_FAILED: RuntimeError: something broke")
    for part in ("served.py:", "role=plain", "node=plain.shout", "request=request-7"):
        assert part in message
    assert caller.infer("plain", text="still")["text"] == b"STILL!"


def test_one_instance_answers_many_unary_calls_at_once(caller: Any) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: caller.infer("plain", seconds=0.5), range(20)))
    assert time.monotonic() - began < 20 * 0.5 / 2


def test_a_unary_call_whose_client_goes_is_cancelled(caller: Any) -> None:
    before = caller.infer("plain", wait_for_cancel=False)["cancelled"]
    with pytest.raises(InferenceServerException, match="Deadline"):
        caller.infer("plain", timeout=0.3, wait_for_cancel=True)
    assert caller.eventually(lambda: caller.infer("plain", wait_for_cancel=False)["cancelled"] == before + 1)


@pytest.mark.parametrize(("field", "n"), [("n", 0), ("n", 100), ("slow", 50)])
def test_a_stream_gives_every_yield_in_order_and_ends(caller: Any, field: str, n: int) -> None:
    responses = caller.stream("stream", **{field: n}).rest()
    assert [response["item"] for response in responses] == list(range(n))


def test_a_stream_that_breaks_gives_what_it_made_and_then_one_error(caller: Any) -> None:
    stream = caller.stream("stream", fail_after=3)
    assert [response["item"] for response in stream.rest()] == [0, 1, 2]
    assert stream.error is not None
    assert stream.error.startswith("ROLE_FAILED: RuntimeError: broke in the middle")


def test_a_stream_whose_client_goes_is_closed(caller: Any) -> None:
    (before,) = caller.stream("stream", look=True).rest()
    stream = caller.stream("stream", n=1_000_000, pause=0.01)
    stream.next()
    stream.cancel()

    def closed() -> bool:
        (now,) = caller.stream("stream", look=True).rest()
        return bool(now["closed"] == before["closed"] + 1)

    assert caller.eventually(closed)

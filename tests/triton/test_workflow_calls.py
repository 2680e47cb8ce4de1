"""Workflows on a real server: each role is a process, the orchestrator another."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from memory_manager.client import MemoryManagerClient
from omniflow_backend.serve.launcher import Deployment

pytestmark = pytest.mark.server


def test_a_joined_stream_comes_in_order_and_ends_with_one_system_finish(caller: Any) -> None:
    responses = caller.stream("diamond", text="a", n=20).rest()
    assert [(r["event"], r.get("both")) for r in responses[:-1]] == [
        (b"OUTPUT", f"<a{i}a{i}>".encode()) for i in range(20)
    ]
    assert responses[-1] == {
        "event": b"SYSTEM_FINISH",
        "count": 20,
        "all": ",".join(f"a{i}" for i in range(20)).encode(),
    }


def test_many_calls_at_once_do_not_mix(caller: Any) -> None:
    streams = {text: caller.stream("diamond", text=text, n=5) for text in map(str, range(10, 40))}
    for text, stream in streams.items():
        both = [response["both"].decode() for response in stream.rest()[:-1]]
        assert both == [f"<{text}{i}{text}{i}>" for i in range(5)]


def test_the_unary_front_answers_once_with_the_whole_stream(deployment: Deployment, caller: Any) -> None:
    got = caller.infer("diamond_unary", text="q", n=2)
    assert (got["both"], got["count"], got["all"]) == (b"<q0q0><q1q1>", 2, b"q0,q1")
    assert deployment.endpoints is not None
    url = f"http://{deployment.endpoints.http}/v2/models/diamond_unary/generate"
    with urllib.request.urlopen(urllib.request.Request(url, b'{"text": "q"}'), timeout=30) as answer:
        assert json.load(answer)["both"] == "<q0q0>"


def test_big_tensors_pass_between_processes_and_are_released_with_the_call(deployment: Deployment, caller: Any) -> None:
    assert deployment.runtime is not None
    size = 1_000_000
    (response,) = caller.stream("big", size=size).rest()
    np.testing.assert_array_equal(response["data"], np.arange(size, dtype=np.float32))
    assert response["total"] == pytest.approx(np.arange(size, dtype=np.float64).sum(), rel=1e-6)
    with MemoryManagerClient(deployment.runtime / "memory.sock", "test") as memory:
        assert caller.eventually(lambda: memory.statistics().bytes_held == 0)


def test_other_models_of_the_repository_are_nodes(caller: Any) -> None:
    responses = caller.stream("wrapping", text="one two").rest()
    assert [r.get("y") for r in responses] == [b"foreign", b"one", b"two", None]


def test_a_failing_model_of_the_repository_is_named(caller: Any) -> None:
    stream = caller.stream("wrapping", text="fail", request_id="r1")
    assert stream.rest() == []
    for part in ("ROLE_FAILED", "a foreign failure", "node=foreign", "request=r1"):
        assert part in str(stream.error)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n": 1}, "needs input 'text'"),
        ({"text": b"\xff"}, "'text' must be UTF-8"),
        ({"text": "a", "timeout_ms": -5}, "'timeout_ms' must be above 0"),
    ],
)
def test_bad_input_ends_a_call_with_one_error_that_names_it(caller: Any, values: dict[str, Any], message: str) -> None:
    stream = caller.stream("diamond", **values)
    assert stream.rest() == []
    assert str(stream.error).startswith("BAD_INPUT: ")
    assert message in str(stream.error)
    with pytest.raises(InferenceServerException, match="BAD_INPUT") as refused:
        caller.infer("diamond_unary", **values)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_failing_role_ends_the_call_with_one_line_that_says_where(caller: Any) -> None:
    stream = caller.stream("diamond", text="broken", n=1, request_id="r2")
    stream.rest()
    message = str(stream.error)
    assert message.startswith("ROLE_FAILED: RuntimeError: cannot do the right thing")
    assert "\n" not in message
    for part in ("workflow=diamond", "node=worker.right", "role=worker", "request=r2"):
        assert part in message
    with pytest.raises(InferenceServerException, match=r"ROLE_FAILED: .*node=worker\.right"):
        caller.infer("diamond_unary", text="broken", n=1)


def seen(caller: Any) -> dict[str, Any]:
    return dict(caller.infer("waiter", look=True))


def test_a_deadline_ends_the_call_and_frees_the_role(caller: Any) -> None:
    before = seen(caller)
    began = time.monotonic()
    stream = caller.stream("waiting", seconds=60.0, timeout_ms=200)
    stream.rest()
    assert time.monotonic() - began < 10
    assert str(stream.error).startswith("DEADLINE_EXCEEDED")
    assert caller.eventually(lambda: seen(caller)["cancelled"] == before["cancelled"] + 1)


def test_a_client_that_goes_cancels_what_runs_in_the_role(caller: Any) -> None:
    before = seen(caller)
    stream = caller.stream("waiting", seconds=60.0)
    assert caller.eventually(lambda: seen(caller)["begun"] == before["begun"] + 1)
    stream.cancel()
    assert caller.eventually(lambda: seen(caller)["cancelled"] == before["cancelled"] + 1)


def test_a_client_of_the_front_that_goes_cancels_what_runs_in_the_role(caller: Any) -> None:
    before = seen(caller)
    with pytest.raises(InferenceServerException, match="Deadline"):
        caller.infer("waiting_unary", timeout=1.0, seconds=60.0)
    assert caller.eventually(lambda: seen(caller)["cancelled"] == before["cancelled"] + 1)


def test_calls_of_one_session_run_one_at_a_time_in_order_also_across_both_models(caller: Any) -> None:
    before = seen(caller)
    streams = [
        caller.stream("waiting", seconds=0.4, session_id="s1"),
        caller.stream("waiting", seconds=0.0, session_id="s2"),
    ]
    streams[1].rest()
    assert caller.eventually(lambda: seen(caller)["begun"] == before["begun"] + 2)
    late = caller.infer("waiting_unary", seconds=0.0, session_id="s1")
    # It began only after the first call of its session had ended.
    assert seen(caller)["ended"] == before["ended"] + 3
    assert streams[0].events.qsize() > 0
    assert b"in s1" in late["text"]


def test_a_correlation_id_is_a_session(caller: Any) -> None:
    assert b"in chat-7" in caller.infer("waiting_unary", sequence_id="chat-7", seconds=0.0)["text"]


def test_a_later_call_of_a_session_can_cancel_the_earlier_ones(caller: Any) -> None:
    before = seen(caller)
    first = caller.stream("waiting", seconds=60.0, session_id="s3")
    assert caller.eventually(lambda: seen(caller)["begun"] == before["begun"] + 1)
    queued = caller.stream("waiting", seconds=60.0, session_id="s3")
    # The next request on this stream is read after the queued one has been.
    last = caller.stream("waiting", seconds=0.0, session_id="s3", cancel_previous=True)
    first.rest()
    assert str(first.error).startswith("CANCELLED")
    if last.rest() == []:
        pytest.fail(f"the last call failed: {last.error}")
    queued.cancel()


def test_calls_of_many_clients_run_concurrently(caller: Any) -> None:
    began = time.monotonic()
    streams = [caller.stream("waiting", seconds=0.5) for _ in range(20)]
    for stream in streams:
        assert len(stream.rest()) == 1
    assert time.monotonic() - began < 20 * 0.5 / 2


def test_every_call_gets_exactly_one_end_even_when_its_client_goes_at_a_bad_moment(caller: Any) -> None:
    def call_and_go(delay: float) -> None:
        stream = caller.stream("diamond", text="x", n=50)
        time.sleep(delay)
        stream.cancel()

    threads = [threading.Thread(target=call_and_go, args=(index * 0.003,)) for index in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caller.infer("diamond_unary", text="after", n=1)["both"] == b"<after0after0>"

"""Traces of calls on a real server, and metrics on Triton's own page."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from typing import Any

import pytest

from omniflow_backend.client import ServerError, WorkflowClient
from omniflow_backend.runtime.trace import RecordedTrace, TraceKind
from omniflow_backend.serve.launcher import Deployment

pytestmark = pytest.mark.server


def kinds(trace: RecordedTrace, node: str = "") -> Counter[str]:
    return Counter(event.kind.value for event in trace.events if not node or event.node == node)


def test_a_trace_comes_with_system_finish_and_tells_every_step(caller: Any) -> None:
    *streamed, last = caller.stream("diamond", text="a", n=2, trace=True, request_id="t1", session_id="s").rest()
    assert all("trace" not in response for response in streamed)
    trace = RecordedTrace.from_json(last["trace"].decode())
    assert (trace.workflow, trace.request, trace.session) == ("diamond", "t1", "s")
    assert [event.time for event in trace.events] == sorted(event.time for event in trace.events)
    # source.split yields a count and two parts; each part goes left, right and to gather; each join has its bucket.
    assert kinds(trace) == {
        "admitted": 1,
        "queued": 8,
        "started": 8,
        "begun": 8,
        "ended": 8,
        "yielded": 3 + 2 + 2 + 2 + 1,
        "delivered": 2 * 2 + 2 + 2 * 2,
        "skipped": 3,
        "bucket opened": 3,
        "bucket fired": 3,
        "lease held": 5,
        "lease closed": 5,
        "emitted": 2,
        "finished": 1,
    }
    joined = [event for event in trace.events if event.kind is TraceKind.FIRED and event.node == "worker.join"]
    assert [event.path for event in joined] == ["source.split[1]", "source.split[2]"]
    emitted = [event.path for event in trace.events if event.kind is TraceKind.EMITTED]
    assert emitted == [f"source.split[{n}]:worker.join[0]" for n in (1, 2)]


def test_a_call_that_does_not_ask_gets_no_trace(caller: Any) -> None:
    assert all("trace" not in response for response in caller.stream("diamond", text="a").rest())


def test_the_trace_of_a_failed_call_comes_before_its_error(caller: Any) -> None:
    stream = caller.stream("diamond", text="broken", n=1, trace=True)
    *_, last = stream.rest()
    assert last["event"] == b"TRACE"
    trace = RecordedTrace.from_json(last["trace"].decode())
    failed = trace.events[-1]
    assert (failed.kind, failed.node, failed.detail) == (TraceKind.FAILED, "worker.right", stream.error)


def test_the_unary_front_gives_the_trace_too_also_to_json_clients(deployment: Deployment, caller: Any) -> None:
    trace = RecordedTrace.from_json(caller.infer("diamond_unary", text="a", trace=True)["trace"].decode())
    assert kinds(trace, "worker.join")["started"] == 1
    assert deployment.endpoints is not None
    url = f"http://{deployment.endpoints.http}/v2/models/diamond_unary/generate"
    asked = urllib.request.Request(url, b'{"text": "q", "trace": true}')
    with urllib.request.urlopen(asked, timeout=30) as answer:
        assert kinds(RecordedTrace.from_json(json.load(answer)["trace"]))["finished"] == 1


def test_the_python_client_gives_the_trace_of_both_ends(deployment: Deployment) -> None:
    assert deployment.endpoints is not None
    with WorkflowClient(deployment.endpoints.grpc, "diamond") as client:
        received = {r.output: r.value for r in client.stream({"text": "a"}, trace=True)}
        assert kinds(RecordedTrace.from_json(received["trace"]))["finished"] == 1
        failing = client.stream({"text": "broken"}, trace=True)
        while (item := next(failing)).output != "trace":
            assert item.output in ("both", "count", "all")
        assert kinds(RecordedTrace.from_json(item.value))["failed"] == 1
        with pytest.raises(ServerError, match="ROLE_FAILED"):
            next(failing)


def test_calls_and_nodes_are_counted_on_tritons_metrics(caller: Any) -> None:
    before = caller.settled_metrics("diamond")
    caller.stream("diamond", text="a", n=2).rest()
    caller.stream("diamond", text="broken", n=1).rest()
    after = caller.settled_metrics("diamond")
    told = {name: after[name] - value for name, value in before.items()}
    assert told["omniflow_calls_failed_total"] == 1
    assert told["omniflow_calls_started_total"] == 2
    assert told["omniflow_calls_finished_total"] == 1
    assert told["omniflow_calls_open"] == 0
    assert told["omniflow_node_activations_total source.split"] == 2
    assert told["omniflow_node_failures_total worker.right"] == 1
    assert told["omniflow_node_skips_total worker.left"] == 2
    assert told["omniflow_node_run_us_total worker.left"] > 0
    assert told["omniflow_node_queue_us_total worker.left"] > 0


def test_open_and_cancelled_calls_are_counted(caller: Any) -> None:
    before = caller.settled_metrics("waiting")
    stream = caller.stream("waiting", seconds=60.0)
    assert caller.eventually(lambda: caller.metrics("waiting")["omniflow_calls_open"] == 1)
    stream.cancel()
    cancelled = "omniflow_calls_cancelled_total"
    assert caller.eventually(lambda: caller.metrics("waiting")[cancelled] == before[cancelled] + 1)
    assert caller.settled_metrics("waiting")["omniflow_calls_open"] == 0

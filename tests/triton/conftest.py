"""One deployment for all tests that need a server, and a plain client for it."""

from __future__ import annotations

import queue
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc

from omniflow_backend.serve.launcher import Deployment, DeploymentOptions
from omniflow_backend.serve.triton_server import TritonOptions
from omniflow_backend.triton.references import resolve
from omniflow_backend.triton.repository import ModelDirectory, role_directory, workflow_directories

HERE = Path(__file__).parent
SERVED = HERE / "served.py"
DEADLINE = 30.0
FRONTS = ("diamond_unary", "waiting_unary")


def served_role(name: str, cls: str, **options: Any) -> ModelDirectory:
    """A role of ``served.py`` as a model."""
    return role_directory(name, resolve(f"{SERVED}:{cls}"), options)


def _models() -> list[ModelDirectory]:
    flows = [
        model
        for name in ("diamond", "waiting", "big", "wrapping", "holding", "twins")
        for model in workflow_directories(f"{SERVED}:{name}")
    ]
    # Each front is a process that takes time to start; two of them show everything.
    flows = [model for model in flows if not model.name.endswith("_unary") or model.name in FRONTS]
    roles = [
        served_role("plain", "Plain", mark="!"),
        served_role("stream", "Stream"),
        served_role("corrupting_echo", "CorruptingEcho"),
    ]
    return [*flows, *roles]


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    """Everything that ``served.py`` has."""
    options = DeploymentOptions(
        models=_models(),
        repositories=[HERE / "foreign_repository"],
        memory_limit="256MiB",
        # Ending in order is shown by a test with a deployment of its own.
        triton=TritonOptions(exit_timeout=1),
    )
    with Deployment(options) as running:
        yield running
        assert running.service("triton").alive


@dataclass
class Stream:
    """What one streaming request got: its responses, or the error that ended it."""

    client: grpc.InferenceServerClient
    events: queue.Queue[tuple[Any, Any]]
    responses: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    def next(self) -> dict[str, Any] | None:
        """The next response; ``None`` at the end. An error is kept in ``error``."""
        result, error = self.events.get(timeout=DEADLINE)
        if error is not None:
            self.error = error.message()
            return None
        response = result.get_response()
        values = {output.name: value_of(result.as_numpy(output.name)) for output in response.outputs}
        if values:
            self.responses.append(values)
        if response.parameters["triton_final_response"].bool_param:
            return None
        return values

    def rest(self) -> list[dict[str, Any]]:
        """All responses, when the stream has ended."""
        while self.next() is not None:
            pass
        return self.responses

    def cancel(self) -> None:
        """Go away in the middle."""
        self.client.stop_stream(cancel_requests=True)

    def close(self) -> None:
        """Disconnect."""
        self.client.stop_stream()
        self.client.close()


class Caller:
    """Calls models of the deployment over gRPC."""

    def __init__(self, url: str, metrics_url: str) -> None:
        self.url = url
        self.metrics_url = metrics_url
        self.client = grpc.InferenceServerClient(url)
        self._streams: list[Stream] = []

    def infer(
        self, model: str, /, *, timeout: float = DEADLINE, sequence_id: str = "", request_id: str = "", **values: Any
    ) -> dict[str, Any]:
        """One response of a model that is not decoupled. Raises ``InferenceServerException``."""
        result = self.client.infer(
            model, tensors_of(values), client_timeout=timeout, sequence_id=sequence_id, request_id=request_id
        )
        return {output.name: value_of(result.as_numpy(output.name)) for output in result.get_response().outputs}

    def stream(self, model: str, /, *, request_id: str = "", **values: Any) -> Stream:
        """A request to a decoupled model."""
        events: queue.Queue[tuple[Any, Any]] = queue.Queue()
        stream = Stream(grpc.InferenceServerClient(self.url), events)
        stream.client.start_stream(lambda result, error: events.put((result, error)))
        stream.client.async_stream_infer(
            model, tensors_of(values), enable_empty_final_response=True, request_id=request_id
        )
        self._streams.append(stream)
        return stream

    def metrics(self, workflow: str) -> dict[str, float]:
        """What Triton's metrics page tells of one of our workflows, by ``name`` or ``name node``."""
        with urllib.request.urlopen(self.metrics_url, timeout=10) as answer:
            text = answer.read().decode()
        found = {}
        for name, labels, value in re.findall(r"^(omniflow_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if told["workflow"] == workflow:
                found[" ".join([name, *([told["node"]] if "node" in told else [])])] = float(value)
        return found

    def settled_metrics(self, workflow: str) -> dict[str, float]:
        """As ``metrics``, when all that has happened is told: that is at most a second late."""
        told, since = self.metrics(workflow), time.monotonic()
        deadline = since + DEADLINE
        while time.monotonic() - since < 1.5 and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.metrics(workflow)
            if now != told:
                told, since = now, time.monotonic()
        return told

    @staticmethod
    def eventually(condition: Callable[[], bool], timeout: float = DEADLINE) -> bool:
        """Whether ``condition``, which asks the server, comes true in time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if condition():
                return True
        return False

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self.client.close()


@pytest.fixture
def caller(deployment: Deployment) -> Iterator[Caller]:
    assert deployment.endpoints is not None
    made = Caller(deployment.endpoints.grpc, deployment.endpoints.metrics)
    yield made
    made.close()


def tensors_of(values: dict[str, Any]) -> list[grpc.InferInput]:
    """Tensors for plain Python values; arrays as they are."""
    tensors = []
    for name, value in values.items():
        array = array_of(value)
        kind = (
            "BYTES"
            if array.dtype == object
            else {"bool": "BOOL", "int64": "INT64", "float32": "FP32"}.get(str(array.dtype))
        )
        tensor = grpc.InferInput(name, list(array.shape), kind or str(array.dtype).upper())
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def array_of(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ndarray):
        return value
    items = value if isinstance(value, list) else [value]
    if isinstance(items[0], bool):
        return np.array(items, dtype=np.bool_)
    if isinstance(items[0], int):
        return np.array(items, dtype=np.int64)
    if isinstance(items[0], float):
        return np.array(items, dtype=np.float32)
    array = np.empty(len(items), dtype=np.object_)
    array[:] = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    return array


def value_of(array: np.ndarray[Any, Any]) -> Any:
    """One element as a Python value, more as they are."""
    return array.reshape(-1)[0] if array.size == 1 else array

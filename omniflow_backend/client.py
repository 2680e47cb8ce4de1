"""Calling a served workflow from Python: a thin layer over ``tritonclient.grpc``."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from omniflow_backend.errors import OmniFlowError

_NUMPY_TYPES = {"INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_, "UINT8": np.uint8, "INT32": np.int32}


class ServerError(OmniFlowError):
    """The server's one error with which a call ended; its text starts with the code."""


@dataclass(frozen=True, slots=True)
class Received:
    """One value of one output; ``final`` for those that come with SYSTEM_FINISH."""

    output: str
    value: Any
    final: bool = False


class WorkflowClient:
    """Streams calls of one workflow. One call at a time per client; clients are cheap.

    ``url`` is Triton's gRPC endpoint. ``timeout_s`` bounds the wait for each next response.
    """

    def __init__(self, url: str, workflow: str, *, timeout_s: float = 120.0) -> None:
        self._client = grpc.InferenceServerClient(url)
        self._workflow = workflow
        self._timeout_s = timeout_s
        metadata = self._client.get_model_metadata(workflow, as_json=True, client_timeout=timeout_s)
        self._inputs = {tensor["name"]: tensor for tensor in metadata["inputs"]}

    def __enter__(self) -> WorkflowClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; a call that still streams is cancelled."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def stream(self, inputs: Mapping[str, Any], *, session_id: str | None = None, **options: Any) -> Iterator[Received]:
        """One call: values as they come, then those of SYSTEM_FINISH. ``options``: ``timeout_ms``, ``cancel_previous``.

        Raises ``ServerError`` when the call fails, ``TimeoutError`` when nothing comes in time.
        """
        given = {**inputs, **options} | ({"session_id": session_id} if session_id is not None else {})
        tensors = [self._tensor(name, value) for name, value in given.items() if value is not None]
        responses: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client.start_stream(lambda result, error: responses.put((result, error)))
        finished = False
        try:
            self._client.async_stream_infer(self._workflow, tensors, enable_empty_final_response=True)
            while not finished:
                for item in self._next(responses):
                    if item is None:
                        finished = True
                    else:
                        yield item
        finally:
            self._client.stop_stream(cancel_requests=not finished)

    def _next(self, responses: queue.Queue[tuple[Any, Any]]) -> list[Received | None]:
        deadline = time.monotonic() + self._timeout_s
        try:
            result, error = responses.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError(f"{self._workflow}: no response within {self._timeout_s:g} s") from None
        if error is not None:
            raise ServerError(error.message() if hasattr(error, "message") else str(error))
        response = result.get_response()
        parameters = response.parameters
        last = "triton_final_response" in parameters and parameters["triton_final_response"].bool_param
        event = result.as_numpy("event")
        final = event is not None and event.reshape(-1)[0] == b"SYSTEM_FINISH"
        received: list[Received | None] = [
            Received(output.name, _value(result.as_numpy(output.name)), final)
            for output in response.outputs
            if output.name != "event"
        ]
        return [*received, None] if last else received

    def _tensor(self, name: str, value: Any) -> grpc.InferInput:
        spec = self._inputs.get(name)
        if spec is None:
            known = ", ".join(self._inputs)
            raise ServerError(f"BAD_INPUT: workflow {self._workflow!r} has no input {name!r}; it has {known}")
        datatype = spec["datatype"]
        if datatype == "BYTES":
            items = value if isinstance(value, list) else [value]
            array = np.empty(len(items), dtype=np.object_)
            array[:] = [_bytes(item) for item in items]
        else:
            array = np.atleast_1d(np.asarray(value, dtype=_NUMPY_TYPES.get(datatype)))
        tensor = grpc.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array)
        return tensor


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _value(array: Any) -> Any:
    if array.dtype != np.object_:
        return array.item() if array.size == 1 and array.ndim == 1 else array
    texts = [item.decode(errors="replace") for item in array.reshape(-1)]
    return texts[0] if len(texts) == 1 else texts

"""Calling things fast enough to measure them: one at a time, and many in flight."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as grpc

from omniflow_backend.drivers.in_process import InProcessDriver
from omniflow_backend.errors import CallError
from omniflow_backend.planning.plan import Plan

DEADLINE_S = 30.0


class StreamCaller:
    """A decoupled model over one gRPC stream."""

    def __init__(self, url: str, model: str) -> None:
        self._client = grpc.InferenceServerClient(url)
        self._model = model
        self._ended: queue.Queue[Any] = queue.Queue()
        self._input = grpc.InferInput("x", [1], "INT64").set_data_from_numpy(np.array([0]))
        self._client.start_stream(self._on_response)

    def once(self) -> float:
        """Seconds of one call. Raises ``RuntimeError`` when it fails."""
        started = time.perf_counter()
        self._send()
        self._wait()
        return time.perf_counter() - started

    def many(self, calls: int, in_flight: int) -> float:
        """Calls per second with ``in_flight`` outstanding."""
        started = time.perf_counter()
        for _ in range(min(in_flight, calls)):
            self._send()
        for done in range(calls):
            self._wait()
            if done + in_flight < calls:
                self._send()
        return calls / (time.perf_counter() - started)

    def close(self) -> None:
        self._client.stop_stream()
        self._client.close()

    def _send(self) -> None:
        self._client.async_stream_infer(self._model, [self._input], enable_empty_final_response=True)

    def _wait(self) -> None:
        error = self._ended.get(timeout=DEADLINE_S)
        if error is not None:
            raise RuntimeError(f"{self._model}: {error}")

    def _on_response(self, result: Any, error: Any) -> None:
        if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
            self._ended.put(error)


class UnaryCaller:
    """A plain model, one call at a time."""

    def __init__(self, url: str, model: str) -> None:
        self._client = grpc.InferenceServerClient(url)
        self._model = model
        self._input = grpc.InferInput("x", [1], "INT64").set_data_from_numpy(np.array([0]))

    def once(self) -> float:
        """Seconds of one call."""
        started = time.perf_counter()
        self._client.infer(self._model, [self._input])
        return time.perf_counter() - started

    def many(self, calls: int, in_flight: int) -> float:
        """Calls per second with ``in_flight`` outstanding."""
        ended: queue.Queue[Any] = queue.Queue()

        def send() -> None:
            self._client.async_infer(self._model, [self._input], lambda result, error: ended.put(error))

        started = time.perf_counter()
        for _ in range(min(in_flight, calls)):
            send()
        for done in range(calls):
            ended.get(timeout=DEADLINE_S)
            if done + in_flight < calls:
                send()
        return calls / (time.perf_counter() - started)

    def close(self) -> None:
        self._client.close()


class InProcessCaller:
    """A plan in this process, on an event loop of its own."""

    def __init__(self, plan: Plan) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._driver = self._on_loop(self._make(plan))

    def once(self) -> float:
        """Seconds of one call, measured on the loop."""
        return self._on_loop(self._timed())

    def many(self, calls: int, in_flight: int) -> float:
        """Calls per second with ``in_flight`` outstanding."""
        return self._on_loop(self._rate(calls, in_flight))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S * 10)

    @staticmethod
    async def _make(plan: Plan) -> InProcessDriver:
        return InProcessDriver(plan)

    async def _timed(self) -> float:
        started = time.perf_counter()
        await self._call()
        return time.perf_counter() - started

    async def _rate(self, calls: int, in_flight: int) -> float:
        async def worker() -> None:
            for _ in range(calls // in_flight):
                await self._call()

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(in_flight)))
        return (calls // in_flight) * in_flight / (time.perf_counter() - started)

    async def _call(self) -> None:
        stream = self._driver.call({"x": 0})
        async for _ in stream:
            pass
        if stream.failure is not None:
            raise CallError(stream.failure)


Caller = StreamCaller | UnaryCaller | InProcessCaller


def interleaved(
    callers: dict[str, Caller], calls: int, rounds: int = 5, progress: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """Latencies in seconds, taken A B A B, after warming up each caller."""
    samples: dict[str, list[float]] = {name: [] for name in callers}
    for caller in callers.values():
        for _ in range(20):
            caller.once()
    for _ in range(rounds):
        for name, caller in callers.items():
            samples[name] += [caller.once() for _ in range(max(1, calls // rounds))]
            if progress is not None:
                progress()
    return samples

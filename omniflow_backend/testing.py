"""For authors' tests: run a plan in this process and look at everything it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omniflow_backend.drivers.in_process import InProcessDriver, StreamedValue, TritonModel
from omniflow_backend.dsl.interface import Role
from omniflow_backend.errors import CallError, Failure
from omniflow_backend.planning.plan import Plan
from omniflow_backend.runtime.trace import Trace, TraceEvent


@dataclass(slots=True)
class CallResult:
    """What one call gave: ``streamed`` in order, ``outputs`` at the end, or ``failure``."""

    outputs: dict[str, Any] = field(default_factory=dict)
    streamed: list[StreamedValue] = field(default_factory=list)
    failure: Failure | None = None
    trace: list[TraceEvent] = field(default_factory=list)

    def values(self, output: str) -> list[Any]:
        """The streamed values of one output."""
        return [item.value for item in self.streamed if item.output == output]

    def raise_for_failure(self) -> CallResult:
        """This result. Raises ``CallError`` when the call failed."""
        if self.failure is not None:
            raise CallError(self.failure)
        return self


def run(
    plan: Plan,
    inputs: Mapping[str, Any],
    *,
    roles: Mapping[str, Role] | None = None,
    triton_models: Mapping[str, TritonModel] | None = None,
    timeout_s: float = 30.0,
    session_id: str | None = None,
) -> CallResult:
    """Run one call to its terminal event, traced. ``roles`` replaces roles by name."""

    async def go() -> CallResult:
        driver = InProcessDriver(plan, roles=roles, triton_models=triton_models)
        trace = Trace(time.monotonic)
        try:
            return await collect(driver, inputs, timeout_s=timeout_s, session_id=session_id, trace=trace)
        finally:
            driver.close()

    return asyncio.run(go())


async def collect(driver: InProcessDriver, inputs: Mapping[str, Any], **options: Any) -> CallResult:
    """Submit one call to ``driver`` and collect what it gives; ``options`` as in ``Dispatcher.submit``."""
    result = CallResult()
    stream = driver.call(inputs, **options)
    try:
        async for item in stream:
            result.streamed.append(item)
        result.outputs = stream.outputs
    except CallError as error:
        result.failure = error.failure
    if stream.run is not None and stream.run.trace is not None:
        result.trace = stream.run.trace.events
    return result

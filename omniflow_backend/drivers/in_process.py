"""Running a workflow inside one process: for tests, notebooks and embedding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from omniflow_backend.drivers.dispatcher import Dispatcher, RunningCall, StartedActivation
from omniflow_backend.drivers.role_host import ActivationRequest, ActivationSink, RoleHost, describe_error
from omniflow_backend.dsl.interface import Role
from omniflow_backend.errors import CallError, ErrorCode, Failure
from omniflow_backend.planning.plan import Plan, PlannedNode

TritonModel = Callable[..., Awaitable[Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class StreamedValue:
    """One value of a streamed output."""

    output: str
    value: Any


class CallStream:
    """A call's results: iterate for streamed values, then read ``outputs``. Raises ``CallError`` when the call
    fails.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Any] = {}
        self.failure: Failure | None = None
        self.run: RunningCall | None = None
        self._queue: asyncio.Queue[StreamedValue | None] = asyncio.Queue()

    def cancel(self) -> None:
        """End the call; iteration then raises ``CallError``."""
        if self.run is not None:
            self.run.cancel()

    async def __aiter__(self) -> AsyncIterator[StreamedValue]:
        while (item := await self._queue.get()) is not None:
            yield item
        if self.failure is not None:
            raise CallError(self.failure)

    def on_emit(self, output: str, value: Any) -> None:
        self._queue.put_nowait(StreamedValue(output, value))

    def on_finish(self, outputs: Mapping[str, Any]) -> None:
        self.outputs = dict(outputs)
        self._queue.put_nowait(None)

    def on_fail(self, failure: Failure) -> None:
        self.failure = failure
        self._queue.put_nowait(None)


class InProcessDriver:
    """Runs calls of a plan on the current event loop; roles live in this process.

    ``triton_models`` stand for ``Workflow.triton_model`` nodes: async functions of the node's inputs.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        roles: Mapping[str, Role] | None = None,
        executor: Executor | None = None,
        triton_models: Mapping[str, TritonModel] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._roles = dict(roles or {})
        for name, planned in plan.roles.items():
            if name not in self._roles:
                self._roles[name] = planned.role(**planned.options)
                self._roles[name].load()
        self._hosts = {name: RoleHost(role, loop, executor) for name, role in self._roles.items()}
        self._triton_models = dict(triton_models or {})
        self._loop = loop
        self.dispatcher = Dispatcher(plan, self, loop)

    def call(self, inputs: Mapping[str, Any], **options: Any) -> CallStream:
        """Submit a call; ``options`` are those of ``Dispatcher.submit``."""
        stream = CallStream()
        stream.run = self.dispatcher.submit(inputs, stream, **options)
        return stream

    def close(self) -> None:
        """Cancel what runs and close the roles."""
        self.dispatcher.cancel_all("the driver is closing")
        for host in self._hosts.values():
            host.cancel_all()
        for role in self._roles.values():
            role.close()

    @property
    def active(self) -> int:
        """Activations still running in the roles, those of ended calls included."""
        return sum(host.active for host in self._hosts.values())

    def start(
        self, node: PlannedNode, run: RunningCall, request: ActivationRequest, sink: ActivationSink
    ) -> StartedActivation:
        if node.role is not None:
            return self._hosts[node.role].start(request, sink)
        return _ModelCall(self._loop.create_task(self._infer(node, request, sink)))

    def call_ended(self, run: RunningCall) -> None:
        """Nothing is held outside the process."""

    async def _infer(self, node: PlannedNode, request: ActivationRequest, sink: ActivationSink) -> None:
        model = self._triton_models.get(node.name)
        if model is None:
            sink.on_error(
                ErrorCode.UNAVAILABLE, f"no stand-in for Triton model {node.name!r} was given to the in-process driver"
            )
            return
        try:
            outputs = await model(**request.inputs)
        except Exception as error:
            sink.on_error(*describe_error(error))
            return
        sink.on_yield(0, outputs)
        sink.on_end(1)


@dataclass(slots=True)
class _ModelCall:
    task: asyncio.Task[None]

    def accept(self, count: int) -> None:
        """A unary call makes one yield: it never waits for credit."""

    def cancel(self) -> None:
        self.task.cancel()

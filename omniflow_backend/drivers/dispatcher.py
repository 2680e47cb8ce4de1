"""Turns the runtime's actions into work, for any way of running activations.

The in-process driver and the Triton orchestrator differ only in their ``Executor``. Everything here runs on one event
loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from omniflow_backend.drivers.counts import NodeCounts, WorkflowCounts
from omniflow_backend.drivers.role_host import ActivationRequest, ActivationSink
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.planning.plan import Plan, PlannedNode
from omniflow_backend.runtime.actions import Accept, Action, Activate, Emit, Fail, Finish, Stop
from omniflow_backend.runtime.call import Call
from omniflow_backend.runtime.sessions import Admission, Decision
from omniflow_backend.runtime.trace import Trace

log = logging.getLogger(__name__)


class StartedActivation(Protocol):
    """What an executor returns for an activation that it has started."""

    def accept(self, count: int) -> None: ...

    def cancel(self) -> None: ...


class Executor(Protocol):
    """Runs activations somewhere."""

    def start(
        self, node: PlannedNode, run: RunningCall, request: ActivationRequest, sink: ActivationSink
    ) -> StartedActivation:
        """Begin one activation; its events go to ``sink`` on the loop, possibly before this returns."""
        ...

    def call_ended(self, run: RunningCall) -> None:
        """The call has had its terminal event: let go of what it holds."""
        ...


class CallListener(Protocol):
    """Where a call's results go: any number of values, then exactly one of ``on_finish`` and ``on_fail``."""

    def on_emit(self, output: str, value: Any) -> None: ...

    def on_finish(self, outputs: Mapping[str, Any]) -> None: ...

    def on_fail(self, failure: Failure) -> None: ...


class RunningCall:
    """One call between its submission and its terminal event."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        key: str,
        call: Call,
        listener: CallListener,
        session_id: str | None,
        deadline: float | None,
        trace: Trace | None,
    ) -> None:
        self.key = key
        self.request_id = call.request
        self.session_id = session_id
        self.deadline = deadline
        self.trace = trace
        self.replicas: dict[str, Any] = {}
        self._counts = dispatcher.counts
        self._dispatcher = dispatcher
        self._call = call
        self._listener = listener
        self._started: dict[int, StartedActivation] = {}
        self._actions: deque[Action] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            self._timer = dispatcher.loop.call_later(max(0.0, deadline - time.monotonic()), self._expire)

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been decided."""
        return self._call.ended

    def cancel(self, message: str = "cancelled by the caller", code: ErrorCode = ErrorCode.CANCELLED) -> None:
        """End the call now, also while it waits for its session; acknowledged before clean-up."""
        self.apply(self._call.cancel(code, message))

    def start(self) -> None:
        """Called by the dispatcher when the session admits the call."""
        if not self._call.ended:
            if self.trace is not None:
                self.trace.admitted()
            self.apply(self._call.start())

    def apply(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order; events that arrive meanwhile queue behind them."""
        self._actions.extend(actions)
        if self._busy:
            return
        self._busy = True
        try:
            while self._actions:
                self._carry_out(self._actions.popleft())
        finally:
            self._busy = False

    def _carry_out(self, action: Action) -> None:
        match action:
            case Activate():
                self._activate(action)
            case Accept(activation, count):
                if activation in self._started:
                    self._started[activation].accept(count)
            case Emit(output, value):
                self._listener.on_emit(output, value)
            case Stop(activation):
                started = self._started.pop(activation, None)
                if started is not None:
                    started.cancel()
            case Finish(outputs):
                self._counts.finished += 1
                self._listener.on_finish(outputs)
                self._terminated()
            case Fail(failure):
                self._counts.count_failure(failure.code)
                self._listener.on_fail(failure)
                self._terminated()

    def _activate(self, action: Activate) -> None:
        number, node = action.activation, action.node
        if self._call.ended:
            return
        request = ActivationRequest(
            activation_id=f"{self.key}.{number}",
            interface=node.spec.name,
            inputs=action.inputs,
            request_id=self.request_id,
            session_id=self.session_id,
            node=node.name,
            deadline=self.deadline,
            credits=self._call.plan.window,
        )
        counts = self._counts.nodes[node.index]
        counts.activations += 1
        sink = _Sink(self, number, counts)
        try:
            started = self._dispatcher.executor.start(node, self, request, sink)
        except Exception as error:
            log.exception("could not start %s", node.name)
            counts.failures += 1
            self.apply(self._call.on_error(number, ErrorCode.INTERNAL, f"could not start the activation: {error}"))
            return
        if not sink.ended:
            self._started[number] = started

    def _terminated(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._started.clear()
        for node, skips in self._call.skipped.items():
            self._counts.nodes[node].skips += skips
        for node, buckets in self._call.impossible.items():
            self._counts.nodes[node].impossible += buckets
        self._dispatcher._ended(self)

    def _expire(self) -> None:
        self.cancel("the call's deadline has passed", ErrorCode.DEADLINE_EXCEEDED)


class _Sink:
    __slots__ = ("_counts", "_number", "_run", "_since", "ended")

    def __init__(self, run: RunningCall, number: int, counts: NodeCounts) -> None:
        self._run = run
        self._number = number
        self._counts = counts
        self._since = time.monotonic()
        self.ended = False

    def on_yield(self, ordinal: int, fields: Mapping[str, Any]) -> None:
        self._run.apply(self._run._call.on_yield(self._number, ordinal, fields))

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        self._forget()
        self._time(run_s)
        self._run.apply(self._run._call.on_end(self._number, yields))

    def on_error(self, code: ErrorCode, message: str) -> None:
        self._forget()
        self._counts.failures += 1
        self._run.apply(self._run._call.on_error(self._number, code, message))

    def _forget(self) -> None:
        self.ended = True
        self._run._started.pop(self._number, None)

    def _time(self, run_s: float | None) -> None:
        now = time.monotonic()
        total = now - self._since
        run = total if run_s is None else min(run_s, total)
        self._counts.run_s += run
        self._counts.queue_s += total - run
        if self._run.trace is not None and run_s is not None:
            self._run.trace.begun(self._number, now - run)


class Dispatcher:
    """Admits and runs the calls of one workflow."""

    def __init__(self, plan: Plan, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self.executor = executor
        self.loop = loop
        self.counts = WorkflowCounts.of(plan)
        self._admission = Admission()
        self._calls: dict[str, RunningCall] = {}
        self._keys = itertools.count()

    @property
    def calls(self) -> list[RunningCall]:
        """Calls that have not ended, queued ones included."""
        return list(self._calls.values())

    def submit(
        self,
        inputs: Mapping[str, Any],
        listener: CallListener,
        *,
        request_id: str = "",
        session_id: str | None = None,
        timeout_s: float | None = None,
        cancel_previous: bool = False,
        trace: Trace | None = None,
    ) -> RunningCall | None:
        """Start a call, or queue it behind its session's earlier ones. ``request_id`` is the caller's and need not be
        unique. ``trace`` takes what happens.

        Bad inputs reach ``listener.on_fail`` at once, and ``None`` is returned.
        """
        key = f"{self.plan.name}-{next(self._keys)}"
        self.counts.started += 1
        try:
            call = Call(self.plan, request_id or key, inputs, trace)
        except BadInput as error:
            self.counts.failed += 1
            listener.on_fail(Failure(ErrorCode.BAD_INPUT, str(error), workflow=self.plan.name, request=request_id))
            return None
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        run = RunningCall(self, key, call, listener, session_id, deadline, trace)
        self._calls[key] = run
        self._follow(self._admission.submit(key, session_id, cancel_previous=cancel_previous))
        return run

    def cancel_all(self, message: str) -> None:
        """End every call: the server is going down."""
        for run in self.calls:
            run.cancel(message)

    def _ended(self, run: RunningCall) -> None:
        self._calls.pop(run.key, None)
        try:
            self.executor.call_ended(run)
        finally:
            self._follow(self._admission.ended(run.key))

    def _follow(self, decision: Decision) -> None:
        for key in decision.cancel:
            if key in self._calls:
                self._calls[key].cancel("cancelled by a later call of its session")
        for key in decision.admit:
            if key in self._calls:
                self._calls[key].start()

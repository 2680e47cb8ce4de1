"""Running a role's interfaces: one place for all four styles, credits, cancellation and deadlines.

Used by the in-process driver and by role processes on a server. All methods and callbacks run on the host's event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from omniflow_backend.dsl.interface import InterfaceSpec, Role, Style
from omniflow_backend.errors import BadInput, ErrorCode

log = logging.getLogger(__name__)

# Guards every context's hooks: held for a few instructions, so one for all is cheaper than one for each activation.
_hooks_lock = threading.Lock()


class ActivationSink(Protocol):
    """Where an activation's events go, in order; after ``on_end`` or ``on_error`` nothing follows."""

    def on_yield(self, ordinal: int, fields: Mapping[str, Any]) -> None: ...

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        """``run_s``: seconds from the beginning of the interface function to here, where that is known."""
        ...

    def on_error(self, code: ErrorCode, message: str) -> None: ...


@dataclass(slots=True)
class ActivationRequest:
    """One activation to run. ``deadline`` in seconds of ``time.monotonic``; ``credits`` yields may be ahead of
    ``accept``.
    """

    activation_id: str
    interface: str
    inputs: Mapping[str, Any]
    request_id: str = ""
    session_id: str | None = None
    node: str = ""
    deadline: float | None = None
    credits: int = 32


class Context:
    """The ``ctx`` of interface functions (see ``ActivationContext``)."""

    def __init__(self, request: ActivationRequest) -> None:
        self.request_id = request.request_id
        self.session_id = request.session_id
        self.node = request.node
        self.activation_id = request.activation_id
        self.deadline = request.deadline
        self.cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def raise_if_cancelled(self) -> None:
        if self.cancelled:
            raise asyncio.CancelledError(f"activation {self.activation_id} was cancelled")

    def on_cancel(self, callback: Callable[[], None]) -> None:
        with _hooks_lock:
            if not self.cancelled:
                self._callbacks.append(callback)
                return
        callback()

    def cancel(self) -> None:
        """Set ``cancelled`` and run the hooks, once."""
        with _hooks_lock:
            if self.cancelled:
                return
            self.cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:
                log.exception("cancel hook of %s failed", self.activation_id)


@dataclass(slots=True, eq=False)
class RunningActivation:
    """A started activation: give it credits, or cancel it. After ``cancel`` its sink hears nothing more.

    ``begun`` is when the interface function began (``time.monotonic``), ``released`` whether it has come back.
    """

    context: Context
    sink: ActivationSink
    granted: int
    host: RoleHost
    yielded: int = 0
    ended: bool = False
    begun: float | None = None
    released: bool = False
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    waiter: asyncio.Future[None] | None = None
    thread_credits: threading.Condition | None = None

    def accept(self, count: int) -> None:
        """``count`` more yields may be made."""
        self.granted += count
        self._wake_thread()
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def cancel(self) -> None:
        """Stop at the next step: hooks run, generators are closed, later events are dropped."""
        already = self.ended
        self._finish()
        if not already:
            self._stop()

    def expire(self, message: str) -> None:
        """Fail with ``DEADLINE_EXCEEDED`` and stop the function."""
        if not self.ended:
            self.fail(ErrorCode.DEADLINE_EXCEEDED, message)
            self._stop()

    def _stop(self) -> None:
        self.context.cancel()
        self._wake_thread()
        if self.task is not None:
            self.task.cancel()
        self.host.stopped(self)

    def _wake_thread(self) -> None:
        if self.thread_credits is not None:
            with self.thread_credits:
                self.thread_credits.notify_all()

    def give(self, value: Any) -> None:
        """One result of the interface function; ``None`` is no yield."""
        if self.ended or value is None:
            return
        if not isinstance(value, Mapping):
            raise TypeError(f"an interface returns or yields mappings of its outputs, not {type(value).__name__}")
        ordinal = self.yielded
        self.yielded += 1
        self.sink.on_yield(ordinal, value)

    def end(self) -> None:
        if not self.ended:
            self._finish()
            self.sink.on_end(self.yielded, None if self.begun is None else time.monotonic() - self.begun)

    def fail(self, code: ErrorCode, message: str) -> None:
        if not self.ended:
            self._finish()
            self.sink.on_error(code, message)

    def _finish(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        self.host.finished(self)


class RoleHost:
    """Executes one role's interfaces on an event loop.

    Plain functions run in ``executor``; without one they run inline, which only suits tests and functions that do not
    block. ``on_hang`` is called for an activation whose function has not come back ``Role.hang_timeout_s`` after it was
    cancelled; one that still waits for its turn is not meant.
    """

    def __init__(
        self,
        role: Role,
        loop: asyncio.AbstractEventLoop,
        executor: Executor | None = None,
        on_hang: Callable[[RunningActivation], None] | None = None,
    ) -> None:
        self.role = role
        self._loop = loop
        self._executor = executor
        self._on_hang = on_hang
        self._running: set[RunningActivation] = set()

    @property
    def active(self) -> int:
        """Activations that have not ended."""
        return len(self._running)

    def start(self, request: ActivationRequest, sink: ActivationSink) -> RunningActivation:
        """Begin an activation. Inputs are taken as they are: callers check them where they enter the system."""
        spec = self.role.interfaces.get(request.interface)
        activation = RunningActivation(Context(request), sink, request.credits, self)
        self._running.add(activation)
        if spec is None:
            known = ", ".join(self.role.interfaces)
            activation.fail(ErrorCode.BAD_INPUT, f"no interface {request.interface!r}; there are {known}")
            return activation
        self._set_timer(activation, spec, request)
        function = getattr(self.role, spec.name)
        if spec.style is Style.ASYNC_FUNCTION or spec.style is Style.ASYNC_GENERATOR:
            run = self._run_async_function if spec.style is Style.ASYNC_FUNCTION else self._run_async_generator
            activation.task = self._loop.create_task(run(activation, function, request.inputs))
        elif self._executor is not None:
            if spec.style is Style.FUNCTION:
                self._executor.submit(self._function_in_thread, activation, function, request.inputs)
            else:
                credits = activation.thread_credits = threading.Condition()
                self._executor.submit(self._generator_in_thread, activation, function, request.inputs, credits)
        elif spec.style is Style.FUNCTION:
            self._run_inline(activation, function, request.inputs)
        else:
            activation.task = self._loop.create_task(self._run_generator(activation, function, request.inputs))
        return activation

    def cancel_all(self) -> None:
        """Cancel everything that runs: the process is about to end."""
        for activation in list(self._running):
            activation.cancel()

    def finished(self, activation: RunningActivation) -> None:
        """Called by an activation whose last event has been decided."""
        self._running.discard(activation)

    def stopped(self, activation: RunningActivation) -> None:
        """Called by an activation that was cancelled or ran past its deadline: its function must come back in time."""
        limit = self.role.hang_timeout_s
        # A thread sets ``begun`` before it looks whether it is cancelled: so none slips through.
        if self._on_hang is not None and limit is not None and activation.begun is not None:
            self._loop.call_later(limit, self._look_at, activation)

    def _look_at(self, activation: RunningActivation) -> None:
        if not activation.released and self._on_hang is not None:
            self._on_hang(activation)

    def _set_timer(self, activation: RunningActivation, spec: InterfaceSpec, request: ActivationRequest) -> None:
        limits = [spec.timeout_ms / 1000] if spec.timeout_ms is not None else []
        if request.deadline is not None:
            limits.append(request.deadline - time.monotonic())
        if limits:
            activation.timer = self._loop.call_later(
                max(0.0, min(limits)), self._expire, activation, spec.name, min(limits)
            )

    @staticmethod
    def _expire(activation: RunningActivation, name: str, limit: float) -> None:
        activation.expire(f"{name} did not end within its {limit:.3g} s")

    @staticmethod
    def _run_inline(activation: RunningActivation, function: Callable[..., Any], inputs: Mapping[str, Any]) -> None:
        activation.begun = time.monotonic()
        try:
            activation.give(function(activation.context, **inputs))
        except Exception as error:
            activation.fail(*describe_error(error))
        else:
            activation.end()

    @staticmethod
    async def _run_async_function(
        activation: RunningActivation, function: Callable[..., Any], inputs: Mapping[str, Any]
    ) -> None:
        activation.begun = time.monotonic()
        try:
            activation.give(await function(activation.context, **inputs))
        except asyncio.CancelledError:
            activation.fail(ErrorCode.CANCELLED, "the activation was cancelled")
        except Exception as error:
            activation.fail(*describe_error(error))
        else:
            activation.end()
        finally:
            activation.released = True

    async def _run_async_generator(
        self, activation: RunningActivation, function: Callable[..., Any], inputs: Mapping[str, Any]
    ) -> None:
        activation.begun = time.monotonic()
        generator = function(activation.context, **inputs)
        try:
            async for value in generator:
                activation.give(value)
                await self._wait_for_credit(activation)
        except asyncio.CancelledError:
            activation.fail(ErrorCode.CANCELLED, "the activation was cancelled")
        except Exception as error:
            activation.fail(*describe_error(error))
        else:
            activation.end()
        finally:
            try:
                await generator.aclose()
            finally:
                activation.released = True

    async def _run_generator(
        self, activation: RunningActivation, function: Callable[..., Any], inputs: Mapping[str, Any]
    ) -> None:
        activation.begun = time.monotonic()
        try:
            generator: Iterator[Any] = function(activation.context, **inputs)
            try:
                for value in generator:
                    activation.give(value)
                    await self._wait_for_credit(activation)
            finally:
                generator.close()  # type: ignore[attr-defined]
        except asyncio.CancelledError:
            activation.fail(ErrorCode.CANCELLED, "the activation was cancelled")
        except Exception as error:
            activation.fail(*describe_error(error))
        else:
            activation.end()

    async def _wait_for_credit(self, activation: RunningActivation) -> None:
        while activation.yielded >= activation.granted:
            activation.waiter = self._loop.create_future()
            await activation.waiter
            activation.waiter = None

    def _function_in_thread(
        self, activation: RunningActivation, function: Callable[..., Any], inputs: Mapping[str, Any]
    ) -> None:
        activation.begun = time.monotonic()
        try:
            if activation.context.cancelled:
                return
            value = function(activation.context, **inputs)
        except asyncio.CancelledError:
            self._post(activation.fail, ErrorCode.CANCELLED, "the activation was cancelled")
        except BaseException as error:
            self._post(activation.fail, *describe_error(error))
        else:
            self._post(self._give_and_end, activation, value)
        finally:
            activation.released = True

    def _generator_in_thread(
        self,
        activation: RunningActivation,
        function: Callable[..., Any],
        inputs: Mapping[str, Any],
        credits: threading.Condition,
    ) -> None:
        context = activation.context
        activation.begun = time.monotonic()
        made = 0
        try:
            if context.cancelled:
                return
            generator = function(context, **inputs)
            try:
                for value in generator:
                    if context.cancelled:
                        return
                    self._post(self._give, activation, value)
                    made += value is not None
                    with credits:
                        while made >= activation.granted and not context.cancelled:
                            credits.wait(1.0)
            finally:
                generator.close()
        except asyncio.CancelledError:
            self._post(activation.fail, ErrorCode.CANCELLED, "the activation was cancelled")
        except BaseException as error:
            self._post(activation.fail, *describe_error(error))
        else:
            self._post(activation.end)
        finally:
            activation.released = True

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            log.debug("event loop is closed; an activation's last event is dropped")

    @staticmethod
    def _give(activation: RunningActivation, value: Any) -> None:
        try:
            activation.give(value)
        except TypeError as error:
            activation.fail(ErrorCode.ROLE_FAILED, str(error))

    @classmethod
    def _give_and_end(cls, activation: RunningActivation, value: Any) -> None:
        cls._give(activation, value)
        activation.end()


def describe_error(error: BaseException) -> tuple[ErrorCode, str]:
    """The code and message of an interface's exception, with the author's file and line for failures."""
    if isinstance(error, BadInput):
        return ErrorCode.BAD_INPUT, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    log.debug("interface failed", exc_info=error)
    return ErrorCode.ROLE_FAILED, f"{type(error).__name__}: {error}{where}"

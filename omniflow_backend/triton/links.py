"""The way from an orchestrator to one role model: attached on first use, and again after every death of the role."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omniflow_backend.drivers.role_host import ActivationRequest, ActivationSink
from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.attachment import Attachment
from omniflow_backend.triton.channel.client import RoleChannel
from omniflow_backend.triton.channel.wire import ProtocolError
from omniflow_backend.triton.hang_report import HangReport
from omniflow_backend.triton.registration import read_registration
from omniflow_backend.triton.values import WireValue

log = logging.getLogger(__name__)

Attach = Callable[[str], Awaitable[Attachment]]

_ATTACH_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class LinkedActivation:
    """An activation that is running, or waits until its role is attached."""

    request: ActivationRequest
    inputs: Mapping[str, WireValue]
    scope: str
    sink: ActivationSink
    granted: int
    cancelled: bool = False
    channel: RoleChannel | None = None
    serial: int = 0

    def accept(self, count: int) -> None:
        """``count`` more yields may follow."""
        if self.channel is None:
            self.granted += count
        else:
            self.channel.accept(self.serial, count)

    def cancel(self) -> None:
        """Stop it; its sink hears nothing more."""
        self.cancelled = True
        if self.channel is not None:
            self.channel.cancel(self.serial)

    def send(self, channel: RoleChannel) -> None:
        """Start it on ``channel``, unless it was cancelled while it waited."""
        if self.cancelled:
            return
        request = self.request
        self.channel = channel
        self.serial = channel.start(
            interface=request.interface,
            inputs=self.inputs,
            window=self.granted,
            request_id=request.request_id,
            scope=self.scope,
            node=request.node,
            activation_id=request.activation_id,
            session_id=request.session_id,
            time_left=None if request.deadline is None else request.deadline - time.monotonic(),
            sink=self.sink,
        )


class RoleLink:
    """Activations in one role model, across the lives of its process.

    While the process is away (not yet attached, or being reloaded) activations wait, at most ``patience`` seconds,
    and then fail with ``UNAVAILABLE``. A process that died is attached again as soon as it is back, asked for or not.
    One that does not even confirm cancels for ``silence_s`` seconds is reported as hung. All methods must be called on
    the loop's thread.
    """

    def __init__(
        self,
        model: str,
        runtime: Path,
        attach: Attach,
        loop: asyncio.AbstractEventLoop,
        patience: float = 60.0,
        silence_s: float | None = None,
    ) -> None:
        self.model = model
        self._runtime = runtime
        self._attach = attach
        self._loop = loop
        self._patience = patience
        self._silence_s = silence_s
        self._channel: RoleChannel | None = None
        self._waiting: list[LinkedActivation] = []
        self._attaching: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def load(self) -> int:
        """How many activations run or wait here."""
        return len(self._waiting) + (self._channel.open_activations if self._channel is not None else 0)

    @property
    def lost(self) -> bool:
        """Whether the role was attached, and its process has died since."""
        return self._channel is not None and not self._channel.alive

    def start(
        self, request: ActivationRequest, inputs: Mapping[str, WireValue], scope: str, sink: ActivationSink
    ) -> LinkedActivation:
        """Run an activation now, or as soon as the role is there."""
        activation = LinkedActivation(request, inputs, scope, sink, request.credits)
        if self._channel is not None and self._channel.alive:
            activation.send(self._channel)
        else:
            self._waiting.append(activation)
            self._begin_to_attach()
        return activation

    def close(self) -> None:
        """Cancel everything and disconnect."""
        self._closed = True
        if self._attaching is not None:
            self._attaching.cancel()
        if self._channel is not None:
            self._channel.close()
        self._waiting.clear()

    def _begin_to_attach(self) -> None:
        if self._attaching is None and not self._closed:
            self._attaching = self._loop.create_task(self._connect())

    def _channel_closed(self, channel: RoleChannel) -> None:
        # Replicas that are lost are not chosen: so nobody would ask for this one to come back.
        self._begin_to_attach()

    async def _connect(self) -> None:
        try:
            channel = self._channel = await self._attached()
        except (TimeoutError, ProtocolError) as error:
            self._attaching = None
            self._fail_waiting(str(error))
            if isinstance(error, TimeoutError) and self.lost:
                self._begin_to_attach()
            return
        except Exception as error:
            log.exception("role %s could not be attached", self.model)
            self._attaching = None
            self._fail_waiting(f"role {self.model!r} could not be attached: {error!r}")
            return
        self._attaching = None
        waiting, self._waiting = self._waiting, []
        for activation in waiting:
            activation.send(channel)

    async def _attached(self) -> RoleChannel:
        """Ask until the model answers with a process that listens. Raises ``TimeoutError``, ``ProtocolError``."""
        began = time.monotonic()
        deadline = began + self._patience
        reason = "it has not been loaded"
        while time.monotonic() < deadline:
            # A request to a dead stub takes a second to fail, or never comes back: ask only when there is a process.
            if self._process_lives():
                try:
                    attachment = await asyncio.wait_for(self._attach(self.model), _ATTACH_SECONDS)
                    return RoleChannel(
                        attachment.peer, self._loop, self._channel_closed, self._is_silent, self._silence_s
                    )
                except ProtocolError:
                    raise
                except TimeoutError:
                    reason = f"it did not answer an attach request within {_ATTACH_SECONDS:g} s"
                except Exception as error:
                    reason = str(error)
            waited = time.monotonic() - began
            await asyncio.sleep(min(_LONGEST_PAUSE_SECONDS, max(_PAUSE_SECONDS, waited / 20)))
        raise TimeoutError(f"role {self.model!r} is not available after {self._patience:g} s: {reason}")

    def _process_lives(self) -> bool:
        registration = read_registration(self._runtime, self.model)
        return registration is not None and _lives(registration.pid)

    def _is_silent(self, channel: RoleChannel) -> None:
        reason = f"it has not confirmed a cancel for {self._silence_s:g} s: something blocks its event loop"
        HangReport(self.model, channel.peer.pid, reason).send(self._runtime)

    def _fail_waiting(self, message: str) -> None:
        waiting, self._waiting = self._waiting, []
        for activation in waiting:
            if not activation.cancelled:
                activation.sink.on_error(ErrorCode.UNAVAILABLE, message)


def _lives(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for yet (a zombie) does not."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        return not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)

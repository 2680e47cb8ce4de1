"""The orchestrator's end of a channel: starts activations in one role process and hears of its death."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from omniflow_backend.drivers.role_host import ActivationSink
from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel import wire
from omniflow_backend.triton.channel.socket import FrameConnection, Outbox
from omniflow_backend.triton.values import Encoded, WireValue

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChannelPeer:
    """A role process, as its attach reply tells."""

    model: str
    role: str
    pid: int
    endpoint: str


class RoleChannel:
    """All activations of one orchestrator in one role process.

    ``alive`` turns false for good when the process dies or refuses us: every open activation then fails at once with
    ``ROLE_DIED`` (or ``INTERNAL``), ``on_close`` is called once, and the role has to be attached again. Sinks are
    called on the loop's thread, where all methods must be called, too.

    ``on_silence`` is called when the role has not confirmed a cancel for ``silence_s`` seconds and has nothing else to
    do for us: its loop does not turn, so it cannot tell by itself that it hangs.
    """

    def __init__(
        self,
        peer: ChannelPeer,
        loop: asyncio.AbstractEventLoop,
        on_close: Callable[[RoleChannel], None] | None = None,
        on_silence: Callable[[RoleChannel], None] | None = None,
        silence_s: float | None = None,
    ) -> None:
        """Connect. Raises ``OSError`` when the process is gone already, or does not listen."""
        self.peer = peer
        self.alive = True
        self._loop = loop
        self._on_close = on_close
        self._on_silence = on_silence
        self._silence_s = silence_s
        self._unconfirmed: dict[int, float] = {}
        self._silence_timer: asyncio.TimerHandle | None = None
        self._open: dict[int, ActivationSink] = {}
        self._serial = 0
        self._connection = FrameConnection.connect(peer.endpoint, loop, self._received, lambda _: self._process_died())
        try:
            self._pidfd = os.pidfd_open(peer.pid)
        except OSError:
            self._connection.close()
            raise
        loop.add_reader(self._pidfd, self._process_died)
        self._outbox = Outbox(loop, lambda messages: self._connection.send(wire.encode_frame(messages)))  # type: ignore[arg-type]

    @property
    def open_activations(self) -> int:
        """How many activations have neither ended nor been cancelled."""
        return len(self._open)

    def start(
        self,
        *,
        interface: str,
        inputs: Mapping[str, WireValue],
        window: int,
        request_id: str,
        scope: str,
        node: str,
        activation_id: str,
        session_id: str | None,
        time_left: float | None,
        sink: ActivationSink,
    ) -> int:
        """Start an activation; returns its serial for ``accept`` and ``cancel``.

        ``inputs`` are wire values (``ValueEncoder.to_wire``), ``time_left`` is in seconds. ``sink`` gets the yields'
        fields still packed (``Encoded``); on a dead channel its ``on_error`` is called in the loop's next iteration.
        """
        self._serial += 1
        serial = self._serial
        if not self.alive:
            self._loop.call_soon(sink.on_error, ErrorCode.ROLE_DIED, self._death_notice())
            return serial
        self._open[serial] = sink
        self._outbox.post(
            wire.Start(
                serial=serial,
                interface=interface,
                inputs=dict(inputs),
                window=window,
                request_id=request_id,
                scope=scope,
                node=node,
                activation_id=activation_id,
                session_id=session_id,
                time_left=time_left,
            )
        )
        return serial

    def accept(self, serial: int, count: int = 1) -> None:
        """Let the activation make ``count`` more yields. Nothing happens when it is over."""
        if serial in self._open:
            self._outbox.post(wire.Accept(serial, count))

    def cancel(self, serial: int) -> None:
        """Stop the activation. Its sink hears nothing after this."""
        if self._open.pop(serial, None) is not None:
            self._outbox.post(wire.Cancel(serial))
            if self._silence_s is not None:
                self._unconfirmed[serial] = self._loop.time()
                if self._silence_timer is None:
                    self._silence_timer = self._loop.call_later(self._silence_s, self._listen_for_life)

    def close(self) -> None:
        """Cancel all that is open and disconnect. Idempotent."""
        if self.alive:
            self._open.clear()
            self._shut()

    def _received(self, connection: FrameConnection, frame: bytes) -> None:
        try:
            messages = wire.decode_for_orchestrator(frame)
        except wire.ProtocolError as error:
            # What was in it is lost: whoever waits for it must not wait for ever.
            self._give_up(f"role {self.peer.model!r} (pid {self.peer.pid}) sent what cannot be read: {error}")
            return
        for message in messages:
            try:
                self._dispatch(message)
            except Exception:
                logger.exception("a message of role %s could not be handled", self.peer.model)

    def _dispatch(self, message: wire.ToOrchestrator) -> None:
        if isinstance(message, wire.Refuse):
            self._give_up(f"role {self.peer.model!r} (pid {self.peer.pid}) refuses activations: {message.message}")
            return
        if isinstance(message, wire.Stopped):
            self._unconfirmed.pop(message.serial, None)
            return
        if isinstance(message, wire.Yield):
            producing = self._open.get(message.serial)
            if producing is not None:
                producing.on_yield(message.ordinal, {name: Encoded(value) for name, value in message.fields.items()})
            return
        ended = self._open.pop(message.serial, None)
        if ended is None:
            return
        if isinstance(message, wire.End):
            ended.on_end(message.yields, message.run_s)
        else:
            ended.on_error(_code(message.code), message.message)

    def _listen_for_life(self) -> None:
        self._silence_timer = None
        if not self._unconfirmed or not self.alive:
            return
        assert self._silence_s is not None
        waited = self._loop.time() - min(self._unconfirmed.values())
        # A cancelled activation may be late because of another one that is wanted: then it is not ours to judge.
        if waited >= self._silence_s and not self._open and self._on_silence is not None:
            self._on_silence(self)
        pause = self._silence_s - waited if waited < self._silence_s else self._silence_s
        self._silence_timer = self._loop.call_later(pause, self._listen_for_life)

    def _give_up(self, reason: str) -> None:
        failed = self._take_open()
        self.close()
        self._fail(failed, ErrorCode.INTERNAL, reason)

    def _process_died(self) -> None:
        # What it sent before it died counts.
        self._connection.drain()
        failed = self._take_open()
        self._shut()
        self._fail(failed, ErrorCode.ROLE_DIED, self._death_notice())

    def _death_notice(self) -> str:
        peer = self.peer
        return f"the process of {peer.model!r} ({peer.role}, pid {peer.pid}) died; it is being restarted, try again"

    def _take_open(self) -> list[ActivationSink]:
        taken, self._open = self._open, {}
        return list(taken.values())

    def _fail(self, failed: list[ActivationSink], code: ErrorCode, message: str) -> None:
        for sink in failed:
            try:
                sink.on_error(code, message)
            except Exception:
                logger.exception("an activation of role %s could not be failed", self.peer.model)

    def _shut(self) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._silence_timer is not None:
            self._silence_timer.cancel()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._connection.close()
        if self._on_close is not None:
            self._on_close(self)


def _code(text: str) -> ErrorCode:
    try:
        return ErrorCode(text)
    except ValueError:
        return ErrorCode.ROLE_FAILED

"""Messages of the activation channel, and the frames they travel in.

A frame is msgpack: ``[protocol version, [message, ...]]``; a message is an array that begins with its number. Values
inside are packed by themselves (``omniflow_backend.triton.values``), so that an orchestrator hands them on without
looking inside.
"""

from __future__ import annotations

import msgspec

from omniflow_backend.triton.values import WireValue

PROTOCOL_VERSION = 3


class ProtocolError(Exception):
    """A frame that cannot be understood."""


class Start(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """Run one activation of ``interface``.

    ``serial`` names it on this channel. The role is at most ``window`` yields ahead of the accepts it got.
    ``time_left`` is in seconds. ``scope`` is the call, for tensors that outlive the activation.
    """

    serial: int
    interface: str
    inputs: dict[str, WireValue]
    window: int
    request_id: str
    scope: str
    node: str
    activation_id: str
    session_id: str | None = None
    time_left: float | None = None


class Accept(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """``count`` more yields of the activation have found a place."""

    serial: int
    count: int


class Cancel(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """Stop the activation; nothing it yields is wanted any more."""

    serial: int


class Yield(msgspec.Struct, array_like=True, tag=4, frozen=True):
    """One yield, ``ordinal`` counting from zero."""

    serial: int
    ordinal: int
    fields: dict[str, WireValue]


class End(msgspec.Struct, array_like=True, tag=5, frozen=True):
    """The activation has ended well, after ``yields`` yields; its function ran ``run_s`` seconds, if that is known."""

    serial: int
    yields: int
    run_s: float | None = None


class Error(msgspec.Struct, array_like=True, tag=6, frozen=True):
    """The activation has failed; ``code`` is an ``ErrorCode``."""

    serial: int
    code: str
    message: str


class Refuse(msgspec.Struct, array_like=True, tag=7, frozen=True):
    """Role to orchestrator: your frames are of no use to me, and why."""

    message: str


class Stopped(msgspec.Struct, array_like=True, tag=9, frozen=True):
    """Role to orchestrator: the cancel of the activation has arrived."""

    serial: int


ToRole = Start | Accept | Cancel
ToOrchestrator = Yield | End | Error | Refuse | Stopped
Message = ToRole | ToOrchestrator


class _RoleFrame(msgspec.Struct, array_like=True):
    version: int
    messages: list[ToRole]


class _OrchestratorFrame(msgspec.Struct, array_like=True):
    version: int
    messages: list[ToOrchestrator]


class _Version(msgspec.Struct, array_like=True):
    version: int


_encoder = msgspec.msgpack.Encoder()
_role_decoder = msgspec.msgpack.Decoder(_RoleFrame)
_orchestrator_decoder = msgspec.msgpack.Decoder(_OrchestratorFrame)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode_frame(messages: list[Message]) -> bytes:
    """One frame of all ``messages``, in order."""
    return _encoder.encode((PROTOCOL_VERSION, messages))


def decode_for_role(frame: bytes) -> list[ToRole]:
    """The messages of a frame that came to a role. Raises ``ProtocolError``."""
    try:
        decoded = _role_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain(frame, error) from None
    _check_version(decoded.version)
    return decoded.messages


def decode_for_orchestrator(frame: bytes) -> list[ToOrchestrator]:
    """The messages of a frame that came to an orchestrator. Raises ``ProtocolError``."""
    try:
        decoded = _orchestrator_decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _explain(frame, error) from None
    _check_version(decoded.version)
    return decoded.messages


def _explain(frame: bytes, error: Exception) -> ProtocolError:
    try:
        _check_version(_version_decoder.decode(frame).version)
    except ProtocolError as other_version:
        return other_version
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return ProtocolError(f"malformed frame of {len(frame)} bytes: {error}")


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolError(
            f"the other side speaks channel protocol {version}, this one {PROTOCOL_VERSION}: "
            "install the same version of omniflow for both"
        )

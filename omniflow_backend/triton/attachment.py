"""The reply to an ``attach`` request: who serves a model, and where its channel listens."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from omniflow_backend.triton.channel.client import ChannelPeer
from omniflow_backend.triton.channel.wire import PROTOCOL_VERSION, ProtocolError

ATTACH = "attach"
ATTACHED = "attached"


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a model says of itself. ``role`` is the name of its class, or of what else it is."""

    model: str
    role: str
    pid: int
    endpoint: str
    interfaces: list[str]
    protocol: int = PROTOCOL_VERSION

    @classmethod
    def of_this_process(cls, model: str, role: str, endpoint: str, interfaces: list[str]) -> Attachment:
        """The attachment of the stub that calls this."""
        return cls(model, role, os.getpid(), endpoint, interfaces)

    def to_json(self) -> str:
        """As it travels in the output ``attached``."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, model: str) -> Attachment:
        """Read a reply of ``model``. Raises ``ProtocolError`` when it is of another version, or makes no sense."""
        try:
            attachment = cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise ProtocolError(f"model {model!r} gave no usable attach reply: {error}") from None
        if attachment.protocol != PROTOCOL_VERSION:
            raise ProtocolError(
                f"model {model!r} speaks channel protocol {attachment.protocol}, this process {PROTOCOL_VERSION}: "
                "install the same version of omniflow for both"
            )
        return attachment

    @property
    def peer(self) -> ChannelPeer:
        """Where to connect."""
        return ChannelPeer(self.model, self.role, self.pid, self.endpoint)

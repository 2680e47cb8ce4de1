"""The note that each stub leaves in the runtime directory: who serves a model, and where."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from omniflow_backend.triton.channel.wire import PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Registration:
    """One stub. ``endpoint`` is empty for models without a channel."""

    model: str
    pid: int
    kind: str
    endpoint: str = ""
    protocol: int = PROTOCOL_VERSION

    def write(self, runtime: Path) -> None:
        """Put it at ``roles/<model>.json``, at once or not at all."""
        directory = runtime / "roles"
        directory.mkdir(mode=0o700, exist_ok=True)
        draft = directory / f".{self.model}.{self.pid}"
        draft.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(draft, directory / f"{self.model}.json")


def read_registration(runtime: Path, model: str) -> Registration | None:
    """The note of ``model``, or ``None`` when there is none that can be read."""
    try:
        return Registration(**json.loads((runtime / "roles" / f"{model}.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def channel_endpoint(runtime: Path, model: str) -> str:
    """A fresh ipc endpoint for this process. Raises ``ValueError`` when the path is too long for a socket."""
    path = runtime / f"channel-{model}-{os.getpid()}"
    if len(os.fsencode(path)) > 107:
        raise ValueError(f"{path} is too long for a socket (107 bytes): use a shorter runtime directory or model name")
    return f"ipc://{path}"

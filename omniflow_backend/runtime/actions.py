"""What the runtime asks a driver to do. Events go in, these come out (contract section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omniflow_backend.errors import Failure
from omniflow_backend.planning.plan import PlannedNode


@dataclass(slots=True)
class Activate:
    """Run ``node`` once; report its yields, in order, and its end with the same ``activation`` number."""

    activation: int
    node: PlannedNode
    inputs: dict[str, Any]
    path: str


@dataclass(slots=True)
class Accept:
    """``count`` more yields of ``activation`` are accepted: its producer may go on (backpressure)."""

    activation: int
    count: int


@dataclass(slots=True)
class Emit:
    """Present one value of a streamed output; the order of these actions is the order of generation."""

    output: str
    value: Any


@dataclass(slots=True)
class Stop:
    """Cancel a running activation; its later events are ignored."""

    activation: int


@dataclass(slots=True)
class Finish:
    """SYSTEM_FINISH: the call has ended well; ``outputs`` are those that are not streamed."""

    outputs: Mapping[str, Any]


@dataclass(slots=True)
class Fail:
    """ERROR: the call has ended; nothing follows."""

    failure: Failure


Action = Activate | Accept | Emit | Stop | Finish | Fail

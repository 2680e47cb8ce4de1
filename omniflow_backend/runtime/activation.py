"""What one call keeps of the work it has started: activations, and streamed values on their way to the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omniflow_backend.planning.plan import PlannedNode, PlannedOutput
from omniflow_backend.runtime.ordering import Siblings
from omniflow_backend.runtime.paths import Token


class Activation:
    """One logical execution of an interface, from its creation (it may wait in a gate) to its end."""

    __slots__ = (
        "alternative",
        "at",
        "early",
        "ends_at",
        "inputs",
        "lease",
        "next_ordinal",
        "node",
        "number",
        "origin",
        "outstanding",
        "producer",
        "sequence",
        "siblings",
        "target",
        "tokens",
        "unaccepted",
    )

    def __init__(
        self, number: int, node: PlannedNode, alternative: int, inputs: dict[str, Any], origin: Token, lease: Token
    ) -> None:
        self.number = number
        self.sequence = number
        self.node = node
        self.alternative = alternative
        self.inputs = inputs
        self.origin = origin
        self.lease = lease
        self.at = lease
        self.target: int = -1 if node.order_target is None else node.order_target
        self.next_ordinal = 0
        self.ends_at: int | None = None
        self.early: dict[int, Mapping[str, Any]] = {}
        self.producer: Activation | None = None
        self.outstanding = 0
        self.unaccepted = 0
        self.tokens: list[Token] = []
        self.siblings: dict[int, Siblings] | None = (
            {target: Siblings(self.tokens) for target in node.gated_yields} if node.gated_yields else None
        )


class StreamValue:
    """One value of a streamed output, on its way to the caller."""

    __slots__ = ("at", "output", "producer", "sequence", "target", "token", "value")

    def __init__(
        self, output: PlannedOutput, value: Any, token: Token, sequence: int, producer: Activation | None
    ) -> None:
        assert output.target is not None
        self.output = output
        self.value = value
        self.token = token
        self.at = token
        self.sequence = sequence
        self.target = output.target
        self.producer = producer

"""What roles do, decided once: which yields an activation makes is a function of its node and its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from omniflow_backend import Int
from omniflow_backend.dsl.types import is_many
from tests.control.graphs import GraphSpec

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The yields of one activation, in order. ``ident`` is part of every value, so that each is yielded once."""

    ident: int
    depth: int
    yields: tuple[Mapping[str, Any], ...]


class YieldTable:
    """Behaviours, drawn when they are first asked for: the runtime under test and the oracle read the same table.

    Inputs are compared without regard to the order inside lists; that order is judged by itself.
    """

    def __init__(self, graph: GraphSpec, random: Random) -> None:
        self._graph = graph
        self._random = random
        self._behaviours: dict[Key, Behaviour] = {}
        self._depths: dict[str, int] = {}
        self._eager = random.choice((0.2, 0.5, 0.8))
        self._sparse = random.choice((0.0, 0.0, 0.15, 0.4))
        self._told = {index: random.choice((0, 1, 1, 2)) for index in range(len(graph.nodes))}

    def behaviour(self, node: int, inputs: Mapping[str, Any]) -> Behaviour:
        """What an activation of ``node`` with ``inputs`` does."""
        present = ((name, canonical(value)) for name, value in sorted(inputs.items()))
        key = (node, *(pair for pair in present if pair[1] is not None))
        known = self._behaviours.get(key)
        if known is None:
            known = self._behaviours[key] = self._draw(
                node, 1 + max((self._depth(v) for v in inputs.values()), default=0)
            )
        return known

    def _depth(self, value: Any) -> int:
        if isinstance(value, list):
            return max((self._depth(item) for item in value), default=0)
        return self._depths.get(value, 0)

    def _draw(self, node: int, depth: int) -> Behaviour:
        ident = len(self._behaviours)
        draw = self._random.random
        count = 0 if draw() < 0.08 else 1
        if depth < 6:
            while count and count < 4 and draw() < self._eager / depth:
                count += 1
        sparse = self._sparse if depth < 6 else 0.6
        if depth > 12 or ident > 30:
            count = 0
        yields = tuple(self._fields(node, ident, ordinal, depth, sparse) for ordinal in range(count))
        return Behaviour(ident, depth, yields)

    def _fields(self, node: int, ident: int, ordinal: int, depth: int, sparse: float) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, field_type in self._graph.nodes[node].outputs.items():
            if sparse and self._random.random() < sparse:
                continue
            if field_type == Int:
                fields[name] = self._told[node] if self._random.random() < 0.98 else self._told[node] + 1
                continue
            value = f"{ident}.{ordinal}{name}"
            self._depths[value] = depth
            fields[name] = [value, value + "'"] if is_many(field_type) else value
        return fields


def canonical(value: Any) -> Any:
    """A hashable form that does not depend on the order inside a list; nothing, ``None`` and ``[]`` are the same."""
    return tuple(sorted(value)) or None if isinstance(value, list) else value

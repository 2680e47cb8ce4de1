"""Buckets of prefix joins: what one occurrence of an anchor has contributed (paper 3.2, 3.4, A.1)."""

from __future__ import annotations

from typing import Any

from omniflow_backend.dsl.interface import InterfaceSpec
from omniflow_backend.dsl.types import ManyType, OptionalType, required
from omniflow_backend.planning.plan import Alternative
from omniflow_backend.runtime.paths import Token, common_prefix, order_key


class WrongNumber(Exception):
    """A plain field got another number of values than one."""


class Bucket:
    """Contributions of one occurrence, by field. Arrival order does not matter: values are sorted when the bucket
    fires.
    """

    __slots__ = ("_values", "alternative", "anchor", "origin", "size")

    def __init__(self, alternative: Alternative, anchor: Token) -> None:
        self.alternative = alternative
        self.anchor = anchor
        self.origin: Token | None = None
        self.size = 0
        self._values: dict[str, list[tuple[Token, Any]]] = {field: [] for field in alternative.fields}

    def add(self, token: Token, field: str, value: Any) -> None:
        """One contribution; folds its path into the longest common prefix."""
        self._values[field].append((token, value))
        self.origin = token if self.origin is None else common_prefix(self.origin, token)
        self.size += 1

    def missing(self, spec: InterfaceSpec) -> list[str]:
        """Required fields that nothing was contributed to."""
        return [f for f, values in self._values.items() if not values and not isinstance(spec.inputs[f], OptionalType)]

    def inputs(self, spec: InterfaceSpec) -> dict[str, Any]:
        """Values by field, in yield order. Raises ``WrongNumber`` where a plain field has not exactly one."""
        inputs: dict[str, Any] = {}
        for field, contributions in self._values.items():
            if len(contributions) > 1:
                above, ranks = self.anchor.depth, self.alternative.ranks[field]
                contributions.sort(key=lambda c: order_key(c[0], above, ranks))
            inputs[field] = one_or_many(field, [value for _, value in contributions], spec)
        return inputs


def one_or_many(field: str, values: list[Any], spec: InterfaceSpec) -> Any:
    """What a joined field receives: the list for ``Many``, the only value for a plain type, ``None`` for an absent
    optional one.
    """
    field_type = spec.inputs[field]
    if isinstance(required(field_type), ManyType):
        return values
    if len(values) == 1:
        return values[0]
    if not values and isinstance(field_type, OptionalType):
        return None
    raise WrongNumber(
        f"input {field!r} is {field_type}, which takes one value, but its bucket closed with {len(values)}; "
        f"declare it Many({required(field_type)}) to take them all"
    )

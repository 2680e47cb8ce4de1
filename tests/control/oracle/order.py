"""Generation order: of two paths, which comes first, or that neither must (contract sections 4, 6; rulings 9, 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Path = tuple[tuple[int, int], ...]
"""Tokens as (number of the activation in the tree, ordinal of its yield)."""

Branches = Callable[[int, int], bool | None]
"""Of two different activations below one yield: whether the first comes first; ``None`` where nothing says so."""

Item = TypeVar("Item")


def common(paths: Sequence[Path]) -> Path:
    """The longest common prefix."""
    shortest, longest = min(paths), max(paths)
    for index, token in enumerate(shortest):
        if token != longest[index]:
            return shortest[:index]
    return shortest


def precedes(p: Path, q: Path, branches: Branches) -> bool | None:
    """Whether ``p`` comes before ``q``: ``None`` where they are equal or no rule compares them."""
    for (a, i), (b, j) in zip(p, q, strict=False):
        if a != b:
            return branches(a, b)
        if i != j:
            return i < j
    return None if len(p) == len(q) else len(p) < len(q)


def is_extension(
    actual: Sequence[Any], items: Sequence[tuple[Any, Item]], before: Callable[[Item, Item], bool | None]
) -> bool:
    """Whether ``actual`` lists the values of ``items`` (value, item), each after all that come before it."""
    if len(actual) != len(items):
        return False
    if not actual:
        return True
    for index, (value, item) in enumerate(items):
        if value != actual[0]:
            continue
        rest = [other for position, other in enumerate(items) if position != index]
        if not any(before(other, item) is True for _, other in rest) and is_extension(actual[1:], rest, before):
            return True
    return False

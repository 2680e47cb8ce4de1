"""Tokens and paths: where a yield comes from (contract section 1; paper 3.2, A.1).

A path is a chain of tokens. Paths are never copied: a token points to the one before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omniflow_backend.runtime.activation import Activation

PathKey = tuple[tuple[int, int, int, int], ...]


class Token:
    """One yield. The path to it is its ``parent`` chain; its work is counted under ``lease_parent``.

    The two differ after joins: the path goes on from the longest common prefix, the leases from the anchor (ruling 5).
    ``scope`` maps every anchor node to its latest token on the path.
    ``pending`` counts, per target, outstanding work under this token; ``buckets`` are the open buckets of joins
    anchored here.
    """

    __slots__ = (
        "activation",
        "buckets",
        "depth",
        "event",
        "lease_parent",
        "node",
        "ordinal",
        "parent",
        "pending",
        "scope",
    )

    def __init__(
        self,
        node: int,
        activation: Activation | None,
        ordinal: int,
        event: int,
        parent: Token | None,
        lease_parent: Token | None,
        scope: Mapping[int, Token],
    ) -> None:
        self.node = node
        self.activation = activation
        self.ordinal = ordinal
        self.event = event
        self.parent = parent
        self.lease_parent = lease_parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.scope = scope
        self.pending: dict[int, int] = {}
        self.buckets: dict[int, Any] = {}

    def chain(self) -> Iterator[Token]:
        """The tokens of the path, innermost first, without the entry."""
        token: Token = self
        while token.parent is not None:
            yield token
            token = token.parent

    def is_prefix_of(self, other: Token) -> bool:
        """Whether this path is the beginning of (or equal to) the other's."""
        while other.depth > self.depth:
            assert other.parent is not None
            other = other.parent
        return other is self


def common_prefix(a: Token, b: Token) -> Token:
    """The last token that two paths of one call share; the call's entry if none is nearer."""
    while a.depth > b.depth:
        assert a.parent is not None
        a = a.parent
    while b.depth > a.depth:
        assert b.parent is not None
        b = b.parent
    while a is not b:
        assert a.parent is not None
        assert b.parent is not None
        a, b = a.parent, b.parent
    return a


def order_key(token: Token, above: int, ranks: Mapping[int, int]) -> PathKey:
    """Sorts paths that share their first ``above`` tokens into generation order, outermost ordinal first.

    Where two paths part at different nodes, ``ranks`` (the position in the ``bind`` call) decides.
    """
    key = []
    while token.depth > above:
        activation, parent = token.activation, token.parent
        assert activation is not None
        assert parent is not None
        node = token.node
        key.append((ranks.get(node, len(ranks)), node, activation.alternative, token.ordinal))
        token = parent
    key.reverse()
    return tuple(key)


def show_path(token: Token, name: Any) -> str:
    """The path in words, as in the paper: ``parser.parse[0]:vit.encode[1]``; ``name`` maps a node's index to its
    name.
    """
    return ":".join(f"{name(t.node)}[{t.ordinal}]" for t in reversed(list(token.chain())))

"""Colours that pictures of a plan share: each anchor has one, and its joins wear it."""

from __future__ import annotations

from collections.abc import Sequence

from omniflow_backend.planning.plan import ENTRY

CALL_ANCHOR = "#b35900"
_ANCHORS = ("#0b7285", "#9c36b5", "#c2255c", "#364fc7", "#2b8a3e", "#862e9c")


def anchor_colour(anchors: Sequence[int], anchor: int) -> str:
    """The colour of ``anchor``, one of ``anchors``.

    The call has its own: a join there is legal, but often not meant (contract ruling 7).
    """
    if anchor == ENTRY:
        return CALL_ANCHOR
    nodes = [node for node in anchors if node != ENTRY]
    return _ANCHORS[nodes.index(anchor) % len(_ANCHORS)]

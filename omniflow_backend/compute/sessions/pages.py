"""How a history lies in pages of the Global Params Pool: one record for each position, and rows of embeddings beside.

Both parameters are kept on the CPU and cannot be recomputed. A page of embeddings has the id of the page of records
that it belongs to, and exists where one of those positions is embedded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from memory_manager.pools.declaration import ElementType, ParameterDeclaration, Recomputation, Tier
from omniflow_backend.compute.prefix import EmbeddedSpan
from omniflow_backend.compute.sessions.history import History

Array = np.ndarray[Any, Any]

PAGE_POSITIONS = 32
CONTENT_ID_BYTES = 32
_TEXT = -1
_RECORD = np.dtype([("token", "<i4"), ("turn", "<i4"), ("row", "<i4"), ("content", "u1", CONTENT_ID_BYTES)])
"""`row` counts the rows of one payload; -1 for text."""


def declare_records(name: str, tiers: Mapping[Tier, int]) -> ParameterDeclaration:
    """The parameter with what each position is."""
    return _declare(name, ElementType.UINT8, _RECORD.itemsize, tiers)


def declare_embeddings(name: str, hidden_size: int, tiers: Mapping[Tier, int]) -> ParameterDeclaration:
    """The parameter with the rows of embedded positions."""
    return _declare(f"{name}_embeddings", ElementType.FLOAT32, hidden_size, tiers)


def page_count(positions: int) -> int:
    """Pages that so many positions take."""
    return -(-positions // PAGE_POSITIONS)


def has_embeddings(history: History, page: int) -> bool:
    """Whether one of the page's positions is embedded."""
    return bool(history.spans_within(page * PAGE_POSITIONS, (page + 1) * PAGE_POSITIONS))


def write_page(history: History, page: int, records: Array, embeddings: Array | None) -> None:
    """Fill a page of records, uint8 `[PAGE_POSITIONS, record]`, and its embeddings, float32 `[PAGE_POSITIONS, hidden]`
    if it `has_embeddings`.
    """
    start = page * PAGE_POSITIONS
    tokens = history.tokens_within(start, start + PAGE_POSITIONS)
    found = np.zeros(PAGE_POSITIONS, _RECORD)
    found["row"] = _TEXT
    found["token"][: len(tokens)] = tokens
    found["turn"][: len(tokens)] = [history.turn_of(start + offset) for offset in range(len(tokens))]
    for span in history.spans_within(start, start + PAGE_POSITIONS):
        first, end = max(span.start, start), min(span.end, start + len(tokens))
        place, rows = slice(first - start, end - start), slice(first - span.start, end - span.start)
        found["row"][place] = range(rows.start, rows.stop)
        found["content"][place] = np.frombuffer(span.content_id, np.uint8)
        assert embeddings is not None
        embeddings[place] = span.embeddings[rows]
    records[...] = found.view(np.uint8).reshape(PAGE_POSITIONS, _RECORD.itemsize)


def read_pages(length: int, records: Sequence[Array], embeddings: Mapping[int, Array]) -> History:
    """The history of `length` positions that lies in these pages.

    Args:
        records: uint8 `[PAGE_POSITIONS, record]` of each page.
        embeddings: float32 `[PAGE_POSITIONS, hidden]` by the number of the page, for those in `embedded_pages`.
    """
    if not records:
        return History()
    found = np.concatenate([np.ascontiguousarray(page).view(_RECORD)[:, 0] for page in records])[:length]
    turn_starts = np.flatnonzero(np.diff(found["turn"], prepend=-1)).tolist()
    spans = [_read_span(found, start, embeddings) for start in np.flatnonzero(found["row"] == 0).tolist()]
    return History(length, len(spans), len(turn_starts), found["token"].tolist(), spans, turn_starts)


def embedded_pages(length: int, records: Sequence[Array]) -> list[int]:
    """The numbers of the pages that have embeddings."""
    pages = []
    for page, content in enumerate(records):
        rows = np.ascontiguousarray(content).view(_RECORD)[:, 0]["row"]
        if (rows[: length - page * PAGE_POSITIONS] != _TEXT).any():
            pages.append(page)
    return pages


def _read_span(found: Array, start: int, embeddings: Mapping[int, Array]) -> EmbeddedSpan:
    rows = found["row"][start:]
    ends = np.flatnonzero(rows != np.arange(len(rows)))
    end = start + (int(ends[0]) if len(ends) else len(rows))
    parts = []
    for page in range(start // PAGE_POSITIONS, page_count(end)):
        offset = page * PAGE_POSITIONS
        parts.append(embeddings[page][max(start, offset) - offset : end - offset])
    return EmbeddedSpan(start, found["content"][start].tobytes(), np.concatenate(parts))


def _declare(name: str, dtype: ElementType, size: int, tiers: Mapping[Tier, int]) -> ParameterDeclaration:
    return ParameterDeclaration(
        name=name,
        sub_names=(),
        slice_dims=(),
        page_size=PAGE_POSITIONS,
        shape=(size,),
        dtype=dtype,
        recomputation=Recomputation.PRESERVED,
        tiers=tiers,
    )

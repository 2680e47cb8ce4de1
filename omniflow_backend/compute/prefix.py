"""What a prompt consists of, and the page ids that name its prefixes (paper, 5.1).

A position is a token, or one row of embeddings that stands where a placeholder token would. Its identity is the token
id, or the payload's content id and the row's number: the same placeholder with another picture is another position. The
pages of a prompt are chained: an id hashes the page's positions and the id before, so it names everything up to there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

PositionId: TypeAlias = int | bytes
"""A token's id, or the identity of one embedded row."""

_VERSION = b"omniflow-page-1"
_CONTENT_VERSION = b"omniflow-content-1"
_MAX_CONTENT_ID = 255 - 4


class PageHash(StrEnum):
    """How pages are hashed: `sha256` where tenants do not trust each other; `xxh3_128`, faster, inside one domain of
    trust, as others could make pages that collide.
    """

    SHA256 = "sha256"
    XXH3_128 = "xxh3_128"

    @property
    def digest(self) -> Callable[[bytes], bytes]:
        """Bytes to their hash."""
        if self is PageHash.SHA256:
            return _sha256
        import xxhash

        return xxhash.xxh3_128_digest


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddedSpan:
    """Embeddings in place of the tokens at `start` and after.

    Args:
        content_id: of the payload they were made from, see `content_id`: 1 to 251 bytes.
        embeddings: float32 `[positions, hidden]`, at least one position.
    """

    start: int
    content_id: bytes
    embeddings: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        if not 1 <= len(self.content_id) <= _MAX_CONTENT_ID:
            raise ValueError(f"a content id has 1 to {_MAX_CONTENT_ID} bytes, not {len(self.content_id)}")
        if self.embeddings.ndim != 2 or self.embeddings.dtype != np.float32 or 0 in self.embeddings.shape:
            raise ValueError(
                f"embeddings must be float32 [positions, hidden] and not empty, "
                f"not {self.embeddings.dtype} {self.embeddings.shape}"
            )
        if self.start < 0:
            raise ValueError(f"a span cannot start at position {self.start}")

    @property
    def end(self) -> int:
        """The position after the last one."""
        return self.start + len(self.embeddings)

    @property
    def position_ids(self) -> list[PositionId]:
        """The identity of each position."""
        return [self.content_id + row.to_bytes(4, "little") for row in range(len(self.embeddings))]


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """What the model reads: tokens, and embeddings where a span covers them.

    Args:
        token_ids: one for each position; under a span it is the placeholder's.
        spans: ordered by position, not overlapping.
        salt: whose prompt it is: no page is shared between different salts.
        boundary: positions that were there before the new input: keys and values may be reused up to here. `None` where
            nothing tells old from new: all of them may.

    Raises:
        ValueError: for spans that overlap, are out of order or reach beyond the last token, and for a boundary beyond.
    """

    token_ids: tuple[int, ...]
    spans: tuple[EmbeddedSpan, ...] = ()
    salt: bytes = b""
    boundary: int | None = None

    def __post_init__(self) -> None:
        if self.boundary is not None and not 0 <= self.boundary <= len(self.token_ids):
            raise ValueError(f"the boundary {self.boundary} does not lie within the {len(self.token_ids)} tokens")
        covered = 0
        for span in self.spans:
            if span.start < covered or span.end > len(self.token_ids):
                raise ValueError(
                    f"the span of positions {span.start} to {span.end} must begin at {covered} or later "
                    f"and end within the {len(self.token_ids)} tokens"
                )
            covered = span.end

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def position_ids(self) -> list[PositionId]:
        """The identity of each position."""
        ids: list[PositionId] = list(self.token_ids)
        for span in self.spans:
            ids[span.start : span.end] = span.position_ids
        return ids


def content_id(payload: bytes | memoryview, *, options: bytes = b"", model: str) -> bytes:
    """The identity of a payload as one model sees it: 32 bytes.

    Args:
        options: of the preprocessing, in one canonical form.
        model: the encoder with everything that changes its output.
    """
    found = hashlib.sha256(_framed(_CONTENT_VERSION, model.encode(), options))
    found.update(payload)
    return found.digest()


class PageChain:
    """The page ids of a growing run of positions. Appending costs what is appended, not what is there already.

    A chain covers the version of this scheme, page size, model and salt: chains that differ in one of them share no id.

    Args:
        page_size: positions of a page.
        salt: see `Prompt`.
        model: the model whose pages are named, with everything that changes its keys and values.
    """

    __slots__ = ("_digest", "_page_ids", "_positions", "_root", "page_size")

    def __init__(
        self, page_size: int, salt: bytes = b"", model: str = "", page_hash: PageHash = PageHash.SHA256
    ) -> None:
        if page_size < 1:
            raise ValueError(f"a page has at least 1 position, not {page_size}")
        self.page_size = page_size
        self._digest = page_hash.digest
        self._root = self._digest(_framed(_VERSION, str(page_size).encode(), model.encode(), salt))
        self._page_ids: list[bytes] = []
        self._positions: list[PositionId] = []

    def __len__(self) -> int:
        """Positions, those of an incomplete page too."""
        return len(self._positions)

    @property
    def page_ids(self) -> Sequence[bytes]:
        """Of the complete pages, in order."""
        return self._page_ids

    @property
    def tail_id(self) -> bytes | None:
        """The id of the incomplete page at the end, which no complete page ever has; `None` if there is none."""
        start = len(self._page_ids) * self.page_size
        return self._page_id(start) if start < len(self._positions) else None

    def extend(self, position_ids: Iterable[PositionId]) -> None:
        """Append positions."""
        self._positions.extend(position_ids)
        for start in range(len(self._page_ids) * self.page_size, len(self) - self.page_size + 1, self.page_size):
            self._page_ids.append(self._page_id(start))

    def truncate(self, length: int) -> None:
        """Keep the first `length` positions.

        Raises:
            ValueError: if there are fewer, or `length` is negative.
        """
        if not 0 <= length <= len(self):
            raise ValueError(f"a chain of {len(self)} positions cannot be cut to {length}")
        del self._positions[length:]
        del self._page_ids[length // self.page_size :]

    def fork(self) -> PageChain:
        """A chain that goes on from here by itself; the ids so far are copied, not computed."""
        other = PageChain.__new__(PageChain)
        other.page_size, other._digest, other._root = self.page_size, self._digest, self._root
        other._page_ids, other._positions = self._page_ids.copy(), self._positions.copy()
        return other

    def _page_id(self, start: int) -> bytes:
        number = start // self.page_size
        before = self._page_ids[number - 1] if number else self._root
        return self._digest(before + _encoded(self._positions[start : start + self.page_size]))


def _encoded(positions: Sequence[PositionId]) -> bytes:
    """Different positions never have the same encoding: the kind comes first, then positions of a self-told length."""
    try:
        return b"T" + struct.pack(f"<{len(positions)}q", *positions)
    except struct.error:
        return b"M" + b"".join(chain.from_iterable(map(_encoded_position, positions)))


def _encoded_position(position: PositionId) -> tuple[bytes, bytes]:
    if isinstance(position, int):
        return b"\0", struct.pack("<q", position)
    return len(position).to_bytes(1, "little"), position


def _framed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()

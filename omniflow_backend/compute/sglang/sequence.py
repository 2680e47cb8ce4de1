"""The state of one request inside the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from omniflow_backend.compute.generation import GenerationChunk, GenerationRequest
from omniflow_backend.compute.output import OutputBuilder


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One request in the engine, known by ``number``, which no other request ever has.

    ``computed`` tokens have their keys and values in the pool; ``row`` and ``reserved`` are set while it is admitted.
    """

    number: int
    request: GenerationRequest
    maximum_tokens: int
    output: OutputBuilder
    deliver: Callable[[GenerationChunk | BaseException], None]
    token_ids: list[int] = field(default_factory=list)
    computed: int = 0
    row: int = 0

    def __post_init__(self) -> None:
        self.token_ids = list(self.request.prompt.token_ids)

    @property
    def reserved(self) -> int:
        """The slots it can need at most: the last token sampled is never computed."""
        return len(self.request.prompt) + self.maximum_tokens - 1

    @property
    def pending(self) -> int:
        """Tokens known but not computed: one while decoding, more while the prompt is read."""
        return len(self.token_ids) - self.computed

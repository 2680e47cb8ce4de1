"""What one text generation is, whatever engine runs it: parameters, request, chunks, errors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol

from omniflow_backend.compute.prefix import Prompt
from omniflow_backend.errors import BadInput, OmniFlowError


class EngineFailed(OmniFlowError):
    """The engine stopped working; every request it had ended with this, and no new one is accepted."""


class EngineClosed(OmniFlowError):
    """The engine was closed while the request was in it, or before it came."""


class EngineBusy(OmniFlowError):
    """The waiting queue is full; the request was not accepted. Try again later or elsewhere."""


class FinishReason(StrEnum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers an option may be; an open end is excluded."""

    low: float
    high: float
    low_open: bool = False

    def contains(self, value: float) -> bool:
        above = value > self.low if self.low_open else value >= self.low
        return above and value <= self.high

    def __str__(self) -> str:
        high = "infinity)" if self.high == math.inf else f"{self.high:g}]"
        return f"{'(' if self.low_open else '['}{self.low:g}, {high}"


_REAL_RANGES: Mapping[str, Range] = {
    "temperature": Range(0.0, 100.0),
    "top_p": Range(0.0, 1.0, low_open=True),
    "min_p": Range(0.0, 1.0),
    "repetition_penalty": Range(0.0, 2.0, low_open=True),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
}
_INTEGER_RANGES: Mapping[str, Range] = {
    "top_k": Range(-1, 2**30),
    "max_tokens": Range(1, 2**30),
    "seed": Range(0, 2**62),
    "logprobs": Range(0, 20),
    "n": Range(1, 1),
}
_MAY_BE_NONE = frozenset({"seed", "logprobs"})
_MAXIMUM_STOPS = 32


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """How the next token is chosen and when to stop. The defaults are greedy.

    ``temperature`` 0 takes the most likely token. ``top_k`` -1 is the whole vocabulary. The penalties look at
    generated tokens, not at the prompt. ``stop`` strings end the text and are not part of it. ``seed`` makes a
    sampled text repeatable, whatever else is in the batch; it cannot be combined with ``min_p``. ``logprobs`` n asks
    for the log probability of each token and of the n most likely ones (of the model's distribution after penalties,
    before temperature). ``max_tokens`` is cut to what fits the model's context.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int = 128
    seed: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    n: int = 1

    def __post_init__(self) -> None:
        for name, allowed in _REAL_RANGES.items():
            _check_number(name, getattr(self, name), allowed, whole=False)
        for name, allowed in _INTEGER_RANGES.items():
            value = getattr(self, name)
            if not (value is None and name in _MAY_BE_NONE):
                _check_number(name, value, allowed, whole=True)
        if self.top_k == 0:
            raise BadInput("sampling parameter 'top_k' is 0; it must be -1 (the whole vocabulary) or at least 1")
        if self.seed is not None and self.min_p > 0 and not self.greedy:
            raise BadInput("sampling parameters 'seed' and 'min_p' cannot be combined: leave one of them out")
        if not isinstance(self.ignore_eos, bool):
            raise BadInput(f"sampling parameter 'ignore_eos' must be true or false, not {self.ignore_eos!r}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < 1e-6 or self.top_k == 1

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> SamplingParameters:
        """The parameters named in ``options``, the defaults for the rest.

        Raises ``BadInput`` for an unknown option (naming the nearest known one), a wrong type, or a value out of range.
        """
        if options is None:
            return cls()
        if not isinstance(options, Mapping):
            raise BadInput(f"sampling parameters must be a JSON object, not {type(options).__name__}")
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                raise BadInput(f"unknown sampling parameter {name!r}{_nearest(str(name), known)}")
        values = dict(options)
        if "stop" in values:
            values["stop"] = _stop_strings(values["stop"])
        if "stop_token_ids" in values:
            values["stop_token_ids"] = _token_ids(values["stop_token_ids"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to continue. ``request_id`` is the caller's own; two requests may bear the same."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParameters = field(default_factory=SamplingParameters)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token's log probability, and the most likely tokens at its position as (id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request; ``completion_tokens`` counts every sampled token, an end-of-text token too."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """What one step added.

    ``token_ids`` are the tokens sampled since the last chunk. ``text_delta`` is the text that is certain now: it may
    lag behind the tokens (half a character, the beginning of a stop string) and never holds a stop string. The last
    chunk has a ``finish_reason``.
    """

    token_ids: tuple[int, ...]
    text_delta: str
    usage: Usage
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """A moment of an engine. Slots and rows in use are zero when nothing runs. Tokens and requests count since the
    start.
    """

    running: int
    waiting: int
    total_slots: int
    free_slots: int
    reserved_slots: int
    total_rows: int
    free_rows: int
    steps: int
    largest_batch: int
    prefill_tokens: int
    decode_tokens: int
    finished: int
    aborted: int


class GenerationStream(Protocol):
    """The chunks of one request, for one reader in the event loop that asked for them."""

    def __aiter__(self) -> GenerationStream: ...

    async def __anext__(self) -> GenerationChunk: ...

    def abort(self) -> None:
        """End this request at the next step boundary, from any thread; the stream then ends with reason ``abort``."""
        ...

    async def aclose(self) -> None:
        """Stop reading; the request is aborted when it has not finished."""
        ...


class Engine(Protocol):
    """Runs generations, many at a time."""

    @property
    def context_length(self) -> int:
        """The most tokens a request may have, prompt and answer together."""
        ...

    def generate(self, request: GenerationRequest) -> GenerationStream:
        """Queue ``request``; called in an event loop.

        Raises ``BadInput`` (empty, too long, ids outside the vocabulary), ``EngineBusy``, ``EngineClosed`` or
        ``EngineFailed``.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Abort every request that bears this id, from any thread; unknown ids are ignored."""
        ...

    def statistics(self) -> EngineStatistics: ...

    def close(self) -> None:
        """Stop the engine; requests still in it end with ``EngineClosed``."""
        ...


def _check_number(name: str, value: object, allowed: Range, *, whole: bool) -> None:
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise BadInput(
            f"sampling parameter {name!r} must be {'a whole number' if whole else 'a number'}, not {value!r}"
        )
    if not allowed.contains(value):  # type: ignore[arg-type]
        raise BadInput(f"sampling parameter {name!r} is {value!r}; it must be in {allowed}")


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _listed(name: str, value: object, is_item: Callable[[object], bool], what: str) -> tuple[Any, ...]:
    items = value if isinstance(value, (list, tuple)) else (value,)
    if len(items) > _MAXIMUM_STOPS:
        raise BadInput(f"sampling parameter {name!r} has {len(items)} entries; at most {_MAXIMUM_STOPS} are allowed")
    if not all(is_item(item) for item in items):
        raise BadInput(f"sampling parameter {name!r} must be a list of {what}, not {value!r}")
    return tuple(items)


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    return _listed("stop", value, lambda item: isinstance(item, str) and item != "", "non-empty strings")


def _token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return _listed("stop_token_ids", value, lambda item: type(item) is int and item >= 0, "token ids")

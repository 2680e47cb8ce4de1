"""From sampled tokens to chunks: text, stop conditions, usage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from omniflow_backend.compute.detokenizer import IncrementalDetokenizer, StopStringFilter
from omniflow_backend.compute.generation import FinishReason, GenerationChunk, SamplingParameters, TokenLogprob, Usage


class OutputBuilder:
    """The output side of one request: takes each sampled token, gives the chunk to send.

    ``max_tokens`` is the number of tokens this request may sample (at least 1), ``end_of_text`` the model's own stop
    tokens.
    """

    def __init__(
        self,
        sampling: SamplingParameters,
        *,
        prompt_tokens: int,
        max_tokens: int,
        end_of_text: Collection[int],
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self._stop_tokens = frozenset(sampling.stop_token_ids) | (
            frozenset() if sampling.ignore_eos else frozenset(end_of_text)
        )
        self._prompt_tokens = prompt_tokens
        self._max_tokens = max_tokens
        self._completion_tokens = 0
        self._detokenizer = IncrementalDetokenizer(decode)
        self._filter = StopStringFilter(sampling.stop)

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> GenerationChunk:
        """The chunk for one sampled token; its ``finish_reason`` says whether it was the last."""
        self._completion_tokens += 1
        logprobs = None if logprob is None else (logprob,)
        if token_id in self._stop_tokens:
            return self._chunk((token_id,), self._tail(), FinishReason.STOP, logprobs)
        text = self._filter.push(self._detokenizer.push(token_id))
        if self._filter.stopped:
            return self._chunk((token_id,), text, FinishReason.STOP, logprobs)
        if self._completion_tokens >= self._max_tokens:
            return self._last(token_id, text, logprobs)
        return self._chunk((token_id,), text, None, logprobs)

    def abort(self) -> GenerationChunk:
        """The last chunk of a request that is ended early, with the text held back so far."""
        return self._chunk((), self._tail(), FinishReason.ABORT, None)

    def _last(self, token_id: int, text: str, logprobs: tuple[TokenLogprob, ...] | None) -> GenerationChunk:
        tail = self._tail()
        reason = FinishReason.STOP if self._filter.stopped else FinishReason.LENGTH
        return self._chunk((token_id,), text + tail, reason, logprobs)

    def _tail(self) -> str:
        text = self._filter.push(self._detokenizer.finish())
        return text if self._filter.stopped else text + self._filter.finish()

    def _chunk(
        self,
        token_ids: tuple[int, ...],
        text: str,
        reason: FinishReason | None,
        logprobs: tuple[TokenLogprob, ...] | None,
    ) -> GenerationChunk:
        return GenerationChunk(token_ids, text, Usage(self._prompt_tokens, self._completion_tokens), reason, logprobs)

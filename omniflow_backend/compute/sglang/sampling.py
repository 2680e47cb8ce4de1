"""The next tokens of a batch, by SGLang's sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.sampling.sampling_params import SamplingParams

from omniflow_backend.compute.generation import SamplingParameters, TokenLogprob
from omniflow_backend.compute.sglang.sequence import TokenSequence


class Route(Enum):
    """The ways through SGLang's sampler.

    Which way a batch goes depends on all its rows, and the ways draw their random numbers differently. Rows that
    would go different ways alone are therefore sampled apart: so a greedy row is a plain argmax and a seeded row
    draws the same numbers whatever its neighbours are.
    """

    GREEDY = auto()
    SEEDED = auto()
    SEEDED_FILTERED = auto()
    UNSEEDED = auto()

    @classmethod
    def of(cls, sampling: SamplingParameters) -> Route:
        """The way a row would go alone."""
        if sampling.greedy:
            return cls.GREEDY
        if sampling.seed is None:
            return cls.UNSEEDED
        filtered = sampling.top_p < 1.0 or sampling.top_k > 0
        return cls.SEEDED_FILTERED if filtered else cls.SEEDED


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sequence's next token."""

    token_id: int
    logprob: TokenLogprob | None


@dataclass(slots=True, eq=False)
class _Row:
    """What ``SamplingBatchInfo`` reads of a request."""

    sequence: TokenSequence
    sampling_params: SamplingParams
    return_sampling_mask: bool = False
    sampling_logprobs_mode: str = "selected"
    custom_logit_processor: str | None = None


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Rows:
    """What ``SamplingBatchInfo`` reads of a batch; its penalties keep a weak reference to it."""

    reqs: list[_Row]
    device: str = "cpu"


@dataclass(slots=True, eq=False)
class _Group:
    """The sequences that go one way, and SGLang's state of them (penalties accumulate in it)."""

    rows: _Rows
    info: SamplingBatchInfo


@dataclass(slots=True, eq=False)
class BatchSampler:
    """Samples for a changing set of sequences. Used by one thread."""

    runner: Any
    _groups: dict[Route, _Group] = field(default_factory=dict)

    @classmethod
    def of(cls, runner: Any, sequences: Sequence[TokenSequence]) -> BatchSampler:
        """A sampler for sequences before their first token."""
        by_route: dict[Route, list[TokenSequence]] = {}
        for sequence in sequences:
            by_route.setdefault(Route.of(sequence.request.sampling), []).append(sequence)
        return cls(runner, {route: _new_group(runner, members) for route, members in by_route.items()})

    def merge(self, other: BatchSampler) -> None:
        """Take over the sequences of ``other``, which is not used afterwards."""
        for route, theirs in other._groups.items():
            if route not in self._groups:
                self._groups[route] = theirs
                continue
            mine = self._groups[route]
            # SGLang prepares the penalties of both sides from their rows as they were: merge before the rows are
            # joined.
            mine.info.merge_batch(theirs.info)
            mine.rows.reqs = mine.rows.reqs + theirs.rows.reqs

    def leave(self, sequences: Sequence[TokenSequence]) -> None:
        """Forget sequences that ended; unknown ones are ignored."""
        leaving = set(map(id, sequences))
        for route, group in list(self._groups.items()):
            keep = [index for index, row in enumerate(group.rows.reqs) if id(row.sequence) not in leaving]
            if not keep:
                del self._groups[route]
            elif len(keep) < len(group.rows.reqs):
                # Here the other way round: SGLang asks the remaining rows which penalties are still needed.
                group.rows.reqs = [group.rows.reqs[index] for index in keep]
                group.info.filter_batch(keep, torch.tensor(keep, dtype=torch.int64))

    def sample(self, sequences: Sequence[TokenSequence], logits: torch.Tensor) -> list[Sampled]:
        """The next token of each sequence, from its row of ``logits`` ``[len(sequences), vocabulary]``.

        The sequences must be all that are in the set; ``logits`` is overwritten.
        """
        position = {id(sequence): index for index, sequence in enumerate(sequences)}
        sampled: list[Sampled | None] = [None] * len(sequences)
        for group in self._groups.values():
            indices = [position[id(row.sequence)] for row in group.rows.reqs]
            for index, result in zip(indices, self._sample_group(group, logits[indices]), strict=True):
                sampled[index] = result
        return [result for result in sampled if result is not None]

    def _sample_group(self, group: _Group, logits: torch.Tensor) -> list[Sampled]:
        requested = [row.sequence.request.sampling.logprobs for row in group.rows.reqs]
        output = LogitsProcessorOutput(next_token_logits=logits)
        lengths = torch.tensor([len(row.sequence.token_ids) for row in group.rows.reqs], dtype=torch.int64)
        rows = torch.tensor([row.sequence.row for row in group.rows.reqs], dtype=torch.int64)
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=len(requested),
            input_ids=None,
            req_pool_indices=rows,
            seq_lens=lengths,
            out_cache_loc=None,
            seq_lens_sum=0,
            positions=lengths - 1,
            sampling_info=group.info,
            return_logprob=any(count is not None for count in requested),
            top_logprobs_nums=[count or 0 for count in requested],
            token_ids_logprobs=[None] * len(requested),
        )
        with torch.no_grad():
            token_ids = self.runner.sample(output, batch).to(torch.int64)
        group.info.penalizer_orchestrator.cumulate_output_tokens(token_ids)
        ids = token_ids.tolist()
        return [Sampled(ids[i], _logprob(output, i, ids[i], count)) for i, count in enumerate(requested)]


def _new_group(runner: Any, members: Sequence[TokenSequence]) -> _Group:
    rows = _Rows([_Row(sequence, _to_sglang(sequence.request.sampling)) for sequence in members])
    info = SamplingBatchInfo.from_schedule_batch(rows, runner.model_config.vocab_size)
    seeds = [row.sequence.request.sampling.seed for row in rows.reqs]
    if all(seed is not None for seed in seeds) and not info.is_all_greedy:
        info.sampling_seed = torch.tensor(seeds, dtype=torch.int64)
    return _Group(rows, info)


def _to_sglang(sampling: SamplingParameters) -> SamplingParams:
    return SamplingParams(
        max_new_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        sampling_seed=sampling.seed,
    )


def _logprob(output: LogitsProcessorOutput, row: int, token_id: int, requested: int | None) -> TokenLogprob | None:
    if requested is None:
        return None
    top: tuple[tuple[int, float], ...] = ()
    if requested > 0:
        ids, values = output.next_token_top_logprobs_idx[row], output.next_token_top_logprobs_val[row]
        top = tuple((int(i), float(v)) for i, v in zip(ids, values, strict=True) if v > -math.inf)
    return TokenLogprob(token_id, float(output.next_token_logprobs[row]), top)

"""Continuous batching: what runs in the next step. No threads and no clock in here."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from omniflow_backend.compute.generation import EngineStatistics, GenerationChunk
from omniflow_backend.compute.sglang.forward import Piece, forward
from omniflow_backend.compute.sglang.sampling import BatchSampler, Sampled
from omniflow_backend.compute.sglang.sequence import TokenSequence
from omniflow_backend.compute.sglang.slots import SlotPool


@dataclass(frozen=True, slots=True)
class Delivery:
    """A chunk for the reader of a sequence."""

    sequence: TokenSequence
    chunk: GenerationChunk


class Scheduler:
    """The requests of one runner, from waiting to finished; one thread calls it.

    ``waiting -> reading -> decoding -> finished``: first come, first served, when a row and the slots it can need at
    most are free. One step decodes one token of every request that has read its prompt, then reads at most
    ``prefill_budget`` prompt tokens, whole prompts or pieces, in one pass: so a request that arrives joins the batch
    at the next step, and a long prompt does not hold up the others for long.
    """

    def __init__(self, runner: Any, *, prefill_budget: int) -> None:
        self._runner = runner
        self._pool = SlotPool(runner)
        self._sampler = BatchSampler(runner)
        self._prefill_budget = prefill_budget
        self._waiting: deque[TokenSequence] = deque()
        self._reading: list[TokenSequence] = []
        self._decoding: list[TokenSequence] = []
        self._steps = self._largest_batch = self._prefill_tokens = self._decode_tokens = 0
        self._finished = self._aborted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._reading or self._decoding)

    def add(self, sequence: TokenSequence) -> None:
        self._waiting.append(sequence)

    def abort(self, numbers: Collection[int]) -> list[Delivery]:
        """End the sequences with these numbers; their slots are free afterwards. Those that finished already are
        ignored.
        """
        everyone = (*self._waiting, *self._reading, *self._decoding)
        ended = [Delivery(sequence, sequence.output.abort()) for sequence in everyone if sequence.number in numbers]
        self._aborted += len(ended)
        self._end([delivery.sequence for delivery in ended])
        return ended

    def step(self) -> list[Delivery]:
        """Admit, decode, read prompts: at most two forward passes."""
        self._steps += 1
        self._admit()
        return [*self._decode(), *self._read()]

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            running=len(self._reading) + len(self._decoding),
            waiting=len(self._waiting),
            total_slots=self._pool.total_slots,
            free_slots=self._pool.free_slots,
            reserved_slots=self._pool.reserved_slots,
            total_rows=self._pool.total_rows,
            free_rows=self._pool.free_rows,
            steps=self._steps,
            largest_batch=self._largest_batch,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            finished=self._finished,
            aborted=self._aborted,
        )

    def _admit(self) -> None:
        while self._waiting:
            row = self._pool.acquire(self._waiting[0].reserved)
            if row is None:
                return
            sequence = self._waiting.popleft()
            sequence.row = row
            self._reading.append(sequence)

    def _decode(self) -> list[Delivery]:
        """One more token of every sequence whose prompt is read."""
        if not self._decoding:
            return []
        sequences = list(self._decoding)
        self._largest_batch = max(self._largest_batch, len(sequences))
        logits = self._compute([self._piece(sequence, 1) for sequence in sequences])
        self._decode_tokens += len(sequences)
        return self._take(sequences, self._sampler.sample(sequences, logits))

    def _read(self) -> list[Delivery]:
        """One pass over prompt tokens; sequences whose prompt is complete get their first token and decode from the
        next step on.
        """
        pieces, budget = [], self._prefill_budget
        for sequence in self._reading:
            if budget == 0:
                break
            pieces.append(self._piece(sequence, min(sequence.pending, budget)))
            budget -= pieces[-1].count
        if not pieces:
            return []
        logits = self._compute(pieces)
        self._prefill_tokens += self._prefill_budget - budget
        complete = [index for index, piece in enumerate(pieces) if piece.sequence.pending == 0]
        if not complete:
            return []
        sequences = [pieces[index].sequence for index in complete]
        self._reading = [sequence for sequence in self._reading if sequence not in sequences]
        self._decoding.extend(sequences)
        newcomers = BatchSampler.of(self._runner, sequences)
        sampled = newcomers.sample(sequences, logits[complete])
        self._sampler.merge(newcomers)
        return self._take(sequences, sampled)

    def _piece(self, sequence: TokenSequence, count: int) -> Piece:
        return Piece(sequence, count, self._pool.extend(sequence.row, sequence.computed, count))

    def _compute(self, pieces: Sequence[Piece]) -> torch.Tensor:
        logits = forward(self._runner, pieces)
        for piece in pieces:
            piece.sequence.computed = piece.length
        return logits

    def _take(self, sequences: Sequence[TokenSequence], sampled: Sequence[Sampled]) -> list[Delivery]:
        """Give each sequence its new token; those that end leave the batch and return their slots."""
        deliveries = []
        for sequence, token in zip(sequences, sampled, strict=True):
            sequence.token_ids.append(token.token_id)
            deliveries.append(Delivery(sequence, sequence.output.push(token.token_id, token.logprob)))
        ended = [delivery.sequence for delivery in deliveries if delivery.chunk.finish_reason is not None]
        self._finished += len(ended)
        self._end(ended)
        return deliveries

    def _end(self, ended: Sequence[TokenSequence]) -> None:
        if not ended:
            return
        self._sampler.leave(ended)
        for sequence in ended:
            if sequence in self._waiting:
                self._waiting.remove(sequence)
            else:
                self._pool.release(sequence.row, sequence.computed, sequence.reserved)
        self._reading = [sequence for sequence in self._reading if sequence not in ended]
        self._decoding = [sequence for sequence in self._decoding if sequence not in ended]

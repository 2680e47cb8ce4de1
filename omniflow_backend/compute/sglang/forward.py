"""Forward passes over slots that the caller chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from omniflow_backend.compute.prefix import EmbeddedSpan
from omniflow_backend.compute.sglang.sequence import TokenSequence


@dataclass(frozen=True, slots=True)
class Piece:
    """The next ``count`` tokens of a sequence, to be computed into ``slots`` (int64 ``[count]``)."""

    sequence: TokenSequence
    count: int
    slots: torch.Tensor

    @property
    def length(self) -> int:
        """The sequence's computed length after this pass."""
        return self.sequence.computed + self.count

    @property
    def embedded(self) -> list[tuple[int, torch.Tensor]]:
        """Embeddings that stand in for tokens of this piece: from which of its tokens on, and ``[tokens, hidden]``."""
        begin, end = self.sequence.computed, self.length
        return [
            (max(0, span.start - begin), _rows(span, begin, end))
            for span in self.sequence.request.prompt.spans
            if span.start < end and begin < span.end
        ]


def _rows(span: EmbeddedSpan, begin: int, end: int) -> torch.Tensor:
    return torch.from_numpy(span.embeddings[max(0, begin - span.start) : end - span.start])


def forward(runner: Any, pieces: Sequence[Piece]) -> torch.Tensor:
    """Compute the pieces in one pass; logits after each piece's last token, float32 ``[len(pieces), vocabulary]``.

    Pieces of one token each are a decode pass, any others an extend pass. The sequences' ``computed`` is left to the
    caller.
    """
    decode = all(piece.count == 1 and piece.sequence.computed > 0 and not piece.embedded for piece in pieces)
    batch = _decode_batch(pieces) if decode else _extend_batch(pieces)
    with torch.no_grad():
        logits: torch.Tensor = runner.forward(batch).logits_output.next_token_logits
    return logits


def _common(pieces: Sequence[Piece]) -> dict[str, Any]:
    lengths = [piece.length for piece in pieces]
    lengths_tensor = torch.tensor(lengths, dtype=torch.int64)
    tokens = [token for piece in pieces for token in piece.sequence.token_ids[piece.sequence.computed : piece.length]]
    return {
        "batch_size": len(pieces),
        "input_ids": torch.tensor(tokens, dtype=torch.int64),
        "req_pool_indices": torch.tensor([piece.sequence.row for piece in pieces], dtype=torch.int64),
        "seq_lens": lengths_tensor,
        "seq_lens_cpu": lengths_tensor,
        "orig_seq_lens": lengths_tensor.to(torch.int32),
        "out_cache_loc": torch.cat([piece.slots for piece in pieces]),
        "seq_lens_sum": sum(lengths),
        "spec_algorithm": SpeculativeAlgorithm.NONE,
        "capture_hidden_mode": CaptureHiddenMode.NULL,
    }


def _decode_batch(pieces: Sequence[Piece]) -> ForwardBatch:
    common = _common(pieces)
    return ForwardBatch(forward_mode=ForwardMode.DECODE, positions=common["seq_lens"] - 1, **common)


def _extend_batch(pieces: Sequence[Piece]) -> ForwardBatch:
    counts = [piece.count for piece in pieces]
    prefixes = [piece.sequence.computed for piece in pieces]
    counts_tensor = torch.tensor(counts, dtype=torch.int32)
    return ForwardBatch(
        forward_mode=ForwardMode.EXTEND,
        positions=torch.cat([torch.arange(piece.sequence.computed, piece.length) for piece in pieces]),
        extend_num_tokens=sum(counts),
        extend_seq_lens=counts_tensor,
        extend_seq_lens_cpu=counts,
        extend_prefix_lens=torch.tensor(prefixes, dtype=torch.int32),
        extend_prefix_lens_cpu=prefixes,
        extend_start_loc=(counts_tensor.cumsum(0) - counts_tensor).to(torch.int32),
        extend_logprob_start_lens_cpu=counts,
        **_replacements(pieces),
        **_common(pieces),
    )


def _replacements(pieces: Sequence[Piece]) -> dict[str, torch.Tensor]:
    """SGLang keeps these in the model's own precision, unlike ``input_embeds``, which it rounds to bfloat16."""
    embeddings, positions, start = [], [], 0
    for piece in pieces:
        for offset, rows in piece.embedded:
            embeddings.append(rows)
            positions.append(torch.arange(start + offset, start + offset + len(rows)))
        start += piece.count
    return {"replace_embeds": torch.cat(embeddings), "replace_positions": torch.cat(positions)} if embeddings else {}

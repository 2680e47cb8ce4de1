"""Embeddings in a prompt: they enter the model exactly, wherever a piece of the prompt is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omniflow_backend import BadInput
from omniflow_backend.compute.generation import GenerationRequest, SamplingParameters
from omniflow_backend.compute.prefix import EmbeddedSpan, Prompt
from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.models.smollm2.checkpoint import prepare
from tests.compute.conftest import Asker

pytestmark = [pytest.mark.model, pytest.mark.slow]

HIDDEN = 576
PREFILL_BUDGET = 64


@pytest.fixture(scope="module")
def reference() -> Any:
    declare_torchvision_operators()
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(prepare(), dtype=torch.float32).eval()


def span_of(reference: Any, start: int, token_ids: tuple[int, ...], noise: float = 0.0) -> EmbeddedSpan:
    """What the model itself would put there for `token_ids`, disturbed."""
    rows = reference.get_input_embeddings().weight[list(token_ids)].detach().numpy()
    disturbed = rows + noise * np.random.default_rng(start).standard_normal(rows.shape)
    return EmbeddedSpan(start, bytes([start % 256]), disturbed.astype(np.float32))


def expected(reference: Any, prompt: Prompt, count: int) -> list[int]:
    embeddings = reference.get_input_embeddings()(torch.tensor([prompt.token_ids])).detach()
    for span in prompt.spans:
        embeddings[0, span.start : span.end] = torch.from_numpy(span.embeddings)
    with torch.no_grad():
        output = reference.generate(
            inputs_embeds=embeddings, attention_mask=torch.ones(1, len(prompt)), max_new_tokens=count, do_sample=False
        )
    return [int(token) for token in output[0]]


def request(prompt: Prompt, count: int = 8) -> GenerationRequest:
    return GenerationRequest("r", prompt, SamplingParameters(max_tokens=count, temperature=0.0))


def test_greedy_tokens_over_embeddings_equal_transformers_alone_and_in_a_batch(asker: Asker, reference: Any) -> None:
    words = asker.llm.tokenizer.encode("The capital of France is a city that everybody knows, and its name is")
    prompts = [
        Prompt(words, (span_of(reference, 2, words[5:8], 0.1),)),
        Prompt(words, (span_of(reference, 0, words[:1], 0.1), span_of(reference, 6, words[2:6], 0.1))),
        Prompt(words),
        # Longer than one pass reads: the first span lies across the cut, the second begins right after it.
        Prompt(
            words * 6,
            (
                span_of(reference, PREFILL_BUDGET - 2, words[:2] + words[:2], 0.1),
                span_of(reference, PREFILL_BUDGET + 2, words[:3], 0.1),
            ),
        ),
        # The last position itself.
        Prompt(words, (span_of(reference, len(words) - 2, words[-2:], 0.1),)),
    ]
    wanted = [expected(reference, prompt, 8) for prompt in prompts]

    async def test() -> None:
        alone = [await asker.collect(asker.engine.generate(request(prompt))) for prompt in prompts]
        assert [one.token_ids for one in alone] == wanted
        streams = [asker.engine.generate(request(prompt)) for prompt in prompts]
        together = [await asker.collect(stream) for stream in streams]
        assert [one.token_ids for one in together] == wanted

    asker.run(test)


def test_the_placeholder_under_an_embedding_does_not_matter(asker: Asker, reference: Any) -> None:
    words = asker.llm.tokenizer.encode("The capital of France is")
    answers = []

    async def test() -> None:
        for placeholder in (0, 100):
            token_ids = (*words[:3], placeholder, *words[4:])
            prompt = Prompt(token_ids, (span_of(reference, 3, words[3:4]),))
            answers.append((await asker.collect(asker.engine.generate(request(prompt)))).text)
        answers.append((await asker.collect(asker.engine.generate(request(Prompt(words))))).text)

    asker.run(test)
    assert len(set(answers)) == 1, "the token's own embedding in its place is the token"


def test_embeddings_of_another_width_are_refused_and_harm_nobody(asker: Asker) -> None:
    async def test() -> None:
        span = EmbeddedSpan(1, b"x", np.zeros((1, HIDDEN - 1), np.float32))
        with pytest.raises(BadInput, match="the embeddings at position 1 are 575 wide; this model's are 576"):
            asker.engine.generate(request(Prompt((1, 2, 3), (span,))))
        assert (await asker.ask("Hello", max_tokens=2)).token_ids

    asker.run(test)

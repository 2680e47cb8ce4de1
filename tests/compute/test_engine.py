"""The engine on the real model: exact, continuous, abortable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omniflow_backend.compute.generation import EngineBusy, FinishReason
from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.errors import BadInput
from omniflow_backend.models.smollm2.checkpoint import prepare
from omniflow_backend.models.smollm2.tokenizer import Message

pytestmark = pytest.mark.model

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n",
    "1, 2, 3, 4, 5,",
    "Water boils at",
    "Dear Sir or Madam,\n",
    "Die Hauptstadt von Deutschland ist",
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "Q: Who wrote Hamlet?\nA:",
    "The three primary colours are",
    "import numpy as np\n\n",
    "The river ran past the old mill, " * 12,
)
TOKENS = 8


@pytest.fixture(scope="module")
def reference() -> Any:
    """``transformers`` on the same checkpoint."""
    declare_torchvision_operators()
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(prepare(progress=False), dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def greedy(reference: Any, asker: Any) -> dict[str, list[int]]:
    """Greedy continuations of the prompts by ``transformers``."""
    import torch

    continuations = {}
    for prompt in PROMPTS:
        ids = torch.tensor([asker.llm.tokenizer.encode(prompt)])
        with torch.no_grad():
            output = reference.generate(ids, max_new_tokens=TOKENS, do_sample=False)
        continuations[prompt] = output[0, ids.shape[1] :].tolist()
    return continuations


class TestGreedyTokens:
    def test_equal_transformers_one_at_a_time(self, asker: Any, greedy: dict[str, list[int]]) -> None:
        async def test() -> None:
            for prompt in PROMPTS:
                assert (await asker.ask(prompt, max_tokens=TOKENS)).token_ids == greedy[prompt]

        asker.run(test)

    def test_equal_transformers_when_requests_join_and_leave_the_batch(
        self, asker: Any, greedy: dict[str, list[int]]
    ) -> None:
        """Each request starts when the one before has given its first tokens; a sampled neighbour runs all along."""

        async def test() -> None:
            neighbour = asyncio.create_task(asker.ask("Noise", max_tokens=40, temperature=1.0, ignore_eos=True))
            running = []
            for prompt in PROMPTS:
                stream = asker.stream(prompt, max_tokens=TOKENS)
                first = [await anext(stream)]
                running.append((prompt, first, asyncio.create_task(asker.collect(stream))))
            for prompt, first, rest in running:
                tokens = [token for chunk in first for token in chunk.token_ids] + (await rest).token_ids
                assert tokens == greedy[prompt]
            await neighbour

        asker.run(test)
        assert asker.engine.statistics().largest_batch >= 2, "nobody joined anybody"

    def test_equal_transformers_in_a_full_batch(self, asker: Any, greedy: dict[str, list[int]]) -> None:
        rows = asker.engine.statistics().total_rows
        prompts = PROMPTS[:rows]

        async def test() -> None:
            answers = await asyncio.gather(*(asker.ask(prompt, max_tokens=TOKENS) for prompt in prompts))
            assert [answer.token_ids for answer in answers] == [greedy[prompt] for prompt in prompts]

        asker.run(test)
        assert asker.engine.statistics().largest_batch >= rows - 1, "eight tokens are time enough for all to join"

    def test_are_not_changed_by_reading_the_prompt_in_pieces(self, asker: Any, reference: Any) -> None:
        import torch

        ids = asker.llm.tokenizer.encode("It was the best of times, it was the worst of times. " * 20)[:200]
        assert len(ids) > 3 * 64, "the prompt must need several steps of the configured 64 tokens"

        async def test() -> None:
            with torch.no_grad():
                expected = reference.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids) :]
            assert (await asker.ask(ids, max_tokens=8)).token_ids == expected.tolist()

        asker.run(test)

    def test_logprobs_are_those_of_the_model(self, asker: Any, reference: Any) -> None:
        import torch

        async def test() -> None:
            ids = asker.llm.tokenizer.encode("The capital of France is")
            result = await asker.ask(ids, max_tokens=4, logprobs=3, temperature=0.7, seed=3)
            everything = torch.tensor([[*ids, *result.token_ids]])
            with torch.no_grad():
                expected = torch.log_softmax(reference(everything).logits[0], dim=-1)
            for offset, logprob in enumerate(result.logprobs):
                row = expected[len(ids) - 1 + offset]
                assert logprob.token_id == result.token_ids[offset]
                assert logprob.logprob == pytest.approx(float(row[logprob.token_id]), abs=1e-3)
                assert [token for token, _ in logprob.top] == row.topk(3).indices.tolist()

        asker.run(test)


class TestContinuousBatching:
    def test_a_request_joins_a_running_batch(self, asker: Any) -> None:
        async def test() -> None:
            long = asker.stream("Once upon a time", max_tokens=24, ignore_eos=True)
            await anext(long)
            short = await asker.ask("The capital of France is", max_tokens=3)
            assert short.reason is FinishReason.LENGTH
            rest = await asker.collect(long)
            assert len(rest.token_ids) > 12, "the long request was in its first half when the short one finished"

        asker.run(test)

    def test_more_requests_than_rows_wait_their_turn(self, asker: Any) -> None:
        async def test() -> None:
            results = await asyncio.gather(*(asker.ask("One, two,", max_tokens=3 + n) for n in range(10)))
            assert [len(result.token_ids) for result in results] == [3 + n for n in range(10)]

        asker.run(test)

    def test_a_full_waiting_queue_refuses(self, asker: Any) -> None:
        async def test() -> None:
            streams = [asker.stream("One, two,", max_tokens=2) for _ in range(8 + 3)]
            with pytest.raises(EngineBusy, match="3 requests are waiting"):
                asker.stream("One, two,")
            await asyncio.gather(*map(asker.collect, streams))

        asker.run(test)

    def test_requests_with_one_id_do_not_mix(self, asker: Any) -> None:
        async def test() -> None:
            prompts = ("The capital of France is", "1, 2, 3, 4,")
            alone = [await asker.ask(prompt, max_tokens=5) for prompt in prompts]
            together = await asyncio.gather(*(asker.collect(asker.stream(p, "same", max_tokens=5)) for p in prompts))
            assert [result.text for result in together] == [result.text for result in alone]

        asker.run(test)


class TestAbort:
    @pytest.mark.parametrize("how", ["stream.abort", "stream.aclose", "engine.abort"])
    def test_leaves_the_batch_and_the_others_go_on(self, asker: Any, how: str) -> None:
        async def test() -> None:
            expected = (await asker.ask("1, 2, 3, 4,", max_tokens=10)).token_ids
            doomed = asker.stream("Once upon a time", "doomed", max_tokens=400, ignore_eos=True)
            other = asyncio.create_task(asker.ask("1, 2, 3, 4,", max_tokens=10))
            await anext(doomed)
            await anext(doomed)
            if how == "stream.aclose":
                await doomed.aclose()
                assert [chunk async for chunk in doomed] == []
            else:
                doomed.abort() if how == "stream.abort" else asker.engine.abort("doomed")
                rest = await asker.collect(doomed)
                assert rest.reason is FinishReason.ABORT
                assert len(rest.token_ids) < 5
            assert (await other).token_ids == expected

        before = asker.engine.statistics()
        asker.run(test)
        after = asker.engine.statistics()
        assert after.aborted == before.aborted + 1
        assert after.finished == before.finished + 2

    def test_reaches_a_request_that_waits_and_one_that_reads_its_prompt(self, asker: Any) -> None:
        async def test() -> None:
            prompt = asker.llm.tokenizer.encode("It was the best of times. " * 60)[:200]
            reading = [asker.stream(prompt, "doomed", max_tokens=5) for _ in range(8)]
            waiting = asker.stream("One", "doomed", max_tokens=5)
            asker.engine.abort("doomed")
            for stream in (*reading, waiting):
                assert (await asker.collect(stream)).reason is FinishReason.ABORT

        asker.run(test)

    def test_of_a_finished_or_unknown_request_does_nothing(self, asker: Any) -> None:
        async def test() -> None:
            stream = asker.stream("One, two,", max_tokens=2)
            await asker.collect(stream)
            stream.abort()
            asker.engine.abort("nobody")
            assert (await asker.ask("One, two,", max_tokens=2)).reason is FinishReason.LENGTH

        before = asker.engine.statistics().aborted
        asker.run(test)
        assert asker.engine.statistics().aborted == before


class TestStopConditions:
    @pytest.mark.parametrize("start", [3, 8])
    def test_a_stop_string_that_spans_tokens_never_leaks(self, asker: Any, start: int) -> None:
        async def test() -> None:
            prompt = "Once upon a time there was a"
            text = (await asker.ask(prompt, max_tokens=12)).text
            stop = text[start : start + 14]
            result = await asker.ask(prompt, max_tokens=12, stop=[stop, "never there"])
            assert result.text == text[: text.index(stop)]
            assert result.reason is FinishReason.STOP
            spanned = [chunk for chunk in result.chunks if chunk.text_delta == ""]
            assert len(spanned) >= 2, "the stop string must need more than one token"

        asker.run(test)

    def test_text_held_back_for_a_stop_string_comes_at_the_end(self, asker: Any) -> None:
        async def test() -> None:
            prompt = "Once upon a time there was a"
            text = (await asker.ask(prompt, max_tokens=6)).text
            result = await asker.ask(prompt, max_tokens=6, stop=text[-4:] + "then something else")
            assert result.text == text
            assert result.reason is FinishReason.LENGTH

        asker.run(test)

    def test_a_stop_token_ends_and_is_not_text(self, asker: Any) -> None:
        async def test() -> None:
            full = await asker.ask("1, 2, 3, 4,", max_tokens=8)
            stop = full.token_ids[5]
            result = await asker.ask("1, 2, 3, 4,", max_tokens=8, stop_token_ids=[stop])
            cut = full.token_ids.index(stop)
            assert result.token_ids == full.token_ids[: cut + 1]
            assert result.text == asker.llm.tokenizer.decode(full.token_ids[:cut])
            assert result.reason is FinishReason.STOP

        asker.run(test)

    def test_usage_counts_the_prompt_and_every_sampled_token(self, asker: Any) -> None:
        async def test() -> None:
            ids = asker.llm.tokenizer.chat([Message("user", "What is the capital of France?")])
            result = await asker.ask(ids, max_tokens=20)
            usage = result.chunks[-1].usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), len(result.token_ids))
            assert result.text == "The capital of France is Paris."
            assert result.reason is FinishReason.STOP

        asker.run(test)


class TestLimits:
    def test_a_prompt_over_the_context_is_refused_with_both_lengths(self, asker: Any) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match=r"256 tokens.*256 tokens"):
                asker.stream([5] * 256)

        asker.run(test)

    def test_the_answer_is_cut_to_the_context(self, asker: Any) -> None:
        async def test() -> None:
            result = await asker.ask([5] * 253, max_tokens=100, ignore_eos=True)
            assert len(result.token_ids) == 3
            assert result.reason is FinishReason.LENGTH

        asker.run(test)

    @pytest.mark.parametrize(("ids", "message"), [([], "empty"), ([1, 49152], "vocabulary"), ([-1], "vocabulary")])
    def test_token_ids_that_no_model_can_read_are_refused(self, asker: Any, ids: list[int], message: str) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match=message):
                asker.stream(ids)

        asker.run(test)


class TestSampling:
    def test_a_seed_gives_the_same_text_alone_and_in_a_batch(self, asker: Any) -> None:
        async def test() -> None:
            for options in ({}, {"top_p": 0.9, "top_k": 40}):
                settings: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 8, **options}
                alone = await asker.ask("Once upon a time", **settings)
                same, *_ = await asyncio.gather(
                    asker.ask("Once upon a time", **settings),
                    asker.ask("Greedy", max_tokens=6),
                    asker.ask("Unseeded", temperature=1.2, top_p=0.8, min_p=0.01, max_tokens=6),
                    asker.ask("Seeded", temperature=1.0, seed=8, top_k=5, max_tokens=6),
                    asker.ask("Penalised", temperature=1.0, seed=9, presence_penalty=1.0, max_tokens=6),
                )
                assert same.token_ids == alone.token_ids

        asker.run(test)

    def test_seeds_and_no_seeds_differ(self, asker: Any) -> None:
        async def test() -> None:
            seeded = [(await asker.ask("Once upon", temperature=1.5, seed=seed, max_tokens=8)).text for seed in (1, 2)]
            unseeded = [(await asker.ask("Once upon", temperature=1.5, max_tokens=8)).text for _ in range(2)]
            assert len({*seeded, *unseeded}) == 4

        asker.run(test)

    @pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}])
    def test_filters_at_their_limit_are_greedy(self, asker: Any, options: dict[str, Any]) -> None:
        async def test() -> None:
            greedy = await asker.ask("Once upon a time", max_tokens=8)
            filtered = await asker.ask("Once upon a time", max_tokens=8, temperature=1.0, **options)
            assert filtered.token_ids == greedy.token_ids

        asker.run(test)

    def test_top_k_takes_only_the_k_most_likely(self, asker: Any) -> None:
        async def test() -> None:
            result = await asker.ask("Once upon a time", temperature=5.0, top_k=2, seed=1, max_tokens=16, logprobs=2)
            choices = [[token for token, _ in step.top].index(step.token_id) for step in result.logprobs]
            assert set(choices) == {0, 1}

        asker.run(test)

    @pytest.mark.parametrize(
        ("options", "repeats"),
        [
            ({"frequency_penalty": 2.0, "presence_penalty": 2.0}, False),
            ({"repetition_penalty": 2.0}, False),
            ({}, True),
        ],
    )
    def test_penalties_prevent_repetition(self, asker: Any, options: dict[str, float], repeats: bool) -> None:
        """In a batch that others leave and join: each row keeps its own counts."""

        async def test() -> None:
            penalised, *_ = await asyncio.gather(
                asker.ask("ha ha ha ha ha ha ha", max_tokens=14, **options),
                asker.ask("ha ha ha ha", max_tokens=4, repetition_penalty=1.5),
                asker.ask("ha ha ha ha", max_tokens=6),
            )
            assert (max(map(penalised.token_ids.count, penalised.token_ids)) > 5) is repeats

        asker.run(test)


def test_characters_of_several_tokens_arrive_whole(asker: Any) -> None:
    async def test() -> None:
        prompt = "Emoji: 😀 🎉 🚀 😀 🎉 🚀 😀 🎉 🚀 😀 🎉"
        result = await asker.ask(prompt, max_tokens=24)
        assert result.text == asker.llm.tokenizer.decode(result.token_ids)
        assert any(len(chunk.text_delta.encode()) >= 4 and not chunk.text_delta.isascii() for chunk in result.chunks)
        whole = [chunk.text_delta for chunk in result.chunks[:-1]]
        assert all("\ufffd" not in delta for delta in whole)

    asker.run(test)


def test_the_engine_serves_loops_of_several_threads(asker: Any) -> None:
    import threading

    texts: list[str] = []

    def ask() -> None:
        async def one() -> None:
            texts.append((await asker.ask("The capital of France is", max_tokens=4)).text)

        asyncio.run(asyncio.wait_for(one(), 60))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(texts) == 3
    assert len(set(texts)) == 1

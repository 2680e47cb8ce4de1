"""The role: streams, sentences, sessions, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from omniflow_backend.compute.history import Message, Turn
from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.errors import BadInput
from omniflow_backend.models.smollm2.checkpoint import prepare
from omniflow_backend.models.smollm2.role import Llm, LlmOptions

pytestmark = pytest.mark.model

QUESTION = "What is the capital of France?"


class Context:
    """The context of one activation, as drivers give it."""

    node = "llm"
    activation_id = "a"
    deadline = None

    def __init__(self, session_id: str | None = None) -> None:
        self.request_id = "r"
        self.session_id = session_id
        self.cancelled = False
        self._callbacks: list[Callable[[], None]] = []

    def raise_if_cancelled(self) -> None:
        if self.cancelled:
            raise asyncio.CancelledError

    def on_cancel(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def cancel(self) -> None:
        self.cancelled = True
        for callback in self._callbacks:
            callback()


def chat(llm: Llm, prompt: str, context: Context | None = None, **inputs: Any) -> AsyncIterator[dict[str, Any]]:
    given = {"sampling_parameters": None, "system": None, **inputs}
    return llm.chat(context or Context(), prompt=prompt, **given)  # type: ignore[arg-type]


def generate(llm: Llm, prompt: str, **sampling: Any) -> AsyncIterator[dict[str, Any]]:
    return llm.generate(Context(), prompt=prompt, sampling_parameters=sampling)  # type: ignore[arg-type]


async def everything(yields: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [values async for values in yields]


def joined(yields: list[dict[str, Any]], output: str) -> str:
    return "".join(values[output] for values in yields if output in values)


class TestChat:
    def test_answers_through_the_chat_template(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            yields = await everything(chat(llm, QUESTION))
            assert joined(yields, "text") == "The capital of France is Paris."
            done = yields[-1]["done"]
            assert (done["finish_reason"], done["prompt_tokens"], done["completion_tokens"]) == ("stop", 37, 8)
            assert 0 < done["ttft_s"] < 60
            assert all("done" not in values for values in yields[:-1])

        asker.run(test)

    def test_sentences_joined_are_the_text_and_each_comes_when_complete(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            prompt = "Say hello. Then say who you are. Then say goodbye."
            yields = await everything(chat(llm, prompt, sampling_parameters={"max_tokens": 40}))
            sentences = [values["sentence"] for values in yields if "sentence" in values]
            assert "".join(sentences) == joined(yields, "text")
            assert len(sentences) >= 2
            first = next(index for index, values in enumerate(yields) if "sentence" in values)
            assert first < len(yields) - 3, "the first sentence comes while the text still grows"

        asker.run(test)

    def test_the_system_message_is_the_one_given(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            plain = (await everything(chat(llm, QUESTION)))[-1]["done"]["prompt_tokens"]
            other = (await everything(chat(llm, QUESTION, system="Hi.")))[-1]["done"]["prompt_tokens"]
            expected = len(llm.tokenizer.chat([Message("system", "Hi."), Message("user", QUESTION)]))
            assert other == expected != plain

        asker.run(test)

    @pytest.mark.parametrize("prompt", ["", " \n"])
    def test_an_empty_prompt_is_refused(self, llm: Llm, asker: Any, prompt: str) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match="empty"):
                await everything(chat(llm, prompt))

        asker.run(test)

    def test_a_prompt_over_the_context_is_refused_with_both_lengths(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match=r"\d{4} tokens.*256 tokens"):
                await everything(chat(llm, "word " * 2000))

        asker.run(test)

    @pytest.mark.parametrize(
        ("sampling", "told"), [({"temprature": 1}, "temperature"), ({"top_p": 3}, "top_p"), ([1], "JSON object")]
    )
    def test_bad_sampling_parameters_are_refused(self, llm: Llm, asker: Any, sampling: Any, told: str) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match=told):
                await everything(chat(llm, QUESTION, sampling_parameters=sampling))

        asker.run(test)


class TestGenerate:
    def test_continues_the_prompt_as_it_stands(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            expected = await asker.ask("The capital of France is", max_tokens=5)
            yields = await everything(generate(llm, "The capital of France is", max_tokens=5))
            assert joined(yields, "text") == expected.text
            assert yields[-1]["done"]["finish_reason"] == "length"
            assert yields[-1]["done"]["completion_tokens"] == 5

        asker.run(test)

    def test_the_roles_sampling_options_are_the_defaults(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            assert (await everything(generate(llm, "1, 2, 3,")))[-1]["done"]["completion_tokens"] == 16

        asker.run(test)

    def test_an_empty_prompt_is_refused(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            with pytest.raises(BadInput, match="empty"):
                await everything(generate(llm, ""))

        asker.run(test)


class TestSession:
    def test_the_next_turn_knows_the_one_before(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            await everything(chat(llm, QUESTION, Context("knows")))
            yields = await everything(chat(llm, "And of Germany?", Context("knows")))
            assert "Berlin" in joined(yields, "text")
            messages = [
                Message("user", QUESTION),
                Message("assistant", "The capital of France is Paris."),
                Message("user", "And of Germany?"),
            ]
            assert yields[-1]["done"]["prompt_tokens"] == len(llm.tokenizer.chat(messages))

        asker.run(test)

    def test_without_a_session_nothing_is_remembered(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            first = await everything(chat(llm, QUESTION))
            second = await everything(chat(llm, QUESTION))
            assert first[-1]["done"]["prompt_tokens"] == second[-1]["done"]["prompt_tokens"]

        asker.run(test)

    @pytest.mark.parametrize("how", ["cancelled", "closed"])
    def test_a_turn_that_does_not_complete_leaves_the_session_as_before(self, llm: Llm, asker: Any, how: str) -> None:
        async def test() -> None:
            before = Turn(Message("user", "Hi."), Message("assistant", "Hello."))
            llm.history.commit(how, before)
            context = Context(how)
            yields = chat(llm, "Tell me a long story.", context, sampling_parameters={"max_tokens": 300})
            await anext(yields)
            if how == "cancelled":
                context.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await everything(yields)
            else:
                await yields.aclose()  # type: ignore[attr-defined]
            await asker.ask("One", max_tokens=1)
            assert llm.history.turns(how) == [before]

        aborted = asker.engine.statistics().aborted
        asker.run(test)
        assert asker.engine.statistics().aborted == aborted + 1

    def test_the_oldest_turns_are_left_out_when_the_context_is_full(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            for number in range(4):
                told = Turn(Message("user", f"{number} " + "word " * 70), Message("assistant", "Yes."))
                llm.history.commit("long", told)
            yields = await everything(chat(llm, QUESTION, Context("long"), sampling_parameters={"max_tokens": 4}))
            prompt = yields[-1]["done"]["prompt_tokens"]
            kept = [m for t in llm.history.turns("long")[-3:-1] for m in (t.user, t.assistant)]
            assert prompt == len(llm.tokenizer.chat([*kept, Message("user", QUESTION)]))

        asker.run(test)

    def test_a_call_cancelled_before_it_starts_reaches_no_engine(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            context = Context()
            context.cancel()
            with pytest.raises(asyncio.CancelledError):
                await everything(chat(llm, QUESTION, context))

        steps = asker.engine.statistics().steps
        asker.run(test)
        assert asker.engine.statistics().steps == steps


@pytest.mark.parametrize(
    "messages",
    [
        [Message("user", "Hi 😀")],
        [Message("system", "Be brief."), Message("user", "a\nb "), Message("assistant", "c"), Message("user", "d")],
    ],
)
def test_the_chat_template_gives_the_tokens_that_transformers_gives(llm: Llm, messages: list[Message]) -> None:
    declare_torchvision_operators()
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(prepare(progress=False))
    listed = [{"role": message.role, "content": message.content} for message in messages]
    expected = theirs.apply_chat_template(listed, add_generation_prompt=True)["input_ids"]
    assert list(llm.tokenizer.chat(messages)) == expected


class TestOptions:
    def test_redis_is_the_named_one_then_the_environments_then_the_runtime_directorys(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
    ) -> None:
        monkeypatch.delenv("OMNIFLOW_REDIS_URL", raising=False)
        monkeypatch.setenv("OMNIFLOW_RUNTIME_DIR", str(tmp_path))
        assert LlmOptions().find_redis() is None
        (tmp_path / "redis.sock").touch()
        assert LlmOptions().find_redis() == f"unix://{tmp_path}/redis.sock"
        monkeypatch.setenv("OMNIFLOW_REDIS_URL", "redis://env")
        assert LlmOptions().find_redis() == "redis://env"
        assert LlmOptions(redis_url="redis://option").find_redis() == "redis://option"

    def test_an_unknown_option_is_an_error(self) -> None:
        with pytest.raises(TypeError, match="contxt_length"):
            Llm(contxt_length=5).load()

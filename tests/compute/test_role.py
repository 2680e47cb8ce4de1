"""The role: streams, sentences, sessions, refusals."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omniflow_backend.compute.sessions.errors import SessionFull
from omniflow_backend.compute.sessions.history import History, NewPositions
from omniflow_backend.compute.sessions.store import SessionName
from omniflow_backend.compute.torchvision_operators import declare_torchvision_operators
from omniflow_backend.errors import BadInput
from omniflow_backend.models.smollm2.checkpoint import prepare
from omniflow_backend.models.smollm2.role import Llm
from omniflow_backend.models.smollm2.tokenizer import Message

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
    absent: dict[str, Any] = {"step": None, "system": None, "salt": None, "sampling_parameters": None}
    given = {**absent, **inputs}
    return llm.chat(context or Context(), prompt=prompt, **given)  # type: ignore[arg-type]


def generate(llm: Llm, prompt: str, **sampling: Any) -> AsyncIterator[dict[str, Any]]:
    return llm.generate(Context(), prompt=prompt, sampling_parameters=sampling)  # type: ignore[arg-type]


async def everything(yields: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [values async for values in yields]


def joined(yields: list[dict[str, Any]], output: str) -> str:
    return "".join(values[output] for values in yields if output in values)


def remember(llm: Llm, session: str, turns: list[tuple[str, str]]) -> list[int]:
    """Commit turns of (question, answer); the session's tokens."""
    for question, answer in turns:
        turn = llm.sessions.begin(SessionName(session))
        added = llm.conversation.question(turn.history, question, None, [])
        written = (*llm.tokenizer.encode(answer), *llm.tokenizer.closing[:1])
        llm.sessions.commit(turn, NewPositions((*added.token_ids, *written)))
    return said(llm, session)


def said(llm: Llm, session: str) -> list[int]:
    return llm.sessions.begin(SessionName(session)).history.token_ids


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
            before = remember(llm, how, [("Hi.", "Hello.")])
            context = Context(how)
            yields = chat(llm, "Tell me a long story.", context, sampling_parameters={"max_tokens": 100})
            await anext(yields)
            if how == "cancelled":
                context.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await everything(yields)
            else:
                await yields.aclose()  # type: ignore[attr-defined]
            await asker.ask("One", max_tokens=1)
            assert said(llm, how) == before

        aborted = asker.engine.statistics().aborted
        asker.run(test)
        assert asker.engine.statistics().aborted == aborted + 1

    def test_what_is_kept_are_the_tokens_that_were_read_and_written(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            await everything(chat(llm, QUESTION, Context("tokens"), sampling_parameters={"max_tokens": 3}))
            prompt = llm.tokenizer.chat([Message("user", QUESTION)])
            answer = (await asker.ask(prompt, max_tokens=3)).token_ids
            assert said(llm, "tokens") == [*prompt, *answer]

        asker.run(test)

    def test_done_tells_where_the_turn_lies_in_the_session(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            first, second = [(await everything(chat(llm, QUESTION, Context("lengths"))))[-1]["done"] for _ in range(2)]
            assert (first["boundary"], first["session_length"]) == (0, 37 + 8)
            assert second["boundary"] == first["session_length"]
            assert second["session_length"] == second["prompt_tokens"] + second["completion_tokens"]
            assert "boundary" not in (await everything(chat(llm, QUESTION)))[-1]["done"]

        asker.run(test)

    @pytest.mark.parametrize("step", [0, 30, 45, 50])
    def test_a_session_edited_anywhere_equals_a_fresh_one_with_that_text(self, llm: Llm, asker: Any, step: int) -> None:
        async def test() -> None:
            edited, fresh = f"edited {step}", f"fresh {step}"
            for question in (QUESTION, "And of Germany?"):
                await everything(chat(llm, question, Context(edited), sampling_parameters={"max_tokens": 8}))
            before = said(llm, edited)[:step]
            if before:
                llm.sessions.commit(llm.sessions.begin(SessionName(fresh)), NewPositions(tuple(before)))
            answers = [
                joined(await everything(chat(llm, "Of Italy?", Context(session), step=at)), "text")
                for session, at in ((edited, step), (fresh, None))
            ]
            assert answers[0] == answers[1]
            assert said(llm, edited) == said(llm, fresh)

        asker.run(test)

    @settings(deadline=None, max_examples=4, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(
        actions=st.lists(
            st.tuples(st.sampled_from(["turn", "cancel", "edit"]), st.integers(0, 120)), min_size=2, max_size=4
        )
    )
    def test_any_turns_edits_and_cancels_answer_as_a_replay_from_scratch(
        self, llm: Llm, asker: Any, actions: list[tuple[str, int]]
    ) -> None:
        async def test() -> None:
            session = f"any {uuid.uuid4().hex}"
            expected: list[int] = []
            for number, (action, place) in enumerate(actions):
                context, step = Context(session), place if action == "edit" else None
                question = f"What is {number} plus {place}?"
                yields = chat(llm, question, context, step=step, sampling_parameters={"max_tokens": 4})
                if action == "cancel":
                    await anext(yields)
                    context.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await everything(yields)
                else:
                    history = History().after(NewPositions(tuple(expected[:step]))) if expected[:step] else History()
                    added = llm.conversation.question(history, question, None, [])
                    asked = [*history.token_ids, *added.token_ids]
                    await everything(yields)
                    expected = [*asked, *(await asker.ask(asked, max_tokens=4)).token_ids]
                assert said(llm, session) == expected

        asker.run(test)

    def test_tenants_with_one_session_id_do_not_hear_each_other(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            for salt in ("acme", "other", None):
                done = (await everything(chat(llm, QUESTION, Context("shared"), salt=salt)))[-1]["done"]
                assert done["boundary"] == 0

        asker.run(test)

    def test_another_system_message_is_refused_in_a_session_that_has_one(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            for system in ("Be brief.", "Be brief.", None):
                await everything(chat(llm, "Hi.", Context("system"), system=system))
            with pytest.raises(BadInput, match="step=0"):
                await everything(chat(llm, "Hi.", Context("system"), system="Be long."))
            await everything(chat(llm, "Hi.", Context("system"), system="Be long.", step=0))

        asker.run(test)

    def test_the_oldest_turns_are_left_out_of_the_prompt_when_the_context_is_full(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            turns = [(f"{number} " + "word " * 70, "Yes.") for number in range(4)]
            remember(llm, "long", turns)
            yields = await everything(chat(llm, QUESTION, Context("long"), sampling_parameters={"max_tokens": 4}))
            done = yields[-1]["done"]
            kept = [
                Message(role, text)
                for turn in turns[-1:]
                for role, text in zip(("user", "assistant"), turn, strict=True)
            ]
            assert done["prompt_tokens"] == len(llm.tokenizer.chat([*kept, Message("user", QUESTION)]))
            assert done["session_length"] > 4 * 70, "the session has all of them"

        asker.run(test)

    def test_a_session_may_not_become_longer_than_its_bound(self, llm: Llm, asker: Any) -> None:
        async def test() -> None:
            before = remember(llm, "full", [("word " * 16300, "Yes.")])
            with pytest.raises(SessionFull, match="16384"):
                await everything(chat(llm, "Hi.", Context("full"), sampling_parameters={"max_tokens": 100}))
            assert said(llm, "full") == before

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


CONVERSATIONS = [
    [Message("user", "Hi 😀")],
    [Message("system", "Be brief."), Message("user", "a\nb "), Message("assistant", "c"), Message("user", "d")],
]


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_the_chat_template_gives_the_tokens_that_transformers_gives(llm: Llm, messages: list[Message]) -> None:
    declare_torchvision_operators()
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(prepare(progress=False))
    listed = [{"role": message.role, "content": message.content} for message in messages]
    expected = theirs.apply_chat_template(listed, add_generation_prompt=True)["input_ids"]
    assert list(llm.tokenizer.chat(messages)) == expected


@settings(deadline=None, max_examples=30)
@given(
    system=st.one_of(st.none(), st.text(min_size=1)),
    turns=st.lists(st.tuples(st.text(), st.text(), st.booleans()), min_size=1, max_size=4),
)
def test_a_conversation_turn_by_turn_has_the_tokens_of_the_whole_template(
    llm: Llm, system: str | None, turns: list[tuple[str, str, bool]]
) -> None:
    """Whether the model wrote the end of its answer itself, or was stopped before it."""
    history, messages = History(), [Message("system", system)] if system else []
    for question, answer, ended in turns:
        added = llm.conversation.question(history, question, system, [])
        messages.append(Message("user", question))
        assert [*history.token_ids, *added.token_ids] == list(llm.tokenizer.chat(messages))
        messages.append(Message("assistant", answer))
        written = (*llm.tokenizer.encode(answer), *llm.tokenizer.closing[:ended])
        history = history.after(NewPositions((*added.token_ids, *written)))


class TestImages:
    def ask(self, llm: Llm, prompt: str, *sizes: int) -> NewPositions:
        images = [np.full((size, 576), number, np.float32) for number, size in enumerate(sizes)]
        return llm.conversation.question(History(), prompt, None, images)

    def test_each_placeholder_is_the_next_image_and_the_text_around_it_stays(self, llm: Llm) -> None:
        added = self.ask(llm, "Is <image> like <image>?", 2, 3)
        assert [(len(span.embeddings), span.embeddings[0, 0]) for span in added.spans] == [(2, 0.0), (3, 1.0)]
        apart = [llm.tokenizer.encode(text) for text in ("Is ", " like ", "?")]
        between = [
            added.token_ids[added.spans[0].start - len(apart[0]) : added.spans[0].start],
            added.token_ids[added.spans[0].end : added.spans[1].start],
            added.token_ids[added.spans[1].end : added.spans[1].end + len(apart[2])],
        ]
        assert between == apart

    def test_without_a_placeholder_images_come_before_the_text(self, llm: Llm) -> None:
        assert self.ask(llm, "What?", 4).token_ids == self.ask(llm, "<image>What?", 4).token_ids

    def test_without_images_the_placeholder_is_text(self, llm: Llm) -> None:
        added = self.ask(llm, "What is <image>?")
        assert added.token_ids == llm.tokenizer.chat([Message("user", "What is <image>?")])

    def test_the_same_image_has_the_same_identity_and_another_one_another(self, llm: Llm) -> None:
        one, again, other = (
            llm.conversation.question(History(), "<image>", None, [np.full((2, 576), value, np.float32)]).spans[0]
            for value in (1, 1, 2)
        )
        assert one.position_ids == again.position_ids
        assert not set(one.position_ids) & set(other.position_ids)

    @pytest.mark.parametrize(
        ("prompt", "shapes", "told"),
        [("<image>", [(2, 576)] * 2, "2 images"), ("a", [(2, 5)], "576"), ("a", [(0, 576)], "positions")],
    )
    def test_images_that_do_not_fit_are_refused(
        self, llm: Llm, prompt: str, shapes: list[tuple[int, int]], told: str
    ) -> None:
        with pytest.raises(BadInput, match=told):
            llm.conversation.question(History(), prompt, None, [np.zeros(shape, np.float32) for shape in shapes])


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="contxt_length"):
        Llm(contxt_length=5).load()

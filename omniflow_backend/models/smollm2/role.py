"""The text model as a role: completion and chat, streamed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniflow_backend import (
    ActivationContext,
    BadInput,
    Int,
    Json,
    Many,
    Optional,
    Role,
    SessionLoadBalance,
    Tensor,
    Text,
    interface,
)
from omniflow_backend.compute.generation import (
    Engine,
    FinishReason,
    GenerationChunk,
    GenerationRequest,
    SamplingParameters,
)
from omniflow_backend.compute.prefix import Prompt
from omniflow_backend.compute.sentences import SentenceSplitter
from omniflow_backend.compute.sessions.connect import connect_sessions
from omniflow_backend.compute.sessions.history import History, NewPositions
from omniflow_backend.compute.sessions.sessions import Turn
from omniflow_backend.compute.sessions.store import SessionName
from omniflow_backend.models.smollm2.checkpoint import prepare
from omniflow_backend.models.smollm2.conversation import Conversation, Embeddings
from omniflow_backend.models.smollm2.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True)
class LlmOptions:
    """The role's options.

    ``checkpoint`` is a directory with another checkpoint of the same kind; without it SmolLM2 is prepared in the
    cache. ``sampling`` are defaults for sampling parameters, ``system`` the system message of chats that name none
    (else the template's own).

    ``history`` names the global parameter that keeps sessions: roles of one deployment that name the same one continue
    each other's sessions. ``history_tiers`` are its sizes, for what positions are and for embeddings each. A session
    ends after ``session_idle_s`` without a turn, and has ``maximum_history`` positions at most; of those, a prompt has
    what fits into the model's context. ``share_weights`` keeps one copy of the weights for all roles of a deployment
    with this checkpoint. The rest bounds the engine: see ``RunnerConfiguration`` and ``EngineConfiguration``.
    """

    checkpoint: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    history: str = "history_info"
    history_tiers: Mapping[str, str] = field(default_factory=lambda: {"L2": "64MiB"})
    session_idle_s: float = 24 * 3600
    maximum_history: int = 16384
    context_length: int = 2048
    total_slots: int = 8192
    maximum_running: int = 16
    maximum_waiting: int = 256
    prefill_budget: int = 512
    threads: int = 1
    share_weights: bool = True


@dataclass(slots=True)
class _Answer:
    """An answer as it grows; ``last`` is its last chunk, ``None`` until then."""

    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    token_ids: list[int] = field(default_factory=list)
    last: GenerationChunk | None = None

    def add(self, chunk: GenerationChunk) -> None:
        if self.first_token is None and chunk.token_ids:
            self.first_token = time.monotonic()
        self.token_ids += chunk.token_ids
        if chunk.finish_reason is not None:
            self.last = chunk

    @property
    def complete(self) -> bool:
        return self.last is not None and self.last.finish_reason is not FinishReason.ABORT

    def done(self) -> dict[str, Any]:
        """The value of the output ``done``."""
        assert self.last is not None
        return {
            "finish_reason": None if self.last.finish_reason is None else self.last.finish_reason.value,
            "prompt_tokens": self.last.usage.prompt_tokens,
            "completion_tokens": self.last.usage.completion_tokens,
            "ttft_s": None if self.first_token is None else self.first_token - self.started,
        }


@dataclass(frozen=True, slots=True)
class _Question:
    """A chat's prompt, and the turn that it belongs to, if it has a session."""

    prompt: Prompt
    added: NewPositions
    turn: Turn | None


_TURN_INPUTS = {
    "step": Optional(Int),
    "system": Optional(Text),
    "salt": Optional(Text),
    "sampling_parameters": Optional(Json),
}
_TURN_OUTPUTS = {"text": Text, "sentence": Text, "done": Json}


class Llm(Role):
    """SmolLM2 with continuous batching: every activation is one request of the same engine.

    The last yield of an activation is ``done``: ``finish_reason`` (``stop``, ``length``, ``abort``),
    ``prompt_tokens`` (the prefill length), ``completion_tokens`` and ``ttft_s``, the seconds to the first token; of a
    chat with a session also ``boundary``, the session's positions before this turn, and ``session_length``, those
    after it. A cancelled call leaves the batch at the next step.
    """

    @classmethod
    def prepare(cls, **options: Any) -> None:
        """Make the checkpoint in the cache, unless the options name another. Raises ``CheckpointUnavailable``."""
        if not LlmOptions(**options).checkpoint:
            prepare()

    def load(self) -> None:
        """Prepare the checkpoint if need be and start the engine: seconds, a minute the first time."""
        from omniflow_backend.compute.sglang.engine import EngineConfiguration, SglangEngine
        from omniflow_backend.compute.sglang.runner import RunnerConfiguration

        self._options = options = LlmOptions(**self.options)
        SamplingParameters.from_mapping(options.sampling)
        checkpoint = Path(options.checkpoint).absolute() if options.checkpoint else prepare()
        self.tokenizer = ChatTokenizer(checkpoint)
        configuration = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
        hidden_size = configuration["hidden_size"]
        self.conversation = Conversation(self.tokenizer, hidden_size)
        self.sessions = connect_sessions(
            f"{options.history}-{self.tokenizer.identity}",
            hidden_size,
            tiers=options.history_tiers,
            idle_s=options.session_idle_s,
            maximum_positions=options.maximum_history,
        )
        runner = RunnerConfiguration(
            checkpoint,
            context_length=options.context_length,
            total_slots=options.total_slots,
            maximum_running=options.maximum_running,
            threads=options.threads,
            share_weights=options.share_weights,
        )
        self.engine: Engine = SglangEngine(
            EngineConfiguration(runner, prefill_budget=options.prefill_budget, maximum_waiting=options.maximum_waiting),
            decode=self.tokenizer.decode,
            end_of_text=self.tokenizer.end_of_text,
        )

    def close(self) -> None:
        """Stop the engine and its thread."""
        self.engine.close()
        self.sessions.close()

    @interface(
        inputs={"prompt": Text, "sampling_parameters": Optional(Json)},
        outputs={"text": Text, "done": Json},
    )
    async def generate(
        self, ctx: ActivationContext, prompt: str, sampling_parameters: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Continue ``prompt`` as it stands, without the chat template; yields pieces of ``text``, then ``done``."""
        sampling = self._sampling(sampling_parameters)
        if not prompt:
            raise BadInput("input 'prompt' is empty")
        token_ids = await asyncio.to_thread(self.tokenizer.encode, prompt)
        answer = _Answer()
        async with aclosing(self._answer(ctx, Prompt(token_ids), sampling, answer)) as pieces:
            async for piece in pieces:
                yield {"text": piece}
        yield {"done": answer.done()}

    @interface(
        inputs={
            "prompt": Text,
            **_TURN_INPUTS,
        },
        outputs=_TURN_OUTPUTS,
        load_balance=SessionLoadBalance(),
    )
    async def chat(
        self,
        ctx: ActivationContext,
        prompt: str,
        step: int | None,
        system: str | None,
        salt: str | None,
        sampling_parameters: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Answer ``prompt`` as the next turn of the call's session, or of none.

        Yields pieces of ``text``, each complete ``sentence`` (joined they are the text again), then ``done``. The
        session has the turn when its answer is complete, and is as before until then, and if that never comes.

        Args:
            step: take back what the session said from this position on (0: all of it), then answer. Absent or
                negative: go on. Positions to go back to are those that earlier turns reported.
            system: the conversation's system message; a later turn may repeat it.
            salt: whose call it is. Tenants share neither sessions nor pages.

        Raises:
            BadInput: for an input that makes no sense, or a session that may not become longer.
            SessionLost, SessionConflict, SessionsAway: see ``compute.sessions.errors``.
        """
        async with aclosing(self._chat(ctx, prompt, (), step, system, salt, sampling_parameters)) as yields:
            async for fields in yields:
                yield fields

    @interface(
        inputs={
            "prompt": Text,
            "images": Many(Tensor("float32", (-1, -1))),
            **_TURN_INPUTS,
        },
        outputs=_TURN_OUTPUTS,
        load_balance=SessionLoadBalance(),
    )
    async def chat_about_images(
        self,
        ctx: ActivationContext,
        prompt: str,
        images: Sequence[Embeddings],
        step: int | None,
        system: str | None,
        salt: str | None,
        sampling_parameters: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Like ``chat``, with ``images``: embeddings float32 ``[positions, hidden size]``.

        They stand where ``<image>`` is in the prompt, in order, or before the prompt where it has none.
        """
        async with aclosing(self._chat(ctx, prompt, images, step, system, salt, sampling_parameters)) as yields:
            async for fields in yields:
                yield fields

    async def _chat(
        self,
        ctx: ActivationContext,
        prompt: str,
        images: Sequence[Embeddings],
        step: int | None,
        system: str | None,
        salt: str | None,
        sampling_parameters: Any,
    ) -> AsyncGenerator[dict[str, Any], None]:
        sampling = self._sampling(sampling_parameters)
        if not prompt.strip():
            raise BadInput("input 'prompt' is empty")
        name = None if ctx.session_id is None else SessionName(ctx.session_id, (salt or "").encode())
        question = await asyncio.to_thread(self._question, name, step, prompt, images, system, salt, sampling)
        answer, splitter = _Answer(), SentenceSplitter()
        async with aclosing(self._answer(ctx, question.prompt, sampling, answer)) as pieces:
            async for piece in pieces:
                sentences = splitter.push(piece)
                yield {"text": piece, "sentence": sentences[0]} if sentences else {"text": piece}
                for sentence in sentences[1:]:
                    yield {"sentence": sentence}
        for sentence in splitter.finish():
            yield {"sentence": sentence}
        done = answer.done()
        if question.turn is not None and answer.complete:
            turn, added = question.turn, question.added
            said = NewPositions((*added.token_ids, *answer.token_ids), added.spans)
            length = await asyncio.to_thread(self.sessions.commit, turn, said)
            done |= {"boundary": turn.boundary, "session_length": length}
        yield {"done": done}

    def _sampling(self, given: Any) -> SamplingParameters:
        if given is not None and not isinstance(given, Mapping):
            raise BadInput(f"input 'sampling_parameters' must be a JSON object, not {type(given).__name__}")
        return SamplingParameters.from_mapping({**self._options.sampling, **(given or {})})

    def _question(
        self,
        name: SessionName | None,
        step: int | None,
        prompt: str,
        images: Sequence[Embeddings],
        system: str | None,
        salt: str | None,
        sampling: SamplingParameters,
    ) -> _Question:
        turn = None if name is None else self.sessions.begin(name, step)
        history = History() if turn is None else turn.history
        if not history:
            system = system or self._options.system
        added = self.conversation.question(history, prompt, system, images)
        longest_answer = min(sampling.max_tokens, self.engine.context_length // 2)
        if turn is not None:
            self.sessions.check_room(turn, len(added) + longest_answer)
        kept = self.conversation.fitting(history, self.engine.context_length - longest_answer - len(added))
        return _Question(history.prompt(kept, added, (salt or "").encode()), added, turn)

    async def _answer(
        self, ctx: ActivationContext, prompt: Prompt, sampling: SamplingParameters, answer: _Answer
    ) -> AsyncGenerator[str, None]:
        """The pieces of the answer's text; ends by cancellation when the call is cancelled."""
        ctx.raise_if_cancelled()
        stream = self.engine.generate(GenerationRequest(ctx.request_id, prompt, sampling))
        ctx.on_cancel(stream.abort)
        try:
            async for chunk in stream:
                answer.add(chunk)
                if chunk.text_delta:
                    yield chunk.text_delta
            ctx.raise_if_cancelled()
        finally:
            await stream.aclose()

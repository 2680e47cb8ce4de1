"""The text model as a role: completion and chat, streamed."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniflow_backend import ActivationContext, BadInput, Json, Optional, Role, SessionLoadBalance, Text, interface
from omniflow_backend.compute.generation import (
    Engine,
    FinishReason,
    GenerationChunk,
    GenerationRequest,
    SamplingParameters,
)
from omniflow_backend.compute.history import Message, SessionHistory, Turn, conversation, open_store
from omniflow_backend.compute.sentences import SentenceSplitter
from omniflow_backend.models.smollm2.checkpoint import prepare


@dataclass(frozen=True, slots=True)
class LlmOptions:
    """The role's options.

    ``checkpoint`` is a directory with another checkpoint of the same kind; without it SmolLM2 is prepared in the
    cache. ``sampling`` are defaults for sampling parameters, ``system`` the system message of chats that name none
    (else the template's own). ``redis_url`` keeps sessions in that Redis; without it ``OMNIFLOW_REDIS_URL``, then the
    runtime directory's server, then this process's memory. The rest bounds the engine: see ``RunnerConfiguration``
    and ``EngineConfiguration``.
    """

    checkpoint: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    redis_url: str | None = None
    maximum_turns: int = 64
    context_length: int = 2048
    total_slots: int = 8192
    maximum_running: int = 16
    maximum_waiting: int = 256
    prefill_budget: int = 512
    threads: int = 1

    def find_redis(self) -> str | None:
        """The URL of the Redis that keeps the sessions."""
        named = self.redis_url or os.environ.get("OMNIFLOW_REDIS_URL")
        runtime_directory = os.environ.get("OMNIFLOW_RUNTIME_DIR")
        if named or runtime_directory is None:
            return named
        socket = Path(runtime_directory) / "redis.sock"
        return f"unix://{socket}" if socket.exists() else None


@dataclass(slots=True)
class _Answer:
    """An answer as it grows; ``last`` is its last chunk, ``None`` until then."""

    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    text: str = ""
    last: GenerationChunk | None = None

    def add(self, chunk: GenerationChunk) -> None:
        if self.first_token is None and chunk.token_ids:
            self.first_token = time.monotonic()
        self.text += chunk.text_delta
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


class Llm(Role):
    """SmolLM2 with continuous batching: every activation is one request of the same engine.

    The last yield of an activation is ``done``: ``finish_reason`` (``stop``, ``length``, ``abort``),
    ``prompt_tokens``, ``completion_tokens`` and ``ttft_s``, the seconds to the first token. A cancelled call leaves
    the batch at the next step.
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
        from omniflow_backend.models.smollm2.tokenizer import ChatTokenizer

        self._options = options = LlmOptions(**self.options)
        SamplingParameters.from_mapping(options.sampling)
        checkpoint = Path(options.checkpoint).absolute() if options.checkpoint else prepare()
        self.tokenizer = ChatTokenizer(checkpoint)
        self.history = SessionHistory(open_store(options.find_redis()), maximum_turns=options.maximum_turns)
        runner = RunnerConfiguration(
            checkpoint,
            context_length=options.context_length,
            total_slots=options.total_slots,
            maximum_running=options.maximum_running,
            threads=options.threads,
        )
        self.engine: Engine = SglangEngine(
            EngineConfiguration(runner, prefill_budget=options.prefill_budget, maximum_waiting=options.maximum_waiting),
            decode=self.tokenizer.decode,
            end_of_text=self.tokenizer.end_of_text,
        )

    def close(self) -> None:
        """Stop the engine and its thread."""
        self.engine.close()
        self.history.close()

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
        async with aclosing(self._answer(ctx, token_ids, sampling, answer)) as pieces:
            async for piece in pieces:
                yield {"text": piece}
        yield {"done": answer.done()}

    @interface(
        inputs={"prompt": Text, "sampling_parameters": Optional(Json), "system": Optional(Text)},
        outputs={"text": Text, "sentence": Text, "done": Json},
        load_balance=SessionLoadBalance(),
    )
    async def chat(
        self, ctx: ActivationContext, prompt: str, sampling_parameters: Any, system: str | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Answer ``prompt`` as the next turn of the call's session, or of none.

        Yields pieces of ``text``, each complete ``sentence`` (joined they are the text again), then ``done``. The
        turn is remembered when its answer is complete.
        """
        sampling = self._sampling(sampling_parameters)
        if not prompt.strip():
            raise BadInput("input 'prompt' is empty")
        user = Message("user", prompt)
        token_ids = await asyncio.to_thread(self._chat_prompt, ctx.session_id, user, system, sampling)
        answer, splitter = _Answer(), SentenceSplitter()
        async with aclosing(self._answer(ctx, token_ids, sampling, answer)) as pieces:
            async for piece in pieces:
                sentences = splitter.push(piece)
                yield {"text": piece, "sentence": sentences[0]} if sentences else {"text": piece}
                for sentence in sentences[1:]:
                    yield {"sentence": sentence}
        for sentence in splitter.finish():
            yield {"sentence": sentence}
        if ctx.session_id is not None and answer.complete:
            turn = Turn(user, Message("assistant", answer.text))
            await asyncio.to_thread(self.history.commit, ctx.session_id, turn)
        yield {"done": answer.done()}

    def _sampling(self, given: Any) -> SamplingParameters:
        if given is not None and not isinstance(given, Mapping):
            raise BadInput(f"input 'sampling_parameters' must be a JSON object, not {type(given).__name__}")
        return SamplingParameters.from_mapping({**self._options.sampling, **(given or {})})

    def _chat_prompt(
        self, session: str | None, user: Message, system: str | None, sampling: SamplingParameters
    ) -> tuple[int, ...]:
        """The prompt's tokens: with the newest turns that leave room for the answer."""
        text = system or self._options.system
        instructions = Message("system", text) if text else None
        turns = self.history.turns(session) if session is not None else []
        room = self.engine.context_length - min(sampling.max_tokens, self.engine.context_length // 2)
        while True:
            token_ids = self.tokenizer.chat(conversation(turns, user, instructions))
            if len(token_ids) <= room or not turns:
                return token_ids
            turns = turns[1:]

    async def _answer(
        self, ctx: ActivationContext, token_ids: tuple[int, ...], sampling: SamplingParameters, answer: _Answer
    ) -> AsyncGenerator[str, None]:
        """The pieces of the answer's text; ends by cancellation when the call is cancelled."""
        ctx.raise_if_cancelled()
        stream = self.engine.generate(GenerationRequest(ctx.request_id, token_ids, sampling))
        ctx.on_cancel(stream.abort)
        try:
            async for chunk in stream:
                answer.add(chunk)
                if chunk.text_delta:
                    yield chunk.text_delta
            ctx.raise_if_cancelled()
        finally:
            await stream.aclose()

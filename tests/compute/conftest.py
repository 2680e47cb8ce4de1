"""One role for the whole session: a process may build one engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from omniflow_backend.compute.generation import (
    FinishReason,
    GenerationChunk,
    GenerationRequest,
    GenerationStream,
    SamplingParameters,
    TokenLogprob,
)
from omniflow_backend.compute.prefix import Prompt
from omniflow_backend.models.smollm2.role import Llm


@dataclass(slots=True)
class Collected:
    """Everything one stream gave."""

    chunks: list[GenerationChunk] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text_delta for chunk in self.chunks)

    @property
    def reason(self) -> FinishReason | None:
        return self.chunks[-1].finish_reason

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [logprob for chunk in self.chunks for logprob in chunk.logprobs or ()]


class Asker:
    """Sends requests to the engine and collects what comes back."""

    def __init__(self, llm: Llm) -> None:
        self.llm = llm
        self.engine = llm.engine

    def stream(self, prompt: str | Sequence[int], request_id: str = "test", **sampling: object) -> GenerationStream:
        token_ids = self.llm.tokenizer.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        return self.engine.generate(
            GenerationRequest(request_id, Prompt(tuple(token_ids)), SamplingParameters.from_mapping(sampling))
        )

    async def collect(self, stream: GenerationStream) -> Collected:
        return Collected([chunk async for chunk in stream])

    async def ask(self, prompt: str | Sequence[int], **sampling: object) -> Collected:
        return await self.collect(self.stream(prompt, **sampling))

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        """Run an asynchronous test within a deadline; afterwards the engine must be empty, every slot returned."""

        async def bounded() -> None:
            await asyncio.wait_for(test(), timeout=200)

        asyncio.run(bounded())
        after = self.engine.statistics()
        assert (after.running, after.waiting, after.reserved_slots) == (0, 0, 0)
        assert (after.free_slots, after.free_rows) == (after.total_slots, after.total_rows)


@pytest.fixture(scope="session")
def llm() -> Iterator[Llm]:
    role = Llm(
        context_length=256,
        total_slots=2048,
        maximum_running=8,
        maximum_waiting=3,
        prefill_budget=64,
        sampling={"max_tokens": 16},
    )
    role.load()
    yield role
    role.close()


@pytest.fixture(scope="session")
def asker(llm: Llm) -> Asker:
    return Asker(llm)

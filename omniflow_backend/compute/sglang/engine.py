"""The engine: SGLang's runner and our scheduler on a thread of their own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from omniflow_backend.compute.generation import (
    EngineBusy,
    EngineClosed,
    EngineFailed,
    EngineStatistics,
    GenerationRequest,
)
from omniflow_backend.compute.output import OutputBuilder
from omniflow_backend.compute.sglang.runner import RunnerConfiguration, build_runner
from omniflow_backend.compute.sglang.sequence import TokenSequence
from omniflow_backend.compute.stream import ChunkStream
from omniflow_backend.errors import BadInput, OmniFlowError

if TYPE_CHECKING:
    from omniflow_backend.compute.sglang.scheduler import Delivery, Scheduler

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfiguration:
    """A runner and how it is shared: prompt tokens read per step, requests that may wait, seconds to load and to
    close.
    """

    runner: RunnerConfiguration
    prefill_budget: int = 512
    maximum_waiting: int = 256
    load_timeout_s: float = 300.0
    close_timeout_s: float = 30.0


class SglangEngine:
    """Implements ``compute.generation.Engine``. Building one loads the model; a process can build one.

    ``decode`` turns token ids into text. All of SGLang and torch runs on the engine's thread; the other methods may
    be called from any thread, ``generate`` in any event loop. When a step fails, the engine is finished: every
    request ends with ``EngineFailed``.
    """

    def __init__(
        self, configuration: EngineConfiguration, *, decode: Callable[[Sequence[int]], str], end_of_text: frozenset[int]
    ) -> None:
        self._configuration = configuration
        self._decode = decode
        self._end_of_text = end_of_text
        self._numbers = count(1)
        self._changed = threading.Condition()
        self._arrived: list[TokenSequence] = []
        self._aborted: set[int] = set()
        self._in_flight: dict[int, TokenSequence] = {}
        self._closing = False
        self._stopped: Callable[[], OmniFlowError] | None = None
        self._statistics: EngineStatistics | None = None
        loaded: Future[tuple[int, int]] = Future()
        self._thread = threading.Thread(target=self._run, args=(loaded,), name="omniflow-llm-engine", daemon=True)
        self._thread.start()
        try:
            self.vocabulary_size, self.hidden_size = loaded.result(timeout=configuration.load_timeout_s)
        except TimeoutError:
            raise EngineFailed(f"the model did not load within {configuration.load_timeout_s:g} s") from None

    @property
    def context_length(self) -> int:
        """The most tokens a request may have, prompt and answer together."""
        return self._configuration.runner.context_length

    def generate(self, request: GenerationRequest) -> ChunkStream:
        """Queue a request; must be called in an event loop, which then reads the stream.

        Raises ``BadInput`` (no token, too many, ids outside the vocabulary, embeddings of another width),
        ``EngineBusy``, ``EngineClosed`` or ``EngineFailed``.
        """
        prompt = len(request.prompt)
        self._check(request)
        number = next(self._numbers)
        stream = ChunkStream(lambda: self._abort_numbers({number}))
        maximum_tokens = min(request.sampling.max_tokens, self.context_length - prompt)
        output = OutputBuilder(
            request.sampling,
            prompt_tokens=prompt,
            max_tokens=maximum_tokens,
            end_of_text=self._end_of_text,
            decode=self._decode,
        )
        sequence = TokenSequence(number, request, maximum_tokens, output, stream.deliver)
        with self._changed:
            self._raise_if_stopped()
            waiting = len(self._in_flight) - self._configuration.runner.maximum_running
            if waiting >= self._configuration.maximum_waiting:
                raise EngineBusy(f"{waiting} requests are waiting already, the most this engine takes; try again later")
            self._in_flight[number] = sequence
            self._arrived.append(sequence)
            self._changed.notify()
        return stream

    def abort(self, request_id: str) -> None:
        """Abort every request that bears this id; unknown ids are ignored."""
        with self._changed:
            numbers = {n for n, sequence in self._in_flight.items() if sequence.request.request_id == request_id}
        self._abort_numbers(numbers)

    def statistics(self) -> EngineStatistics:
        """The state after the last step."""
        with self._changed:
            assert self._statistics is not None
            return self._statistics

    def close(self) -> None:
        """Stop the thread; requests still in the engine end with ``EngineClosed``. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(self._configuration.close_timeout_s)
        if self._thread.is_alive():
            logger.error("the engine thread did not stop within %g s", self._configuration.close_timeout_s)

    def _check(self, request: GenerationRequest) -> None:
        prompt, token_ids = len(request.prompt), request.prompt.token_ids
        if prompt == 0:
            raise BadInput("the prompt is empty")
        if prompt >= self.context_length:
            raise BadInput(
                f"the prompt has {prompt} tokens; with at least one token of answer it must fit the context of "
                f"{self.context_length} tokens"
            )
        if min(token_ids) < 0 or max(token_ids) >= self.vocabulary_size:
            raise BadInput(f"the prompt has token ids outside the vocabulary of {self.vocabulary_size}")
        for span in request.prompt.spans:
            if span.embeddings.shape[1] != self.hidden_size:
                raise BadInput(
                    f"the embeddings at position {span.start} are {span.embeddings.shape[1]} wide; "
                    f"this model's are {self.hidden_size}"
                )

    def _raise_if_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped()
        if self._closing:
            raise EngineClosed("the engine is closed")

    def _abort_numbers(self, numbers: set[int]) -> None:
        with self._changed:
            self._aborted |= numbers & self._in_flight.keys()
            self._changed.notify()

    def _run(self, loaded: Future[tuple[int, int]]) -> None:
        try:
            runner = build_runner(self._configuration.runner)
            scheduler = _new_scheduler(runner, self._configuration)
            self._statistics = scheduler.statistics()
        except BaseException as error:
            loaded.set_exception(error)
            return
        loaded.set_result((int(runner.model_config.vocab_size), int(runner.model_config.hidden_size)))
        try:
            while self._exchange(scheduler):
                self._publish(scheduler, scheduler.step())
            self._end_all(lambda: EngineClosed("the engine was closed while the request was in it"))
        except BaseException as error:
            logger.exception("the engine failed")
            message = f"the language model engine failed and has to be restarted: {type(error).__name__}: {error}"
            self._end_all(lambda: EngineFailed(message))

    def _exchange(self, scheduler: Scheduler) -> bool:
        """Take in what arrived and what is aborted, waiting while there is nothing to do; ``False`` when the engine
        closes.
        """
        with self._changed:
            while not (self._closing or self._arrived or self._aborted or scheduler.has_work):
                self._changed.wait()
            arrived, self._arrived = self._arrived, []
            aborted, self._aborted = self._aborted, set()
            closing = self._closing
        for sequence in arrived:
            scheduler.add(sequence)
        if aborted:
            self._publish(scheduler, scheduler.abort(aborted))
        return not closing

    def _publish(self, scheduler: Scheduler, deliveries: Sequence[Delivery]) -> None:
        """Statistics first: a reader who got its last chunk finds its slots free."""
        with self._changed:
            self._statistics = scheduler.statistics()
            for delivery in deliveries:
                if delivery.chunk.finish_reason is not None:
                    self._in_flight.pop(delivery.sequence.number, None)
        for delivery in deliveries:
            delivery.sequence.deliver(delivery.chunk)

    def _end_all(self, error: Callable[[], OmniFlowError]) -> None:
        with self._changed:
            self._stopped = error
            sequences = list(self._in_flight.values())
            self._in_flight.clear()
        for sequence in sequences:
            sequence.deliver(error())


def _new_scheduler(runner: Any, configuration: EngineConfiguration) -> Scheduler:
    # Its modules import SGLang, which must come after the environment is prepared.
    from omniflow_backend.compute.sglang.scheduler import Scheduler

    return Scheduler(runner, prefill_budget=configuration.prefill_budget)

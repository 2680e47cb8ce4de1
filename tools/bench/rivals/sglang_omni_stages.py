"""What the SGLang-Omni pipelines name by import path: stage factories, the join and a payload's copy."""

from __future__ import annotations

import queue
import threading
from dataclasses import replace

from sglang_omni.proto import StagePayload
from sglang_omni.scheduling.message import IncomingMessage, OutgoingMessage
from sglang_omni.scheduling.simple_scheduler import SimpleScheduler


def step() -> SimpleScheduler[StagePayload, StagePayload]:
    """A stage without work on the scheduler that SGLang-Omni has for plain functions: one thread each."""
    return SimpleScheduler(lambda payload: payload)


def inline_step() -> InlineScheduler:
    """The same stage without the thread."""
    return InlineScheduler()


def join(payloads: dict[str, StagePayload]) -> StagePayload:
    """What the joining stage gets of both branches."""
    first = next(iter(payloads.values()))
    return replace(first, data=tuple(payload.data for payload in payloads.values()))


def own_copy(payload: StagePayload) -> StagePayload:
    """A copy for one branch: only then does a fan-out pass objects within the process instead of bytes."""
    return replace(payload, data=dict(payload.data))


class InlineScheduler:
    """Does a stage's work where it arrives, on the event loop: the least that the scheduler interface allows."""

    def __init__(self) -> None:
        self.outbox: queue.Queue[OutgoingMessage] = queue.Queue()
        self.inbox: queue.Queue[IncomingMessage] = _Inline(self.outbox)
        self.requires_tp_work_fanout = True
        self._stopped = threading.Event()

    def warm_up_serving_thread(self) -> None:
        """There is nothing to warm up."""

    def start(self) -> None:
        """Hold the thread that SGLang-Omni starts for every scheduler."""
        self._stopped.wait()

    def stop(self) -> None:
        self._stopped.set()

    def abort(self, request_id: str) -> None:
        """Nothing waits here that could be aborted."""


class _Inline(queue.Queue[IncomingMessage]):
    def __init__(self, outbox: queue.Queue[OutgoingMessage]) -> None:
        super().__init__()
        self._outbox = outbox

    def put(self, item: IncomingMessage, block: bool = True, timeout: float | None = None) -> None:
        if item.type == "new_request":
            self._outbox.put(OutgoingMessage(item.request_id, "result", item.data))

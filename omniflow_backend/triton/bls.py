"""Calling other models of the same server from inside a stub (Triton's business logic scripting)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import triton_python_backend_utils as pb

from omniflow_backend.errors import OmniFlowError
from omniflow_backend.triton.tensors import Array

Tensors = dict[str, Array]


class ModelFailed(OmniFlowError):
    """The model that was called answered with an error."""


def request_of(
    model: str, inputs: Mapping[str, Array], outputs: Sequence[str], request_id: str = "", correlation_id: str = ""
) -> Any:
    """A request that can be executed."""
    return pb.InferenceRequest(
        model_name=model,
        requested_output_names=list(outputs),
        inputs=[pb.Tensor(name, array) for name, array in inputs.items()],
        request_id=request_id,
        **({"correlation_id": correlation_id} if correlation_id else {}),
    )


async def infer(request: Any) -> Tensors:
    """The one response of a model that is not decoupled. Raises ``ModelFailed``."""
    try:
        response = await request.async_exec()
    except pb.TritonModelException as error:
        raise ModelFailed(str(error)) from None
    return _tensors(response)


async def infer_first(request: Any) -> Tensors:
    """The first response of a decoupled model that gives only one. Raises ``ModelFailed``."""
    first: list[Tensors] = []
    await stream(request, first.append, Credits(granted=1 << 30))
    if not first:
        raise ModelFailed("the model ended without a response")
    return first[0]


@dataclass(slots=True)
class Credits:
    """How many responses may still be taken; shared by the loop, which grants, and the thread that takes."""

    granted: int
    stopped: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    def grant(self, count: int) -> None:
        """Allow ``count`` more."""
        with self.changed:
            self.granted += count
            self.changed.notify()

    def stop(self) -> None:
        """Let the thread drain the model without handing anything on: Triton has no way to cancel it."""
        with self.changed:
            self.stopped = True
            self.changed.notify()

    def take(self) -> bool:
        """Wait for a credit; false once stopped."""
        with self.changed:
            self.changed.wait_for(lambda: self.granted > 0 or self.stopped)
            self.granted -= 1
            return not self.stopped


async def stream(request: Any, on_response: Callable[[Tensors], None], credits: Credits) -> None:
    """All responses of a decoupled model, each handed to ``on_response`` on the loop. Raises ``ModelFailed``.

    Triton's iterator blocks, so a thread of the loop's default executor pumps it.
    """
    loop = asyncio.get_running_loop()
    try:
        responses = await request.async_exec(decoupled=True)
    except pb.TritonModelException as error:
        raise ModelFailed(str(error)) from None

    def pump() -> None:
        for response in responses:
            tensors = _tensors(response)
            if tensors and credits.take():
                loop.call_soon_threadsafe(on_response, tensors)

    await loop.run_in_executor(None, pump)


def _tensors(response: Any) -> Tensors:
    if response.has_error():
        raise ModelFailed(response.error().message())
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

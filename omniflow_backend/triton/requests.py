"""Triton requests and responses, as all our models read and answer them.

The only module that touches ``triton_python_backend_utils``, which exists in Triton's stubs alone.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import triton_python_backend_utils as pb

from omniflow_backend.errors import ErrorCode, Failure
from omniflow_backend.triton.tensors import Array, strings

log = logging.getLogger(__name__)

_TRITONS_OWN = ("triton_", "binary_data", "sequence_", "headers")
_FINAL = pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL
_TRITON_CODES = {
    ErrorCode.BAD_INPUT: "INVALID_ARG",
    ErrorCode.CANCELLED: "CANCELLED",
    ErrorCode.ROLE_DIED: "UNAVAILABLE",
    ErrorCode.UNAVAILABLE: "UNAVAILABLE",
}


@lru_cache(maxsize=64)
def _given_parameters(text: str) -> tuple[str, ...]:
    """Names of a request's parameters (JSON), less those that Triton itself adds; nearly always the same text."""
    return tuple(name for name in json.loads(text) if not name.startswith(_TRITONS_OWN))


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client sent. Tensors are copies: Triton frees the request when ``execute`` returns.

    ``parameters`` are names of request parameters; ``/generate`` makes one of every JSON field that is no input.
    """

    request_id: str
    correlation_id: str
    tensors: Mapping[str, Array]
    parameters: tuple[str, ...]
    responder: Responder

    @classmethod
    def read(cls, request: Any) -> ClientRequest:
        """Take everything out of a Triton request."""
        correlation = request.correlation_id()
        return cls(
            request_id=request.request_id(),
            correlation_id=str(correlation) if correlation else "",
            tensors={tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()},
            parameters=_given_parameters(request.parameters()),
            responder=Responder(request.get_response_sender()),
        )

    def text(self, name: str) -> str | None:
        """A string input that is ours rather than the author's, or ``None``."""
        array = self.tensors.get(name)
        if array is None or array.size == 0:
            return None
        element = array.reshape(-1)[0]
        return element.decode(errors="replace") if isinstance(element, bytes) else str(element)


class Responder:
    """Answers one request: any number of responses, then exactly one FINAL. Later calls do nothing."""

    __slots__ = ("_sender", "finished")

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self.finished = False

    @property
    def cancelled(self) -> bool:
        """Whether the client has gone; costs 30 microseconds, so ask rarely."""
        return not self.finished and bool(self._sender.is_cancelled())

    def send(self, tensors: Mapping[str, Array], *, final: bool = False) -> None:
        """One response."""
        if not self.finished:
            self._send(pb.InferenceResponse([pb.Tensor(name, array) for name, array in tensors.items()]), final)

    def finish(self) -> None:
        """End a stream without another response."""
        if not self.finished:
            self.finished = True
            try:
                self._sender.send(flags=_FINAL)
            except Exception as error:
                log.warning("the end of a response was not sent: %s", error)

    def fail(self, failure: Failure) -> None:
        """End with an error, on one line."""
        self.fail_with(failure.code, str(failure))

    def fail_with(self, code: ErrorCode, message: str) -> None:
        """End with an error whose message is complete, on one line."""
        if not self.finished:
            error = pb.TritonError(
                " ".join(message.split()), getattr(pb.TritonError, _TRITON_CODES.get(code, "INTERNAL"))
            )
            self._send(pb.InferenceResponse([], error), final=True)

    def _send(self, response: Any, final: bool) -> None:
        self.finished = self.finished or final
        try:
            self._sender.send(response, flags=_FINAL if final else 0)
        except Exception as error:
            log.warning("a response was not sent: %s", error)
            if not final:
                raise


def parameters_of(model_config: Mapping[str, Any]) -> dict[str, str]:
    """The ``parameters`` of a model's configuration."""
    return {name: value["string_value"] for name, value in model_config.get("parameters", {}).items()}


def answer_text(request: ClientRequest, name: str, text: str) -> None:
    """One response with one string, and the end."""
    request.responder.send({name: strings([text.encode()])}, final=True)


def fail_request(request: Any, error: Exception) -> None:
    """End a Triton request that could not even be read."""
    Responder(request.get_response_sender()).fail(
        Failure(ErrorCode.INTERNAL, f"the request could not be read: {error!r}")
    )

"""Answering clients that call a role model directly, without a workflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from omniflow_backend.drivers.role_host import RunningActivation, describe_error
from omniflow_backend.dsl.interface import InterfaceSpec
from omniflow_backend.dsl.types import OptionalType
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.triton.cancel_watch import CancelWatch
from omniflow_backend.triton.requests import ClientRequest
from omniflow_backend.triton.tensors import Array, to_array, to_value

log = logging.getLogger(__name__)


def read_inputs(spec: InterfaceSpec, tensors: Mapping[str, Array]) -> dict[str, Any]:
    """The values of an interface's inputs from a client's tensors. Raises ``BadInput`` that names the field."""
    unknown = sorted(tensors.keys() - spec.inputs.keys())
    if unknown:
        raise BadInput(f"{spec.name!r} has no input {unknown[0]!r}; it has {', '.join(spec.inputs)}")
    missing = [name for name, kind in spec.inputs.items() if name not in tensors and not isinstance(kind, OptionalType)]
    if missing:
        raise BadInput(f"input {missing[0]!r} ({spec.inputs[missing[0]]}) of {spec.name!r} is missing")
    return spec.check_inputs({name: to_value(array, spec.inputs[name], name) for name, array in tensors.items()})


class DirectAnswer:
    """Turns one activation's events into Triton responses: one response, or a stream."""

    def __init__(self, request: ClientRequest, model: str, decoupled: bool, watch: CancelWatch) -> None:
        self.spec: InterfaceSpec | None = None
        self._request = request
        self._model = model
        self._decoupled = decoupled
        self._watch = watch
        self._activation: RunningActivation | None = None
        self._only: dict[str, Array] = {}

    @property
    def client_has_gone(self) -> bool:
        """Whether the client cancelled or disconnected."""
        return self._request.responder.cancelled

    def running(self, activation: RunningActivation) -> None:
        """The activation has begun; its client is watched from now on."""
        self._activation = activation
        if not self._request.responder.finished:
            self._watch.add(self)

    def on_yield(self, ordinal: int, fields: Mapping[str, Any]) -> None:
        assert self.spec is not None
        try:
            tensors = {name: to_array(value, self._type(name), name) for name, value in fields.items()}
        except Exception as error:
            self.on_error(ErrorCode.ROLE_FAILED, str(error))
            self._stop()
            return
        if not self._streams:
            self._only = tensors
            return
        try:
            self._request.responder.send(tensors)
        except Exception as error:
            self.on_error(ErrorCode.INTERNAL, f"a response could not be sent: {error}")
            self._stop()

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        self._watch.discard(self)
        if self._streams:
            self._request.responder.finish()
        else:
            self._request.responder.send(self._only, final=True)

    def on_error(self, code: ErrorCode, message: str) -> None:
        self._watch.discard(self)
        node = f"{self._model}.{self.spec.name}" if self.spec is not None else ""
        self._request.responder.fail(
            Failure(code, message, node=node, role=self._model, request=self._request.request_id)
        )

    def refuse(self, error: Exception) -> None:
        """The request cannot be served."""
        if not isinstance(error, BadInput):
            log.exception("a request could not be begun", exc_info=error)
        self.on_error(*(describe_error(error) if isinstance(error, BadInput) else (ErrorCode.INTERNAL, repr(error))))

    def end_early(self, code: ErrorCode, message: str) -> None:
        """Stop the activation, and end the response as Triton wants, also when nobody reads it."""
        self._stop()
        self.on_error(code, message)

    def _stop(self) -> None:
        if self._activation is not None:
            self._activation.cancel()

    @property
    def _streams(self) -> bool:
        """Whether each yield is a response. Else the end comes with the only one, as ``generate`` wants it."""
        return self._decoupled and self.spec is not None and self.spec.style.repeats

    def _type(self, name: str) -> Any:
        assert self.spec is not None
        if name not in self.spec.outputs:
            raise ValueError(
                f"{self.spec.name!r} yielded {name!r}, which is not one of its outputs ({', '.join(self.spec.outputs)})"
            )
        return self.spec.outputs[name]

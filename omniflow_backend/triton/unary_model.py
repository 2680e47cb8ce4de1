"""The unary front of a workflow: ``1/model.py`` of ``<workflow>_unary`` imports ``TritonPythonModel`` from here.

Answers each call once, with everything, for clients that cannot take a stream: HTTP ``infer`` and ``generate``. What
the workflow streams comes in one piece: text and samples joined, all else as a list.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from omniflow_backend.drivers.role_host import ActivationRequest
from omniflow_backend.dsl.types import Bytes, FieldType, Text
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.planning.plan import Plan
from omniflow_backend.triton.cancel_watch import CancelWatch
from omniflow_backend.triton.front_calls import CALL, CANCEL_PREVIOUS, INPUTS, TRACED
from omniflow_backend.triton.links import LinkedActivation, RoleLink
from omniflow_backend.triton.loop_thread import LoopThread
from omniflow_backend.triton.orchestrator import attach_decoupled
from omniflow_backend.triton.registration import Registration
from omniflow_backend.triton.repository import compiled
from omniflow_backend.triton.requests import ClientRequest, fail_request, parameters_of
from omniflow_backend.triton.stub_process import prepare_stub_process, runtime_directory
from omniflow_backend.triton.tensors import strings, to_array
from omniflow_backend.triton.values import Encoded, ValueEncoder
from omniflow_backend.triton.workflow_calls import CallRequest
from omniflow_backend.triton.workflow_surface import EVENT, SYSTEM_FINISH, TRACE, is_joined, whole_type

log = logging.getLogger(__name__)

prepare_stub_process()

_STOP_SECONDS = 5.0
_NO_LIMIT = 2**62


class TritonPythonModel:
    """Hands each call to the workflow's orchestrator and answers it once."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the workflow; the orchestrator is attached with the first call."""
        config = json.loads(args["model_config"])
        runtime = runtime_directory()
        self._plan = compiled(parameters_of(config)["workflow"])
        self._encoder = ValueEncoder(None, "")
        self._loop = LoopThread(f"loop-{config['name']}")
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="bls")
        self._loop.loop.set_default_executor(self._threads)

        def connect() -> None:
            loop = asyncio.get_running_loop()
            self._watch = CancelWatch(loop, runtime)
            self._link = RoleLink(self._plan.name, runtime, attach_decoupled, loop)

        self._loop.call(connect)
        Registration(config["name"], os.getpid(), "unary").write(runtime)

    def execute(self, requests: list[Any]) -> None:
        """Hand requests to the loop; each is answered through its own sender."""
        for request in requests:
            try:
                read = ClientRequest.read(request)
                self._loop.loop.call_soon_threadsafe(self._begin, read)
            except Exception as error:
                log.exception("a request could not be read")
                fail_request(request, error)

    def finalize(self) -> None:
        """End all calls and all threads."""
        self._loop.call(self._shut)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.stop(_STOP_SECONDS)

    def _shut(self) -> None:
        self._watch.close()
        self._link.close()

    def _begin(self, request: ClientRequest) -> None:
        answer = WholeAnswer(self._plan, request, self._watch)
        try:
            call = CallRequest.read(self._plan, request)
            inputs = {
                INPUTS: self._encoder.encode(call.inputs),
                CANCEL_PREVIOUS: self._encoder.encode(call.cancel_previous),
                TRACED: self._encoder.encode(call.traced),
            }
            deadline = None if call.timeout_s is None else self._loop.loop.time() + call.timeout_s
            activation = ActivationRequest(
                activation_id="",
                interface=CALL,
                inputs={},
                request_id=call.request_id,
                session_id=call.session_id,
                node=self._plan.name,
                deadline=deadline,
                credits=_NO_LIMIT,
            )
            answer.running(self._link.start(activation, inputs, "", answer))
        except BadInput as error:
            answer.refuse(ErrorCode.BAD_INPUT, str(error))
        except Exception as error:
            log.exception("a call could not be begun")
            answer.refuse(ErrorCode.INTERNAL, repr(error))


class WholeAnswer:
    """Collects one call's results and sends them as one response. An ``ActivationSink``."""

    def __init__(self, plan: Plan, request: ClientRequest, watch: CancelWatch) -> None:
        self._plan = plan
        self._request = request
        self._watch = watch
        self._activation: LinkedActivation | None = None
        self._pieces: dict[str, list[Any]] = {output.name: [] for output in plan.outputs} | {TRACE: []}

    @property
    def client_has_gone(self) -> bool:
        """Whether the client cancelled or disconnected."""
        return self._request.responder.cancelled

    def running(self, activation: LinkedActivation) -> None:
        """The call has been handed over: its client is watched from now on."""
        self._activation = activation
        if not self._request.responder.finished:
            self._watch.add(self)

    def end_early(self, code: ErrorCode, message: str) -> None:
        """Cancel the call."""
        self.refuse(code, message)
        if self._activation is not None:
            self._activation.cancel()

    def on_yield(self, ordinal: int, fields: Mapping[str, Encoded]) -> None:
        for name, value in fields.items():
            self._pieces[name].append(value.decode())

    def on_end(self, yields: int, run_s: float | None = None) -> None:
        self._watch.discard(self)
        try:
            tensors = {
                output.name: to_array(
                    whole(pieces, output.type) if output.stream else pieces[0],
                    whole_type(output.type) if output.stream else output.type,
                    output.name,
                )
                for output in self._plan.outputs
                if (pieces := self._pieces[output.name]) or output.stream
            }
        except Exception as error:
            self.refuse(ErrorCode.OUTPUT_FAILED, f"an output could not be presented: {error}")
            return
        tensors[EVENT] = strings([SYSTEM_FINISH.encode()])
        if self._pieces[TRACE]:
            tensors[TRACE] = strings([self._pieces[TRACE][0].encode()])
        self._request.responder.send(tensors, final=True)

    def on_error(self, code: ErrorCode, message: str) -> None:
        self._watch.discard(self)
        if message.startswith(f"{code}: "):
            self._request.responder.fail_with(code, message)
        else:
            self.refuse(code, message)

    def refuse(self, code: ErrorCode, message: str) -> None:
        """End the request with an error of our own."""
        self._watch.discard(self)
        self._request.responder.fail(Failure(code, message, workflow=self._plan.name, request=self._request.request_id))


def whole(pieces: list[Any], kind: FieldType) -> Any:
    """All pieces of a stream as one value (see ``whole_type``)."""
    if not is_joined(kind):
        return pieces
    if kind == Text:
        return "".join(pieces)
    if kind == Bytes:
        return b"".join(pieces)
    return np.concatenate(pieces) if pieces else np.zeros(0, getattr(kind, "dtype", None))

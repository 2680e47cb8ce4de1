"""The Triton model of a workflow, its orchestrator: ``1/model.py`` imports ``TritonPythonModel`` from here.

``config.pbtxt`` parameter: ``workflow``, a reference to the ``Workflow``. Calls come from clients through Triton, and
from the workflow's unary front through a channel; they share sessions.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from omniflow_backend.drivers.dispatcher import Dispatcher
from omniflow_backend.errors import BadInput, ErrorCode, Failure
from omniflow_backend.triton.attachment import ATTACH, ATTACHED, Attachment
from omniflow_backend.triton.cancel_watch import CancelWatch
from omniflow_backend.triton.channel.server import ActivationServer
from omniflow_backend.triton.front_calls import CALL, FrontCalls
from omniflow_backend.triton.loop_thread import LoopThread
from omniflow_backend.triton.memory import MemoryManagerStore
from omniflow_backend.triton.metrics import MetricsReporter
from omniflow_backend.triton.orchestrator import TritonExecutor
from omniflow_backend.triton.registration import Registration, channel_endpoint
from omniflow_backend.triton.repository import compiled
from omniflow_backend.triton.requests import ClientRequest, answer_text, fail_request, parameters_of
from omniflow_backend.triton.stub_process import prepare_stub_process, runtime_directory
from omniflow_backend.triton.workflow_calls import CallRequest, CallTrace, StreamedAnswer

log = logging.getLogger(__name__)

prepare_stub_process()

_STOP_SECONDS = 5.0
_BLS_THREADS = 256


class TritonPythonModel:
    """One workflow's orchestrator."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the workflow and listen. Roles are attached when the first call needs them."""
        config = json.loads(args["model_config"])
        runtime = runtime_directory()
        self._plan = compiled(parameters_of(config)["workflow"])
        self._store = MemoryManagerStore.of_deployment(runtime, f"workflow {self._plan.name}")
        self._loop = LoopThread(f"loop-{self._plan.name}")
        self._threads = ThreadPoolExecutor(_BLS_THREADS, thread_name_prefix="bls")
        self._loop.loop.set_default_executor(self._threads)
        endpoint = channel_endpoint(runtime, self._plan.name)

        def listen() -> None:
            loop = asyncio.get_running_loop()
            self._executor = TritonExecutor(self._plan, runtime, self._store, loop)
            self._dispatcher = Dispatcher(self._plan, self._executor, loop)
            self._watch = CancelWatch(loop, runtime)
            front = FrontCalls(self._plan, self._dispatcher, self._store)
            self._server = ActivationServer(endpoint, front.start, loop)
            self._metrics = MetricsReporter(self._plan, self._dispatcher.counts, loop)

        self._loop.call(listen)
        self._attachment = Attachment.of_this_process(self._plan.name, "orchestrator", endpoint, [CALL])
        Registration(config["name"], os.getpid(), "workflow", endpoint).write(runtime)

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
        self._metrics.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._loop.stop(_STOP_SECONDS)
        if self._store is not None:
            self._store.close()

    def _shut(self) -> None:
        self._watch.close()
        self._dispatcher.cancel_all("the workflow is being unloaded")
        self._server.close()
        self._executor.close()

    def _begin(self, request: ClientRequest) -> None:
        if request.text(ATTACH) is not None:
            answer_text(request, ATTACHED, self._attachment.to_json())
            return
        try:
            call = CallRequest.read(self._plan, request)
            trace = CallTrace(self._plan, call.request_id, call.session_id) if call.traced else None
            answer = StreamedAnswer(self._plan, request, self._store, self._watch, trace)
            run = self._dispatcher.submit(
                call.inputs,
                answer,
                request_id=call.request_id,
                session_id=call.session_id,
                timeout_s=call.timeout_s,
                cancel_previous=call.cancel_previous,
                trace=trace.trace if trace is not None else None,
            )
        except BadInput as error:
            self._refuse(request, ErrorCode.BAD_INPUT, str(error))
        except Exception as error:
            log.exception("a call could not be begun")
            self._refuse(request, ErrorCode.INTERNAL, repr(error))
        else:
            if run is not None:
                answer.running(run)

    def _refuse(self, request: ClientRequest, code: ErrorCode, message: str) -> None:
        request.responder.fail(Failure(code, message, workflow=self._plan.name, request=request.request_id))

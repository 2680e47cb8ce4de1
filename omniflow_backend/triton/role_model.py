"""The Triton model of a role: ``1/model.py`` of every role model imports ``TritonPythonModel`` from here.

``config.pbtxt`` parameters: ``role`` (a reference to the class) and ``options`` (JSON, for its constructor). The
process answers three kinds of work on one event loop: activations from orchestrators over a channel, direct requests
with typed tensors, and ``attach``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from omniflow_backend.drivers.role_host import ActivationRequest, RoleHost, RunningActivation
from omniflow_backend.dsl.interface import Role
from omniflow_backend.triton.attachment import ATTACH, ATTACHED, Attachment
from omniflow_backend.triton.cancel_watch import CancelWatch
from omniflow_backend.triton.channel.server import ActivationServer
from omniflow_backend.triton.direct import DirectAnswer, read_inputs
from omniflow_backend.triton.hang_report import HangReport
from omniflow_backend.triton.loop_thread import LoopThread, end_threads
from omniflow_backend.triton.memory import MemoryManagerStore
from omniflow_backend.triton.references import resolve
from omniflow_backend.triton.registration import Registration, channel_endpoint
from omniflow_backend.triton.requests import ClientRequest, answer_text, fail_request, parameters_of
from omniflow_backend.triton.role_activations import RoleActivations
from omniflow_backend.triton.role_surface import INTERFACE, RoleSurface
from omniflow_backend.triton.stub_process import prepare_stub_process, runtime_directory

log = logging.getLogger(__name__)

prepare_stub_process()

_STOP_SECONDS = 3.0
_NO_LIMIT = 2**62


class TritonPythonModel:
    """One role in one process."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the role, then listen. An exception here becomes Triton's reason for not loading the model."""
        config = json.loads(args["model_config"])
        parameters = parameters_of(config)
        self._model = config["name"]
        runtime = self._runtime = runtime_directory()
        role_class = resolve(parameters["role"])
        if not (isinstance(role_class, type) and issubclass(role_class, Role)):
            raise TypeError(f"parameter 'role' of model {self._model!r}: {parameters['role']} is not a Role")
        self._role: Role = role_class(**json.loads(parameters.get("options") or "{}"))
        self._role.load()
        self._surface = RoleSurface.of(role_class.interfaces)
        self._store = MemoryManagerStore.of_deployment(runtime, f"role {self._model}")
        self._threads = ThreadPoolExecutor(max_workers=role_class.threads, thread_name_prefix=f"role-{self._model}")
        self._loop = LoopThread(f"loop-{self._model}")
        self._loop.call(self._listen, runtime)
        self._attachment = Attachment.of_this_process(
            self._model, role_class.__name__, self._server.endpoint, sorted(role_class.interfaces)
        )
        Registration(self._model, os.getpid(), "role", self._server.endpoint).write(runtime)

    def execute(self, requests: list[Any]) -> None:
        """Hand requests to the loop; each is answered through its own sender, so any number may be open at once."""
        for request in requests:
            try:
                read = ClientRequest.read(request)
                self._loop.loop.call_soon_threadsafe(self._begin, read)
            except Exception as error:
                log.exception("a request could not be read")
                fail_request(request, error)

    def finalize(self) -> None:
        """Cancel what runs, end all threads, close the role.

        A function that does not come back would keep this process, and with it the server, from ending: then the
        process ends itself.
        """
        self._loop.call(self._shut)
        came_back = end_threads(self._threads, _STOP_SECONDS)
        self._loop.stop(_STOP_SECONDS)
        if self._store is not None:
            self._store.close()
        self._role.close()
        if not came_back:
            log.error("a function of role %s did not end when it was cancelled; its process is ended", self._model)
            logging.shutdown()
            os._exit(1)

    def _listen(self, runtime: Path) -> None:
        loop = asyncio.get_running_loop()
        endpoint = channel_endpoint(runtime, self._model)
        self._host = RoleHost(self._role, loop, self._threads, self._report_hang)
        self._watch = CancelWatch(loop, runtime)
        self._server = ActivationServer(endpoint, RoleActivations(self._host, self._store).start, loop)

    def _report_hang(self, activation: RunningActivation) -> None:
        context, limit = activation.context, self._role.hang_timeout_s
        reason = (
            f"activation {context.activation_id} of {context.node} (request {context.request_id!r}) was cancelled and "
            f"has not come back for {limit:g} s"
        )
        HangReport(self._model, os.getpid(), reason).send(self._runtime)

    def _shut(self) -> None:
        self._server.close()
        self._host.cancel_all()
        self._watch.close()

    def _begin(self, request: ClientRequest) -> None:
        if request.text(ATTACH) is not None:
            answer_text(request, ATTACHED, self._attachment.to_json())
            return
        answer = DirectAnswer(request, self._model, self._surface.decoupled, self._watch)
        try:
            given = set(request.tensors) - {INTERFACE}
            spec = self._surface.choose(given, request.text(INTERFACE))
            inputs = read_inputs(spec, {name: request.tensors[name] for name in given})
            activation = ActivationRequest(
                activation_id=request.request_id or f"direct-{id(answer):x}",
                interface=spec.name,
                inputs=inputs,
                request_id=request.request_id,
                session_id=request.correlation_id or None,
                node=f"{self._model}.{spec.name}",
                credits=_NO_LIMIT,
            )
        except Exception as error:
            answer.refuse(error)
            return
        answer.spec = spec
        answer.running(self._host.start(activation, answer))

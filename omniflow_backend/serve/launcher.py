"""A deployment on this machine: everything that `omniflow serve` starts, and stops again without a trace."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from omniflow_backend.deployment import MEMORY_SOCKET, REDIS_URL, RUNTIME_DIRECTORY
from omniflow_backend.errors import OmniFlowError
from omniflow_backend.serve.echo_test import ECHO_MODEL, check_echo, echo_directory
from omniflow_backend.serve.health import Health, HealthServer
from omniflow_backend.serve.identity import (
    make_runtime_directory,
    remove_leftovers,
    remove_shared_memory,
    shared_memory_prefix,
)
from omniflow_backend.serve.memory_manager_process import start_memory_manager
from omniflow_backend.serve.processes import Child, Children, StartFailed
from omniflow_backend.serve.redis_server import answers, given_redis, redis_url, start_redis
from omniflow_backend.serve.services import KeptService
from omniflow_backend.serve.supervisor import ModelState, RestartPolicy, Supervisor
from omniflow_backend.serve.triton_server import TritonOptions, TritonServer
from omniflow_backend.triton.cancel_watch import announce_stop
from omniflow_backend.triton.repository import ModelDirectory, workflow_directories, write_repository
from omniflow_backend.triton.stub_process import PYTHON_PATH

log = logging.getLogger(__name__)

Part = TypeVar("Part")

_STOP_SECONDS = 5.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """What to serve and where.

    ``workflows`` are references (``package.module:name`` or ``/path/file.py:name``), ``models`` generated role
    models, ``repositories`` directories of ready Triton models, all of which are loaded. ``health_port`` 0 is any
    free one. ``memory_limit`` is a size such as ``4GiB``.
    """

    workflows: Sequence[str] = ()
    models: Sequence[ModelDirectory] = ()
    repositories: Sequence[Path] = ()
    triton: TritonOptions = field(default_factory=TritonOptions)
    health_port: int = 0
    memory_limit: str = "1GiB"
    memory_options: Sequence[str] = ()
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a deployment is reached."""

    http: str
    grpc: str
    metrics: str
    health: str


class Deployment:
    """Redis-protocol server, MemoryManager, Triton, supervisor and health endpoint, as one thing.

    ``start`` returns when everything is ready, or raises ``StartFailed`` (or what is wrong with a workflow) with
    nothing left running. ``stop`` leaves no process, shared memory or file. When this process is killed, the kernel
    ends the others, and the next start removes the files.
    """

    def __init__(self, options: DeploymentOptions) -> None:
        self.options = options
        self.runtime: Path | None = None
        self.endpoints: Endpoints | None = None
        self._children: Children | None = None
        self._redis_url: str | None = None
        self._services: list[KeptService] = []
        self._triton: TritonServer | None = None
        self._triton_service: KeptService | None = None
        self._supervisor: Supervisor | None = None
        self._health: HealthServer | None = None

    def __enter__(self) -> Deployment:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Endpoints:
        """Start everything. Raises ``StartFailed``, ``WorkflowError``, ``BadReference``, ``NoTensor``."""
        if self.runtime is not None:
            raise StartFailed("this deployment has been started already")
        directories = [echo_directory(), *self.options.models]
        for reference in self.options.workflows:
            directories += workflow_directories(reference)
        for leftover in remove_leftovers():
            log.info("removed what a killed deployment left: %s", leftover)
        self.runtime = make_runtime_directory()
        try:
            self.endpoints = self._start(self.runtime, directories)
        except BaseException:
            self.stop()
            raise
        return self.endpoints

    def stop(self) -> None:
        """Stop everything, in order. Idempotent."""
        if self._health is not None:
            self._health.stop()
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._triton_service is not None and self.runtime is not None:
            announce_stop(self.runtime)
            self._triton_service.stop(self.options.triton.exit_timeout + _STOP_SECONDS)
        if self._supervisor is not None:
            self._supervisor.end_processes()
        for service in reversed(self._services):
            service.stop(_STOP_SECONDS)
        if self._children is not None:
            self._children.close()
        if self.runtime is not None:
            remove_shared_memory(shared_memory_prefix(self.runtime))
            shutil.rmtree(self.runtime, ignore_errors=True)
        self._health = self._supervisor = self._triton = self._triton_service = self._children = None
        self.runtime = self.endpoints = self._redis_url = None
        self._services = []

    def health(self) -> Health:
        """What is true now."""
        services = {
            "triton": self._triton_service is not None and self._triton_service.alive,
            **{service.name: service.alive for service in self._services},
            "redis": self._redis_url is not None and answers(self._redis_url),
        }
        statuses = self._supervisor.statuses() if self._supervisor is not None else []
        for status in statuses:
            # Of a process that is not ours to watch only Triton can tell.
            if status.pid is None and status.state is ModelState.READY and not self._serves(status.model):
                status.state, status.reason = ModelState.FAILED, "Triton does not serve it"
        return Health(statuses, services)

    def wait(self) -> None:
        """Block until Triton is given up. Raises ``StartFailed`` with the end of its log."""
        triton = _running(self._triton_service)
        # The kernel may give Ctrl-C to another thread, and Python acts on it only in this one, once it turns.
        while not triton.given_up:
            time.sleep(_LOOK_SECONDS)
        raise triton.child.failed(f"the server was given up after {triton.restarts} restarts")

    def _serves(self, model: str) -> bool:
        return self._triton is not None and self._triton.control.model_ready(model)

    def service(self, name: str) -> KeptService:
        """``triton``, ``redis`` or ``memory_manager``.

        Raises ``OmniFlowError`` when the deployment has none of its own.
        """
        services = [self._triton_service, *self._services]
        return _running(next((service for service in services if service is not None and service.name == name), None))

    @property
    def supervisor(self) -> Supervisor:
        """What watches the models. Raises ``OmniFlowError`` before ``start``."""
        return _running(self._supervisor)

    @property
    def triton(self) -> TritonServer:
        """The Triton server. Raises ``OmniFlowError`` before ``start``."""
        return _running(self._triton)

    def _start(self, runtime: Path, directories: list[ModelDirectory]) -> Endpoints:
        options = self.options
        logs = runtime / "logs"
        logs.mkdir()
        self._children = Children(logs)
        self._start_services(self._children, runtime)
        generated = runtime / "models"
        models = [*write_repository(directories, generated), *_models_in(options.repositories)]
        self._triton = triton = TritonServer(
            self._children,
            runtime,
            [generated, *options.repositories],
            self._environment(runtime),
            shared_memory_prefix(runtime),
            options.triton,
        )
        served = [model for model in models if model != ECHO_MODEL]
        supervisor = Supervisor(triton.control, runtime, served, options.triton.load_timeout, options.restarts)
        self._supervisor = supervisor

        def start(stopping: threading.Event) -> Child:
            if self._triton_service is not None:
                supervisor.suspend()
            given_up = {status.model for status in supervisor.statuses() if status.state is ModelState.FAILED}
            child = triton.start([model for model in models if model not in given_up], stopping)
            try:
                check_echo(triton.control)
            except StartFailed:
                child.stop(_STOP_SECONDS)
                raise
            supervisor.resume()
            return child

        self._triton_service = KeptService("triton", start, options.restarts)
        supervisor.start()
        host = options.triton.host
        try:
            self._health = HealthServer(host, options.health_port, self.health)
        except OSError as error:
            raise StartFailed(f"health: port {options.health_port} of {host}: {error.strerror}") from None
        return Endpoints(
            http=f"{host}:{triton.http_port}",
            grpc=f"{host}:{triton.grpc_port}",
            metrics=f"http://{host}:{triton.metrics_port}/metrics",
            health=f"http://{host}:{self._health.port}/health",
        )

    def _start_services(self, children: Children, runtime: Path) -> None:
        options = self.options
        self._redis_url = given_redis()
        if self._redis_url is None:
            self._redis_url = redis_url(runtime)
            self._services.append(KeptService("redis", lambda _: start_redis(children, runtime), options.restarts))
        environment = self._environment(runtime)
        limits = ["--limit", options.memory_limit, *options.memory_options]
        endpoint = runtime / MEMORY_SOCKET
        self._services.append(
            KeptService(
                "memory_manager",
                lambda _: start_memory_manager(children, endpoint, environment, limits),
                options.restarts,
            )
        )

    def _environment(self, runtime: Path) -> dict[str, str]:
        search = [os.path.abspath(entry or os.curdir) for entry in sys.path]
        return {
            **os.environ,
            **self.options.environment,
            RUNTIME_DIRECTORY: str(runtime),
            REDIS_URL: str(self._redis_url),
            PYTHON_PATH: os.pathsep.join(dict.fromkeys(search)),
        }


def _running(part: Part | None) -> Part:
    if part is None:
        raise OmniFlowError("the deployment does not run: call start() first")
    return part


def _models_in(repositories: Sequence[Path]) -> list[str]:
    models = []
    for repository in repositories:
        if not repository.is_dir():
            raise StartFailed(f"no model repository at {repository}")
        models += sorted(path.name for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
    return models

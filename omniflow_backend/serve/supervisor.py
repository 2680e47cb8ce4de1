"""Watches every stub of a deployment, and brings dead ones back.

Triton itself never does, and goes on calling them ready. When Triton dies, all of them end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from omniflow_backend.serve.triton_control import ControlError, TritonControl
from omniflow_backend.triton.hang_report import HangReport, HangReports
from omniflow_backend.triton.registration import Registration, read_registration

log = logging.getLogger(__name__)


class ModelState(StrEnum):
    """What is true of a model, whatever Triton says."""

    READY = "ready"
    RELOADING = "reloading"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """A model that died is loaded again after ``first_delay``, twice that, and so on up to ``longest_delay``
    (seconds).

    After ``attempts`` deaths or failed loads in a row it is given up. It is in a row until the model has lived
    ``settled`` seconds.
    """

    first_delay: float = 0.0
    second_delay: float = 0.5
    longest_delay: float = 8.0
    attempts: int = 6
    settled: float = 60.0

    def delay(self, failures: int) -> float:
        """Seconds to wait before the next load after so many failures in a row."""
        if failures <= 1:
            return self.first_delay
        return float(min(self.longest_delay, self.second_delay * 2 ** (failures - 2)))


@dataclass(slots=True)
class ModelStatus:
    """One model.

    ``pid`` is ``None`` for models whose process is not ours to watch. ``hangs`` counts the processes that were killed
    because they hung; they are among the ``restarts``. ``reason`` tells why it is not ready.
    """

    model: str
    state: ModelState
    pid: int | None = None
    restarts: int = 0
    failures: int = 0
    since: float = 0.0
    reason: str = ""
    hangs: int = 0


class Supervisor:
    """Keeps ``models`` served: those whose process dies are loaded again; one that is reported as hung is killed first.

    Thread-safe. States: ready -> reloading -> ready, or -> failed when it is given up.
    """

    def __init__(
        self,
        control: TritonControl,
        runtime: Path,
        models: Iterable[str],
        load_timeout: float,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._control = control
        self._runtime = runtime
        self._load_timeout = load_timeout
        self._policy = policy or RestartPolicy()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._models = {model: ModelStatus(model, ModelState.READY, since=time.monotonic()) for model in models}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._hangs = HangReports(runtime)
        self._selector.register(self._hangs, selectors.EVENT_READ, self._hangs)
        self._stopping = threading.Event()
        self._suspended = False
        self._reloads = ThreadPoolExecutor(4, thread_name_prefix="model-reload")
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching: the server is about to end, and with it what still loads. Idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._reloads.shutdown(wait=False, cancel_futures=True)
        self._selector.unregister(self._hangs)
        self._hangs.close()

    def end_processes(self) -> None:
        """Kill stubs that have outlived the server, as they do when it is killed. Only after ``stop``; idempotent."""
        if self._wake_write < 0:
            return
        self._kill_watched()
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        os.close(self._wake_write)
        self._wake_write = -1

    def suspend(self) -> None:
        """Triton has died: end its stubs, and load nothing until ``resume``. Idempotent."""
        with self._changed:
            self._suspended = True
            for status in self._living():
                status.state, status.reason, status.pid = ModelState.RELOADING, "Triton died", None
            self._changed.notify_all()
        self._wake()

    def resume(self) -> None:
        """Triton serves all models now, or again, but for those that had been given up."""
        with self._changed:
            living = self._living()
            for status in living:
                status.restarts += self._suspended
            self._suspended = False
        for status in living:
            registration = read_registration(self._runtime, status.model)
            if registration is not None:
                self._adopt(registration)
                continue
            with self._changed:
                status.state, status.reason = ModelState.READY, ""
                self._changed.notify_all()

    def _living(self) -> list[ModelStatus]:
        return [status for status in self._models.values() if status.state is not ModelState.FAILED]

    def statuses(self) -> list[ModelStatus]:
        """A copy of every model's status."""
        with self._lock:
            return [replace(status) for status in self._models.values()]

    def wait_for(self, model: str, state: ModelState, timeout: float, *, restarts: int = 0) -> bool:
        """Wait until ``model`` is in ``state`` after at least so many restarts; false when it is not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._models[model].state == state and self._models[model].restarts >= restarts, timeout
            )

    def _adopt(self, registration: Registration) -> None:
        try:
            pidfd = os.pidfd_open(registration.pid)
        except OSError:
            self._died(registration.model, registration.pid)
            return
        with self._changed:
            status = self._models[registration.model]
            status.pid = registration.pid
            status.state, status.reason = ModelState.READY, ""
            status.since = time.monotonic()
            self._changed.notify_all()
        self._selector.register(pidfd, selectors.EVENT_READ, registration)
        self._wake()

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    if self._suspended:
                        self._kill_watched()
                    continue
                if key.data is self._hangs:
                    self._end_hung(self._hangs.receive())
                    continue
                registration: Registration = key.data
                self._selector.unregister(key.fd)
                os.close(key.fd)
                if not self._stopping.is_set():
                    self._died(registration.model, registration.pid)

    def _kill_watched(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, Registration):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(key.fd, signal.SIGKILL)

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            log.debug("the supervisor is being woken already")

    def _end_hung(self, report: HangReport | None) -> None:
        """Kill the process, if it is still the one that serves the model; the rest follows from its death."""
        watched = (
            key
            for key in list(self._selector.get_map().values())
            if isinstance(key.data, Registration) and report is not None
            if (key.data.model, key.data.pid) == (report.model, report.pid)
        )
        key = next(watched, None)
        if key is None or report is None:
            return
        with self._changed:
            status = self._models[report.model]
            status.hangs += 1
            self._changed.notify_all()
        log.error(
            "model %s is hung and is restarted: %s",
            report.model,
            report.reason,
            extra={"model": report.model, "pid": report.pid, "hangs": status.hangs},
        )
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(key.fd, signal.SIGKILL)

    def _died(self, model: str, pid: int) -> None:
        with self._changed:
            status = self._models[model]
            if self._suspended or status.pid not in (None, pid):
                # It is of a server that died; the next one has, or will have, a process of its own.
                return
            if time.monotonic() - status.since > self._policy.settled:
                status.failures = 0
            status.failures += 1
            status.state = ModelState.RELOADING
            status.reason = f"process {pid} died"
            status.pid = None
            self._changed.notify_all()
        log.error("the process of model %s died", model, extra={"model": model, "pid": pid})
        self._reloads.submit(self._reload, model)

    def _reload(self, model: str) -> None:
        while True:
            with self._lock:
                failures = self._models[model].failures
            if failures > self._policy.attempts:
                self._set_failed(model)
                return
            if self._stopping.wait(self._policy.delay(failures)) or self._suspended:
                return
            try:
                self._control.unload(model)
                self._control.load(model, self._load_timeout)
            except ControlError as error:
                if self._stopping.is_set() or self._suspended:
                    return
                log.error("model %s could not be loaded again: %s", model, error, extra={"model": model})
                with self._changed:
                    self._models[model].failures += 1
                    self._models[model].reason = str(error)
                    self._changed.notify_all()
                continue
            registration = read_registration(self._runtime, model)
            with self._lock:
                if self._suspended:
                    return
                self._models[model].restarts += 1
            log.warning("model %s serves again", model, extra={"model": model})
            if registration is not None and not self._stopping.is_set():
                self._adopt(registration)
            return

    def _set_failed(self, model: str) -> None:
        with self._changed:
            status = self._models[model]
            status.state = ModelState.FAILED
            status.reason = f"given up after {self._policy.attempts} attempts; last: {status.reason}"
            self._changed.notify_all()
        log.critical("model %s: %s", model, status.reason, extra={"model": model})

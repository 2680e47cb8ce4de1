"""Processes that are started again when they die: Redis, MemoryManager, Triton."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from omniflow_backend.serve.processes import Child, StartFailed
from omniflow_backend.serve.supervisor import RestartPolicy

log = logging.getLogger(__name__)


class KeptService:
    """One process, kept alive: ``start`` makes it, and makes it again after it has died.

    ``start`` returns a ``Child`` that is ready, or raises ``StartFailed``: at once when the event that it is given is
    set, for then nobody wants the service any more. Clients of the service reconnect by themselves.
    """

    def __init__(self, name: str, start: Callable[[threading.Event], Child], policy: RestartPolicy) -> None:
        """Start it. Raises what ``start`` raises."""
        self.name = name
        self.restarts = 0
        self.given_up = False
        self._start = start
        self._policy = policy
        self._stopping = threading.Event()
        self._child = start(self._stopping)
        self._thread = threading.Thread(target=self._keep, name=f"keep-{name}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the process runs now."""
        return self._child.alive

    @property
    def child(self) -> Child:
        """The process of now, or the last one."""
        return self._child

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def stop(self, timeout: float) -> None:
        """End the process and do not start it again."""
        self._stopping.set()
        self._child.stop(timeout)
        self._thread.join()
        self._child.stop(timeout)

    def _keep(self) -> None:
        failures = 0
        since = time.monotonic()
        while True:
            self._child.process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - since > self._policy.settled:
                failures = 0
            failures += 1
            if failures > self._policy.attempts:
                self.given_up = True
                log.critical("a service is given up", extra={"service": self.name})
                return
            if self._stopping.wait(self._policy.delay(failures)):
                return
            log.error("a service died and is started again", extra={"service": self.name})
            try:
                self._child = self._start(self._stopping)
            except StartFailed as error:
                if self._stopping.is_set():
                    return
                log.error("a service could not be started again", extra={"service": self.name, "reason": str(error)})
                continue
            self.restarts += 1
            since = time.monotonic()

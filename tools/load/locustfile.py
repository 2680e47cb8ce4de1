"""Load on a running server (``omniflow serve``): chat calls over gRPC, checked, with time to first token.

``LOCUST_SKIP_MONKEY_PATCH=1 .venv/bin/locust -f tools/load/locustfile.py --headless -u 8 -t 60s --html report.html``
(``OMNIFLOW_GRPC_URL`` names another server; ``OMNIFLOW_LOAD_TOKENS`` the tokens of an answer, 16.)
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import gevent
import gevent.monkey
from locust import User, between, task

from omniflow_backend.client import WorkflowClient

if gevent.monkey.is_module_patched("threading"):
    # gRPC's streams need threads that are none of gevent's: with its own they wait for each other for ever.
    raise SystemExit("set LOCUST_SKIP_MONKEY_PATCH=1: gRPC's streams do not work with gevent's threads")

URL = os.environ.get("OMNIFLOW_GRPC_URL", "127.0.0.1:8001")
TOKENS = int(os.environ.get("OMNIFLOW_LOAD_TOKENS", "16"))


class ChatUser(User):
    """One person with one session. gRPC blocks its thread, so every call runs in gevent's thread pool."""

    wait_time = between(0.1, 0.5)

    def on_start(self) -> None:
        self.client = WorkflowClient(URL, "chat")
        self.session = uuid.uuid4().hex

    def on_stop(self) -> None:
        self.client.close()

    @task
    def turn(self) -> None:
        """One turn; its total time, its time to first token, or its failure."""
        started = time.perf_counter()
        pool = gevent.get_hub().threadpool
        try:
            first_s, text = pool.apply(self._call, (f"Say something about the number {int(started) % 100}.",))
        except Exception as error:
            self._report("turn", started, 0, error)
            return
        self._report("turn", started, len(text), None if text else ValueError("empty answer"))
        self.environment.events.request.fire(
            request_type="chat",
            name="first token",
            response_time=first_s * 1e3,
            response_length=0,
            exception=None,
            context={},
        )

    def _call(self, prompt: str) -> tuple[float, str]:
        started = time.perf_counter()
        first_s, text = 0.0, ""
        inputs = {"prompt": prompt, "sampling_parameters": {"max_tokens": TOKENS}}
        for received in self.client.stream(inputs, session_id=self.session):
            if received.output == "text":
                first_s = first_s or time.perf_counter() - started
                text += received.value
        return first_s, text

    def _report(self, name: str, started: float, length: int, error: Exception | None) -> None:
        fields: dict[str, Any] = {"request_type": "chat", "name": name, "context": {}}
        elapsed = (time.perf_counter() - started) * 1e3
        self.environment.events.request.fire(response_time=elapsed, response_length=length, exception=error, **fields)

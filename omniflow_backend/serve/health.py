"""The deployment's own health, over HTTP: what is true, not what Triton believes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from omniflow_backend.serve.supervisor import ModelState, ModelStatus


@dataclass(frozen=True, slots=True)
class Health:
    """One look at the deployment. ``services`` says of each process whether it lives."""

    models: list[ModelStatus]
    services: dict[str, bool]

    @property
    def ready(self) -> bool:
        """Whether every model is served and every service lives."""
        return all(self.services.values()) and all(model.state is ModelState.READY for model in self.models)

    def to_json(self) -> dict[str, Any]:
        """As ``/health`` answers it."""
        return {
            "ready": self.ready,
            "services": self.services,
            "models": {
                model.model: {
                    "state": model.state.value,
                    "pid": model.pid,
                    "restarts": model.restarts,
                    "hangs": model.hangs,
                    **({"reason": model.reason} if model.reason else {}),
                }
                for model in self.models
            },
        }


class HealthServer:
    """Answers ``GET /health``: 200 when ready, 503 when not, JSON with the truth about each part in both cases."""

    def __init__(self, host: str, port: int, look: Callable[[], Health]) -> None:
        """Listen; port 0 is any free one. Raises ``OSError`` when the port is taken."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                if self.path.split("?")[0] != "/health":
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                health = look()
                body = json.dumps(health.to_json()).encode()
                self.send_response(HTTPStatus.OK if health.ready else HTTPStatus.SERVICE_UNAVAILABLE)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet: health is asked for every few seconds."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

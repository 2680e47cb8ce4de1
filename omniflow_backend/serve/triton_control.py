"""Triton's HTTP control interface: readiness, loading, unloading."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

from omniflow_backend.errors import OmniFlowError


class ControlError(OmniFlowError):
    """Triton did not do what was asked, and what it said."""


@dataclass(frozen=True, slots=True)
class TritonControl:
    """Talks to the server at ``host:port``. May be used from any thread."""

    host: str
    port: int

    def ready(self) -> bool:
        """Whether the server says that it and its models are ready. A dead stub does not change its mind."""
        return self._is_ok("/v2/health/ready")

    def model_ready(self, model: str) -> bool:
        """Whether the server says that ``model`` is loaded. See ``ready``."""
        return self._is_ok(f"/v2/models/{model}/ready")

    def load(self, model: str, timeout: float) -> None:
        """Load a model, and wait until it is. Raises ``ControlError``."""
        self._post(f"/v2/repository/models/{model}/load", {}, timeout)

    def unload(self, model: str, timeout: float = 10.0) -> None:
        """Ask to unload a model; requests in it are not waited for. Raises ``ControlError``."""
        self._post(f"/v2/repository/models/{model}/unload", {}, timeout)

    def infer(self, model: str, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """One inference in Triton's JSON. Raises ``ControlError``."""
        answer: dict[str, Any] = self._post(f"/v2/models/{model}/infer", request, timeout)
        return answer

    def _is_ok(self, path: str) -> bool:
        try:
            return self._request("GET", path, None, 2.0)[0] == 200
        except OSError:
            return False

    def _post(self, path: str, body: dict[str, Any], timeout: float) -> Any:
        try:
            status, answer = self._request("POST", path, json.dumps(body), timeout)
        except OSError as error:
            raise ControlError(f"Triton did not answer {path} within {timeout:g} s: {error}") from None
        if status != 200:
            raise ControlError(f"Triton refused {path}: {_reason(answer)}")
        return json.loads(answer) if answer else {}

    def _request(self, method: str, path: str, body: str | None, timeout: float) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from None
        finally:
            connection.close()


def _reason(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace")[:500]

"""The start-up test: a known tensor through a role process and back.

A stub built for another numpy corrupts tensors without any error ([1, 2, 3, 4] arrives as [1, 1, 1, 1]); such a
server must not serve.
"""

from __future__ import annotations

from omniflow_backend.serve.processes import StartFailed
from omniflow_backend.serve.triton_control import ControlError, TritonControl
from omniflow_backend.triton.echo_role import Echo
from omniflow_backend.triton.repository import ModelDirectory, role_directory

ECHO_MODEL = "omniflow_echo"
_NUMBERS = [1.0, 2.0, -3.5, 4.0]
_TEXT = "known tensor"


def echo_directory() -> ModelDirectory:
    """The model that the test runs through."""
    return role_directory(ECHO_MODEL, Echo, {})


def check_echo(control: TritonControl, model: str = ECHO_MODEL, timeout: float = 30.0) -> None:
    """Send the known tensor, compare, unload the model.

    Raises ``StartFailed`` when it comes back changed or not at all.
    """
    request = {
        "inputs": [
            {"name": "numbers", "datatype": "FP32", "shape": [len(_NUMBERS)], "data": _NUMBERS},
            {"name": "raw", "datatype": "BYTES", "shape": [1], "data": [_TEXT]},
        ]
    }
    try:
        answer = control.infer(model, request, timeout)
        control.unload(model)
    except ControlError as error:
        raise StartFailed(f"echo test: {error}") from None
    outputs = {output["name"]: output["data"] for output in answer.get("outputs", [])}
    if outputs != {"numbers": _NUMBERS, "raw": [_TEXT]}:
        raise StartFailed(
            f"echo test: sent {_NUMBERS} and {_TEXT!r}, got back {outputs}: "
            "this server's Python stub does not fit the installed numpy. "
            "With the bundled server install numpy<2; with another, the numpy it was built for"
        )

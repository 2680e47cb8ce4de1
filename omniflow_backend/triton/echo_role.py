"""A role that gives tensors back: shows whether the server and this Python understand each other's arrays."""

from __future__ import annotations

from typing import Any

from omniflow_backend.dsl.interface import ActivationContext, Role, interface
from omniflow_backend.dsl.types import Bytes, Tensor


class Echo(Role):
    """Returns its inputs."""

    @interface(
        inputs={"numbers": Tensor("float32", (-1,)), "raw": Bytes},
        outputs={"numbers": Tensor("float32", (-1,)), "raw": Bytes},
    )
    async def echo(self, ctx: ActivationContext, numbers: Any, raw: bytes) -> dict[str, Any]:
        """The same values."""
        return {"numbers": numbers, "raw": raw}

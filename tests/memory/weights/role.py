"""A role process with a small model, that does what it is asked over a pipe."""

from __future__ import annotations

import contextlib
from multiprocessing.connection import Connection
from typing import Any

import torch

from memory_manager.errors import MemoryManagerError
from memory_manager.weights.client import CapacityMember, WeightClient
from memory_manager.weights.messages import WeightSpec
from omniflow_backend.compute.weight_binding import bind, parameters_on_meta, publish, skipping_writes
from tests.memory.weights.models import Small, load, values

PARTITION = "tp0/1"


class Role:
    """Loads as a role does: be the loader, bind what is there, load the rest, publish."""

    def __init__(self, endpoint: str, name: str) -> None:
        self.client = WeightClient(endpoint, name)
        self.loading = contextlib.ExitStack()
        self.model = Small()
        self.kept: list[Any] = []
        self.member: CapacityMember | None = None

    def start_loading(self) -> None:
        """Nobody else loads from now on."""
        self.loading.enter_context(self.client.loading(20))

    def load(self, checkpoint: str, value: float) -> list[str]:
        """The names of parameters that were there already; all others are `value` now, and published."""
        with parameters_on_meta():
            self.model = Small()
        bound = bind(self.model, self.client.find(checkpoint, PARTITION), torch.device("cpu"))
        with skipping_writes(bound.values()):
            load(self.model, value)
        rest = {name: parameter for name, parameter in self.model.named_parameters() if name not in bound}
        publish(self.client, checkpoint, PARTITION, rest)
        return sorted(bound)

    def load_alone(self, checkpoint: str, value: float) -> list[str]:
        """`start_loading`, `load`, `end_loading`."""
        with self.client.loading(20):
            return self.load(checkpoint, value)

    def leave_half_written(self, checkpoint: str) -> None:
        """A parameter of the checkpoint is reserved and half of its bytes are written."""
        reservation = self.client.reserve(checkpoint, PARTITION, [WeightSpec("scale", "float32", [8], 32)])
        reservation.parameters["scale"].array[:16] = 255
        self.kept.append(reservation)

    def end_loading(self) -> None:
        """Others may load."""
        self.loading.close()

    def values(self) -> dict[str, list[float]]:
        """What the model has now."""
        return values(self.model)

    def write(self) -> None:
        """Writes into the model's weights."""
        with torch.no_grad():
            self.model.scale.fill_(13)

    def join(self, pool: str, members: list[str], member: str) -> None:
        """Becomes a member of the pool."""
        self.member = self.client.join_capacity(pool, members, member, 20)

    def agree(self, pages: int) -> int:
        """Proposes that capacity."""
        assert self.member is not None
        return self.member.agree(lambda: pages)


def run(endpoint: str, name: str, pipe: Connection) -> None:
    """Answers what comes over the pipe until that ends: the method's result, or an error of the manager."""
    role = Role(endpoint, name)
    with contextlib.suppress(EOFError):
        while True:
            method, arguments = pipe.recv()
            try:
                answer = getattr(role, method)(**arguments)
            except MemoryManagerError as error:
                answer = {type(error): str(error)}
            pipe.send(answer)

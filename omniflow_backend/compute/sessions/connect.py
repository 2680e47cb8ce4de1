"""Where a role's sessions are kept: with the deployment, or in this process when it is alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import redis

from memory_manager.metadata.sessions import SessionChains
from memory_manager.pools.client import ParameterClient
from memory_manager.pools.declaration import tier_sizes
from omniflow_backend.compute.sessions.in_process import InProcessSessions
from omniflow_backend.compute.sessions.pages import declare_embeddings, declare_records
from omniflow_backend.compute.sessions.retained import RetainedSessions
from omniflow_backend.compute.sessions.sessions import Sessions
from omniflow_backend.compute.sessions.store import SessionStore
from omniflow_backend.deployment import memory_endpoint, redis_url

logger = logging.getLogger(__name__)

_REDIS_SECONDS = 5.0


def connect_sessions(
    history: str, hidden_size: int, *, tiers: Mapping[str, str], idle_s: float, maximum_positions: int
) -> Sessions:
    """Sessions that all roles share which name the same history and reach the same Redis and MemoryManager.

    Args:
        history: the name of the global parameter with what each position is; that with embeddings is named after it.
        tiers: sizes of each of the two, for example ``{"L2": "64MiB"}``.
        idle_s: seconds after its last use when a session ends.
        maximum_positions: of one session.

    Raises:
        ValueError: for tiers without host memory (L2), or sizes that are none.
    """
    sizes = tier_sizes(**tiers)
    records, embeddings = declare_records(history, sizes), declare_embeddings(history, hidden_size, sizes)
    endpoint, url = memory_endpoint(), redis_url()
    store: SessionStore[Any]
    if endpoint is None or url is None:
        logger.info("sessions are kept in this process and end with it", extra={"history": history})
        store = InProcessSessions(idle_s)
    else:
        client = redis.Redis.from_url(url, socket_timeout=_REDIS_SECONDS, socket_connect_timeout=_REDIS_SECONDS)
        chains = SessionChains(client, history, idle_s)
        store = RetainedSessions(chains, ParameterClient(endpoint, "history"), records, embeddings, idle_s=idle_s)
    return Sessions(store, maximum_positions)

"""Outputs of encoders, kept under the content id of what went in: the same picture is encoded once (paper, 5.1)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from memory_manager.client import MemoryManagerClient
from memory_manager.errors import MemoryManagerError

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]


class EncoderCache:
    """Tensors in the Tmp Buffer Pool under cache keys: shared by all processes of a node, dropped least recently used
    first when the pool needs the room. Thread-safe.

    Args:
        client: of the node's MemoryManager, closed with the cache; without one nothing is kept.
        model: the encoder with all that changes its output; entries of different models never meet.
    """

    def __init__(self, client: MemoryManagerClient | None, model: str) -> None:
        self._client = client
        self._model = model
        self.hits = 0
        self.misses = 0

    def __enter__(self) -> EncoderCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def encode(self, content_ids: Sequence[bytes], encode: Callable[[list[int]], list[Array]]) -> list[Array]:
        """The output for each content id, in order; `encode` makes those that are not kept, given their positions.

        A MemoryManager that is away or full costs time, never the answer.
        """
        found = self._find(content_ids)
        missing = [index for index, array in enumerate(found) if array is None]
        self.hits += len(found) - len(missing)
        self.misses += len(missing)
        made = encode(missing) if missing else []
        self._keep([content_ids[index] for index in missing], made)
        fresh = iter(made)
        return [next(fresh) if array is None else array for array in found]

    def close(self) -> None:
        """Disconnect. What is kept stays, for other processes."""
        if self._client is not None:
            self._client.close()

    def _find(self, content_ids: Sequence[bytes]) -> list[Array | None]:
        if self._client is not None:
            try:
                with self._client.open_published([self._key(content_id) for content_id in content_ids]) as arrays:
                    return [None if array is None else array.copy() for array in arrays]
            except MemoryManagerError as error:
                logger.warning("the encoder cache cannot be read", extra={"model": self._model, "reason": str(error)})
        return [None] * len(content_ids)

    def _keep(self, content_ids: Sequence[bytes], arrays: Sequence[Array]) -> None:
        if self._client is None or not content_ids:
            return
        scope = f"encoder-cache-{uuid.uuid4().hex}"
        try:
            handles = self._client.put_many(arrays, scope)
            for handle, content_id in zip(handles, content_ids, strict=True):
                self._client.publish(handle, self._key(content_id))
        except MemoryManagerError as error:
            logger.warning("the encoder cache cannot keep", extra={"model": self._model, "reason": str(error)})
        finally:
            self._client.release_scope_soon(scope)

    def _key(self, content_id: bytes) -> str:
        return f"encoder/{self._model}/{content_id.hex()}"

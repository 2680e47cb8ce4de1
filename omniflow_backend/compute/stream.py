"""Chunks from an engine's thread to a reader in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from omniflow_backend.compute.generation import GenerationChunk


class ChunkStream:
    """One request's chunks: written by the engine's thread, read by one task of the loop it was made in.

    The writer never blocks: a request has at most ``max_tokens`` chunks, which bounds what waits here.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[GenerationChunk | BaseException] = asyncio.Queue()
        self._abort = abort
        self._ended = False

    def __aiter__(self) -> ChunkStream:
        return self

    async def __anext__(self) -> GenerationChunk:
        if self._ended:
            raise StopAsyncIteration
        item = await self._chunks.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        self._ended = item.finish_reason is not None
        return item

    def abort(self) -> None:
        """End this request at the next step boundary, from any thread."""
        self._abort()

    async def aclose(self) -> None:
        """Stop reading; aborts the request when it has not finished."""
        if not self._ended:
            self._ended = True
            self._abort()

    def deliver(self, item: GenerationChunk | BaseException) -> None:
        """Called by the engine's thread. A closed loop has no reader: the item is dropped, the request aborted."""
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, item)
        except RuntimeError:
            self._abort()

"""An asyncio loop in a thread of its own, for processes whose main thread belongs to Triton."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs ``loop`` until ``stop``."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., Result], *args: Any, timeout: float = 30.0) -> Result:
        """The result of ``function(*args)``, run on the loop's thread. Raises what it raises, or ``TimeoutError``."""
        future: Future[Result] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args))
            except BaseException as error:
                future.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return future.result(timeout)

    def wait_for(self, coroutine: Coroutine[Any, Any, Result], timeout: float = 30.0) -> Result:
        """The result of ``coroutine``, run on the loop. Raises what it raises, or ``TimeoutError``."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)

    def stop(self, timeout: float = 5.0) -> bool:
        """Cancel all tasks, stop the loop and join the thread; false when it did not end in time."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


def end_threads(executor: ThreadPoolExecutor, timeout: float) -> bool:
    """Drop what is queued and wait for what runs; false when it has not ended after ``timeout`` seconds."""
    waiter = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True}, daemon=True)
    waiter.start()
    waiter.join(timeout)
    return not waiter.is_alive()

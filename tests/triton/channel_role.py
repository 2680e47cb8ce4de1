"""A role process without Triton, for channel tests: ``python channel_role.py ENDPOINT``.

Interfaces: ``echo`` yields its inputs once; ``count`` yields ``n`` numbers as credits allow; ``hang`` never ends; ``refuse`` fails.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import zmq

from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel.server import ActivationServer, ActivationSink
from omniflow_backend.triton.channel.wire import Start
from omniflow_backend.triton.values import ValueEncoder, decoded


class Counting:
    """Yields numbers, at most ``window`` ahead of what was accepted."""

    def __init__(self, start: Start, sink: ActivationSink, total: int) -> None:
        self.sink = sink
        self.total = total
        self.next = 0
        self.credits = start.window
        self.encoder = ValueEncoder(None, start.scope)
        self.cancelled = False
        self.go()

    def accept(self, count: int) -> None:
        self.credits += count
        self.go()

    def cancel(self) -> None:
        self.cancelled = True
        self.sink.ended()

    def go(self) -> None:
        while self.credits and self.next < self.total and not self.cancelled:
            self.sink.yielded({"n": self.encoder.encode(self.next)})
            self.credits -= 1
            self.next += 1
        if self.next == self.total:
            self.sink.ended()


class Hanging:
    def __init__(self, sink: ActivationSink) -> None:
        self.sink = sink

    def accept(self, count: int) -> None: ...

    def cancel(self) -> None:
        self.sink.ended()


def start(message: Start, sink: ActivationSink) -> Any:
    if message.interface == "count":
        with decoded(message.inputs, None) as inputs:
            return Counting(message, sink, inputs["n"])
    if message.interface == "echo":
        sink.yielded(message.inputs)
        sink.ended()
    elif message.interface == "refuse":
        sink.failed(ErrorCode.BAD_INPUT, "not this one")
    return Hanging(sink)


async def serve(endpoint: str) -> None:
    server = ActivationServer(endpoint, start, asyncio.get_running_loop(), zmq.Context())
    print("ready", flush=True)
    try:
        await asyncio.to_thread(sys.stdin.read)
    finally:
        server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

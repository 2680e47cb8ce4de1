"""A role process without Triton, for channel tests: ``python channel_role.py ENDPOINT``.

Interfaces: ``echo`` yields its inputs once; ``count`` yields ``n`` numbers as credits allow; ``hang`` never ends;
``refuse`` fails; ``running`` yields how many activations this process has.
"""

from __future__ import annotations

import asyncio
import sys

from omniflow_backend.errors import ErrorCode
from omniflow_backend.triton.channel.server import ActivationServer, ActivationSink
from omniflow_backend.triton.channel.wire import Start
from omniflow_backend.triton.values import ValueEncoder, decode_fields


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

    def go(self) -> None:
        while self.credits and self.next < self.total and not self.cancelled:
            self.sink.yielded({"n": self.encoder.encode(self.next)})
            self.credits -= 1
            self.next += 1
        if self.next == self.total:
            self.sink.ended()


class Hanging:
    def accept(self, count: int) -> None: ...

    def cancel(self) -> None: ...


class CountingRole:
    """Starts activations of the interfaces above."""

    def __init__(self, endpoint: str) -> None:
        self.server = ActivationServer(endpoint, self.start, asyncio.get_running_loop())

    def start(self, message: Start, sink: ActivationSink) -> Counting | Hanging:
        if message.interface == "count":
            return Counting(message, sink, decode_fields(message.inputs, None)["n"])
        if message.interface == "running":
            sink.yielded({"n": ValueEncoder(None, message.scope).encode(self.server.running)})
            sink.ended()
        elif message.interface == "echo":
            sink.yielded(message.inputs)
            sink.ended()
        elif message.interface == "refuse":
            sink.failed(ErrorCode.BAD_INPUT, "not this one")
        return Hanging()


async def serve(endpoint: str) -> None:
    role = CountingRole(endpoint)
    print("ready", flush=True)
    try:
        await asyncio.to_thread(sys.stdin.read)
    finally:
        role.server.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))

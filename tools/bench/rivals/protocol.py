"""A rival's side of the comparison: answers measuring requests, one line each.

Standard library only, since it runs in the rival's own environment. A request on standard input is ``once GRAPH N`` or
``many GRAPH N K``; the answer on standard output is one JSON object: ``{"seconds": [...]}``, N latencies of one call at
a time, or ``{"per_second": ...}``, the rate of N calls with K in flight. The first line says which version answers:
``{"version": ...}``. The end of standard input ends the rival; a rival that fails ends with a traceback.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TextIO

Call = Callable[[], Awaitable[object]]


async def serve(opening: AbstractAsyncContextManager[Mapping[str, Call]], version: str) -> None:
    """Open the graphs, which are async calls by name, and answer until standard input ends."""
    answers = _claim_output()
    async with opening as graphs:
        _say(answers, {"version": version})
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            match words:
                case ["once", graph, calls]:
                    _say(answers, {"seconds": await _latencies(graphs[graph], int(calls))})
                case ["many", graph, calls, in_flight]:
                    _say(answers, {"per_second": await _rate(graphs[graph], int(calls), int(in_flight))})
                case _:
                    raise ValueError(f"{' '.join(words)!r} is neither 'once GRAPH N' nor 'many GRAPH N K'")


def _claim_output() -> TextIO:
    """Standard output for the answers alone: whatever a framework prints goes to standard error from here on."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _say(answers: TextIO, answer: Mapping[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


async def _latencies(call: Call, calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return seconds


async def _rate(call: Call, calls: int, in_flight: int) -> float:
    async def worker() -> None:
        for _ in range(calls // in_flight):
            await call()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return (calls // in_flight) * in_flight / (time.perf_counter() - started)

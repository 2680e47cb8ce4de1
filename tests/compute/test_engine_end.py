"""How an engine ends: closed, or failed. Each in a process of its own, since a process can build one engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omniflow_backend.models.smollm2.checkpoint import prepare

pytestmark = [pytest.mark.model, pytest.mark.slow]

PREAMBLE = """
import asyncio, sys, time
from pathlib import Path
from omniflow_backend.compute.generation import *
from omniflow_backend.compute.prefix import Prompt
from omniflow_backend.compute.sglang import engine as module
from omniflow_backend.compute.sglang.runner import RunnerConfiguration

runners = []
build = module.build_runner
module.build_runner = lambda configuration: runners.append(build(configuration)) or runners[-1]
configuration = module.EngineConfiguration(RunnerConfiguration(Path(sys.argv[1]), context_length=256, total_slots=512))
engine = module.SglangEngine(configuration, decode=str, end_of_text=frozenset())
request = GenerationRequest("r", Prompt((1, 2, 3)), SamplingParameters(max_tokens=200))

async def ending(stream):
    try:
        async for chunk in stream:
            pass
    except Exception as error:
        return error
"""

FAILURE = """
def broken(batch):
    raise MemoryError("no room")

async def main():
    streams = [engine.generate(request) for _ in range(20)]
    await anext(streams[0])
    runners[0].forward = broken
    for error in await asyncio.wait_for(asyncio.gather(*map(ending, streams)), 30):
        assert type(error) is EngineFailed and "MemoryError: no room" in str(error), error
    try:
        engine.generate(request)
    except EngineFailed:
        print("refused")

asyncio.run(main())
engine.close()
"""

CLOSE = """
import threading, signal

async def main():
    stream = engine.generate(request)
    await anext(stream)
    await asyncio.to_thread(engine.close)
    assert type(await asyncio.wait_for(ending(stream), 30)) is EngineClosed
    try:
        engine.generate(request)
    except EngineClosed:
        print("refused")

asyncio.run(main())
engine.close()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert [t.name for t in threading.enumerate() if t.name.startswith("omniflow")] == []
try:
    module.SglangEngine(configuration, decode=str, end_of_text=frozenset())
except RuntimeError as error:
    print("one engine:", error)
"""


def run(script: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", PREAMBLE + script, str(prepare(progress=False))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_step_that_fails_ends_every_request_with_the_reason_and_the_engine_takes_no_more() -> None:
    assert "refused" in run(FAILURE)


def test_closing_ends_requests_and_threads_and_a_second_engine_is_refused() -> None:
    output = run(CLOSE)
    assert "refused" in output
    assert "one engine:" in output

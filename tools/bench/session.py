"""A session of many turns: the client sends new turns only, or replays everything (paper, 6.3 and figure 13).

``PYTHONPATH=tools python -m bench.session [--quick] [--json FILE] [--plot FILE]``

Each turn brings a picture (896 pixels), a spoken question and a written one; answers have 10 tokens. Both ways use the
same roles and the same engine, with its prefix cache on, and take turns. The one that replays sends all pictures, clips
and texts again: they are read again, but encoder outputs and transcripts of earlier turns come from caches.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import redis
from bench.plot import Series, lines_with_bands
from bench.report import Bar, Report, timed_row
from hibari import SAMPLE_RATE, Hibari
from PIL import Image
from tqdm import tqdm

from memory_manager.metadata.sessions import SessionChains
from memory_manager.pools.client import ParameterClient
from memory_manager.pools.declaration import tier_sizes
from memory_manager.process import ManagerProcess
from omniflow_backend.compute.generation import GenerationRequest, SamplingParameters
from omniflow_backend.compute.sessions.history import History, NewPositions
from omniflow_backend.compute.sessions.pages import declare_embeddings, declare_records
from omniflow_backend.compute.sessions.retained import RetainedSessions
from omniflow_backend.compute.sessions.sessions import Sessions
from omniflow_backend.deployment import MEMORY_SOCKET, REDIS_URL, RUNTIME_DIRECTORY
from omniflow_backend.models.smollm2.role import Llm
from omniflow_backend.models.speech.roles import Asr, AudioReader
from omniflow_backend.models.speech.wav import write_wav
from omniflow_backend.models.vision.roles import PictureReader, VisionEncoder
from omniflow_backend.serve.redis_server import answers, find_server

ANSWER_TOKENS = 10
LAST_TURNS = 5
WARM_UP = 1
OURS, REPLAY, METADATA = "new turn only", "replay", "metadata"
CONTEXT = 4096
IDLE_S = 3600.0
_THINGS = ("apple", "river", "castle", "garden", "window", "bridge", "candle", "forest", "rocket", "violin")
_QUESTIONS = ("What is a {}?", "Who needs a {}?", "Where is the {}?", "Do you like the {}?", "How large is a {}?")


@dataclass(frozen=True, slots=True)
class Turn:
    """What a client adds: two files and a text."""

    picture: bytes
    clip: bytes
    text: str


@dataclass(slots=True)
class Context:
    """One activation of a role, as drivers give it."""

    session_id: str | None = None
    request_id: str = "bench"
    node: str = "bench"
    activation_id: str = "bench"
    deadline: float | None = None
    cancelled: bool = False

    def raise_if_cancelled(self) -> None: ...

    def on_cancel(self, callback: Any) -> None: ...


class TimedChains(SessionChains):
    """Adds up the seconds that the metadata of sessions takes."""

    seconds = 0.0

    def _run(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._run(*arguments)
        finally:
            self.seconds += time.perf_counter() - start


@dataclass(slots=True)
class Conversation:
    """What a client that replays has kept: its turns and the answers."""

    turns: list[Turn] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    transcripts: dict[bytes, str] = field(default_factory=dict)
    """What the server has heard before, by what it heard."""


class Roles:
    """The roles of a conversation with pictures and speech, in this process."""

    def __init__(self, stack: ExitStack) -> None:
        self.reader, self.encoder, self.audio, self.asr = (
            PictureReader(max_pictures=1000),
            VisionEncoder(),
            AudioReader(),
            Asr(),
        )
        self.llm = Llm(context_length=CONTEXT, total_slots=4 * CONTEXT, sampling={"max_tokens": ANSWER_TOKENS})
        for role in (self.reader, self.encoder, self.audio, self.asr, self.llm):
            role.load()
            stack.callback(role.close)
        self.chains = self._time_chains(stack)

    async def new_turn_only(self, session: str, turn: Turn) -> None:
        """The server has the rest."""
        (embeddings,) = self._embeddings([turn.picture])
        prompt = f"<image>{self._heard(turn.clip, {})} {turn.text}"
        inputs: dict[str, Any] = {"step": None, "system": None, "salt": session, "sampling_parameters": None}
        context: Any = Context(session)
        async for _ in self.llm.chat_about_images(context, prompt=prompt, images=[embeddings], **inputs):
            pass

    async def replay(self, salt: str, before: Conversation, turn: Turn) -> str:
        """Everything that was said comes from the client."""
        turns = [*before.turns, turn]
        pictures = self._embeddings([turn.picture for turn in turns])
        prompts = [f"<image>{self._heard(turn.clip, before.transcripts)} {turn.text}" for turn in turns]
        history, tokenizer = History(), self.llm.tokenizer
        for prompt, picture, answer in zip(prompts, pictures, before.answers, strict=False):
            asked = self.llm.conversation.question(history, prompt, None, [picture])
            said = (*asked.token_ids, *tokenizer.encode(answer), *tokenizer.closing)
            history = history.after(NewPositions(said, asked.spans))
        asked = self.llm.conversation.question(history, prompts[-1], None, [pictures[-1]])
        prompt = history.prompt([range(len(history))], asked, salt.encode())
        request = GenerationRequest("bench", prompt, SamplingParameters(max_tokens=ANSWER_TOKENS))
        return "".join([chunk.text_delta async for chunk in self.llm.engine.generate(request)])

    def _embeddings(self, files: list[bytes]) -> list[Any]:
        context: Any = Context()
        pictures = self.reader.decode(context, files)["pictures"]
        return list(self.encoder.encode(context, pictures)["embeddings"])

    def _heard(self, clip: bytes, transcripts: dict[bytes, str]) -> str:
        context: Any = Context()
        audio = self.audio.decode(context, clip)
        key = hashlib.sha256(audio["waveform"].tobytes()).digest()
        if key not in transcripts:
            transcripts[key] = self.asr.transcribe(context, **audio)["text"]
        return transcripts[key]

    def _time_chains(self, stack: ExitStack) -> TimedChains:
        tiers, directory = tier_sizes(L2="64MiB"), os.environ[RUNTIME_DIRECTORY]
        chains = TimedChains(redis.Redis.from_url(os.environ[REDIS_URL]), "bench", IDLE_S)
        pages = ParameterClient(Path(directory, MEMORY_SOCKET), "bench")
        records, embeddings = declare_records("bench", tiers), declare_embeddings("bench", 576, tiers)
        self.llm.sessions.close()
        self.llm.sessions = Sessions(RetainedSessions(chains, pages, records, embeddings, idle_s=IDLE_S), 2 * CONTEXT)
        return chains


@contextmanager
def services() -> Iterator[None]:
    """Redis and a MemoryManager, where roles of this process find them."""
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="session-"))
        socket = Path(directory, "redis.sock")
        command = [find_server(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", directory]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        stack.callback(server.wait, 10)
        stack.callback(server.kill)
        deadline = time.monotonic() + 10
        while not answers(f"unix://{socket}"):
            if time.monotonic() > deadline:
                raise TimeoutError("Redis does not answer")
            time.sleep(0.005)
        stack.enter_context(ManagerProcess(Path(directory, MEMORY_SOCKET), ["--limit", "256MiB"]))
        os.environ.update({RUNTIME_DIRECTORY: directory, REDIS_URL: f"unix://{socket}"})
        yield


def make_turns(first: int, count: int) -> list[Turn]:
    """Turns that differ in everything; the same numbers give the same turns."""
    turns, voice = [], Hibari()
    for number in range(first, first + count):
        thing, question = _THINGS[number % len(_THINGS)], _QUESTIONS[number // len(_THINGS) % len(_QUESTIONS)]
        blocks = np.random.default_rng(number).integers(0, 256, (42, 56, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(blocks).resize((896, 672), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        clip = write_wav(voice(question.format(thing), seed=0), SAMPLE_RATE)
        turns.append(Turn(file.getvalue(), clip, f"Answer question {number + 1}."))
    return turns


async def measure(roles: Roles, run: int, count: int, progress: tqdm[Any]) -> dict[str, list[float]]:
    """Seconds of each turn, both ways, and of the metadata of the session."""
    seconds: dict[str, list[float]] = {OURS: [], REPLAY: [], METADATA: []}
    # Nothing of one way is in a cache because of the other, or of another run.
    first = 2 * run * count
    mine, replayed = make_turns(first, count), make_turns(first + count, count)
    kept = Conversation()

    async def ours(number: int) -> None:
        before = roles.chains.seconds
        start = time.perf_counter()
        await roles.new_turn_only(f"ours {run}", mine[number])
        seconds[OURS].append(time.perf_counter() - start)
        seconds[METADATA].append(roles.chains.seconds - before)

    async def replay(number: int) -> None:
        start = time.perf_counter()
        answer = await roles.replay(f"replay {run}", kept, replayed[number])
        seconds[REPLAY].append(time.perf_counter() - start)
        kept.turns.append(replayed[number])
        kept.answers.append(answer)

    for number in range(count):
        for way in (ours, replay) if number % 2 else (replay, ours):
            await way(number)
        progress.update()
    return seconds


def judge(report: Report, series: dict[str, Series]) -> None:
    """Rows and bars of the whole session, its last turns, and the metadata."""
    for name in (REPLAY, OURS):
        reference = report.rows[0] if report.rows else None
        report.rows.append(timed_row(f"{name}, all turns", list(series[name].runs.ravel()), reference=reference))
    mine, theirs = (series[name].runs for name in (OURS, REPLAY))
    lower = [
        float(1 - mine[:, part].mean() / theirs[:, part].mean()) * 100
        for part in (slice(None), slice(-LAST_TURNS, None))
    ]
    report.bars.append(Bar("lower than replay, mean of all turns", lower[0], 0.0, "%", below=False))
    report.bars.append(Bar(f"lower than replay, mean of the last {LAST_TURNS} turns", lower[1], 28.6, "%", below=False))
    metadata = series[METADATA].runs * 1e3
    report.rows.append(timed_row("metadata of the session, a turn", list(metadata.ravel() / 1e3)))
    # The first turn of a run begins the session, which is another thing to do.
    early, late = (float(np.median(metadata[:, part])) for part in (slice(1, 1 + LAST_TURNS), slice(-LAST_TURNS, None)))
    report.bars.append(Bar("metadata of a turn, mean", float(metadata.mean()), 1.0, "ms"))
    report.bars.append(
        Bar(f"metadata of the last {LAST_TURNS} turns against the second to sixth", late / early, 1.2, "x")
    )
    report.series = {name: one.runs.tolist() for name, one in series.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: under 60 s")
    parser.add_argument("--json", type=Path, help="write the figures here, every turn's among them")
    parser.add_argument("--plot", type=Path, help="write the time of each turn here, as SVG, and that of its metadata")
    arguments = parser.parse_args()
    runs, count = (2, 6) if arguments.quick else (3, 50)
    report = Report(f"a session of {count} turns with pictures and speech, {runs} runs")
    with ExitStack() as stack:
        stack.enter_context(services())
        roles = Roles(stack)
        progress = stack.enter_context(tqdm(total=(runs * count) + WARM_UP, desc="turns", file=sys.stderr))
        asyncio.run(measure(roles, runs, WARM_UP, progress))
        found = [asyncio.run(measure(roles, run, count, progress)) for run in range(runs)]
    series = {name: Series(name, np.array([run[name] for run in found])) for name in (OURS, REPLAY, METADATA)}
    judge(report, series)
    report.show()
    if arguments.json:
        report.write(arguments.json)
    if arguments.plot:
        ways, metadata = [series[OURS], series[REPLAY]], Series(METADATA, series[METADATA].runs * 1e3)
        arguments.plot.write_text(lines_with_bands("time of a turn", "turn", "s", ways))
        beside = arguments.plot.with_stem(f"{arguments.plot.stem}-metadata")
        beside.write_text(lines_with_bands("metadata of the session", "turn", "ms", [metadata]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

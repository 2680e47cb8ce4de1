"""``omniflow doctor``: what works on this machine, what is missing, how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path


class State(StrEnum):
    """Outcome of one check. Only ``MISSING`` makes the command fail."""

    WORKS = "works"
    MISSING = "missing"
    ABSENT = "not here"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``remedy`` says what to do about it."""

    what: str
    state: State
    detail: str
    remedy: str = ""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("doctor", help="what works on this machine, what is missing, how to get it")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    findings = [check() for check in CHECKS]
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        _show(findings)
    return int(any(finding.state is State.MISSING for finding in findings))


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {State.WORKS: "green", State.MISSING: "red", State.ABSENT: "yellow"}
    table = Table(show_header=True, header_style="bold")
    for column in ("what", "state", "detail", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        state = f"[{colours[finding.state]}]{finding.state}[/]"
        table.add_row(finding.what, state, escape(finding.detail), escape(finding.remedy))
    Console().print(table)


def check_python() -> Finding:
    """The interpreter that roles use, and the libpython that Triton's stub embeds."""
    from omniflow_backend.serve.libpython import LibpythonMissing, libpython_directory

    version = ".".join(map(str, sys.version_info[:3]))
    try:
        return Finding("Python and its libpython", State.WORKS, f"{version}; {libpython_directory()}")
    except LibpythonMissing as missing:
        return Finding(
            "Python and its libpython", State.MISSING, str(missing), "make env, or install Debian's libpython3.11"
        )


def check_numpy() -> Finding:
    """Triton's stub of this wheel corrupts tensors with numpy 2."""
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) < 2:
        return Finding("numpy", State.WORKS, version)
    return Finding("numpy", State.MISSING, f"{version} corrupts tensors in the bundled server", 'pip install "numpy<2"')


def check_triton() -> Finding:
    """The server binary, actually started as far as its help text."""
    from omniflow_backend.serve.processes import StartFailed
    from omniflow_backend.serve.triton_server import TritonInstallation

    try:
        installation = TritonInstallation.find()
    except StartFailed as error:
        return Finding("Triton server", State.MISSING, str(error), "make env")
    libraries = ":".join(map(str, installation.libraries))
    try:
        done = subprocess.run(
            [str(installation.binary), "--help"],
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
            capture_output=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("Triton server", State.MISSING, f"{installation.binary} does not run: {error}", "make env")
    if b"model-repository" not in done.stdout + done.stderr:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()[-200:]
        return Finding("Triton server", State.MISSING, f"{installation.binary} does not run: {said}", "make env")
    return Finding("Triton server", State.WORKS, str(installation.binary))


def check_redis() -> Finding:
    """A Redis-protocol server: given, of the system, or the bundle."""
    from omniflow_backend.serve.processes import StartFailed
    from omniflow_backend.serve.redis_server import REDIS_URL, answers, find_server

    url = os.environ.get(REDIS_URL)
    if url:
        state = State.WORKS if answers(url) else State.MISSING
        return Finding(
            "Redis", state, url, "" if state is State.WORKS else f"nothing answers there; start it or unset {REDIS_URL}"
        )
    try:
        return Finding("Redis", State.WORKS, f"embedded: {find_server()}")
    except StartFailed as error:
        return Finding("Redis", State.MISSING, str(error), "make env")


def check_memory_manager() -> Finding:
    """A MemoryManager process, started, used and ended."""
    import numpy as np

    from memory_manager.client import MemoryManagerClient
    from memory_manager.process import ManagerProcess

    try:
        with tempfile.TemporaryDirectory(prefix="omniflow-doctor-") as directory:
            endpoint = Path(directory, "memory.sock")
            with ManagerProcess(endpoint, ["--limit", "64MiB"]):
                client = MemoryManagerClient(str(endpoint), name="doctor", timeout=10.0)
                handle = client.put(np.arange(4), scope="doctor")
                with client.open([handle]) as arrays:
                    sound = arrays[0].tolist() == [0, 1, 2, 3]
                client.close()
    except Exception as error:
        return Finding("MemoryManager", State.MISSING, f"{type(error).__name__}: {error}", "run with --log-level DEBUG")
    return Finding("MemoryManager", State.WORKS if sound else State.MISSING, "shared memory by handle, no copy")


def check_shared_memory() -> Finding:
    """Room in /dev/shm for Triton's own regions."""
    free = shutil.disk_usage("/dev/shm").free >> 20
    if free >= 256:
        return Finding("/dev/shm", State.WORKS, f"{free} MiB free")
    return Finding(
        "/dev/shm", State.MISSING, f"only {free} MiB free", "give it at least 256 MiB (containers: --shm-size=1g)"
    )


def check_sglang() -> Finding:
    """The engine behind the LLM role."""
    try:
        engine, torch = importlib.metadata.version("sglang"), importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError as error:
        return Finding("SGLang", State.MISSING, str(error), "make env")
    return Finding("SGLang", State.WORKS, f"sglang {engine}, torch {torch}")


def check_checkpoints() -> Finding:
    """Weights of the shipped workflows, prepared in the cache or not yet."""
    from omniflow_backend.models.prepared import default_cache

    cache = default_cache()
    prepared = sorted(path.name for path in cache.iterdir() if path.is_dir()) if cache.is_dir() else []
    if prepared:
        return Finding("checkpoints", State.WORKS, f"{cache}: {', '.join(prepared)}")
    return Finding("checkpoints", State.ABSENT, f"none in {cache} yet", "prepared by themselves on first use")


def check_gpu() -> Finding:
    """A GPU is optional."""
    found = shutil.which("nvidia-smi")
    if found is None:
        return Finding(
            "GPU", State.ABSENT, "no NVIDIA driver; everything runs on the CPU", 'with one: pip install "omniflow[gpu]"'
        )
    listed = subprocess.run([found, "-L"], capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    return Finding("GPU", State.WORKS if listed else State.ABSENT, listed or "driver without a device")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python,
    check_numpy,
    check_triton,
    check_redis,
    check_memory_manager,
    check_shared_memory,
    check_sglang,
    check_checkpoints,
    check_gpu,
)

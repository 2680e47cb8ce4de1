"""Builds the layout conversion module into `memory_manager/layouts`, for the interpreter that runs this file.

Needs CMake, a C++17 compiler, the interpreter's headers and pybind11; nvcc 12.8 or newer adds the CUDA kernels. Where
something is missing it says what and ends well: conversion then runs in numpy or torch. `--require` makes that fail.
Does nothing, quickly, when the module was built from these very sources with these very tools.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
ROOT = SOURCES.parent
PACKAGE = ROOT / "memory_manager" / "layouts"
WORK = ROOT / "build" / "conversion"
COMPILED = (".h", ".cpp", ".cu", ".txt")
PROBE_SECONDS = 60
CONFIGURE_SECONDS = 300
COMPILE_SECONDS = 900


class CannotBuild(Exception):
    """What is missing or went wrong, in one sentence."""


class ModuleBuild:
    """One build of the module, from `SOURCES` through `work` into `package`."""

    def __init__(self, package: Path, work: Path) -> None:
        self._package = package
        self._work = work
        self._stamp = work / "built-from"
        self._log = work / "build.log"

    @property
    def module(self) -> Path:
        """The file that Python imports."""
        return self._package / f"_conversion{sysconfig.get_config_var('EXT_SUFFIX')}"

    def run(self) -> bool:
        """Build unless the module is up to date. Returns whether anything was built.

        Raises:
            CannotBuild: if a tool is missing or fails.
        """
        cmake = find_tool("cmake", "CMake")
        compiler = find_tool(os.environ.get("CXX", "c++"), "a C++ compiler")
        binding = pybind11_directory()
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            raise CannotBuild("the headers of this Python are not installed (Debian: python3-dev)")
        self._work.mkdir(parents=True, exist_ok=True)
        with locked(self._work / "lock"):
            digest = self._digest(compiler, binding)
            if self.module.exists() and self._stamp.exists() and self._stamp.read_text(encoding="utf-8") == digest:
                return False
            self._compile(cmake, binding, digest)
        return True

    def _compile(self, cmake: str, binding: Path, digest: str) -> None:
        # From nothing every time: a cached configuration may name tools that are gone.
        objects = self._work / digest[:16]
        shutil.rmtree(objects, ignore_errors=True)
        staged = objects / "staged"
        self._log.write_bytes(b"")
        try:
            self._tool(
                [
                    *(cmake, "-S", str(SOURCES), "-B", str(objects), "-DCMAKE_BUILD_TYPE=Release"),
                    *(f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={binding}"),
                    f"-DCMAKE_INSTALL_PREFIX={staged}",
                ],
                CONFIGURE_SECONDS,
            )
            self._tool([cmake, "--build", str(objects), "--parallel", "2", "--target", "install"], COMPILE_SECONDS)
            built = next(staged.glob("_conversion*"))
            # Replaced in one step: a process that imports the module meanwhile gets the old or the new one.
            arriving = self.module.with_suffix(".arriving")
            shutil.copyfile(built, arriving)
            os.replace(arriving, self.module)
            self._stamp.write_text(digest, encoding="utf-8")
        finally:
            shutil.rmtree(objects, ignore_errors=True)

    def _tool(self, command: list[str], seconds: int) -> None:
        with self._log.open("ab") as log:
            try:
                status = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=seconds, check=False
                ).returncode
            except subprocess.TimeoutExpired:
                raise CannotBuild(f"{command[0]} took longer than {seconds} s; its output is in {self._log}") from None
        if status != 0:
            raise CannotBuild(f"{command[0]} failed; its output is in {self._log}")

    def _digest(self, compiler: str, binding: Path) -> str:
        state = hashlib.sha256()
        for source in sorted(path for path in SOURCES.iterdir() if path.suffix in COMPILED):
            state.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
        nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
        for part in (sys.executable, self.module.name, str(binding), version(compiler), version(nvcc) if nvcc else ""):
            state.update(part.encode() + b"\0")
        return state.hexdigest()


def find_tool(name: str, what: str) -> str:
    """The program, from this environment or from PATH. Raises `CannotBuild`."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise CannotBuild(f"{what} is not installed")
    return found


def pybind11_directory() -> Path:
    """Where pybind11's CMake files lie. Raises `CannotBuild`."""
    package = importlib.util.find_spec("pybind11")
    if package is None or package.origin is None:
        raise CannotBuild("pybind11 is not installed")
    return Path(package.origin).parent / "share" / "cmake" / "pybind11"


def version(tool: str) -> str:
    """What a compiler says about itself; empty if it does not answer."""
    try:
        return subprocess.run(
            [tool, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One build at a time; the one that waits finds the module built."""
    with path.open("w", encoding="utf-8") as file:
        deadline = time.monotonic() + CONFIGURE_SECONDS + COMPILE_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CannotBuild(f"another build holds {path}; stop it and try again") from None
                time.sleep(0.2)
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", action="store_true", help="fail where the module cannot be built")
    arguments = parser.parse_args()
    build = ModuleBuild(PACKAGE, WORK)
    started = time.monotonic()
    try:
        if build.run():
            print(f"conversion module: built in {time.monotonic() - started:.0f} s", flush=True)
    except CannotBuild as failure:
        outcome = "conversion runs in numpy and torch" if not build.module.exists() else "the one built before is kept"
        print(f"conversion module: not built ({failure}); {outcome}", file=sys.stderr, flush=True)
        return 1 if arguments.require else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

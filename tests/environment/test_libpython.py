"""The stub gets the libpython of its own interpreter, never another one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from omniflow_backend.serve import libpython
from omniflow_backend.serve.libpython import LIBRARY, LibpythonMissing, libpython_directory, library_version, record

OWN = libpython_directory() / LIBRARY


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A virtual environment with nothing recorded, of an interpreter that has its own library."""
    base = tmp_path / "base"
    (base / "lib").mkdir(parents=True)
    (base / "lib" / LIBRARY).symlink_to(OWN)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(base))
    return tmp_path


@pytest.fixture
def of_another_version(tmp_path: Path) -> Path:
    """A directory whose libpython says that it is Python 3.11.0."""
    directory = tmp_path / "another"
    directory.mkdir()
    source = directory / "version.c"
    source.write_text("const unsigned long Py_Version = 0x030b00f0;\n")
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler is needed: apt-get install gcc"
    subprocess.run([compiler, "-shared", "-o", str(directory / LIBRARY), str(source)], check=True, timeout=60)
    return directory


def test_the_library_found_is_of_this_very_version() -> None:
    assert library_version(libpython_directory() / LIBRARY) == sys.hexversion


def test_a_recorded_directory_comes_first(environment: Path) -> None:
    recorded = environment / "recorded"
    recorded.mkdir()
    (recorded / LIBRARY).symlink_to(OWN)
    record(recorded)
    assert libpython_directory() == recorded


@pytest.mark.parametrize("exists", [True, False])
def test_a_recorded_directory_without_the_library_is_passed_over(environment: Path, exists: bool) -> None:
    recorded = environment / "recorded"
    if exists:
        recorded.mkdir()
        (recorded / LIBRARY).write_text("no library")
    record(recorded)
    assert libpython_directory() != recorded
    assert library_version(libpython_directory() / LIBRARY) == sys.hexversion


def test_a_library_of_another_version_is_passed_over(environment: Path, of_another_version: Path) -> None:
    record(of_another_version)
    assert library_version(of_another_version / LIBRARY) == 0x030B00F0
    assert libpython_directory() != of_another_version
    assert library_version(libpython_directory() / LIBRARY) == sys.hexversion


def test_without_any_the_error_names_the_version_the_places_and_the_remedy(
    of_another_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libpython, "_places", lambda: iter([of_another_version]))
    with pytest.raises(LibpythonMissing) as caught:
        libpython_directory()
    message = str(caught.value)
    assert str(of_another_version) in message
    assert "0x030b00f0" in message
    assert "apt-get install libpython3.11" in message


def test_as_a_program_it_prints_the_directory() -> None:
    command = [sys.executable, "-I", libpython.__file__]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert Path(printed.strip()) == libpython_directory()

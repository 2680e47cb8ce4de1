"""Building the environment: the right interpreter, a stamp that tells the truth, errors that say what to do."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from environment.build import LOCK, MODELS_LOCK, ROOT, Builder
from environment.debian import install_ensurepip
from environment.failure import EnvironmentFailure
from environment.interpreter import Interpreter, choose, interpreters, probe
from environment.pip import Pip, refuse_cuda_build

FINDER = ROOT / "omniflow_backend" / "serve" / "libpython.py"


def interpreter(prefix: str, *, ensurepip: bool = True, shared_library: bool = True) -> Interpreter:
    return Interpreter(Path(prefix, "bin/python3.11"), Path(prefix), (3, 11, 2), ensurepip, shared_library)


class TestChoosingAnInterpreter:
    def test_the_first_that_lacks_nothing_wins(self) -> None:
        static = interpreter("/opt/static", shared_library=False)
        first, second = interpreter("/opt/first"), interpreter("/opt/second")
        assert choose([static, first, second]) is first

    def test_the_distribution_s_can_be_completed(self) -> None:
        static = interpreter("/opt/static", shared_library=False)
        debian = interpreter("/usr", ensurepip=False, shared_library=False)
        assert choose([static, debian]) is debian

    @pytest.mark.parametrize("lacking", ["ensurepip", "shared_library"])
    def test_one_that_cannot_be_completed_is_refused_with_what_it_lacks(self, lacking: str) -> None:
        with pytest.raises(EnvironmentFailure, match=lacking.replace("_", " ")):
            choose([interpreter("/opt/static", **{lacking: False})])

    def test_none_at_all_says_what_to_install(self) -> None:
        with pytest.raises(EnvironmentFailure, match=r"apt-get install python3\.11"):
            choose([])

    def test_a_virtual_environment_s_python_stands_for_the_one_it_is_made_of(self) -> None:
        found = probe(sys.executable, FINDER)
        assert found is not None
        assert found.prefix == Path(sys.base_prefix)
        assert found.version == sys.version_info[:3]
        assert found.shared_library

    def test_what_is_no_python_3_11_is_passed_over(self, tmp_path: Path) -> None:
        other = tmp_path / "python3"
        other.write_text("#!/bin/sh\necho '{\"version\": [3, 12, 1]}'\n")
        other.chmod(0o755)
        assert probe(str(other), FINDER) is None
        assert probe("/bin/false", FINDER) is None
        assert probe(str(tmp_path / "missing"), FINDER) is None

    def test_a_broken_python_first_on_path_does_not_hide_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken, working = tmp_path / "broken", tmp_path / "working"
        for directory in (broken, working):
            directory.mkdir()
        (broken / "python3.11").write_text("#!/bin/sh\nexit 127\n")
        (broken / "python3.11").chmod(0o755)
        (working / "python3.11").symlink_to(sys.executable)
        monkeypatch.setenv("PATH", f"{broken}:{working}")
        assert next(interpreters(None, FINDER)).version == sys.version_info[:3]


class TestTheStamp:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        root = tmp_path / "checkout"
        for name in (LOCK, MODELS_LOCK, "pyproject.toml"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes((ROOT / name).read_bytes())
        return root

    @pytest.fixture
    def builder(self, root: Path) -> Builder:
        builder = Builder(root, root / ".venv")
        python = root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        (root / ".venv" / ".ready").write_text(json.dumps(builder.sources()))
        return builder

    def test_an_environment_built_from_these_files_is_ready(self, builder: Builder) -> None:
        assert builder.ready()

    @pytest.mark.parametrize("name", [LOCK, MODELS_LOCK, "pyproject.toml"])
    def test_a_changed_source_makes_it_stale(self, builder: Builder, root: Path, name: str) -> None:
        with (root / name).open("a") as file:
            file.write("# changed\n")
        assert not builder.ready()

    def test_a_touched_source_does_not(self, builder: Builder, root: Path) -> None:
        (root / LOCK).touch()
        assert builder.ready()

    def test_a_moved_checkout_makes_it_stale(self, builder: Builder, root: Path) -> None:
        assert builder.ready()
        moved = root.rename(root.with_name("moved"))
        assert not Builder(moved, moved / ".venv").ready()

    def test_a_vanished_interpreter_makes_it_stale(self, builder: Builder, root: Path) -> None:
        (root / ".venv" / "bin" / "python").unlink()
        assert not builder.ready()

    def test_an_interrupted_build_starts_over(self, builder: Builder, root: Path) -> None:
        (root / ".venv" / ".incomplete").touch()
        with pytest.raises(EnvironmentFailure, match=r"no Python 3\.11 found"):
            builder.build("/bin/false")
        assert not (root / ".venv" / "bin").exists()


class TestFailures:
    @pytest.mark.parametrize(("package", "hint"), [("no-such-package", False), ("torch", True)])
    def test_pip_s_failure_names_the_package_the_log_and_the_remedy(
        self, tmp_path: Path, package: str, hint: bool
    ) -> None:
        log = tmp_path / "install.log"
        with pytest.raises(EnvironmentFailure) as caught:
            Pip(Path(sys.executable), log).install(["--no-index", "--find-links", str(tmp_path), f"{package}==0.1"], 1)
        message = str(caught.value)
        assert f"{package}==0.1" in message
        assert str(log) in message
        assert ("PIP_EXTRA_INDEX_URL" in message) is hint
        assert package in log.read_text()

    @pytest.mark.parametrize(("cuda", "refused"), [("None", False), ("'13.0'", True)])
    def test_only_a_cuda_build_of_torch_is_refused(self, tmp_path: Path, cuda: str, refused: bool) -> None:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\n")
        if refused:
            with pytest.raises(EnvironmentFailure, match=r"CUDA '13\.0'.*PIP_EXTRA_INDEX_URL"):
                refuse_cuda_build(tmp_path)
        else:
            refuse_cuda_build(tmp_path)


def test_make_env_does_nothing_in_under_a_second_when_all_is_there() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        ["make", "--no-print-directory", "env"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout == ""
    # Of processor time: how long the clock runs depends on who else uses this machine.
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 1


def test_without_root_a_missing_ensurepip_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(EnvironmentFailure, match=r"As root, run: apt-get install -y python3\.11-venv"):
        install_ensurepip()

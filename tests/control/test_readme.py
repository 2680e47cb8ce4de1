"""What the README shows is true."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from omniflow_backend.cli import main
from omniflow_backend.cli.workflows import find_workflow
from omniflow_backend.testing import run

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def my_workflow(tmp_path: Path) -> Path:
    block = next(b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "# my_workflow.py" in b)
    path = tmp_path / "my_workflow.py"
    path.write_text(block)
    return path


class TestExample:
    def test_it_runs_as_written(self, my_workflow: Path) -> None:
        plan = find_workflow(str(my_workflow)).workflow.compile()
        assert run(plan, {"text": "so it goes"}).values("line") == ["so -> SO", "it -> IT", "goes -> GOES"]

    def test_its_graph_is_explained_with_the_joins_anchor(
        self, my_workflow: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["graph", str(my_workflow)]) == 0
        explained = capsys.readouterr().out
        assert "lines.write" in explained
        assert "words.split" in explained

    def test_its_picture_is_written_where_asked(self, my_workflow: Path, tmp_path: Path) -> None:
        target = tmp_path / "graph.svg"
        assert main(["graph", str(my_workflow), "--svg", "-o", str(target)]) == 0
        assert target.read_text().startswith(("<svg", "<?xml"))


class TestCommandLine:
    @pytest.mark.parametrize(
        "name", ["nothing_like_it", "no/such/file.py", "json:loads", "omniflow_backend.models:nothing"]
    )
    def test_an_unknown_workflow_is_a_clear_error(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["graph", name]) == 1
        error = capsys.readouterr().err
        assert error.startswith("omniflow: ")
        assert "Traceback" not in error

    def test_the_core_imports_without_engines(self) -> None:
        import subprocess

        code = "import sys, omniflow_backend.planning.planner, omniflow_backend.runtime.call; print(*sys.modules)"
        modules = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        assert not {"torch", "zmq", "numpy", "sglang", "tritonclient"} & set(modules)

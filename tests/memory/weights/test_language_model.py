"""Two role processes with SmolLM2 in SGLang's runner: one copy of the weights, the same answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omniflow_backend.deployment import RUNTIME_DIRECTORY
from omniflow_backend.models.smollm2.checkpoint import prepare

PROMPT = [504, 3575, 282, 4649, 314]
"""`The capital of France is`."""
GREEDY = [7042, 30, 198, 198, 504, 2988, 314, 42]
"""` Paris.` and on, as a process with weights of its own answers."""


class LanguageModelRole:
    """A process that runs `language_model_role.py`."""

    def __init__(self, runtime: Path, checkpoint: Path, weights: str = "shared") -> None:
        script = Path(__file__).with_name("language_model_role.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(checkpoint), weights],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, RUNTIME_DIRECTORY: str(runtime)},
        )

    def tell(self, do: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.usefixtures("manager")
def test_two_roles_that_start_together_hold_one_copy_read_it_once_and_answer_alike(endpoint: Path) -> None:
    checkpoint = prepare()
    roles = [LanguageModelRole(endpoint.parent, checkpoint) for _ in range(2)]
    try:
        for role in roles:
            role.tell("generate", prompt=PROMPT, tokens=8)
        assert [role.answer() for role in roles] == [GREEDY, GREEDY]
        told = []
        for role in roles:
            role.tell("tell")
            told.append(role.answer())
    finally:
        for role in roles:
            role.end()
    assert sorted(one["read"] for one in told) == [False, True]
    assert sum(one["resident"] for one in told) <= 1.1 * told[0]["weights"]

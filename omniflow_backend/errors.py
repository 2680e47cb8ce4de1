"""Errors that reach authors and callers: what happened, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class OmniFlowError(Exception):
    """Base of every error this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line in an author's own file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a workflow, and where the author wrote it."""

    message: str
    place: Place

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class WorkflowError(OmniFlowError):
    """A workflow that cannot be compiled; lists all problems at once."""

    def __init__(self, workflow: str, problems: Sequence[Problem]) -> None:
        self.workflow = workflow
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"workflow {workflow!r} has {len(self.problems)} problem(s):\n{lines}")


class ErrorCode(StrEnum):
    """Why a call ended without its SYSTEM_FINISH."""

    BAD_INPUT = "BAD_INPUT"
    ROLE_FAILED = "ROLE_FAILED"
    ROLE_DIED = "ROLE_DIED"
    UNAVAILABLE = "UNAVAILABLE"
    JOIN_FAILED = "JOIN_FAILED"
    OUTPUT_FAILED = "OUTPUT_FAILED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    INTERNAL = "INTERNAL"


class BadInput(OmniFlowError, ValueError):
    """The caller gave something that cannot be served; raised by roles and by input checks."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The one ERROR with which a failed or cancelled call ends (contract section 7)."""

    code: ErrorCode
    message: str
    workflow: str = ""
    node: str = ""
    role: str = ""
    request: str = ""
    path: str = ""

    def __str__(self) -> str:
        named = {
            "workflow": self.workflow,
            "node": self.node,
            "role": self.role,
            "request": self.request,
            "path": self.path,
        }
        where = ", ".join(f"{name}={value}" for name, value in named.items() if value)
        return f"{self.code}: {self.message}" + (f" [{where}]" if where else "")


class CallError(OmniFlowError):
    """Raised to a caller whose call failed; ``failure`` has the parts."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(str(failure))

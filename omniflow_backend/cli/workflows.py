"""Finding the workflow somebody names on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omniflow_backend.dsl.workflow import Workflow
from omniflow_backend.triton.references import BadReference, resolve

SHIPPED = ("voice_chat", "chat", "vision_chat")


@dataclass(frozen=True, slots=True)
class NamedWorkflow:
    """A workflow and the reference by which another process finds it."""

    workflow: Workflow
    reference: str


def find_workflow(name: str) -> NamedWorkflow:
    """A shipped workflow's name, ``package.module:attribute``, or a ``.py`` file (with ``:attribute`` when it has
    several).

    Raises ``BadReference`` with what was looked for.
    """
    if name in SHIPPED:
        reference = f"omniflow_backend.models.{name}:workflow"
    elif name.endswith(".py"):
        reference = f"{Path(name).resolve()}:{_only_workflow(name)}"
    elif ":" in name:
        module, _, attribute = name.rpartition(":")
        reference = f"{Path(module).resolve()}:{attribute}" if module.endswith(".py") else name
    else:
        raise BadReference(
            f"no workflow {name!r}: give a shipped one ({', '.join(SHIPPED)}), "
            "a file such as my_workflow.py, or package.module:attribute"
        )
    found = resolve(reference)
    if not isinstance(found, Workflow):
        raise BadReference(f"{name!r} is a {type(found).__name__}, not a Workflow")
    return NamedWorkflow(found, reference)


def _only_workflow(file: str) -> str:
    # Resolving any attribute loads the module; __name__ is in every one.
    import sys

    module = sys.modules[resolve(f"{file}:__name__")]
    names = [name for name, value in vars(module).items() if isinstance(value, Workflow)]
    if len(names) != 1:
        raise BadReference(f"{file} has {len(names)} workflows ({', '.join(names) or 'none'}); name one: {file}:NAME")
    return names[0]

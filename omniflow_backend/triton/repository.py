"""Generates Triton model directories: ``config.pbtxt`` and a one-line ``1/model.py`` for roles and workflows.

As a program: ``python -m omniflow_backend.triton.repository DIRECTORY WORKFLOW_REFERENCE...``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omniflow_backend.dsl.interface import Role
from omniflow_backend.dsl.workflow import Workflow
from omniflow_backend.errors import OmniFlowError
from omniflow_backend.planning.plan import Plan
from omniflow_backend.triton.references import reference_of, resolve
from omniflow_backend.triton.role_surface import RoleSurface
from omniflow_backend.triton.tensors import TensorSpec
from omniflow_backend.triton.workflow_surface import WorkflowSurface

_CONFIG = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """One Triton model of ours. ``module`` is the one its ``1/model.py`` imports."""

    name: str
    module: str
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    decoupled: bool
    parameters: Mapping[str, str] = field(default_factory=dict)

    def config(self) -> str:
        """The text of ``config.pbtxt``."""
        blocks = [f'name: {_quote(self.name)}\nbackend: "python"\nmax_batch_size: 0\n']
        if self.decoupled:
            blocks.append("model_transaction_policy { decoupled: true }\n")
        blocks += [_tensor("input", tensor) for tensor in self.inputs.values()]
        blocks += [_tensor("output", tensor) for tensor in self.outputs.values()]
        blocks.append("instance_group [ { kind: KIND_CPU count: 1 } ]\n")
        blocks += [
            f"parameters [ {{ key: {_quote(name)} value: {{ string_value: {_quote(value)} }} }} ]\n"
            for name, value in self.parameters.items()
        ]
        return "".join(blocks)

    def files(self) -> dict[str, str]:
        """Path below the repository to content."""
        line = (
            f'from omniflow_backend.triton.{self.module} import TritonPythonModel\n\n__all__ = ["TritonPythonModel"]\n'
        )
        return {f"{self.name}/{_CONFIG}": self.config(), f"{self.name}/1/model.py": line}


def role_directory(
    name: str, role: type[Role], options: Mapping[str, Any], reference: str | None = None
) -> ModelDirectory:
    """The model of one role process. Raises ``BadReference`` when another process could not import the class."""
    surface = RoleSurface.of(role.interfaces)
    try:
        written = json.dumps(options, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise OmniFlowError(f"options of role {name!r} must be JSON to reach its process: {error}") from None
    parameters = {"role": reference or reference_of(role), "options": written}
    return ModelDirectory(name, "role_model", surface.inputs, surface.outputs, surface.decoupled, parameters)


def replica_names(role: str, replicas: int) -> list[str]:
    """The models of a role: the first has the role's name; each replica is a model, so that it can be addressed."""
    return [role, *(f"{role}__{number}" for number in range(2, replicas + 1))]


def workflow_directories(reference: str, plan: Plan | None = None) -> list[ModelDirectory]:
    """All models of a workflow: its roles, its orchestrator, its unary front.

    Raises ``BadReference``, ``WorkflowError``, ``NoTensor``.
    """
    plan = plan or compiled(reference)
    surface = WorkflowSurface.of(plan)
    directories = [
        role_directory(model, planned.role, planned.options)
        for planned in plan.roles.values()
        for model in replica_names(planned.name, planned.replicas)
    ]
    parameters = {"workflow": reference}
    directories.append(ModelDirectory(plan.name, "workflow_model", surface.inputs, surface.outputs, True, parameters))
    directories.append(
        ModelDirectory(unary_name(plan.name), "unary_model", surface.inputs, surface.whole, False, parameters)
    )
    return directories


def compiled(reference: str) -> Plan:
    """The plan of the workflow that ``reference`` names.

    Raises ``BadReference``, ``WorkflowError``, ``OmniFlowError``.
    """
    workflow = resolve(reference)
    if not isinstance(workflow, Workflow):
        raise OmniFlowError(f"{reference!r} is a {type(workflow).__name__}, not a Workflow")
    return workflow.compile()


def unary_name(workflow: str) -> str:
    """The model that answers a workflow's callers once, for HTTP clients."""
    return f"{workflow}_unary"


def merge(directories: Iterable[ModelDirectory]) -> dict[str, ModelDirectory]:
    """By name. Raises ``OmniFlowError`` when two different models want one name."""
    merged: dict[str, ModelDirectory] = {}
    for directory in directories:
        known = merged.setdefault(directory.name, directory)
        if known != directory:
            raise OmniFlowError(
                f"two different models want the name {directory.name!r}: "
                f"{dict(known.parameters)} and {dict(directory.parameters)}"
            )
    return merged


def write_repository(directories: Iterable[ModelDirectory], target: Path) -> list[str]:
    """Write the models below ``target``; returns their names."""
    merged = merge(directories)
    for directory in merged.values():
        for path, content in directory.files().items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
    return list(merged)


def _tensor(kind: str, tensor: TensorSpec) -> str:
    dims = ", ".join(map(str, tensor.dims))
    optional = " optional: true" if tensor.optional and kind == "input" else ""
    return f"{kind} [ {{ name: {_quote(tensor.name)} data_type: {tensor.data_type} dims: [ {dims} ]{optional} }} ]\n"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def main() -> None:
    """Write the models of workflows into a directory, and print their names."""
    parser = argparse.ArgumentParser(description="Write the Triton models of workflows into a model repository.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("workflows", nargs="+", metavar="WORKFLOW", help="package.module:name or /path/file.py:name")
    arguments = parser.parse_args()
    directories = [model for reference in arguments.workflows for model in workflow_directories(reference)]
    print("\n".join(write_repository(directories, arguments.directory)))


if __name__ == "__main__":
    main()

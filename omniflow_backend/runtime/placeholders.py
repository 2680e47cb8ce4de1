"""A call's inputs, checked against the plan's placeholders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omniflow_backend.dsl.types import OptionalType, required
from omniflow_backend.errors import BadInput
from omniflow_backend.planning.plan import Plan


def check_placeholders(plan: Plan, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every placeholder. Raises ``BadInput`` that names the input."""
    unknown = sorted(inputs.keys() - plan.placeholders.keys())
    if unknown:
        known = ", ".join(plan.placeholders) or "none"
        raise BadInput(f"workflow {plan.name!r} has no input {unknown[0]!r}; it has {known}")
    values: dict[str, Any] = {}
    for name, placeholder in plan.placeholders.items():
        value = inputs.get(name)
        if value is not None:
            values[name] = required(placeholder.type).check(value, name)
        elif placeholder.optional or isinstance(placeholder.type, OptionalType):
            values[name] = placeholder.default
        else:
            raise BadInput(f"workflow {plan.name!r} needs input {name!r} ({placeholder.type})")
    return values

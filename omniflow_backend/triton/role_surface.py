"""What a role model offers to clients that call it directly: tensors, and which interface a request means."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from omniflow_backend.dsl.interface import InterfaceSpec
from omniflow_backend.dsl.types import FieldType, OptionalType
from omniflow_backend.errors import BadInput
from omniflow_backend.triton.attachment import ATTACH, ATTACHED
from omniflow_backend.triton.tensors import NoTensor, TensorSpec, tensor_spec

INTERFACE = "interface"


@dataclass(slots=True)
class RoleSurface:
    """The tensors of a role model, made of all its interfaces.

    One tensor serves the fields of one name in several interfaces, so they must agree in type. An interface that does
    not fit (or has a type no tensor can hold) is reachable through workflows only; ``unreachable`` says why.
    """

    interfaces: dict[str, InterfaceSpec] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    decoupled: bool = False

    @classmethod
    def of(cls, interfaces: Mapping[str, InterfaceSpec]) -> RoleSurface:
        """The surface of a role with these interfaces."""
        surface = cls(
            inputs={name: TensorSpec(name, "TYPE_STRING", (1,), optional=True) for name in (INTERFACE, ATTACH)},
            outputs={ATTACHED: TensorSpec(ATTACHED, "TYPE_STRING", (1,))},
        )
        for spec in interfaces.values():
            surface._add(spec)
        surface.decoupled = any(spec.style.repeats for spec in surface.interfaces.values())
        return surface

    def choose(self, given: Collection[str], named: str | None) -> InterfaceSpec:
        """The interface that a request with the inputs ``given`` means.

        Raises ``BadInput`` that tells what would fit.
        """
        if named is not None:
            if named in self.unreachable:
                raise BadInput(f"interface {named!r} can be used in workflows only: {self.unreachable[named]}")
            if named not in self.interfaces:
                raise BadInput(f"there is no interface {named!r}; there is {', '.join(self.interfaces) or 'none'}")
            return self.interfaces[named]
        fitting = [spec for spec in self.interfaces.values() if _fits(spec, given)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            names = ", ".join(spec.name for spec in fitting)
            raise BadInput(f"these inputs fit several interfaces ({names}); name one in the input {INTERFACE!r}")
        if len(self.interfaces) == 1:
            return next(iter(self.interfaces.values()))
        known = "; ".join(f"{spec.name}({', '.join(spec.inputs)})" for spec in self.interfaces.values())
        raise BadInput(f"inputs {_listed(given)} fit no interface; there is {known or 'none'}")

    def _add(self, spec: InterfaceSpec) -> None:
        try:
            inputs = _merged(self.inputs, spec.inputs, reserved=(INTERFACE, ATTACH))
            outputs = _merged(self.outputs, spec.outputs, reserved=(ATTACHED,))
        except NoTensor as reason:
            self.unreachable[spec.name] = str(reason)
            return
        self.inputs, self.outputs = inputs, outputs
        self.interfaces[spec.name] = spec


def _merged(
    known: Mapping[str, TensorSpec], fields: Mapping[str, FieldType], reserved: Iterable[str]
) -> dict[str, TensorSpec]:
    merged = dict(known)
    for name, field_type in fields.items():
        if name in reserved:
            raise NoTensor(f"{name!r} is a reserved tensor name")
        tensor = replace(tensor_spec(name, field_type), optional=True)
        merged[name] = _unite(merged[name], tensor) if name in merged else tensor
    return merged


def _unite(one: TensorSpec, other: TensorSpec) -> TensorSpec:
    if one.data_type != other.data_type or len(one.dims) != len(other.dims):
        raise NoTensor(
            f"{one.name!r} is {one.data_type} {list(one.dims)} in another interface "
            f"and {other.data_type} {list(other.dims)} here"
        )
    dims = tuple(mine if mine == theirs else -1 for mine, theirs in zip(one.dims, other.dims, strict=True))
    return replace(one, dims=dims)


def _fits(spec: InterfaceSpec, given: Collection[str]) -> bool:
    needed = {name for name, field_type in spec.inputs.items() if not isinstance(field_type, OptionalType)}
    return needed <= set(given) <= set(spec.inputs)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"

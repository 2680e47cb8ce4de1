"""Roles and their interfaces: what an author implements."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from omniflow_backend.dsl.types import FieldType, OptionalType
from omniflow_backend.errors import BadInput, Place

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SessionLoadBalance:
    """Marks an interface that updates session state: one at a time per session, in yield order, on one replica."""


class Style(Enum):
    """How an interface function is written; decides where and how it is executed."""

    FUNCTION = "function"
    GENERATOR = "generator"
    ASYNC_FUNCTION = "async function"
    ASYNC_GENERATOR = "async generator"

    @property
    def repeats(self) -> bool:
        """Whether one activation may yield more than once."""
        return self in (Style.GENERATOR, Style.ASYNC_GENERATOR)


@dataclass(frozen=True, slots=True)
class InterfaceSpec:
    """One callable of a role, as declared.

    ``timeout_ms`` bounds one activation, in milliseconds.
    """

    name: str
    inputs: Mapping[str, FieldType]
    outputs: Mapping[str, FieldType]
    style: Style
    place: Place
    load_balance: SessionLoadBalance | None = None
    timeout_ms: int | None = None

    def check_inputs(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The call's inputs, each checked against its type; absent optional ones are ``None``.

        Raises ``BadInput`` that names the field.
        """
        unknown = sorted(values.keys() - self.inputs.keys())
        if unknown:
            raise BadInput(f"{self.name!r} has no input {unknown[0]!r}; it has {', '.join(self.inputs)}")
        checked: dict[str, Any] = {}
        for field, field_type in self.inputs.items():
            if field not in values and not isinstance(field_type, OptionalType):
                raise BadInput(f"input {field!r} ({field_type}) is missing")
            checked[field] = field_type.check(values.get(field), field)
        return checked


class ActivationContext(Protocol):
    """What an interface function gets as ``ctx``."""

    request_id: str
    session_id: str | None
    node: str
    activation_id: str
    deadline: float | None
    cancelled: bool
    """Whether the call was cancelled, failed or ran past its deadline."""

    def raise_if_cancelled(self) -> None:
        """Raise ``asyncio.CancelledError`` once the call is cancelled: ends a blocking function at a step boundary."""
        ...

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, from any thread, when the activation is cancelled."""
        ...


class Role:
    """A class that owns a model or a tool, served by one Triton model in one or more replicas.

    ``options`` are those given to ``Workflow.role``. ``threads`` is the number of worker threads for interfaces written
    as plain functions. A role that has not let go of a cancelled activation after ``hang_timeout_s`` seconds is taken
    for hung, and on a server its process is restarted; ``None`` waits for ever.
    """

    threads: ClassVar[int] = 1
    hang_timeout_s: ClassVar[float | None] = 10.0
    interfaces: ClassVar[Mapping[str, InterfaceSpec]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {
            name: value.__omniflow_interface__
            for name, value in vars(cls).items()
            if hasattr(value, "__omniflow_interface__")
        }
        cls.interfaces = {**cls.interfaces, **own}

    def __init__(self, **options: Any) -> None:
        self.options = options

    @classmethod
    def prepare(cls, **options: Any) -> None:
        """Called by the launcher with the role's options before any process starts: make weights, with progress bars.

        Must be idempotent, and quick when there is nothing to do.
        """

    def load(self) -> None:
        """Called once per process, before the first activation."""

    def close(self) -> None:
        """Called once, when the process ends in order."""


def interface(
    *,
    inputs: Mapping[str, FieldType],
    outputs: Mapping[str, FieldType],
    load_balance: SessionLoadBalance | None = None,
    timeout_ms: int | None = None,
) -> Callable[[Function], Function]:
    """Declare a method of a ``Role`` as an interface: a node of workflow graphs.

    The method is called as ``method(self, ctx, **inputs)``; it returns one mapping of some of its outputs, or yields
    any number of them.

    Raises ``TypeError`` where the declaration and the method's parameters differ, and for a name that ``Role`` has.
    """

    def declare(function: Function) -> Function:
        code = function.__code__
        if hasattr(Role(), function.__name__):
            raise TypeError(
                f"interface {function.__qualname__}: Role itself has a {function.__name__!r}; choose another name"
            )
        _check_parameters(function, inputs)
        function.__omniflow_interface__ = InterfaceSpec(  # type: ignore[attr-defined]
            name=function.__name__,
            inputs=dict(inputs),
            outputs=dict(outputs),
            style=_style(function),
            place=Place(code.co_filename, code.co_firstlineno),
            load_balance=load_balance,
            timeout_ms=timeout_ms,
        )
        return function

    return declare


def _check_parameters(function: Callable[..., Any], inputs: Mapping[str, FieldType]) -> None:
    parameters = list(inspect.signature(function).parameters.values())[2:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = {p.name for p in parameters}
    if names != set(inputs):
        raise TypeError(
            f"interface {function.__qualname__}: declared inputs {sorted(inputs)} but parameters {sorted(names)}; "
            "after self and ctx a method takes exactly its declared inputs"
        )


def _style(function: Callable[..., Any]) -> Style:
    if inspect.isasyncgenfunction(function):
        return Style.ASYNC_GENERATOR
    if inspect.isgeneratorfunction(function):
        return Style.GENERATOR
    if inspect.iscoroutinefunction(function):
        return Style.ASYNC_FUNCTION
    return Style.FUNCTION

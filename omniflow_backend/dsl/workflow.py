"""The workflow DSL: what an author writes. Everything is recorded here and judged by ``Workflow.compile``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from omniflow_backend.dsl.interface import InterfaceSpec, Role, Style
from omniflow_backend.dsl.types import FieldType, is_many
from omniflow_backend.errors import Place, Problem

if TYPE_CHECKING:
    from omniflow_backend.planning.plan import Plan

_PACKAGE = str(Path(__file__).resolve().parent.parent)
_AUTHORED_INSIDE = str(Path(__file__).resolve().parent.parent / "models")


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder:
    """A value given with the call."""

    name: str
    type: FieldType
    optional: bool
    default: Any
    place: Place


@dataclass(frozen=True, slots=True)
class GlobalParam:
    """Session-scoped state that the data plane owns; bound like a placeholder, it never makes a join."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """One output field of a node."""

    node: Node
    field: str
    place: Place


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One input alternative of a node, as written."""

    sources: Mapping[str, tuple[Any, ...]]
    counts: Mapping[str, int | Handle | Placeholder]
    place: Place


class Node:
    """One interface in the graph. ``node.field`` is an output; calling the node (or ``bind``) adds an input
    alternative.
    """

    def __init__(
        self, workflow: Workflow, role: str | None, spec: InterfaceSpec | None, name: str, place: Place
    ) -> None:
        self._workflow = workflow
        self._role = role
        self._spec = spec
        self._name = name
        self._place = place
        self._bindings: list[Binding] = []

    def bind(self, *, activate_by_count: Mapping[str, Any] | None = None, **fields: Any) -> Node:
        """Add one input alternative: each field from a handle, placeholder, ``GlobalParam``, or a list of handles.

        ``activate_by_count`` maps trigger fields to how many distinct events each needs: an int, a placeholder or an
        ``Int`` output (paper A.2).
        """
        sources = {
            name: tuple(source) if isinstance(source, list | tuple) else (source,) for name, source in fields.items()
        }
        self._bindings.append(Binding(sources, dict(activate_by_count or {}), author_place()))
        return self

    __call__ = bind

    def __getattr__(self, name: str) -> Handle:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Handle:
        return Handle(self, name, author_place())

    def __repr__(self) -> str:
        return f"<node {self._name}>"


class RoleHandle:
    """A role in a workflow; ``handle.interface`` is a node."""

    def __init__(
        self, workflow: Workflow, name: str, role: type[Role], replicas: int, options: Mapping[str, Any]
    ) -> None:
        self._workflow = workflow
        self._name = name
        self._class = role
        self._replicas = replicas
        self._options = dict(options)
        self._nodes: dict[str, Node] = {}

    def __getattr__(self, name: str) -> Node:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in self._nodes:
            place = author_place()
            spec = self._class.interfaces.get(name)
            if spec is None:
                known = ", ".join(self._class.interfaces) or "none"
                self._workflow.report(
                    f"role {self._name!r} ({self._class.__name__}) has no interface {name!r}; it has {known}", place
                )
            node = Node(self._workflow, self._name, spec, f"{self._name}.{name}", place)
            self._nodes[name] = node
            self._workflow.nodes.append(node)
        return self._nodes[name]


@dataclass(frozen=True, slots=True)
class Output:
    """One named result of the workflow."""

    name: str
    sources: tuple[Handle, ...]
    stream: bool
    required: bool
    many: bool
    place: Place


@dataclass(eq=False)
class Workflow:
    """A graph of interfaces. Nothing is judged before ``compile``, which reports every problem with its place.

    ``window`` is how many yields of one activation may have unfinished direct deliveries before its producer is made to
    wait.
    ``buffered_values`` bounds what the joins of one call hold.
    """

    name: str
    window: int = 32
    buffered_values: int = 1_000_000
    placeholders: dict[str, Placeholder] = field(default_factory=dict)
    roles: dict[str, RoleHandle] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, Output] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    place: Place = field(default_factory=lambda: author_place())

    def placeholder(self, name: str, type: FieldType, *, optional: bool = False, default: Any = None) -> Placeholder:
        """Declare a value that callers give. An absent optional one arrives as ``default``; a ``Many`` without default
        as ``[]``.
        """
        if optional and default is None and is_many(type):
            default = []
        placeholder = Placeholder(name, type, optional or default is not None, default, author_place())
        if name in self.placeholders:
            self.report(
                f"placeholder {name!r} is declared twice (first at {self.placeholders[name].place})", placeholder.place
            )
        self.placeholders.setdefault(name, placeholder)
        return placeholder

    def role(self, name: str, role: type[Role], *, replicas: int = 1, **options: Any) -> RoleHandle:
        """Add a role, served by the Triton model of that name; ``options`` go to the role's constructor."""
        handle = RoleHandle(self, name, role, replicas, options)
        known = self.roles.get(name)
        if known is None:
            self.roles[name] = handle
            return handle
        if known._class is not role or known._options != options or known._replicas != replicas:
            self.report(
                f"role {name!r} is declared twice, differently: as {known._class.__name__} and {role.__name__}",
                author_place(),
            )
        return known

    def triton_model(
        self, name: str, *, inputs: Mapping[str, FieldType], outputs: Mapping[str, FieldType], decoupled: bool = False
    ) -> Node:
        """Add any other model of the Triton repository as a node, called through BLS; each response is one yield."""
        place = author_place()
        style = Style.ASYNC_GENERATOR if decoupled else Style.ASYNC_FUNCTION
        spec = InterfaceSpec(name, dict(inputs), dict(outputs), style, place)
        if any(node._name == name for node in self.nodes):
            self.report(f"node {name!r} is declared twice", place)
        node = Node(self, None, spec, name, place)
        self.nodes.append(node)
        return node

    def output(
        self,
        name: str,
        source: Handle | Sequence[Handle],
        *,
        stream: bool = False,
        many: bool = False,
        required: bool = False,
    ) -> None:
        """Name a result.

        ``stream`` presents each value as soon as generation order allows. Otherwise the output comes once, at the end:
        ``many`` as the
        list of all values in order, else as the only value (more than one fails the call). ``required``: none fails the
        call.
        """
        place = author_place()
        sources = tuple(source) if isinstance(source, list | tuple) else (source,)
        if name in self.outputs:
            self.report(f"output {name!r} is declared twice (first at {self.outputs[name].place})", place)
        self.outputs.setdefault(name, Output(name, sources, stream, required, many and not stream, place))

    def report(self, message: str, place: Place) -> None:
        """Record a problem for ``compile`` to raise."""
        self.problems.append(Problem(message, place))

    def compile(self) -> Plan:
        """Check everything and make the plan. Raises ``WorkflowError`` with all problems, each with file and line."""
        from omniflow_backend.planning.planner import compile_workflow

        return compile_workflow(self)

    def explain(self) -> str:
        """In words: for every node what makes it run, and for every join its anchor and what one activation
        collects.
        """
        from omniflow_backend.planning.explain import explain

        return explain(self.compile())


def author_place() -> Place:
    """The innermost line outside this package (shipped workflows count as authored)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and (not file.startswith(_PACKAGE) or file.startswith(_AUTHORED_INSIDE)):
            return Place(file, frame.f_lineno)
        frame = frame.f_back
    return Place("<unknown>", 0)

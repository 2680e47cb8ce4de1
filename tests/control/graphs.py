"""Random workflows, as plain data that can be compiled through the DSL and judged by the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from omniflow_backend import GlobalParam, Int, Many, Optional, Role, SessionLoadBalance, Text, Workflow, interface
from omniflow_backend.dsl.types import FieldType, OptionalType, is_many, required

PLACEHOLDERS: Mapping[str, FieldType] = {"text": Text, "texts": Many(Text), "number": Int}
PLACEHOLDER_VALUES: Mapping[str, Any] = {"text": "given", "texts": ["g0", "g1"], "number": 2}


@dataclass(frozen=True, slots=True)
class Source:
    """Output ``field`` of the node with index ``node``."""

    node: int
    field: str


Count = int | str | Source
"""A constant, a placeholder's name, or an output."""


@dataclass(frozen=True, slots=True)
class AlternativeSpec:
    """One ``bind`` call: fields from outputs, fields from placeholders, and the counts of a count join."""

    fields: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[int, ...]:
        """Source nodes in ``bind`` order, each once."""
        return tuple(dict.fromkeys(source.node for sources in self.fields.values() for source in sources))

    @property
    def is_direct(self) -> bool:
        """Whether every source node provides every field (ruling 1)."""
        providers = [{source.node for source in sources} for sources in self.fields.values()]
        return not self.counts and bool(providers) and all(p == set(self.sources) for p in providers)

    @property
    def is_join(self) -> bool:
        """Whether the fields come together from several nodes, each of which provides only some."""
        return not self.counts and bool(self.fields) and not self.is_direct


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One role with one interface."""

    inputs: Mapping[str, FieldType]
    outputs: Mapping[str, FieldType]
    alternatives: tuple[AlternativeSpec, ...]
    ordered: bool = False

    def optional(self, name: str) -> bool:
        """Whether an input may be absent."""
        return isinstance(self.inputs[name], OptionalType)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """One ``Workflow.output`` call."""

    sources: tuple[Source, ...]
    stream: bool = False
    many: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A whole workflow."""

    nodes: tuple[NodeSpec, ...]
    outputs: tuple[OutputSpec, ...]
    window: int = 32

    @property
    def counts(self) -> bool:
        """Whether a node collects by count."""
        return any(alternative.counts for node in self.nodes for alternative in node.alternatives)

    def placeholders(self) -> set[str]:
        """The names of the placeholders that are bound anywhere."""
        names: set[str] = set()
        for node in self.nodes:
            for alternative in node.alternatives:
                names |= {name for name in alternative.constants.values() if name in PLACEHOLDERS}
                names |= {count for count in alternative.counts.values() if isinstance(count, str)}
        return names

    def workflow(self) -> Workflow:
        """The workflow, written with the DSL and not yet compiled."""
        workflow = Workflow("generated", window=self.window)
        placeholders = {name: workflow.placeholder(name, PLACEHOLDERS[name]) for name in sorted(self.placeholders())}
        nodes = [workflow.role(f"n{index}", _role(spec)).run for index, spec in enumerate(self.nodes)]
        for node, spec in zip(nodes, self.nodes, strict=True):
            for alternative in spec.alternatives:
                fields: dict[str, Any] = {
                    name: [nodes[source.node][source.field] for source in sources]
                    for name, sources in alternative.fields.items()
                }
                fields |= {
                    name: placeholders.get(constant) or GlobalParam(constant)
                    for name, constant in alternative.constants.items()
                }
                counts = {
                    name: nodes[count.node][count.field]
                    if isinstance(count, Source)
                    else placeholders[count]
                    if isinstance(count, str)
                    else count
                    for name, count in alternative.counts.items()
                }
                node.bind(activate_by_count=counts or None, **fields)
        for index, output in enumerate(self.outputs):
            workflow.output(
                output_name(index),
                [nodes[source.node][source.field] for source in output.sources],
                stream=output.stream,
                many=output.many,
                required=output.required,
            )
        return workflow


def output_name(index: int) -> str:
    """The name under which ``GraphSpec.workflow`` declares an output."""
    return f"out{index}"


def _role(spec: NodeSpec) -> type[Role]:
    def run(self: Role, ctx: Any, **inputs: Any) -> Iterator[dict[str, Any]]:
        yield {}

    load_balance = SessionLoadBalance() if spec.ordered else None
    declared = interface(inputs=spec.inputs, outputs=spec.outputs, load_balance=load_balance)(run)
    return type("Generated", (Role,), {"run": declared})


def random_graph(random: Random, *, counts: bool = False) -> GraphSpec:
    """A workflow of two to eight nodes, mostly legal. ``counts`` adds a count join."""
    return _Generator(random, counts).graph()


class _Generator:
    def __init__(self, random: Random, counts: bool) -> None:
        self._random = random
        self._counts = counts
        self._size = random.randint(3 if counts else 2, 8)
        counting = random.choice((1, 1, 1, 2)) if counts else 0
        self._counting = {random.randrange(2, self._size) for _ in range(counting)}
        self._shapes = [self._shape(index) for index in range(self._size)]

    def graph(self) -> GraphSpec:
        nodes = tuple(
            NodeSpec(
                inputs,
                outputs,
                self._counted(index, inputs) if index in self._counting else self._alternatives(index, inputs),
                ordered=self._random.random() < 0.2,
            )
            for index, (inputs, outputs) in enumerate(self._shapes)
        )
        return GraphSpec(nodes, self._outputs(), window=self._random.choice((1, 2, 32)))

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _shape(self, index: int) -> tuple[dict[str, FieldType], dict[str, FieldType]]:
        outputs: dict[str, FieldType] = {"a": Text}
        if self._chance(0.6):
            outputs["b"] = Text
        if self._chance(0.15):
            outputs["m"] = Many(Text)
        if self._counts:
            outputs["k"] = Int
        if index in self._counting:
            return {name: Many(Text) for name in "xyz"[: self._random.randint(1, 3)]}, outputs
        plain = 0.15 if index else 0.5
        inputs: dict[str, FieldType] = {"x": Text if self._chance(plain) else Many(Text)}
        if self._chance(0.6):
            inputs["y"] = Text if self._chance(plain) else Many(Text)
        if self._chance(0.25):
            inputs["z"] = Optional(Text if self._chance(plain) else Many(Text))
        return inputs, outputs

    def _alternatives(self, index: int, inputs: Mapping[str, FieldType]) -> tuple[AlternativeSpec, ...]:
        chosen = [self._entry(inputs) if index == 0 or self._chance(0.04) else self._bound(range(index), inputs)]
        while len(chosen) < 3 and self._chance(0.35):
            pool = range(self._size) if self._chance(0.5) or not index else range(index)
            wanted = dict(list(inputs.items())[:1]) if self._chance(0.1) else inputs
            alternative = self._bound(pool, wanted)
            taken = {source for other in chosen for source in other.fields.get("x", ())}
            if taken.isdisjoint(alternative.fields["x"]):  # so that no two activations of a node have the same inputs
                chosen.append(alternative)
        return tuple(chosen)

    @staticmethod
    def _entry(inputs: Mapping[str, FieldType]) -> AlternativeSpec:
        return AlternativeSpec(constants={name: _constant(t) for name, t in inputs.items()})

    def _bound(self, pool: Sequence[int], inputs: Mapping[str, FieldType]) -> AlternativeSpec:
        names = [name for name, t in inputs.items() if not isinstance(t, OptionalType) or self._chance(0.7)]
        constants: dict[str, str] = {}
        if len(names) > 1 and names[1] == "y" and self._chance(0.08):
            constants["y"] = _constant(inputs["y"])
            names.remove("y")
        join = len(pool) > 1 and len(names) > 1 and self._chance(0.6)
        nodes = self._random.sample(pool, min(len(pool), self._random.choice((2, 2, 3)) if join else 1))
        if not join and len(pool) > 1 and self._chance(0.2):
            nodes = self._random.sample(pool, 2)
        fields: dict[str, tuple[Source, ...]] = {}
        for position, name in enumerate(names):
            mine = nodes
            if join:
                mine = [
                    node for i, node in enumerate(nodes) if i % len(names) == position or self._chance(0.15)
                ] or nodes[:1]
            fields[name] = tuple(self._source(node, inputs[name], join) for node in mine)
        return AlternativeSpec(fields, constants)

    def _source(self, node: int, wanted: FieldType, join: bool) -> Source:
        outputs = self._shapes[node][1]
        if "m" in outputs and is_many(wanted) and not join and self._chance(0.3):
            return Source(node, "m")
        return Source(node, self._random.choice([name for name in "ab" if name in outputs]))

    def _counted(self, index: int, inputs: Mapping[str, FieldType]) -> tuple[AlternativeSpec, ...]:
        names = list(inputs)
        fields = {
            name: tuple(
                Source(node, self._random.choice([f for f in "ab" if f in self._shapes[node][1]]))
                for node in self._random.sample(range(index), 2 if self._chance(0.2) else 1)
            )
            for name in names
        }
        triggers = names if self._chance(0.5) else names[: self._random.randint(1, len(names))]
        counts: dict[str, Count] = {}
        for name in triggers:
            if self._chance(0.6):
                counts[name] = self._random.choice((0, 1, 1, 2))
            elif self._chance(0.15):
                counts[name] = "number"
            else:
                counts[name] = Source(self._random.randrange(index), "k")
        return (AlternativeSpec(fields, counts=counts),)

    def _outputs(self) -> tuple[OutputSpec, ...]:
        return tuple(self._output() for _ in range(self._random.choice((1, 2, 2, 3))))

    def _output(self) -> OutputSpec:
        count = 2 if self._chance(0.3) else 1
        nodes = self._random.sample(range(self._size), count)
        sources = tuple(
            Source(node, self._random.choice([f for f in "ab" if f in self._shapes[node][1]])) for node in nodes
        )
        if self._chance(0.5):
            return OutputSpec(sources, stream=True)
        if self._chance(0.85):
            return OutputSpec(sources, many=True, required=self._chance(0.05))
        return OutputSpec(sources, required=self._chance(0.3))


def _constant(field_type: FieldType) -> str:
    wanted = required(field_type)
    return next(name for name, t in PLACEHOLDERS.items() if t == wanted)

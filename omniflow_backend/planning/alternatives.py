"""Judging one ``bind`` call: which sources, which kind of alternative, which types (contract section 3, rulings
1-4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omniflow_backend.dsl.interface import InterfaceSpec
from omniflow_backend.dsl.types import FieldType, Int, ManyType, OptionalType, is_many, required
from omniflow_backend.dsl.workflow import Binding, GlobalParam, Handle, Node, Placeholder, Workflow
from omniflow_backend.errors import Place
from omniflow_backend.planning.plan import AlternativeKind, CountSource, FieldMapping


@dataclass(frozen=True, slots=True)
class DraftAlternative:
    """An alternative whose fields are judged, before graph questions are asked.

    ``handles[field]`` are ``(source node index, source field)`` in ``bind`` order.
    """

    node: int
    kind: AlternativeKind
    place: Place
    constants: Mapping[str, Placeholder | GlobalParam]
    handles: Mapping[str, tuple[tuple[int, str], ...]]
    triggers: tuple[str, ...]
    counts: tuple[CountSource, ...]

    @property
    def sources(self) -> tuple[int, ...]:
        """Source nodes in ``bind`` order, each once."""
        return tuple(dict.fromkeys(node for sources in self.handles.values() for node, _ in sources))

    def mappings(self, source: InterfaceSpec, index: int, spec: InterfaceSpec) -> tuple[FieldMapping, ...]:
        """What a yield of the node ``index`` carries into this alternative."""
        return tuple(
            FieldMapping(
                source=source_field,
                field=field,
                required=not isinstance(spec.inputs[field], OptionalType),
                wrap=self.kind is AlternativeKind.DIRECT
                and not required(spec.inputs[field]).accepts(required(source.outputs[source_field])),
            )
            for field, sources in self.handles.items()
            for node, source_field in sources
            if node == index
        )


class AlternativeJudge:
    """Turns bindings into drafts; reports every problem to the workflow, with the author's line."""

    def __init__(self, workflow: Workflow, nodes: Mapping[Node, int]) -> None:
        self._workflow = workflow
        self._nodes = nodes

    def judge(self, node: Node, binding: Binding) -> DraftAlternative | None:
        """The draft, or ``None`` where the binding cannot be understood."""
        spec = node._spec
        if spec is None:
            return None
        constants: dict[str, Placeholder | GlobalParam] = {}
        handles: dict[str, tuple[tuple[int, str], ...]] = {}
        sound = True
        for field, sources in binding.sources.items():
            if field not in spec.inputs:
                self._report(node, f"has no input {field!r}; it has {', '.join(spec.inputs) or 'none'}", binding.place)
                sound = False
            elif len(sources) == 1 and isinstance(sources[0], Placeholder | GlobalParam):
                constants[field] = sources[0]
            elif sources and all(isinstance(source, Handle) for source in sources):
                resolved = [self._resolve(source, binding.place) for source in sources]
                sound &= None not in resolved
                handles[field] = tuple(pair for pair in resolved if pair is not None)
            else:
                self._report(
                    node,
                    f"input {field!r} needs a handle, a list of handles, one placeholder or one GlobalParam; "
                    f"got {sources!r}",
                    binding.place,
                )
                sound = False
        counts, counts_sound = self._counts(node, binding, handles)
        if not sound or not counts_sound:
            return None
        draft = DraftAlternative(
            self._nodes[node],
            self._kind(handles, bool(binding.counts)),
            binding.place,
            constants,
            handles,
            tuple(binding.counts),
            counts,
        )
        return draft if self._types_fit(node, draft, binding) and self._is_satisfiable(node, draft) else None

    def judge_coverage(self, node: Node) -> None:
        """An alternative is a set of fields that suffices; a required input that none of them binds was forgotten."""
        if node._spec is None or not node._bindings:
            return
        bound = {field for binding in node._bindings for field in binding.sources}
        missing = [
            field
            for field, field_type in node._spec.inputs.items()
            if field not in bound and not isinstance(field_type, OptionalType)
        ]
        if missing:
            where = "in this alternative" if len(node._bindings) == 1 else "in any alternative"
            names = ", ".join(map(repr, missing))
            self._report(node, f"required input(s) {names} not bound {where}", node._bindings[0].place)

    def _resolve(self, handle: Handle, place: Place) -> tuple[int, str] | None:
        source = handle.node
        if source not in self._nodes:
            self._workflow.report(f"{source._name}.{handle.field} belongs to another workflow", place)
            return None
        if source._spec is None:
            return None
        if handle.field not in source._spec.outputs:
            known = ", ".join(source._spec.outputs) or "none"
            self._report(source, f"has no output {handle.field!r}; it has {known}", handle.place)
            return None
        return self._nodes[source], handle.field

    @staticmethod
    def _kind(handles: Mapping[str, tuple[tuple[int, str], ...]], counted: bool) -> AlternativeKind:
        if counted:
            return AlternativeKind.COUNT_JOIN
        if not handles:
            return AlternativeKind.ENTRY
        providers = [{node for node, _ in sources} for sources in handles.values()]
        everyone = set().union(*providers)
        return AlternativeKind.DIRECT if all(p == everyone for p in providers) else AlternativeKind.PREFIX_JOIN

    def _counts(
        self, node: Node, binding: Binding, handles: Mapping[str, tuple[tuple[int, str], ...]]
    ) -> tuple[tuple[CountSource, ...], bool]:
        counts: list[CountSource] = []
        before = len(self._workflow.problems)
        for field, count in binding.counts.items():
            if field not in handles:
                self._report(
                    node,
                    f"activate_by_count names {field!r}, which this alternative does not bind to an output",
                    binding.place,
                )
            elif isinstance(count, Placeholder) and required(count.type) == Int:
                if self._workflow.placeholders.get(count.name) is not count:
                    self._workflow.report(f"placeholder {count.name!r} belongs to another workflow", binding.place)
                elif count.default is None and (count.optional or isinstance(count.type, OptionalType)):
                    self._report(
                        node,
                        f"the count of {field!r} can never be learned from placeholder {count.name!r} when a call does "
                        "not give it: make it required or give it a default",
                        binding.place,
                    )
                counts.append(CountSource(field, placeholder=count.name))
            elif isinstance(count, Handle):
                source = self._resolve(count, binding.place)
                if source is not None and count.node._spec is not None:
                    if required(count.node._spec.outputs[source[1]]) != Int:
                        self._report(
                            node,
                            f"the count of {field!r} must be an Int, {count.node._name}.{count.field} is not",
                            binding.place,
                        )
                    counts.append(CountSource(field, node=source[0], output=source[1]))
            elif isinstance(count, int) and not isinstance(count, bool) and count >= 0:
                if count > 1 and node._spec is not None and not is_many(node._spec.inputs[field]):
                    field_type = node._spec.inputs[field]
                    self._report(
                        node, f"input {field!r} is {field_type}, but waits for {count}: declare it Many", binding.place
                    )
                counts.append(CountSource(field, constant=count))
            else:
                self._report(
                    node,
                    f"the count of {field!r} can never be learned from {count!r}: "
                    "give an int, an Int placeholder or an Int output",
                    binding.place,
                )
        return tuple(counts), len(self._workflow.problems) == before

    def _types_fit(self, node: Node, draft: DraftAlternative, binding: Binding) -> bool:
        spec = node._spec
        assert spec is not None
        before = len(self._workflow.problems)
        for field, constant in draft.constants.items():
            if isinstance(constant, Placeholder):
                if self._workflow.placeholders.get(constant.name) is not constant:
                    self._workflow.report(f"placeholder {constant.name!r} belongs to another workflow", binding.place)
                elif not required(spec.inputs[field]).accepts(required(constant.type)):
                    self._clash(
                        node, field, spec.inputs[field], f"placeholder {constant.name!r}", constant.type, binding.place
                    )
        nodes = list(self._nodes)
        for field, sources in draft.handles.items():
            wanted = required(spec.inputs[field])
            types: dict[FieldType, str] = {}
            for source, output in sources:
                provider = nodes[source]
                assert provider._spec is not None
                provided = required(provider._spec.outputs[output])
                types.setdefault(provided, f"{provider._name}.{output}")
                if not _carries(wanted, provided, draft.kind):
                    self._clash(node, field, wanted, f"{provider._name}.{output}", provided, binding.place)
            if draft.kind is AlternativeKind.PREFIX_JOIN and len(types) > 1:
                listed = " and ".join(f"{name} ({provided})" for provided, name in types.items())
                self._report(node, f"one bucket would get {field!r} with different types: {listed}", binding.place)
            if draft.kind is AlternativeKind.DIRECT and len({s for s, _ in sources}) < len(sources):
                self._report(
                    node, f"input {field!r} lists two outputs of one node; write one bind call for each", binding.place
                )
        return len(self._workflow.problems) == before

    def _is_satisfiable(self, node: Node, draft: DraftAlternative) -> bool:
        assert node._spec is not None
        if draft.handles and all(isinstance(node._spec.inputs[field], OptionalType) for field in draft.handles):
            self._report(
                node,
                "this alternative binds no required input to an output, so nothing would tell when it is complete",
                draft.place,
            )
            return False
        return True

    def _clash(self, node: Node, field: str, wanted: FieldType, source: str, provided: FieldType, place: Place) -> None:
        hint = ""
        if isinstance(provided, ManyType) and wanted == provided:
            hint = f"; in a join lists are not flattened: declare the input Many({provided})"
        self._report(node, f"input {field!r} is {wanted}, but {source} is {provided}{hint}", place)

    def _report(self, node: Node, message: str, place: Place) -> None:
        self._workflow.report(f"{node._name}: {message}", place)


def _carries(wanted: FieldType, provided: FieldType, kind: AlternativeKind) -> bool:
    if kind is AlternativeKind.DIRECT:
        return wanted.accepts(provided) or (isinstance(wanted, ManyType) and wanted.item.accepts(provided))
    return wanted.item.accepts(provided) if isinstance(wanted, ManyType) else wanted.accepts(provided)

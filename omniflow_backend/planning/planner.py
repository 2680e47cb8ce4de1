"""Compiling a workflow into a plan (contract section 3; paper 3.1, 3.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from omniflow_backend.dsl.interface import InterfaceSpec
from omniflow_backend.dsl.types import FieldType, ManyType, required
from omniflow_backend.dsl.workflow import Handle, Node, Output, Workflow
from omniflow_backend.errors import WorkflowError
from omniflow_backend.planning.alternatives import AlternativeJudge, DraftAlternative
from omniflow_backend.planning.graph import FlowGraph
from omniflow_backend.planning.plan import (
    ENTRY,
    Alternative,
    AlternativeKind,
    OutputBinding,
    Plan,
    PlannedNode,
    PlannedOutput,
    PlannedRole,
    Route,
    Target,
    TargetKind,
)
from omniflow_backend.planning.wiring import Wiring

RESERVED_INPUTS = frozenset({"session_id", "timeout_ms", "cancel_previous", "trace"})
RESERVED_OUTPUTS = frozenset({"event", "trace"})
_MODEL_NAME = re.compile(r"[A-Za-z0-9_-]+")


def compile_workflow(workflow: Workflow) -> Plan:
    """The plan of ``workflow``. Raises ``WorkflowError`` that lists all problems at once."""
    recorded = len(workflow.problems)
    try:
        return _Planner(workflow).plan()
    finally:
        del workflow.problems[recorded:]


class _Planner:
    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self._nodes: list[Node] = list(workflow.nodes)
        self._index = {node: index for index, node in enumerate(self._nodes)}

    def plan(self) -> Plan:
        workflow = self._workflow
        self._check_names()
        drafts = self._judge()
        outputs = self._judge_outputs()
        wiring = Wiring(self._nodes)
        if not wiring.is_known:
            self._stop_at_problems()
        graph = wiring.graph()
        never_run = wiring.never_run()
        self._report_never_run(never_run)
        anchors = self._anchors(graph, [] if never_run else drafts)
        self._stop_at_problems()
        return _assemble(workflow, self._nodes, drafts, outputs, graph, anchors)

    def _stop_at_problems(self) -> None:
        problems = sorted(set(self._workflow.problems), key=lambda p: (p.place.file, p.place.line))
        if problems:
            raise WorkflowError(self._workflow.name, problems)

    def _check_names(self) -> None:
        workflow = self._workflow
        if not workflow.name.isidentifier():
            workflow.report(
                f"a workflow's name becomes a Triton model's name: {workflow.name!r} is not an identifier",
                workflow.place,
            )
        if not workflow.outputs:
            workflow.report("the workflow has no output", workflow.place)
        for placeholder in workflow.placeholders.values():
            if placeholder.name in RESERVED_INPUTS or not placeholder.name.isidentifier():
                workflow.report(
                    f"placeholder name {placeholder.name!r} is reserved or not an identifier", placeholder.place
                )
        for output in workflow.outputs.values():
            if output.name in RESERVED_OUTPUTS or not output.name.isidentifier():
                workflow.report(f"output name {output.name!r} is reserved or not an identifier", output.place)
        taken = {workflow.name: "the workflow", f"{workflow.name}_unary": "the workflow's unary front"}
        for role in workflow.roles.values():
            if role._name in taken:
                workflow.report(
                    f"role {role._name!r} has the name of {taken[role._name]}; both become Triton models",
                    workflow.place,
                )
            if not _MODEL_NAME.fullmatch(role._name):
                workflow.report(
                    f"a role's name becomes a Triton model's name: {role._name!r} may have letters, digits, _ and -",
                    workflow.place,
                )
            taken.setdefault(role._name, f"role {role._name!r}")
            if role._replicas < 1:
                workflow.report(f"role {role._name!r} needs at least one replica, got {role._replicas}", workflow.place)

        for node in self._nodes:
            if node._role is None and node._name in taken:
                workflow.report(f"Triton model {node._name!r} has the name of {taken[node._name]}", node._place)

    def _judge(self) -> list[DraftAlternative]:
        judge = AlternativeJudge(self._workflow, self._index)
        drafts: list[DraftAlternative] = []
        for node in self._nodes:
            if not node._bindings and node._spec is not None:
                self._workflow.report(f"{node._name}: nothing makes it run: bind its inputs", node._place)
            judge.judge_coverage(node)
            drafts += [draft for binding in node._bindings if (draft := judge.judge(node, binding)) is not None]
        return drafts

    def _judge_outputs(self) -> list[tuple[Output, tuple[tuple[int, str], ...], FieldType]]:
        judge = AlternativeJudge(self._workflow, self._index)
        judged = []
        for output in self._workflow.outputs.values():
            sources = [judge._resolve(handle, output.place) for handle in output.sources if isinstance(handle, Handle)]
            if len(sources) < len(output.sources) or not sources:
                self._workflow.report(
                    f"output {output.name!r} needs the output field of a node, or a list of them", output.place
                )
                continue
            resolved = tuple(source for source in sources if source is not None)
            if len(resolved) < len(sources):
                continue
            types = {required(_spec(self._nodes[node]).outputs[field]) for node, field in resolved}
            if len(types) > 1:
                listed = " and ".join(sorted(str(t) for t in types))
                self._workflow.report(
                    f"output {output.name!r} is given values of different types: {listed}", output.place
                )
                continue
            judged.append((output, resolved, types.pop()))
        return judged

    def _report_never_run(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            waits = " and ".join(other._name for other in nodes if other is not node) or "itself"
            self._workflow.report(
                f"{node._name}: can never run: no way leads to it from the call's placeholders that does not wait for "
                f"{waits}; a loop needs a first alternative that is bound from outside it",
                node._place,
            )

    def _anchors(self, graph: FlowGraph, drafts: Sequence[DraftAlternative]) -> dict[int, int]:
        anchors: dict[int, int] = {}
        for position, draft in enumerate(drafts):
            if draft.kind is not AlternativeKind.PREFIX_JOIN:
                continue
            anchor = graph.common_dominator(draft.sources)
            sources = " and ".join(self._name(source) for source in draft.sources)
            if cycle := graph.cycle_avoiding(draft.node, anchor):
                self._workflow.report(
                    f"{self._name(draft.node)}: this join of {sources} lies on the cycle {self._names(cycle)}, but "
                    f"what its inputs have in common ({self._name(anchor)}) lies outside it: two turns would share "
                    "one bucket. Let every input of the join come from one node on the cycle, or pass the outer value "
                    "along through it",
                    draft.place,
                )
            elif cycle := graph.mutual_wait(draft.node, anchor):
                self._workflow.report(
                    f"{self._name(draft.node)}: this join of {sources} and a count join feed each other "
                    f"({self._names(cycle)}): the one waits until nothing more can come of the other, which counts "
                    "what the first yields. Take one of the two inputs from a node that lies before both joins",
                    draft.place,
                )
            anchors[position] = anchor
        return anchors

    def _names(self, path: Sequence[int]) -> str:
        return " -> ".join(self._name(node) for node in path)

    def _name(self, node: int) -> str:
        return "the call" if node == ENTRY else self._nodes[node]._name


def _assemble(
    workflow: Workflow,
    nodes: Sequence[Node],
    drafts: Sequence[DraftAlternative],
    outputs: Sequence[tuple[Output, tuple[tuple[int, str], ...], FieldType]],
    graph: FlowGraph,
    anchors: Mapping[int, int],
) -> Plan:
    back_edges = graph.back_edges()
    # What waits for its turn may wait for an ordered node to run again further down a loop, and so for that node's
    # present activation: if that one were held back by what waits, neither would ever go on.
    ordered = {index for index, node in enumerate(nodes) if _spec(node).load_balance is not None}
    unheld = graph.below_loops(ordered)
    targets: list[Target] = []
    planned = [PlannedNode(index, node._name, node._role, _spec(node), node._place) for index, node in enumerate(nodes)]
    per_node: dict[int, list[Alternative]] = {index: [] for index in range(len(nodes))}
    for position, draft in enumerate(drafts):
        anchor = anchors.get(position)
        index = len(per_node[draft.node])
        target: int | None = None
        if anchor is not None:
            target = len(targets)
            targets.append(Target(target, TargetKind.JOIN, draft.node, index, anchor))
        routes = tuple(
            Route(
                source,
                draft.node,
                index,
                draft.mappings(planned[source].spec, source, planned[draft.node].spec),
                (source, draft.node) not in back_edges and not (draft.node in ordered and source in unheld),
            )
            for source in draft.sources
        )
        per_node[draft.node].append(
            Alternative(
                node=draft.node,
                index=index,
                kind=draft.kind,
                place=draft.place,
                constants=draft.constants,
                fields=tuple(draft.handles),
                routes=routes,
                anchor=anchor,
                target=target,
                ranks={f: _ranks(graph, [n for n, _ in sources], anchor) for f, sources in draft.handles.items()},
                triggers=draft.triggers,
                counts=draft.counts,
            )
        )
    for node in planned:
        node.alternatives = tuple(per_node[node.index])
        if node.spec.load_balance is not None:
            node.order_target = len(targets)
            targets.append(Target(len(targets), TargetKind.ORDER, node.index))
    planned_outputs = []
    for output_index, (output, sources, field_type) in enumerate(outputs):
        stream_target: int | None = None
        if output.stream:
            stream_target = len(targets)
            targets.append(Target(stream_target, TargetKind.STREAM, output_index))
        planned_outputs.append(
            PlannedOutput(
                output_index,
                output.name,
                ManyType(field_type) if output.many else field_type,
                sources,
                output.stream,
                output.required,
                output.many,
                stream_target,
                _ranks(graph, [n for n, _ in sources], None),
            )
        )
    plan = Plan(
        workflow.name,
        dict(workflow.placeholders),
        {name: PlannedRole(name, r._class, r._replicas, r._options) for name, r in workflow.roles.items()},
        tuple(planned),
        tuple(planned_outputs),
        tuple(targets),
        workflow.window,
        workflow.buffered_values,
    )
    _connect(plan, unheld)
    _spread_targets(plan)
    return plan


def _connect(plan: Plan, unheld: set[int]) -> None:
    for node in plan.nodes:
        alternatives = [a for other in plan.nodes for a in other.alternatives]
        node.routes = tuple(route for a in alternatives for route in a.routes if route.source == node.index)
        node.outputs = tuple(
            OutputBinding(output.index, field, windowed=node.index not in unheld)
            for output in plan.outputs
            for source, field in output.sources
            if source == node.index
        )
        counted = [(a.node, count) for a in alternatives for count in a.counts if count.node == node.index]
        node.count_routes = tuple(dict.fromkeys(counted))


def _spread_targets(plan: Plan) -> None:
    """For every node: which targets its pending work and its yields can still reach (backward closure, per target)."""
    predecessors: dict[int, set[int]] = {node.index: set() for node in plan.nodes}
    for node in plan.nodes:
        for route in node.routes:
            predecessors[route.node].add(node.index)
    work: dict[int, list[int]] = {node.index: [] for node in plan.nodes}
    yields: dict[int, list[int]] = {node.index: [] for node in plan.nodes}
    for target in plan.targets:
        direct = _first_contributors(plan, target, predecessors)
        if target.kind is TargetKind.ORDER:
            work[target.owner].append(target.index)
        frontier = list(direct)
        seen = set(direct)
        while frontier:
            node_index = frontier.pop()
            yields[node_index].append(target.index)
            if target.anchor == node_index:
                continue
            if target.index not in work[node_index]:
                work[node_index].append(target.index)
            for predecessor in predecessors[node_index] - seen:
                seen.add(predecessor)
                frontier.append(predecessor)
    for node in plan.nodes:
        node.work = tuple(work[node.index])
        node.yields = tuple(yields[node.index])
        node.gated_yields = tuple(t for t in node.yields if plan.targets[t].kind is not TargetKind.JOIN)
        node.anchored_joins = tuple(
            t.index for t in plan.targets if t.kind is TargetKind.JOIN and t.anchor == node.index
        )
        node.is_anchor = bool(node.anchored_joins)


def _first_contributors(plan: Plan, target: Target, predecessors: Mapping[int, set[int]]) -> set[int]:
    if target.kind is TargetKind.JOIN:
        alternative = plan.nodes[target.owner].alternatives[target.alternative]
        return {route.source for route in alternative.routes}
    if target.kind is TargetKind.ORDER:
        return set(predecessors[target.owner])
    return {node for node, _ in plan.outputs[target.owner].sources}


def _ranks(graph: FlowGraph, sources: Sequence[int], avoided: int | None) -> dict[int, int]:
    ranks: dict[int, int] = {}
    for position, source in enumerate(dict.fromkeys(sources)):
        for node in graph.ancestors(source, avoided):
            ranks.setdefault(node, position)
    return ranks


def _spec(node: Node) -> InterfaceSpec:
    assert node._spec is not None, node._name
    return node._spec

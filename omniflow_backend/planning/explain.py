"""A plan in words: what makes each node run, and what each join collects (contract section 9, rulings 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterator

from omniflow_backend.dsl.types import OptionalType, is_many
from omniflow_backend.dsl.workflow import GlobalParam, Placeholder
from omniflow_backend.planning.plan import (
    ENTRY,
    Alternative,
    AlternativeKind,
    CountSource,
    Plan,
    PlannedNode,
    PlannedOutput,
)

_INDENT = "    "


def explain(plan: Plan) -> str:
    """The whole plan for a reader who has not seen the workflow: inputs, every node, every loop, every output."""
    lines = [f"Workflow {plan.name!r}", "", "A call gives:"]
    lines += [_INDENT + _placeholder(placeholder) for placeholder in plan.placeholders.values()] or [
        _INDENT + "nothing"
    ]
    for node in plan.nodes:
        lines += ["", _heading(plan, node), *(_INDENT + line for line in explain_node(plan, node))]
    loops = [(route.source, route.node) for node in plan.nodes for route in node.routes if not route.windowed]
    if loops:
        lines += ["", "Loops (every turn makes new yields, so turns are never mixed up):"]
        lines += [_INDENT + f"{plan.node_name(a)} leads back to {plan.node_name(b)}" for a, b in dict.fromkeys(loops)]
    lines += ["", "A call gets:"]
    lines += [_INDENT + explain_output(plan, output) for output in plan.outputs]
    return "\n".join(lines) + "\n"


def explain_node(plan: Plan, node: PlannedNode) -> list[str]:
    """What makes ``node`` run and what is particular about it, one sentence or field a line."""
    several = len(node.alternatives) > 1
    lines = [f"runs in each of these {len(node.alternatives)} cases:"] if several else []
    for alternative in node.alternatives:
        cause, *details = _alternative(plan, node, alternative)
        lines.append(f"{alternative.index + 1}. {cause}" if several else f"runs {cause}")
        lines += [_INDENT + detail for detail in details]
    if node.spec.load_balance is not None:
        lines.append(
            "session order: one activation at a time per session, in yield order of its inputs, on one replica"
        )
    joins = list(dict.fromkeys(plan.nodes[plan.targets[target].owner].name for target in node.anchored_joins))
    if joins:
        lines.append(f"anchor: each yield opens one occurrence, collected by itself in {_listed(joins)}")
    if not node.routes and not node.outputs and not node.count_routes:
        lines.append("nothing takes its outputs")
    return lines


def explain_output(plan: Plan, output: PlannedOutput) -> str:
    """Where an output comes from, and when the caller gets it."""
    sources = _listed([f"{plan.node_name(node)}.{field}" for node, field in output.sources])
    if output.stream:
        when = "streamed: each value as soon as generation order allows"
    elif output.many:
        when = "at the end: the list of all values, in order"
    else:
        when = "at the end: the only value (more than one fails the call)"
    wanted = "; a call without one fails" if output.required else ""
    return f"{output.name} ({output.type}) from {sources}, {when}{wanted}"


def count_text(plan: Plan, count: CountSource) -> str:
    """Where a count is learned: a number, a placeholder's name or an output's."""
    if count.constant is not None:
        return str(count.constant)
    if count.node is not None:
        return f"{plan.node_name(count.node)}.{count.output}"
    return str(count.placeholder)


def _heading(plan: Plan, node: PlannedNode) -> str:
    repeats = "yields any number of times" if node.spec.style.repeats else "yields at most once per activation"
    if node.role is None:
        return f"{node.name} (Triton model, {repeats})"
    role = plan.roles[node.role]
    replicas = f", {role.replicas} replicas" if role.replicas > 1 else ""
    return f"{node.name} ({role.role.__name__}{replicas}, {repeats})"


def _alternative(plan: Plan, node: PlannedNode, alternative: Alternative) -> Iterator[str]:
    match alternative.kind:
        case AlternativeKind.ENTRY:
            yield "once per call"
        case AlternativeKind.DIRECT:
            yield from _direct(plan, alternative)
        case AlternativeKind.PREFIX_JOIN:
            yield from _prefix_join(plan, node, alternative)
        case AlternativeKind.COUNT_JOIN:
            yield from _count_join(plan, node, alternative)
    for field, constant in alternative.constants.items():
        yield f"{field} = {_constant(constant)}"


def _direct(plan: Plan, alternative: Alternative) -> Iterator[str]:
    first = alternative.routes[0]
    needed = list(dict.fromkeys(m.source for m in first.mappings if m.required))
    sources = [plan.node_name(route.source) for route in alternative.routes]
    having = f" that has {_listed(needed)}" if len(sources) == 1 else " that has all of these"
    yield f"once per yield of {_listed(sources, 'or')}" + (having if needed else "")
    for field in alternative.fields:
        optional = "" if all(m.required for m in first.mappings if m.field == field) else ", if the yield has it"
        yield f"{field} = {_sources(plan, alternative, field, 'or')}{optional}"


def _prefix_join(plan: Plan, node: PlannedNode, alternative: Alternative) -> Iterator[str]:
    assert alternative.anchor is not None
    if alternative.anchor == ENTRY:
        yield "once per call, as a join anchored at the call, when nothing in the call can contribute any more"
        yield "one activation collects, from the whole call:"
    else:
        anchor = plan.node_name(alternative.anchor)
        yield f"once per yield of {anchor}, as a join anchored there, when nothing it caused can contribute any more"
        yield "one activation collects, of what that one yield caused:"
    for field in alternative.fields:
        yield _INDENT + f"{field}: {_collected(plan, node, alternative, field)}"
    needed = [field for field in alternative.fields if not isinstance(node.spec.inputs[field], OptionalType)]
    if needed:
        missing = f"if there is no {_listed(needed, 'or no')}"
        yield f"{missing}, it does not run" + ("" if alternative.anchor == ENTRY else " for that yield")
    if alternative.anchor == ENTRY:
        resets = _count_joins_above(plan, alternative)
        if resets:
            yield f"its anchor is the call: the output of the count join {_listed(resets)} starts anew at the call"
        else:
            yield "its anchor is the call: its inputs have no nearer node in common"


def _count_join(plan: Plan, node: PlannedNode, alternative: Alternative) -> Iterator[str]:
    yield "at most once per call, as a count join: as soon as it has, from anywhere in the call,"
    for count in alternative.counts:
        sources = _sources(plan, alternative, count.field, "and")
        yield _INDENT + f"{count.field}: the first {count_text(plan, count)} of {sources}"
    companions = [field for field in alternative.fields if field not in alternative.triggers]
    for field in companions:
        yield _INDENT + f"{field}: for each of these, the nearest related {_sources(plan, alternative, field, 'or')}"
    yield f"if the call ends with {node.name} begun and its counts not reached, the call fails"
    yield "its outputs start anew at the call: later joins of them are anchored at the call, or at this node and below"


def _collected(plan: Plan, node: PlannedNode, alternative: Alternative, field: str) -> str:
    sources = _sources(plan, alternative, field, "and")
    optional = isinstance(node.spec.inputs[field], OptionalType)
    if is_many(node.spec.inputs[field]):
        return f"all of {sources}, in yield order" + (", if there are any" if optional else "")
    return f"{'the one' if not optional else 'the one, if there is any,'} {sources} (more than one fails the call)"


def _count_joins_above(plan: Plan, alternative: Alternative) -> list[str]:
    """The count joins that values of this alternative may have passed."""
    sources: dict[int, set[int]] = {node.index: set() for node in plan.nodes}
    for node in plan.nodes:
        for route in node.routes:
            sources[route.node].add(node.index)
    frontier = [route.source for route in alternative.routes]
    above = set(frontier)
    while frontier:
        new = sources[frontier.pop()] - above
        above |= new
        frontier += new
    return [plan.nodes[index].name for index in sorted(above) if plan.nodes[index].is_count_join]


def _sources(plan: Plan, alternative: Alternative, field: str, word: str) -> str:
    names = [
        f"{plan.node_name(route.source)}.{mapping.source}"
        for route in alternative.routes
        for mapping in route.mappings
        if mapping.field == field
    ]
    return _listed(names, word)


def _constant(constant: Placeholder | GlobalParam) -> str:
    return f"the call's {constant.name}" if isinstance(constant, Placeholder) else f"the session's {constant.name}"


def _placeholder(placeholder: Placeholder) -> str:
    default = "" if not placeholder.optional else f", optional: {placeholder.default!r} if absent"
    return f"{placeholder.name} ({placeholder.type}{default})"


def _listed(names: list[str], word: str = "and") -> str:
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {word} {names[-1]}"

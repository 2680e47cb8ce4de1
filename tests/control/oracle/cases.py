"""From a seed to a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from omniflow_backend import WorkflowError
from omniflow_backend.planning.plan import Plan
from tests.control.graphs import GraphSpec, random_graph
from tests.control.oracle.facts import Facts
from tests.control.oracle.judge import judge
from tests.control.oracle.schedule import Endless, Recording, Schedule
from tests.control.oracle.semantics import TooLarge, Tree
from tests.control.oracle.yields import YieldTable

SCHEDULES_PER_GRAPH = 12


@dataclass(slots=True)
class Tally:
    """What was run: it tells whether the cases say anything."""

    graphs: int = 0
    refused: int = 0
    schedules: int = 0
    too_large: int = 0
    activations: int = 0
    finished: int = 0
    failed: int = 0
    joined: int = 0
    counted: int = 0


class Failed(AssertionError):
    """A schedule in which runtime and oracle differ; ``seed`` replays it."""

    def __init__(self, seed: int, graph: GraphSpec, recording: Recording | None, violation: str) -> None:
        self.seed = seed
        super().__init__(
            f"seed {seed}: {violation}\n\n{describe(graph)}\n\n{recording or ''}\n\nseed {seed}: {violation}"
        )


def describe(graph: GraphSpec) -> str:
    """The graph, as it would be written."""
    lines = [f"window {graph.window}"]
    for index, node in enumerate(graph.nodes):
        inputs = ", ".join(f"{name}: {t}" for name, t in node.inputs.items())
        outputs = ", ".join(f"{name}: {t}" for name, t in node.outputs.items())
        lines.append(f"n{index}({inputs}) -> {outputs}{'  [session-ordered]' if node.ordered else ''}")
        for alternative in node.alternatives:
            fields = [
                f"{name}=[{', '.join(f'n{s.node}.{s.field}' for s in sources)}]"
                for name, sources in alternative.fields.items()
            ]
            fields += [f"{name}={constant}" for name, constant in alternative.constants.items()]
            lines.append(
                f"    bind({', '.join(fields)}{f', by count {alternative.counts}' if alternative.counts else ''})"
            )
    lines += [f"output {output}" for output in graph.outputs]
    return "\n".join(lines)


def run_graph(seed: int, tally: Tally) -> None:
    """Compile the graph of ``seed``, and run its schedules. Raises ``Failed``."""
    graph = random_graph(Random(seed), counts=seed % 4 == 0)
    facts, plan = compile_graph(seed, graph, tally)
    if plan is None:
        return
    for number in range(SCHEDULES_PER_GRAPH):
        run_schedule(seed * SCHEDULES_PER_GRAPH + number, graph, facts, plan, tally)


def replay(seed: int, tally: Tally) -> None:
    """Run the one schedule of a printed seed. Raises ``Failed``."""
    graph_seed = seed // SCHEDULES_PER_GRAPH
    graph = random_graph(Random(graph_seed), counts=graph_seed % 4 == 0)
    facts, plan = compile_graph(graph_seed, graph, tally)
    if plan is not None:
        run_schedule(seed, graph, facts, plan, tally)


def compile_graph(seed: int, graph: GraphSpec, tally: Tally) -> tuple[Facts, Plan | None]:
    """The plan, or ``None`` where the graph is refused, as it must be exactly when the oracle says so."""
    tally.graphs += 1
    facts = Facts(graph)
    try:
        plan = graph.workflow().compile()
    except WorkflowError as error:
        if facts.legal:
            raise Failed(seed * SCHEDULES_PER_GRAPH, graph, None, f"a legal graph is refused: {error}") from None
        tally.refused += 1
        return facts, None
    if not facts.legal:
        raise Failed(seed * SCHEDULES_PER_GRAPH, graph, None, "an illegal graph is accepted")
    return facts, plan


def run_schedule(seed: int, graph: GraphSpec, facts: Facts, plan: Plan, tally: Tally) -> None:
    """One run of a call, held against its tree. Raises ``Failed``."""
    random = Random(seed)
    table = YieldTable(graph, random)
    recording: Recording | None = None
    try:
        if not graph.counts:
            tree = Tree(facts, table)
        schedule = Schedule(plan, table, random)
        recording = schedule.recording
        schedule.run()
        if graph.counts:
            tree = Tree(facts, table, recording.log)
        judge(tree, recording)
    except TooLarge:
        tally.too_large += 1
        return
    except Exception as error:
        if isinstance(error, Endless) and graph.counts:  # its tree is known only afterwards, and may be large
            tally.too_large += 1
            return
        raise Failed(seed, graph, recording, f"{type(error).__name__}: {error}") from error
    tally.schedules += 1
    tally.activations += len(recording.running)
    tally.joined += any(act.collected for act in tree.acts)
    tally.counted += any(act.after for act in tree.acts)
    if recording.succeeded:
        tally.finished += 1
    else:
        tally.failed += 1

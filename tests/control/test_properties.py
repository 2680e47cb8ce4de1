"""What holds for every legal graph and every order of events, held against an independent account of the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from omniflow_backend import Bool, Many, Optional, Text, WorkflowError
from omniflow_backend.runtime import call, leases, ordering, paths, prefix_join
from tests.control.graphs import AlternativeSpec, GraphSpec, NodeSpec, OutputSpec, Source, random_graph
from tests.control.oracle.cases import Failed, Tally, compile_graph, replay, run_graph, run_schedule
from tests.control.oracle.facts import Facts

SCHEDULES = 20_000

A: dict[str, Any] = {"a": Text}


def node(*alternatives: AlternativeSpec, outputs: dict[str, Any] = A, ordered: bool = False, **inputs: Any) -> NodeSpec:
    return NodeSpec(inputs or {"x": Many(Text)}, outputs, alternatives, ordered)


def bind(by_count: dict[str, Any] | None = None, **fields: Any) -> AlternativeSpec:
    """Fields as ``"0.a"`` or ``"0.a 1.a"``: outputs of nodes by their index; else a placeholder's name."""
    handles = {name: tuple(_source(part) for part in text.split()) for name, text in fields.items() if "." in text}
    constants = {name: text for name, text in fields.items() if "." not in text}
    return AlternativeSpec(handles, constants, by_count or {})


def _source(text: str) -> Source:
    index, field = text.split(".")
    return Source(int(index), field)


def check(graph: GraphSpec, schedules: int = 300) -> Tally:
    """Run one graph under many schedules, against the oracle."""
    tally = Tally()
    facts, plan = compile_graph(0, graph, tally)
    assert plan is not None
    for seed in range(schedules):
        run_schedule(seed, graph, facts, plan, tally)
    return tally


def run_graphs(schedules: int, tally: Tally) -> None:
    """Random graphs, until there were so many schedules."""
    for seed in count():
        if tally.schedules >= schedules:
            return
        run_graph(seed, tally)


class TestEverySchedule:
    @pytest.mark.slow
    @pytest.mark.timeout(900)  # a minute, on a core of its own
    def test_does_what_the_rules_say_whatever_the_order_of_events(self) -> None:
        tally = Tally()
        run_graphs(SCHEDULES, tally)
        # The cases must say something: joins fire, counts are reached, calls end both ways, most graphs are legal.
        assert tally.refused < tally.graphs / 2
        assert tally.joined > SCHEDULES / 4
        assert tally.counted > SCHEDULES / 20
        assert tally.finished > SCHEDULES / 2
        assert tally.failed > SCHEDULES / 10
        assert tally.activations > 5 * SCHEDULES

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(random=st.randoms(use_true_random=False), counts=st.booleans(), seed=st.integers(0, 2**31))
    def test_does_what_the_rules_say_in_the_smallest_case_too(self, random: Random, counts: bool, seed: int) -> None:
        graph = random_graph(random, counts=counts)
        facts, plan = compile_graph(seed, graph, Tally())
        assume(plan is not None)
        assert plan is not None
        run_schedule(seed, graph, facts, plan, Tally())

    def test_a_seed_replays_its_schedule(self) -> None:
        first, second = Tally(), Tally()
        replay(4242, first)
        replay(4242, second)
        assert first == second
        assert first.schedules + first.refused + first.too_large == 1


def _never(*_: Any) -> Any:
    return False


def _keep_repeated(original: Callable[..., Any]) -> Callable[..., Any]:
    def on_yield(self: call.Call, activation: int, ordinal: int, fields: Any) -> Any:
        producer = self._activations.get(activation)
        if producer is not None and ordinal < producer.next_ordinal:
            self._take_yield(producer, fields)
        return original(self, activation, ordinal, fields)

    return on_yield


def _hold_once(self: leases.Leases, token: paths.Token, targets: Any) -> None:
    for target in targets:
        token.pending[target] = token.pending.get(target, 0) + 1


SABOTAGE: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "buckets sorted backwards": (
        prefix_join,
        "order_key",
        lambda original: lambda *args: tuple(tuple(-n for n in part) for part in original(*args)),
    ),
    "buckets that lack a field fire": (prefix_join.Bucket, "missing", lambda original: lambda *_: []),
    "work registered where it is, not above": (leases.Leases, "hold", lambda original: _hold_once),
    "ordered interfaces do not wait": (call, "pass_gate", lambda original: lambda *_: True),
    "repeated yields count again": (call.Call, "on_yield", _keep_repeated),
    "siblings never settle": (ordering.Siblings, "settled", lambda original: lambda *_: 0),
    "nothing is accepted": (call.Call, "_accept", lambda original: _never),
    "any prefix will do": (prefix_join, "common_prefix", lambda original: lambda a, b: a),
}


class TestTheOracle:
    @pytest.mark.parametrize("sabotage", SABOTAGE)
    def test_notices(self, sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
        owner, name, broken = SABOTAGE[sabotage]
        monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
        tally = Tally()
        with pytest.raises(Failed):
            run_graphs(2_000, tally)

    def test_finds_the_anchor_that_every_way_leads_through(self) -> None:
        # 0 -> 1 -> {2, 3} -> 4, and 5 joins 4 with 0.
        graph = GraphSpec(
            (
                node(bind(x="texts")),
                node(bind(x="0.a")),
                node(bind(x="1.a")),
                node(bind(x="1.a")),
                node(bind(x="2.a", y="3.a"), x=Many(Text), y=Many(Text)),
                node(bind(x="4.a", y="0.a"), x=Many(Text), y=Many(Text)),
            ),
            (OutputSpec((Source(5, "a"),), many=True),),
        )
        assert Facts(graph).anchors == {(4, 0): 1, (5, 0): 0}


# Each makes one thing wrong in a legal graph; the ways in which compile() must refuse.


def _on_first(graph: GraphSpec, **changes: Any) -> GraphSpec:
    return replace(graph, nodes=(replace(graph.nodes[0], **changes), *graph.nodes[1:]))


def _append(graph: GraphSpec, *nodes: NodeSpec) -> GraphSpec:
    return replace(graph, nodes=(*graph.nodes, *nodes))


def _joined_outside(graph: GraphSpec) -> GraphSpec:
    size = len(graph.nodes)
    return _append(
        graph,
        node(bind(x="0.a"), bind(x=f"{size + 1}.a")),
        node(bind(x=f"{size}.a", y="0.a"), x=Many(Text), y=Many(Text)),
    )


WRONG: dict[str, Callable[[GraphSpec], GraphSpec]] = {
    "a join on a loop, anchored outside it": _joined_outside,
    "a required input that nothing binds": lambda g: _on_first(g, inputs={**g.nodes[0].inputs, "w": Text}),
    "an input that the interface does not have": lambda g: _append(g, node(bind(w="0.a", x="0.a"))),
    "an output that the source does not have": lambda g: _append(g, node(bind(x="0.nothing"))),
    "types that differ": lambda g: _append(g, node(bind(x="0.a"), x=Bool)),
    "one bucket field of two types": lambda g: _append(
        g,
        node(bind(x="0.a"), outputs={"a": Bool}),
        node(bind(x=f"0.a {len(g.nodes)}.a", y="0.a"), x=Many(Text), y=Many(Text)),
    ),
    "a loop that nothing begins": lambda g: _append(
        g, node(bind(x=f"{len(g.nodes) + 1}.a")), node(bind(x=f"{len(g.nodes)}.a"))
    ),
    "a join that waits for itself": lambda g: _append(
        g, node(bind(x="0.a", y=f"{len(g.nodes)}.a"), x=Many(Text), y=Many(Text))
    ),
    "a node that nothing binds": lambda g: _append(g, node()),
    "an alternative without a required field": lambda g: _append(g, node(bind(x="0.a"), x=Optional(Many(Text)))),
    "a count that is no Int": lambda g: _append(g, node(bind({"x": Source(0, "a")}, x="0.a"))),
    "a count below zero": lambda g: _append(g, node(bind({"x": -1}, x="0.a"))),
    "a count of a field that is not bound": lambda g: _append(g, node(bind({"y": 1}, x="0.a"))),
    "an output of a field that is not there": lambda g: replace(g, outputs=(OutputSpec((Source(0, "nothing"),)),)),
    "no output at all": lambda g: replace(g, outputs=()),
}


class TestIllegalGraphs:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**31))
    @pytest.mark.parametrize("wrong", WRONG)
    def test_are_refused(self, wrong: str, seed: int) -> None:
        legal = next(graph for n in range(1000) if Facts(graph := random_graph(Random(seed + n))).legal)
        legal.workflow().compile()
        with pytest.raises(WorkflowError) as caught:
            WRONG[wrong](legal).workflow().compile()
        assert all(problem.place.line > 0 for problem in caught.value.problems)


class TestEnding:
    def test_a_required_list_without_values_fails_the_call(self) -> None:
        output = OutputSpec((Source(0, "a"),), many=True, required=True)
        tally = check(GraphSpec((node(bind(x="texts")),), (output,)))
        assert tally.failed
        assert tally.finished

    def test_a_count_join_that_cannot_fire_does_not_keep_a_bucket_open_for_ever(self) -> None:
        graph = GraphSpec(
            (
                node(bind(x="texts"), outputs={"a": Text, "b": Text}),
                node(bind({"x": 2}, x="0.b")),
                node(bind(x="0.a", y="1.a"), x=Many(Text), y=Many(Text)),
            ),
            (OutputSpec((Source(2, "a"),), stream=True),),
        )
        tally = check(graph)
        assert tally.failed
        assert tally.counted

    def test_of_two_count_joins_the_upstream_one_is_given_up_first(self) -> None:
        # Node 3 waits for what node 2 would yield; only when node 2 is given up, node 3 runs, and feeds node 4.
        graph = GraphSpec(
            (
                node(bind(x="texts"), outputs={"a": Text, "b": Text, "c": Text}),
                node(bind({"x": 1}, x="3.a")),
                node(bind({"x": 1}, x="0.c", y="0.b"), x=Many(Text), y=Many(Text)),
                node(bind(x="0.a", z="2.a"), x=Many(Text), z=Optional(Many(Text))),
            ),
            (OutputSpec((Source(1, "a"),), stream=True), OutputSpec((Source(3, "a"),), many=True)),
        )
        assert check(graph).counted


class TestOrder:
    def test_branches_stand_in_bind_order_also_where_one_leads_back_to_the_anchor(self) -> None:
        graph = GraphSpec(
            (
                node(bind(x="texts"), bind(x="2.a")),
                node(bind(x="0.a"), outputs={"a": Text, "b": Text}),
                node(bind(x="0.a")),
                node(bind(x="0.a 1.a 2.a", y="1.b"), x=Many(Text), y=Many(Text)),
            ),
            (OutputSpec((Source(3, "a"),), many=True),),
        )
        assert check(graph).joined


class TestBackpressure:
    @pytest.mark.parametrize("stream", [True, False])
    def test_does_not_stop_an_ordered_interface_that_runs_again_further_down(self, stream: bool) -> None:
        # What waits for the next turn of node 1 waits for its present one, which must not be held back by what waits.
        graph = GraphSpec(
            (
                node(bind(x="texts")),
                node(bind(x="0.a"), bind(x="1.b"), outputs={"a": Text, "b": Text}, ordered=True),
                node(bind(x="1.a"), ordered=not stream),
            ),
            (OutputSpec((Source(1, "a"),), stream=stream, many=not stream), OutputSpec((Source(2, "a"),), stream=True)),
            window=1,
        )
        assert check(graph).finished

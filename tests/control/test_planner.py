"""What ``compile`` accepts, refuses and infers (contract section 3, rulings 1 to 8).

A line marked ``# bad`` is where the author's mistake stands, and so where its problem has to point.
"""

from __future__ import annotations

import linecache
from typing import Any

import pytest

from omniflow_backend import (
    Float,
    GlobalParam,
    Image,
    Int,
    Many,
    Optional,
    Role,
    SessionLoadBalance,
    Tensor,
    Text,
    Workflow,
    WorkflowError,
    interface,
)
from omniflow_backend.dsl.workflow import Node, Placeholder
from omniflow_backend.planning.plan import ENTRY, AlternativeKind, Plan, TargetKind


class Step(Role):
    """One text in; a text, another text, a list, numbers and an array out."""

    @interface(
        inputs={"x": Text},
        outputs={"x": Text, "y": Text, "xs": Many(Text), "n": Int, "ratio": Float, "array": Tensor("float32", (-1,))},
    )
    def run(self, ctx: Any, x: str) -> Any:
        yield {}

    @interface(inputs={"x": Text}, outputs={"x": Text}, load_balance=SessionLoadBalance())
    def ordered(self, ctx: Any, x: str) -> Any:
        return {}


class Pair(Role):
    @interface(inputs={"a": Text, "b": Many(Text), "note": Optional(Text)}, outputs={"x": Text, "n": Int})
    def join(self, ctx: Any, a: str, b: list[str], note: str | None) -> Any:
        return {}

    @interface(inputs={"a": Text, "b": Text, "c": Optional(Text)}, outputs={"x": Text})
    def both(self, ctx: Any, a: str, b: str, c: str | None) -> Any:
        return {}


class Collect(Role):
    @interface(inputs={"x": Many(Text), "y": Optional(Many(Text))}, outputs={"x": Text})
    def run(self, ctx: Any, x: list[str], y: list[str]) -> Any:
        return {}


class Lists(Role):
    @interface(inputs={"xs": Many(Many(Text)), "x": Text}, outputs={"x": Text})
    def run(self, ctx: Any, xs: list[list[str]], x: str) -> Any:
        return {}


class Numbers(Role):
    @interface(inputs={"ratio": Float, "array": Tensor("float32", (4,))}, outputs={"x": Text})
    def run(self, ctx: Any, ratio: float, array: Any) -> Any:
        return {}


class Start(Role):
    @interface(inputs={}, outputs={"x": Text})
    def begin(self, ctx: Any) -> Any:
        return {}


def step(workflow: Workflow, name: str, **sources: Any) -> Node:
    node = workflow.role(name, Step).run
    return node.bind(**sources) if sources else node


def started() -> tuple[Workflow, Placeholder, Node]:
    """A workflow with a first step ``a``, whose text is an output."""
    workflow = Workflow("wf")
    text = workflow.placeholder("text", Text)
    first = step(workflow, "a", x=text)
    workflow.output("out", first.x)
    return workflow, text, first


def refused(workflow: Workflow, *contents: str) -> None:
    """Asserts that ``compile`` reports one problem for each of ``contents``, each at a marked line of this file."""
    with pytest.raises(WorkflowError) as caught:
        workflow.compile()
    problems = list(caught.value.problems)
    for problem in problems:
        assert problem.place.file == __file__
        assert linecache.getline(__file__, problem.place.line).rstrip().endswith("# bad"), str(problem)
        assert str(problem) in str(caught.value)
    for content in contents:
        assert any(content in problem.message for problem in problems), f"{content!r} not in {caught.value}"
    assert len(problems) == len(contents), str(caught.value)


def alternative_kinds(plan: Plan, node: str) -> list[AlternativeKind]:
    return [alternative.kind for alternative in plan.node(node).alternatives]


def anchor(plan: Plan, node: str, alternative: int = -1) -> str:
    planned = plan.node(node).alternatives[alternative]
    assert planned.kind is AlternativeKind.PREFIX_JOIN
    assert planned.anchor is not None
    return plan.node_name(planned.anchor)


class TestNamesAndFields:
    def test_an_unknown_interface_is_named_with_those_there_are(self) -> None:
        workflow, _, _ = started()
        _ = workflow.role("b", Step).walk  # bad
        refused(workflow, "role 'b' (Step) has no interface 'walk'; it has run, ordered")

    def test_an_unknown_input(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=a.x, z=a.x)  # bad
        refused(workflow, "b.run: has no input 'z'; it has x")

    def test_an_unknown_output_points_at_the_handle(self) -> None:
        workflow, _, a = started()
        handle = a.z  # bad
        step(workflow, "b").bind(x=handle)
        refused(workflow, "a.run: has no output 'z'; it has x, y, xs, n, ratio, array")

    def test_a_required_input_that_is_not_bound(self) -> None:
        workflow, _, a = started()
        workflow.role("p", Pair).join.bind(a=a.x)  # bad
        refused(workflow, "p.join: required input(s) 'b' not bound in this alternative")

    def test_a_node_that_nothing_is_bound_to(self) -> None:
        workflow, _, _ = started()
        node = workflow.role("b", Step).run  # bad
        workflow.output("b", node.x)
        refused(workflow, "b.run: nothing makes it run: bind its inputs")

    @pytest.mark.parametrize("source", [None, "text", 3, [], {}])
    def test_a_source_that_is_no_source(self, source: Any) -> None:
        workflow, _, _ = started()
        step(workflow, "b").bind(x=source)  # bad
        refused(workflow, "input 'x' needs a handle, a list of handles, one placeholder or one GlobalParam")

    def test_a_placeholder_in_a_list_of_sources(self) -> None:
        workflow, text, a = started()
        step(workflow, "b").bind(x=[a.x, text])  # bad
        refused(workflow, "input 'x' needs a handle, a list of handles")

    def test_what_belongs_to_another_workflow(self) -> None:
        other, other_text, other_node = started()
        workflow, _, _ = started()
        step(workflow, "b").bind(x=other_node.x)  # bad
        step(workflow, "c").bind(x=other_text)  # bad
        workflow.output("foreign", other_node.y)  # bad
        refused(
            workflow,
            "a.run.x belongs to another workflow",
            "placeholder 'text' belongs to another workflow",
            "a.run.y belongs to another workflow",
        )
        other.compile()

    def test_outputs_and_placeholders_declared_twice(self) -> None:
        workflow, _, a = started()
        workflow.placeholder("text", Text)  # bad
        workflow.output("out", a.y)  # bad
        refused(workflow, "placeholder 'text' is declared twice", "output 'out' is declared twice")

    def test_a_role_declared_twice_differently(self) -> None:
        workflow, _, _ = started()
        workflow.role("a", Step)
        workflow.role("a", Pair)  # bad
        workflow.role("a", Step, volume=3)  # bad
        refused(workflow, "as Step and Pair", "role 'a' is declared twice, differently: as Step and Step")

    def test_reserved_names(self) -> None:
        workflow, _, a = started()
        workflow.placeholder("session_id", Text)  # bad
        workflow.output("event", a.x)  # bad
        refused(workflow, "placeholder name 'session_id' is reserved", "output name 'event' is reserved")

    @pytest.mark.parametrize(
        ("role", "message"),
        [
            ("wf", "role 'wf' has the name of the workflow; both become Triton models"),
            ("wf_unary", "role 'wf_unary' has the name of the workflow's unary front"),
            ("../b", "a role's name becomes a Triton model's name: '../b'"),
        ],
    )
    def test_roles_whose_model_could_not_be_named_so(self, role: str, message: str) -> None:
        workflow = Workflow("wf")  # bad
        workflow.output("out", step(workflow, role, x=workflow.placeholder("text", Text)).x)
        refused(workflow, message)

    def test_a_triton_model_with_the_name_of_a_role(self) -> None:
        workflow, _, a = started()
        model = workflow.triton_model("a", inputs={"x": Text}, outputs={"x": Text})  # bad
        model.bind(x=a.x)
        refused(workflow, "Triton model 'a' has the name of role 'a'")

    def test_a_workflow_without_output_and_with_a_bad_name(self) -> None:
        workflow = Workflow("my flow")  # bad
        step(workflow, "a", x=workflow.placeholder("text", Text))
        refused(workflow, "the workflow has no output", "'my flow' is not an identifier")

    def test_a_role_without_replicas(self) -> None:
        workflow = Workflow("wf")  # bad
        node = workflow.role("a", Step, replicas=0).run(x=workflow.placeholder("text", Text))
        workflow.output("out", node.x)
        refused(workflow, "role 'a' needs at least one replica, got 0")

    def test_outputs_that_are_no_output_fields(self) -> None:
        workflow, text, a = started()
        workflow.output("node", a)  # type: ignore[arg-type]  # bad
        workflow.output("placeholder", text)  # type: ignore[arg-type]  # bad
        workflow.output("empty", [])  # bad
        refused(workflow, "output 'node' needs", "output 'placeholder' needs", "output 'empty' needs")

    def test_an_output_with_sources_of_different_types(self) -> None:
        workflow, _, a = started()
        workflow.output("mixed", [a.x, a.n])  # bad
        refused(workflow, "output 'mixed' is given values of different types: Int and Text")


class TestTypes:
    def test_a_placeholder_of_another_type(self) -> None:
        workflow, _, _ = started()
        step(workflow, "b").bind(x=workflow.placeholder("number", Int))  # bad
        refused(workflow, "b.run: input 'x' is Text, but placeholder 'number' is Int")

    def test_an_output_of_another_type(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=a.n)  # bad
        refused(workflow, "b.run: input 'x' is Text, but a.run.n is Int")

    def test_an_array_of_another_shape(self) -> None:
        workflow, _, a = started()
        images = workflow.placeholder("image", Image)
        workflow.role("n", Numbers).run.bind(ratio=a.ratio, array=images)  # bad
        refused(
            workflow, "input 'array' is Tensor(float32, [4]), but placeholder 'image' is Tensor(uint8, [any, any, 3])"
        )

    def test_an_int_fits_a_float_and_an_open_shape_a_fixed_one(self) -> None:
        workflow, _, a = started()
        workflow.role("n", Numbers).run.bind(ratio=a.n, array=a.array)
        assert alternative_kinds(workflow.compile(), "n.run") == [AlternativeKind.DIRECT]

    def test_a_direct_many_takes_one_value_as_a_list_of_one_or_the_list_itself(self) -> None:
        workflow, _, a = started()
        workflow.role("c", Collect).run.bind(x=a.x)
        workflow.role("d", Collect).run.bind(x=a.xs)
        plan = workflow.compile()
        assert [plan.node(name).alternatives[0].routes[0].mappings[0].wrap for name in ("c.run", "d.run")] == [
            True,
            False,
        ]

    def test_in_a_join_lists_are_not_flattened(self) -> None:
        workflow, _, a = started()
        b = step(workflow, "b", x=a.x)
        workflow.role("c", Collect).run.bind(x=a.xs, y=b.x)  # bad
        refused(
            workflow, "a.run.xs is Many(Text); in a join lists are not flattened: declare the input Many(Many(Text))"
        )

    def test_in_a_join_a_list_of_lists_takes_lists(self) -> None:
        workflow, _, a = started()
        workflow.role("c", Lists).run.bind(xs=a.xs, x=step(workflow, "b", x=a.x).x)
        assert anchor(workflow.compile(), "c.run") == "a.run"

    def test_a_list_does_not_fit_a_single_value(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=a.xs)  # bad
        refused(workflow, "input 'x' is Text, but a.run.xs is Many(Text)")

    def test_one_field_of_a_join_on_two_routes_of_different_types(self) -> None:
        workflow, _, a = started()
        ints, floats = step(workflow, "b", x=a.x), step(workflow, "c", x=a.x)
        workflow.role("n", Numbers).run.bind(ratio=[ints.n, floats.ratio], array=a.array)  # bad
        refused(workflow, "one bucket would get 'ratio' with different types: b.run.n (Int) and c.run.ratio (Float)")

    def test_one_field_that_lists_two_outputs_of_one_node(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=[a.x, a.y])  # bad
        refused(workflow, "input 'x' lists two outputs of one node; write one bind call for each")


class TestAlternatives:
    def test_placeholders_alone_run_a_node_once_per_call(self) -> None:
        workflow, _, _ = started()
        assert alternative_kinds(workflow.compile(), "a.run") == [AlternativeKind.ENTRY]

    def test_an_interface_without_inputs_runs_once_per_call(self) -> None:
        workflow, _, _ = started()
        workflow.role("s", Start).begin()
        assert alternative_kinds(workflow.compile(), "s.begin") == [AlternativeKind.ENTRY]

    def test_placeholders_and_global_params_never_make_a_join(self) -> None:
        workflow, text, a = started()
        workflow.role("p", Pair).both.bind(a=a.x, b=text, c=GlobalParam("history"))
        plan = workflow.compile()
        assert alternative_kinds(plan, "p.both") == [AlternativeKind.DIRECT]
        assert set(plan.node("p.both").alternatives[0].constants) == {"b", "c"}

    def test_sources_that_each_provide_every_field_are_direct_routes(self) -> None:
        workflow, text, a = started()
        b = step(workflow, "b", x=text)
        workflow.role("p", Pair).both.bind(a=[a.x, b.x], b=[a.y, b.y])
        plan = workflow.compile()
        assert alternative_kinds(plan, "p.both") == [AlternativeKind.DIRECT]
        assert [plan.node_name(route.source) for route in plan.node("p.both").alternatives[0].routes] == [
            "a.run",
            "b.run",
        ]

    def test_sources_of_which_none_provides_every_field_are_one_join(self) -> None:
        workflow, text, a = started()
        b, c = step(workflow, "b", x=text), step(workflow, "c", x=text)
        workflow.role("p", Pair).join.bind(b=[a.x, b.x], a=c.x)
        plan = workflow.compile()
        assert anchor(plan, "p.join") == "call"
        assert len(plan.node("p.join").alternatives[0].routes) == 3

    def test_two_bind_calls_are_two_alternatives_in_their_order(self) -> None:
        workflow, text, a = started()
        step(workflow, "b", x=a.y).bind(x=text).bind(x=a.x)
        plan = workflow.compile()
        kinds = [AlternativeKind.DIRECT, AlternativeKind.ENTRY, AlternativeKind.DIRECT]
        assert alternative_kinds(plan, "b.run") == kinds
        assert [a.fields for a in plan.node("b.run").alternatives] == [("x",), (), ("x",)]

    def test_alternatives_may_bind_different_required_inputs(self) -> None:
        workflow, _, a = started()
        both = workflow.role("p", Pair).join
        both.bind(a=a.x)
        both.bind(b=a.y)
        assert [alternative.fields for alternative in workflow.compile().node("p.join").alternatives] == [
            ("a",),
            ("b",),
        ]

    def test_an_alternative_of_optional_fields_only_is_refused(self) -> None:
        workflow, text, a = started()
        workflow.role("p", Pair).both.bind(a=text, b=text, c=a.x)  # bad
        refused(workflow, "p.both: this alternative binds no required input to an output")

    def test_a_partial_yield_is_judged_by_required_fields(self) -> None:
        workflow, _, a = started()
        workflow.role("p", Pair).both.bind(a=a.x, b=a.y, c=a.x)
        mappings = workflow.compile().node("p.both").alternatives[0].routes[0].mappings
        assert {mapping.field: mapping.required for mapping in mappings} == {"a": True, "b": True, "c": False}


class TestAnchors:
    def test_a_diamond_is_anchored_where_it_parts(self) -> None:
        workflow, _, a = started()
        left, right = step(workflow, "left", x=a.x), step(workflow, "right", x=a.x)
        workflow.role("p", Pair).join.bind(a=left.x, b=right.x)
        plan = workflow.compile()
        assert anchor(plan, "p.join") == "a.run"
        assert plan.node("a.run").is_anchor

    def test_a_source_may_itself_be_the_anchor(self) -> None:
        workflow, _, a = started()
        workflow.role("p", Pair).join.bind(a=a.x, b=step(workflow, "b", x=a.x).x)
        assert anchor(workflow.compile(), "p.join") == "a.run"

    def test_the_nearest_common_node_is_taken(self) -> None:
        workflow, _, a = started()
        b = step(workflow, "b", x=a.x)
        workflow.role("p", Pair).join.bind(a=step(workflow, "c", x=b.x).x, b=step(workflow, "d", x=b.x).x)
        assert anchor(workflow.compile(), "p.join") == "b.run"

    def test_a_way_round_the_nearest_node_moves_the_anchor_up(self) -> None:
        workflow, _, a = started()
        b = step(workflow, "b", x=a.x)
        c, d = step(workflow, "c", x=b.x), step(workflow, "d", x=b.x)
        workflow.role("p", Pair).join.bind(a=c.x, b=d.x)
        d.bind(x=a.x)
        assert anchor(workflow.compile(), "p.join") == "a.run"

    def test_nothing_in_common_is_anchored_at_the_call(self) -> None:
        workflow, text, a = started()
        workflow.role("p", Pair).join.bind(a=a.x, b=step(workflow, "b", x=text).x)
        assert anchor(workflow.compile(), "p.join") == "call"

    def test_nested_joins_have_each_their_own_anchor(self) -> None:
        workflow, _, a = started()
        b = step(workflow, "b", x=a.x)
        inner = workflow.role("inner", Pair).join.bind(a=step(workflow, "c", x=b.x).x, b=step(workflow, "d", x=b.x).x)
        workflow.role("outer", Pair).join.bind(a=step(workflow, "e", x=a.x).x, b=inner.x)
        plan = workflow.compile()
        assert (anchor(plan, "inner.join"), anchor(plan, "outer.join")) == ("b.run", "a.run")

    def test_a_join_of_joins_of_one_anchor_keeps_it(self) -> None:
        workflow, _, a = started()
        b, c, d = (step(workflow, name, x=a.x) for name in "bcd")
        first = workflow.role("first", Pair).join.bind(a=b.x, b=c.x)
        second = workflow.role("second", Pair).join.bind(a=c.x, b=d.x)
        workflow.role("third", Pair).join.bind(a=first.x, b=second.x)
        plan = workflow.compile()
        assert {anchor(plan, f"{name}.join") for name in ("first", "second", "third")} == {"a.run"}

    def test_a_join_can_be_the_anchor_of_a_later_one(self) -> None:
        workflow, _, a = started()
        first = workflow.role("first", Pair).join.bind(a=a.x, b=step(workflow, "b", x=a.x).x)
        c, d = step(workflow, "c", x=first.x), step(workflow, "d", x=first.x)
        workflow.role("second", Pair).join.bind(a=c.x, b=d.x)
        assert anchor(workflow.compile(), "second.join") == "first.join"

    def test_each_join_knows_who_can_still_contribute(self) -> None:
        workflow, _, a = started()
        b, c = step(workflow, "b", x=a.x), step(workflow, "c", x=a.x)
        step(workflow, "aside", x=c.x)
        joined = workflow.role("p", Pair).join.bind(a=b.x, b=c.x)
        step(workflow, "after", x=joined.x)
        plan = workflow.compile()
        target = plan.node("p.join").alternatives[0].target
        assert {node.name for node in plan.nodes if target in node.yields} == {"a.run", "b.run", "c.run"}
        assert {node.name for node in plan.nodes if target in node.work} == {"b.run", "c.run"}

    def test_ordered_interfaces_and_streams_are_gated_by_all_that_lead_to_them(self) -> None:
        workflow, _, a = started()
        ordered = workflow.role("b", Step).ordered(x=a.x)
        workflow.output("stream", step(workflow, "c", x=ordered.x).x, stream=True)
        plan = workflow.compile()
        kinds = {
            kind: {n.name for n in plan.nodes for t in n.yields if plan.targets[t].kind is kind} for kind in TargetKind
        }
        assert kinds[TargetKind.ORDER] == {"a.run"}
        assert kinds[TargetKind.STREAM] == {"a.run", "b.ordered", "c.run"}


class TestLoops:
    def test_a_first_turn_and_a_way_back_are_no_join(self) -> None:
        workflow, _, a = started()
        agent = step(workflow, "agent", x=a.x)
        agent.bind(x=step(workflow, "tool", x=agent.y).x)
        plan = workflow.compile()
        assert alternative_kinds(plan, "agent.run") == [AlternativeKind.DIRECT, AlternativeKind.DIRECT]
        assert [a.routes[0].windowed for a in plan.node("agent.run").alternatives] == [True, False]

    def test_a_join_on_a_loop_with_its_anchor_on_it(self) -> None:
        workflow, _, a = started()
        head = step(workflow, "head", x=a.x)
        joined = workflow.role("p", Pair).join.bind(
            a=step(workflow, "b", x=head.x).x, b=step(workflow, "c", x=head.x).x
        )
        head.bind(x=joined.x)
        plan = workflow.compile()
        assert anchor(plan, "p.join") == "head.run"
        assert not plan.node("head.run").alternatives[1].routes[0].windowed

    def test_a_join_on_a_loop_with_its_anchor_outside_is_refused(self) -> None:
        workflow, _, a = started()
        joined = workflow.role("p", Pair).join
        joined.bind(a=a.x, b=[a.y, step(workflow, "back", x=joined.x).x])  # bad
        refused(workflow, "p.join: this join of a.run and back.run lies on the cycle p.join -> back.run -> p.join")

    def test_the_refusal_names_the_anchor_and_what_to_do(self) -> None:
        workflow, text, a = started()
        head = step(workflow, "head", x=a.x)
        joined = workflow.role("p", Pair).join
        joined.bind(a=step(workflow, "once", x=text).x, b=head.x)  # bad
        head.bind(x=joined.x)
        refused(
            workflow, "(the call) lies outside it: two turns would share one bucket. Let every input of the join come"
        )

    def test_a_join_behind_a_loop_may_be_anchored_before_it(self) -> None:
        workflow, _, a = started()
        agent = step(workflow, "agent", x=a.x)
        agent.bind(x=step(workflow, "tool", x=agent.y).x)
        workflow.role("p", Pair).join.bind(a=a.y, b=agent.x)
        assert anchor(workflow.compile(), "p.join") == "a.run"

    def test_a_join_inside_a_loop_is_anchored_at_the_turn(self) -> None:
        workflow, _, a = started()
        agent = step(workflow, "agent", x=a.x)
        tool = step(workflow, "tool", x=agent.y)
        agent.bind(x=tool.x)
        workflow.role("p", Pair).join.bind(a=agent.x, b=tool.x)
        assert anchor(workflow.compile(), "p.join") == "agent.run"

    def test_a_join_that_feeds_itself_after_a_first_turn_is_its_own_anchor(self) -> None:
        workflow, text, _ = started()
        both = workflow.role("p", Pair).both.bind(a=text, b=text)
        both.bind(a=both.x, b=step(workflow, "b", x=both.x).x)
        assert anchor(workflow.compile(), "p.both") == "p.both"

    def test_a_loop_without_a_way_in(self) -> None:
        workflow, _, _ = started()
        b = workflow.role("b", Step).run  # bad
        c = workflow.role("c", Step).run  # bad
        b.bind(x=c.x)
        c.bind(x=b.x)
        refused(workflow, "b.run: can never run", "c.run: can never run")

    def test_a_join_that_waits_for_its_own_output_can_never_run(self) -> None:
        workflow, _, a = started()
        joined = workflow.role("p", Pair).join  # bad
        back = workflow.role("back", Step).run  # bad
        joined.bind(a=a.x, b=back.x)
        back.bind(x=joined.x)
        refused(workflow, "p.join: can never run", "does not wait for p.join; a loop needs a first alternative")


class TestCountJoins:
    def counted(self, **counts: Any) -> tuple[Workflow, Node]:
        workflow, _, a = started()
        return workflow, workflow.role("c", Collect).run.bind(x=a.x, y=a.y, activate_by_count=counts)

    def test_counts_from_a_number_a_placeholder_and_an_output(self) -> None:
        workflow, _, a = started()
        wanted = workflow.placeholder("wanted", Int, default=2)
        for name, count in {"c": 3, "d": wanted, "e": a.n}.items():
            workflow.role(name, Collect).run.bind(x=a.x, activate_by_count={"x": count})
        plan = workflow.compile()
        counts = [plan.node(f"{name}.run").alternatives[0].counts[0] for name in "cde"]
        assert (counts[0].constant, counts[1].placeholder) == (3, "wanted")
        assert (plan.node_name(counts[2].node if counts[2].node is not None else ENTRY), counts[2].output) == (
            "a.run",
            "n",
        )
        assert all(plan.node(f"{name}.run").is_count_join for name in "cde")

    @pytest.mark.parametrize("count", [-1, True, "2", 2.0, None])
    def test_a_count_that_can_never_be_learned(self, count: Any) -> None:
        workflow, _, a = started()
        workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": count})  # bad
        refused(workflow, "c.run: the count of 'x' can never be learned from")

    def test_a_count_from_a_placeholder_that_may_be_absent(self) -> None:
        workflow, _, a = started()
        wanted = workflow.placeholder("wanted", Int, optional=True)
        workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": wanted})  # bad
        refused(workflow, "can never be learned from placeholder 'wanted' when a call does not give it")

    def test_a_count_from_another_workflow(self) -> None:
        other = Workflow("other").placeholder("wanted", Int)
        workflow, _, a = started()
        workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": other})  # bad
        refused(workflow, "placeholder 'wanted' belongs to another workflow")

    def test_a_count_from_an_output_that_is_no_int(self) -> None:
        workflow, _, a = started()
        workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": a.ratio})  # bad
        refused(workflow, "the count of 'x' must be an Int, a.run.ratio is not")

    def test_a_count_of_a_field_that_no_output_gives(self) -> None:
        workflow, text, a = started()
        workflow.role("p", Pair).join.bind(a=text, b=a.x, activate_by_count={"a": 1, "note": 1})  # bad
        refused(workflow, "activate_by_count names 'a', which", "activate_by_count names 'note', which")

    def test_a_single_value_cannot_wait_for_several(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=a.x, activate_by_count={"x": 2})  # bad
        refused(workflow, "b.run: input 'x' is Text, but waits for 2: declare it Many")

    def test_a_count_join_that_waits_for_its_own_output(self) -> None:
        workflow, _, a = started()
        joined = workflow.role("c", Pair).join  # bad
        back = workflow.role("back", Step).run  # bad
        joined.bind(a=a.x, b=back.x, activate_by_count={"a": 1, "b": 1})
        back.bind(x=joined.x)
        refused(workflow, "c.join: can never run", "back.run: can never run")

    def test_its_output_starts_anew_at_the_call(self) -> None:
        workflow, _, a = started()
        counted = workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": 1})
        workflow.role("p", Pair).join.bind(a=counted.x, b=step(workflow, "b", x=a.x).x)
        assert anchor(workflow.compile(), "p.join") == "call"

    def test_it_can_be_the_anchor_of_what_follows_it(self) -> None:
        workflow, _, a = started()
        counted = workflow.role("c", Collect).run.bind(x=a.x, activate_by_count={"x": 1})
        workflow.role("p", Pair).join.bind(a=counted.x, b=step(workflow, "b", x=counted.x).x)
        assert anchor(workflow.compile(), "p.join") == "c.run"

    @pytest.mark.parametrize("steps_between", [0, 1, 3])
    def test_a_prefix_join_and_a_count_join_that_feed_each_other_are_refused(self, steps_between: int) -> None:
        workflow, _, a = started()
        counted = workflow.role("c", Collect).run
        joined = workflow.role("p", Pair).join
        joined.bind(a=a.x, b=counted.x)  # bad
        back = joined.x
        for number in range(steps_between):
            back = step(workflow, f"back{number}", x=back).x
        counted.bind(x=[a.y, back], activate_by_count={"x": 2})
        way = " -> ".join(["p.join", *(f"back{number}.run" for number in range(steps_between)), "c.run", "p.join"])
        refused(workflow, f"p.join: this join of a.run and c.run and a count join feed each other ({way})")

    def test_a_prefix_join_that_tells_the_count_it_waits_for_is_refused(self) -> None:
        workflow, _, a = started()
        counted = workflow.role("c", Collect).run
        joined = workflow.role("p", Pair).join
        joined.bind(a=a.x, b=[a.y, counted.x])  # bad
        teller = step(workflow, "t", x=joined.x)
        counted.bind(x=a.y, activate_by_count={"x": teller.n})
        refused(
            workflow,
            "p.join: this join of a.run and c.run and a count join feed each other "
            "(p.join -> t.run -> c.run -> p.join)",
        )

    def test_a_prefix_join_and_a_count_join_in_a_row_are_fine_either_way_round(self) -> None:
        workflow, _, a = started()
        joined = workflow.role("p", Pair).join.bind(a=a.x, b=step(workflow, "b", x=a.x).x)
        counted = workflow.role("c", Collect).run.bind(x=joined.x, activate_by_count={"x": 1})
        workflow.role("q", Pair).join.bind(a=counted.x, b=joined.x)
        assert anchor(workflow.compile(), "q.join") == "call"


class TestReporting:
    def test_all_problems_are_reported_at_once_in_the_order_of_the_file(self) -> None:
        workflow, text, a = started()
        workflow.output("event", a.x)  # bad
        step(workflow, "b").bind(x=a.n)  # bad
        workflow.role("p", Pair).join.bind(a=a.x)  # bad
        joined = workflow.role("q", Pair).join
        joined.bind(a=text, b=[a.y, step(workflow, "back", x=joined.x).x], note=step(workflow, "c", x=text).x)  # bad
        refused(workflow, "'event' is reserved", "b.run: input 'x'", "required input(s) 'b'", "q.join: this join of")
        with pytest.raises(WorkflowError, match=r"workflow 'wf' has 4 problem\(s\)") as caught:
            workflow.compile()
        lines = [problem.place.line for problem in caught.value.problems]
        assert lines == sorted(lines)

    def test_ways_are_judged_also_where_a_type_is_wrong(self) -> None:
        workflow, _, a = started()
        step(workflow, "b").bind(x=a.n)  # bad
        c = workflow.role("c", Step).run  # bad
        c.bind(x=c.x)
        refused(workflow, "b.run: input 'x' is Text", "c.run: can never run: no way leads to it")

    def test_compiling_again_after_a_correction_succeeds(self) -> None:
        workflow, _, a = started()
        b = step(workflow, "b")
        workflow.output("b", b.x)
        with pytest.raises(WorkflowError):
            workflow.compile()
        b.bind(x=a.x)
        assert workflow.compile().node("b.run").alternatives[0].kind is AlternativeKind.DIRECT

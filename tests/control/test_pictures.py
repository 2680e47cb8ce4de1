"""Pictures and explanations show every node, edge, join and anchor of a plan (contract section 9, rulings 6 and 7)."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from omniflow_backend import (
    Bool,
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
    interface,
)
from omniflow_backend.planning.explain import explain
from omniflow_backend.planning.picture import to_mermaid, to_svg
from omniflow_backend.planning.plan import ENTRY, AlternativeKind, Plan

SVG = "{http://www.w3.org/2000/svg}"


class Parser(Role):
    @interface(
        inputs={"prompt": Text, "images": Many(Image)},
        outputs={"text": Text, "image": Image, "vit_count": Int, "vae_count": Int},
    )
    def parse(self, ctx: Any, prompt: str, images: list[Any]) -> Any:
        yield {}


class Vit(Role):
    @interface(inputs={"image": Image, "size": Optional(Int)}, outputs={"embeds": Tensor})
    def encode(self, ctx: Any, image: Any, size: int | None) -> Any:
        return {}


class Vae(Role):
    @interface(inputs={"image": Image}, outputs={"latents": Tensor})
    def encode(self, ctx: Any, image: Any) -> Any:
        return {}


class Llm(Role):
    @interface(
        inputs={"text": Text, "vit": Optional(Many(Tensor)), "vae": Optional(Many(Tensor))},
        outputs={"text": Text, "done": Bool},
        load_balance=SessionLoadBalance(),
    )
    def generate(self, ctx: Any, text: str, vit: list[Any], vae: list[Any]) -> Any:
        yield {}


class Diffusion(Role):
    @interface(inputs={"done": Bool, "vit": Many(Tensor), "vae": Many(Tensor)}, outputs={"latent": Tensor})
    def denoise(self, ctx: Any, done: bool, vit: list[Any], vae: list[Any]) -> Any:
        return {}


class Decoder(Role):
    @interface(inputs={"latent": Tensor}, outputs={"image": Image})
    def decode(self, ctx: Any, latent: Any) -> Any:
        return {}


class Split(Role):
    @interface(inputs={"text": Text}, outputs={"word": Text})
    def split(self, ctx: Any, text: str) -> Any:
        yield {}


class Step(Role):
    @interface(inputs={"text": Text}, outputs={"text": Text, "call": Text})
    def run(self, ctx: Any, text: str) -> Any:
        return {}


class Pair(Role):
    @interface(inputs={"left": Text, "right": Many(Text)}, outputs={"text": Text})
    def pair(self, ctx: Any, left: str, right: list[str]) -> Any:
        return {}


class Start(Role):
    @interface(inputs={}, outputs={"seed": Text})
    def make(self, ctx: Any) -> Any:
        return {}


def unified() -> Workflow:
    """The paper's unified understanding and generation model: a direct alternative, a prefix join and a count join."""
    workflow = Workflow("unified")
    prompt, images = workflow.placeholder("prompt", Text), workflow.placeholder("images", Many(Image), optional=True)
    size = workflow.placeholder("size", Int, default=448)
    frame = workflow.role("parser", Parser).parse(prompt=prompt, images=images)
    embeds = workflow.role("vit", Vit, replicas=2).encode(image=frame.image, size=size).embeds
    latents = workflow.role("vae", Vae).encode(image=frame.image).latents
    llm = workflow.role("llm", Llm).generate
    llm.bind(text=frame.text).bind(text=frame.text, vit=embeds, vae=latents)
    workflow.output("text", llm.text, stream=True)
    draw = workflow.role("diffusion", Diffusion).denoise(
        done=llm.done,
        vit=embeds,
        vae=latents,
        activate_by_count={"done": 1, "vit": frame.vit_count, "vae": frame.vae_count},
    )
    workflow.output("image", workflow.role("decoder", Decoder).decode(latent=draw.latent).image)
    return workflow


def diamond() -> Workflow:
    """Two ways from a splitter to a join; one of them through another Triton model."""
    workflow = Workflow("diamond")
    split = workflow.role("splitter", Split).split(text=workflow.placeholder("text", Text))
    upper = workflow.role("upper", Step).run(text=split.word)
    lower = workflow.triton_model("lower", inputs={"text": Text}, outputs={"text": Text})(text=split.word)
    pairs = workflow.role("pair", Pair).pair(left=upper.text, right=lower.text)
    workflow.output("pairs", pairs.text, many=True)
    return workflow


def agent_loop() -> Workflow:
    """An agent that calls a tool in a loop, and a step that feeds itself."""
    workflow = Workflow("agent_loop")
    agent = workflow.role("agent", Step).run(text=workflow.placeholder("question", Text))
    tool = workflow.role("tool", Step).run(text=agent.call)
    agent.bind(text=tool.text)
    again = workflow.role("again", Step).run(text=tool.call)
    again.bind(text=again.call)
    workflow.output("answer", [agent.text, again.text], stream=True)
    return workflow


def chain() -> Workflow:
    workflow = Workflow("chain")
    handle: Any = workflow.placeholder("text", Text)
    for name in ("one", "two", "three", "four", "five", "six"):
        handle = workflow.role(name, Step).run(text=handle).text
    workflow.output("text", handle)
    return workflow


def at_the_call() -> Workflow:
    """A join at the call, a join of a join, and session state."""
    workflow = Workflow("at_the_call")
    seed = workflow.role("maker", Start).make().seed
    words = workflow.role("splitter", Split).split(text=workflow.placeholder("text", Text)).word
    pair = workflow.role("pair", Pair).pair(left=seed, right=words)
    inner = workflow.role("inner", Split).split(text=pair.text)
    left, right = (workflow.role(name, Step).run(text=inner.word) for name in ("left", "right"))
    second = workflow.role("second", Pair).pair(left=left.text, right=right.text)
    third = workflow.role("third", Pair).pair(left=left.text, right=second.text)
    workflow.role("state", Step).run(text=GlobalParam("history"))
    workflow.output("text", third.text, many=True)
    return workflow


def count_then_join() -> Workflow:
    """A join behind a count join, whose output knows only the call."""
    workflow = Workflow("count_then_join")
    wanted = workflow.placeholder("wanted", Int)
    words = workflow.role("splitter", Split).split(text=workflow.placeholder("text", Text))
    single = workflow.role("single", Step).run(text=words.word)
    counted = workflow.role("counted", Pair).pair(
        left=words.word, right=single.text, activate_by_count={"left": 1, "right": wanted}
    )
    late = workflow.role("late", Pair).pair(left=counted.text, right=single.text)
    workflow.output("text", late.text, required=True)
    return workflow


WORKFLOWS = (unified, diamond, agent_loop, chain, at_the_call, count_then_join)


@pytest.fixture(scope="module", params=WORKFLOWS, ids=lambda make: make.__name__)
def plan(request: pytest.FixtureRequest) -> Plan:
    compiled: Plan = request.param().compile()
    return compiled


def svg(plan: Plan) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(plan))


def boxes(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    return {group.get("data-key", ""): group for group in root.iter(f"{SVG}g") if group.get("class") == "box"}


def arrows(root: ElementTree.Element) -> list[tuple[str, str]]:
    return [
        (path.get("data-source", ""), path.get("data-target", ""))
        for path in root.iter(f"{SVG}path")
        if path.get("data-source")
    ]


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def expected_arrows(plan: Plan) -> set[tuple[str, str]]:
    """Every edge of the plan: a join's edges go to the join, and from there to its node."""
    edges: set[tuple[str, str]] = set()
    for node in plan.nodes:
        for alternative in node.alternatives:
            target = f"node:{node.name}"
            if alternative.kind in (AlternativeKind.PREFIX_JOIN, AlternativeKind.COUNT_JOIN):
                target = f"join:{node.name}:{alternative.index}"
                edges.add((target, f"node:{node.name}"))
            if alternative.kind is AlternativeKind.ENTRY and not alternative.constants:
                edges.add(("call", target))
            edges |= {(f"node:{plan.node_name(route.source)}", target) for route in alternative.routes}
            edges |= {(f"node:{plan.node_name(c.node)}", target) for c in alternative.counts if c.node is not None}
            edges |= {(f"input:{c.placeholder}", target) for c in alternative.counts if c.placeholder}
            for constant in alternative.constants.values():
                kind = "global" if isinstance(constant, GlobalParam) else "input"
                edges.add((f"{kind}:{constant.name}", target))
    for output in plan.outputs:
        edges |= {(f"node:{plan.node_name(node)}", f"output:{output.name}") for node, _ in output.sources}
    return edges


class TestSvg:
    def test_every_node_placeholder_and_output_is_a_box_with_its_name(self, plan: Plan) -> None:
        found = boxes(svg(plan))
        for node in plan.nodes:
            assert node.name in texts(found[f"node:{node.name}"])
        for placeholder in plan.placeholders:
            assert placeholder in texts(found[f"input:{placeholder}"])
        for output in plan.outputs:
            assert output.name in texts(found[f"output:{output.name}"])

    def test_every_edge_is_an_arrow_and_nothing_else_is(self, plan: Plan) -> None:
        assert set(arrows(svg(plan))) == expected_arrows(plan)

    def test_every_field_on_an_edge_is_named(self, plan: Plan) -> None:
        labels = {text for group in svg(plan).iter(f"{SVG}g") if group.get("class") == "label" for text in texts(group)}
        words = {word for label in labels for word in re.findall(r"\w+", label)}
        for node in plan.nodes:
            for route in node.routes:
                assert {m.source for m in route.mappings} | {m.field for m in route.mappings} <= words

    def test_every_join_shows_its_anchor_and_wears_its_colour(self, plan: Plan) -> None:
        found = boxes(svg(plan))
        for node in plan.nodes:
            for alternative in node.alternatives:
                if alternative.anchor is None:
                    continue
                join = found[f"join:{node.name}:{alternative.index}"]
                anchor = plan.node_name(alternative.anchor)
                assert texts(join) == [f"join @ {anchor}"]
                assert join.get("data-anchor") == anchor
                if alternative.anchor != ENTRY:
                    box = found[f"node:{anchor}"]
                    assert "anchor" in texts(box)
                    assert stroke(join) == stroke(box)

    def test_only_anchors_are_marked_as_anchors(self, plan: Plan) -> None:
        found = boxes(svg(plan))
        marked = {node.name for node in plan.nodes if "anchor" in texts(found[f"node:{node.name}"])}
        assert marked == {node.name for node in plan.nodes if node.is_anchor}

    def test_arrows_that_close_loops_are_marked_and_no_others(self, plan: Plan) -> None:
        loops = [p for p in svg(plan).iter(f"{SVG}path") if "loop" in p.get("class", "").split()]
        back = {(node.index, route.node) for node in plan.nodes for route in node.routes if not route.windowed}
        assert {(p.get("data-source"), p.get("data-target")) for p in loops} == {
            (f"node:{plan.node_name(a)}", f"node:{plan.node_name(b)}") for a, b in back
        }

    def test_boxes_and_labels_lie_inside_the_picture_and_do_not_overlap(self, plan: Plan) -> None:
        root = svg(plan)
        width, height = float(root.get("width", "")), float(root.get("height", ""))
        graph = next(group for group in root if group.tag == f"{SVG}g" and group.get("transform"))
        left, top = map(float, re.findall(r"[\d.]+", graph.get("transform", "")))
        areas = {index: outline(group) for index, group in enumerate(graph) if group.tag == f"{SVG}g"}
        for x0, y0, x1, y1 in areas.values():
            assert 0 <= left + x0 < left + x1 <= width
            assert 0 <= top + y0 < top + y1 <= height
        for (_, a), (_, b) in combinations(areas.items(), 2):
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]

    def test_no_arrow_passes_through_a_box(self, plan: Plan) -> None:
        root = svg(plan)
        areas = {key: outline(group) for key, group in boxes(root).items()}
        for path in root.iter(f"{SVG}path"):
            ends = {path.get("data-source"), path.get("data-target")}
            for x, y in waypoints(path):
                for key, (x0, y0, x1, y1) in areas.items():
                    assert key in ends or not (x0 < x < x1 and y0 < y < y1), (ends, key)

    def test_it_needs_nothing_from_outside(self, plan: Plan) -> None:
        text = to_svg(plan)
        assert "href" not in text
        assert "@import" not in text
        assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]

    def test_it_is_the_same_each_time(self, plan: Plan) -> None:
        assert to_svg(plan) == to_svg(plan)

    def test_counts_session_order_replicas_and_triton_models_are_marked(self) -> None:
        found = boxes(svg(unified().compile()))
        assert texts(found["join:diffusion.denoise:0"])[1:] == [
            "done: 1",
            "vit: parser.parse.vit_count",
            "vae: parser.parse.vae_count",
        ]
        assert "session order" in texts(found["node:llm.generate"])
        assert "2 replicas" in texts(found["node:vit.encode"])
        assert texts(found["output:text"]) == ["text", "streamed"]
        triton = boxes(svg(diamond().compile()))
        assert triton["node:lower"].find(f"{SVG}polygon") is not None
        assert triton["node:upper.run"].find(f"{SVG}polygon") is None

    def test_names_are_escaped(self) -> None:
        workflow = Workflow("escaped")
        model = workflow.triton_model('a<b & "c"', inputs={"x": Text}, outputs={"x": Text})
        workflow.output("out", model(x=workflow.placeholder("text", Text)).x)
        plan = workflow.compile()
        assert 'a<b & "c"' in texts(boxes(svg(plan))['node:a<b & "c"'])
        assert "a#lt;b & #quot;c#quot;" in to_mermaid(plan)


def stroke(box: ElementTree.Element) -> str:
    outlined = next(element for element in box if element.tag in (f"{SVG}rect", f"{SVG}polygon"))
    found = re.search(r"stroke: (#\w+)", outlined.get("style", ""))
    assert found is not None
    return found[1]


def outline(group: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a box or label."""
    shape = next(element for element in group if element.tag in (f"{SVG}rect", f"{SVG}polygon"))
    if shape.tag == f"{SVG}polygon":
        points = [tuple(map(float, pair.split(","))) for pair in shape.get("points", "").split()]
        return (
            min(x for x, _ in points),
            min(y for _, y in points),
            max(x for x, _ in points),
            max(y for _, y in points),
        )
    x, y, width, height = (float(shape.get(name, "")) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


def waypoints(path: ElementTree.Element) -> list[tuple[float, float]]:
    """Points on an arrow: along its straight parts, and at the ends and middles of its bends."""
    points: list[tuple[float, float]] = []
    for command, numbers in re.findall(r"([MLC])([-\d. ]+)", path.get("d", "")):
        values = [float(number) for number in numbers.split()]
        end = (values[-2], values[-1])
        if command != "M":
            start = points[-1]
            points += [
                (start[0] + (end[0] - start[0]) * t / 8, start[1] + (end[1] - start[1]) * t / 8) for t in range(8)
            ]
        points.append(end)
    return points


class TestMermaid:
    EDGE = re.compile(r"    (b\d+) (-->|==>|-\.->)(\|\"[^\"]+\"\|)? (b\d+)")
    BOX = re.compile(r"    (b\d+)(\(\(|\(\[|\[\(|\[\[|\[|\{\{)\"([^\"]+)\"(\)\)|\]\)|\)\]|\]\]|\]|\}\})")
    STYLE = re.compile(r"    style (b\d+) [\w:#, -]+")

    def test_every_line_is_a_box_an_arrow_or_a_style_of_known_boxes(self, plan: Plan) -> None:
        front, title, back, header, *lines = to_mermaid(plan).splitlines()
        assert [front, title, back, header] == ["---", f"title: {plan.name}", "---", "flowchart TD"]
        names = {match[1] for line in lines if (match := self.BOX.fullmatch(line))}
        for line in lines:
            edge, style = self.EDGE.fullmatch(line), self.STYLE.fullmatch(line)
            assert self.BOX.fullmatch(line) or edge or style, line
            assert {*([edge[1], edge[4]] if edge else []), *([style[1]] if style else [])} <= names

    def test_it_shows_the_same_boxes_and_arrows_as_the_svg(self, plan: Plan) -> None:
        lines = to_mermaid(plan).splitlines()
        titles = [match[3].split("<br/>")[0] for line in lines if (match := self.BOX.fullmatch(line))]
        root = svg(plan)
        assert titles == [f"<b>{texts(box)[0]}</b>" for box in boxes(root).values()]
        names = {f"b{position}": key for position, key in enumerate(boxes(root))}
        edges = [(names[match[1]], names[match[4]]) for line in lines if (match := self.EDGE.fullmatch(line))]
        assert edges == arrows(root)

    def test_arrows_that_close_loops_are_dotted(self) -> None:
        lines = to_mermaid(agent_loop().compile()).splitlines()
        names = {match[3].split("<br/>")[0]: match[1] for line in lines if (match := self.BOX.fullmatch(line))}
        agent, tool, again = (names[f"<b>{name}.run</b>"] for name in ("agent", "tool", "again"))
        assert f'    {tool} -.->|"text"| {agent}' in lines
        assert f'    {again} -.->|"call → text"| {again}' in lines
        assert f'    {agent} -->|"call → text"| {tool}' in lines


class TestExplain:
    def test_every_node_is_explained(self, plan: Plan) -> None:
        lines = explain(plan).splitlines()
        for node in plan.nodes:
            assert sum(line.startswith(f"{node.name} (") for line in lines) == 1

    def test_every_join_tells_its_anchor_and_what_it_collects(self, plan: Plan) -> None:
        for node in plan.nodes:
            section = explained(plan, node.name)
            for alternative in node.alternatives:
                if alternative.anchor is None:
                    continue
                anchor = plan.node_name(alternative.anchor)
                assert (
                    "anchored at the call" if alternative.anchor == ENTRY else f"once per yield of {anchor}, as a"
                ) in section
                for route in alternative.routes:
                    for mapping in route.mappings:
                        assert re.search(
                            rf"{mapping.field}: .*{plan.node_name(route.source)}\.{mapping.source}", section
                        )

    def test_what_makes_a_node_run(self) -> None:
        plan = unified().compile()
        assert "runs once per call\n" in explained(plan, "parser.parse")
        assert "runs once per yield of parser.parse that has image\n" in explained(plan, "vit.encode")
        assert "size = the call's size" in explained(plan, "vit.encode")
        generate = explained(plan, "llm.generate")
        assert "1. once per yield of parser.parse that has text\n" in generate
        assert "text: the one parser.parse.text (more than one fails the call)" in generate
        assert "vit: all of vit.encode.embeds, in yield order, if there are any" in generate
        assert "if there is no text, it does not run for that yield" in generate
        assert "session order: one activation at a time per session" in generate

    def test_a_count_join_tells_its_counts_and_that_its_output_starts_anew(self) -> None:
        section = explained(unified().compile(), "diffusion.denoise")
        assert "at most once per call, as a count join" in section
        assert "done: the first 1 of llm.generate.done" in section
        assert "vit: the first parser.parse.vit_count of vit.encode.embeds" in section
        assert "its outputs start anew at the call" in section

    def test_a_join_at_the_call_tells_why(self) -> None:
        assert "its inputs have no nearer node in common" in explained(at_the_call().compile(), "pair.pair")
        late = explained(count_then_join().compile(), "late.pair")
        assert "its anchor is the call: the output of the count join counted.pair starts anew at the call" in late

    def test_an_anchor_tells_who_collects_its_yields(self) -> None:
        section = explained(at_the_call().compile(), "inner.split")
        assert "anchor: each yield opens one occurrence, collected by itself in second.pair and third.pair" in section

    def test_loops_are_told(self) -> None:
        text = explain(agent_loop().compile())
        assert "    tool.run leads back to agent.run\n    again.run leads back to again.run\n" in text

    def test_outputs_tell_when_they_come(self) -> None:
        text = explain(unified().compile())
        assert "text (Text) from llm.generate.text, streamed: each value as soon as generation order allows" in text
        assert "from decoder.decode.image, at the end: the only value (more than one fails the call)" in text
        assert "at the end: the list of all values, in order" in explain(diamond().compile())
        assert "a call without one fails" in explain(count_then_join().compile())

    def test_a_workflow_explains_itself(self) -> None:
        assert diamond().explain() == explain(diamond().compile())


def explained(plan: Plan, node: str) -> str:
    """The paragraph of ``explain`` about one node."""
    return next(part for part in explain(plan).split("\n\n") if part.startswith(f"{node} (")) + "\n"

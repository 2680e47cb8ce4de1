"""A layered layout, top to bottom (Sugiyama): layers, order inside a layer, coordinates.

Even layers hold boxes, odd layers the labels of arrows. An arrow that passes a layer takes a lane of its own in it,
so by construction no arrow crosses a box or a label, and no two of them overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from statistics import fmean

Point = tuple[float, float]

GAP_X = 22.0
GAP_Y = 20.0
LANE = 10.0
LOOP = 26.0
_SWEEPS = 12
_RELAXATIONS = 120
_STRAIGHTENINGS = 4


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height, in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Arrow:
    """Between two boxes, by position in the list of boxes; ``weak`` ones give way when arrows form a cycle."""

    source: int
    target: int
    label: Size | None
    weak: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """Centres of boxes and labels; for every arrow the points at which its curve is vertical, from source to target."""

    size: Size
    boxes: tuple[Point, ...]
    labels: tuple[Point | None, ...]
    curves: tuple[tuple[Point, ...], ...]


@dataclass(slots=True, eq=False)
class _Slot:
    """One place in a layer: a box, a label, or the lane of a passing arrow."""

    layer: int
    size: Size
    x: float = 0.0
    box: int | None = None
    above: list[_Slot] = field(default_factory=list)
    below: list[_Slot] = field(default_factory=list)

    @property
    def pulls(self) -> list[tuple[float, float]]:
        """Where the neighbours are, and how much each matters: long arrows are kept straight before short ones."""
        return [(n.x, 8.0 if self.box is None and n.box is None else 2.0) for n in self.above + self.below]


def layered(boxes: Sequence[Size], arrows: Sequence[Arrow]) -> Placement:
    """Places ``boxes`` and routes ``arrows``; an arrow from a box to itself goes round its right side."""
    upward, ranks = _rank(len(boxes), arrows)
    margins = [0.0] * len(boxes)
    for arrow in arrows:
        if arrow.source == arrow.target:
            margins[arrow.source] += LOOP + (arrow.label.width if arrow.label else 0.0)
    slots = [
        _Slot(ranks[box], Size(size.width + 2 * margins[box], size.height), box=box) for box, size in enumerate(boxes)
    ]
    layers: list[list[_Slot]] = [[] for _ in range(max(ranks, default=0) + 1)]
    for slot in slots:
        layers[slot.layer].append(slot)
    chains = [_chain(slots, layers, arrow, up) for arrow, up in zip(arrows, upward, strict=True)]
    _order(layers)
    _spread(layers)
    _straighten(boxes, slots, layers, chains)
    return _measure(boxes, arrows, slots, layers, chains, upward)


def _rank(count: int, arrows: Sequence[Arrow]) -> tuple[list[bool], list[int]]:
    """Which arrows have to run upwards, and every box's (even) layer.

    Boxes without predecessors stand right above their first use.
    """
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(count))
    upward = [False] * len(arrows)
    for position, arrow in sorted(enumerate(arrows), key=lambda item: item[1].weak):
        if arrow.source == arrow.target:
            continue
        upward[position] = nx.has_path(graph, arrow.target, arrow.source)
        graph.add_edge(*((arrow.target, arrow.source) if upward[position] else (arrow.source, arrow.target)))
    ranks = [0] * count
    for rank, generation in enumerate(nx.topological_generations(graph)):
        for box in generation:
            ranks[box] = 2 * rank
    for box in range(count):
        if graph.in_degree(box) == 0 and graph.out_degree(box) > 0:
            ranks[box] = min(ranks[successor] for successor in graph.successors(box)) - 2
    return upward, ranks


def _chain(slots: Sequence[_Slot], layers: list[list[_Slot]], arrow: Arrow, upward: bool) -> list[_Slot]:
    """The slots of an arrow from its upper to its lower box; the label sits in the middle of them."""
    if arrow.source == arrow.target:
        return []
    upper, lower = (arrow.target, arrow.source) if upward else (arrow.source, arrow.target)
    first, last = slots[upper], slots[lower]
    middle = first.layer + 1 + 2 * ((last.layer - first.layer - 2) // 4)
    chain = [first]
    for layer in range(first.layer + 1, last.layer):
        chain.append(_Slot(layer, arrow.label if arrow.label and layer == middle else Size(LANE, 0.0)))
        layers[layer].append(chain[-1])
    chain.append(last)
    for above, below in pairwise(chain):
        above.below.append(below)
        below.above.append(above)
    return chain


def _order(layers: list[list[_Slot]]) -> None:
    """Few crossings: barycentres, down and up, with swaps of neighbours; the best order seen is kept."""
    best = [list(layer) for layer in layers]
    fewest = _crossings(layers)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            place = _places(layers)
            layer.sort(
                key={
                    slot: fmean(place[n] for n in near) if (near := slot.above if down else slot.below) else place[slot]
                    for slot in layer
                }.__getitem__
            )
        _swap(layers)
        crossings = _crossings(layers)
        if crossings < fewest:
            fewest, best = crossings, [list(layer) for layer in layers]
    layers[:] = best


def _swap(layers: list[list[_Slot]]) -> None:
    place = _places(layers)
    for layer in layers:
        for i in range(len(layer) - 1):
            left, right = layer[i], layer[i + 1]
            if _pair_crossings(left, right, place) > _pair_crossings(right, left, place):
                layer[i], layer[i + 1] = right, left
                place[left], place[right] = i + 1, i


def _pair_crossings(left: _Slot, right: _Slot, place: dict[_Slot, int]) -> int:
    return sum(
        place[a] > place[b]
        for lefts, rights in ((left.above, right.above), (left.below, right.below))
        for a in lefts
        for b in rights
    )


def _crossings(layers: list[list[_Slot]]) -> int:
    place = _places(layers)
    return sum(
        place[a] > place[b]
        for layer in layers
        for i, left in enumerate(layer)
        for right in layer[i + 1 :]
        for a in left.below
        for b in right.below
    )


def _places(layers: list[list[_Slot]]) -> dict[_Slot, int]:
    return {slot: place for layer in layers for place, slot in enumerate(layer)}


def _spread(layers: list[list[_Slot]]) -> None:
    """x coordinates: each slot near the mean of its neighbours, order and distances kept."""
    for turn in range(_RELAXATIONS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            _separate(layer)


def _separate(layer: Sequence[_Slot]) -> None:
    """Moves slots as near to their neighbours' mean as distances allow (isotonic regression by pooling violators)."""
    offset = 0.0
    offsets: list[float] = []
    pools: list[tuple[float, float, int]] = []
    for position, slot in enumerate(layer):
        if position:
            offset += (layer[position - 1].size.width + slot.size.width) / 2 + GAP_X
        offsets.append(offset)
        pulls = slot.pulls or [(slot.x, 0.1)]
        weight = sum(pull for _, pull in pulls)
        total, count = sum((x - offset) * pull for x, pull in pulls), 1
        while pools and pools[-1][0] / pools[-1][1] > total / weight:
            pooled_total, pooled_weight, pooled_count = pools.pop()
            total, weight, count = total + pooled_total, weight + pooled_weight, count + pooled_count
        pools.append((total, weight, count))
    bases = [total / weight for total, weight, count in pools for _ in range(count)]
    for slot, base, slot_offset in zip(layer, bases, offsets, strict=True):
        slot.x = base + slot_offset


def _straighten(
    boxes: Sequence[Size], slots: Sequence[_Slot], layers: list[list[_Slot]], chains: Sequence[list[_Slot]]
) -> None:
    """Lanes follow the box at their end of the arrow where there is room: a long arrow bends once, at its label."""
    place = _places(layers)
    for _ in range(_STRAIGHTENINGS):
        leaving, entering = (_ports(boxes, slots, chains, lower=lower) for lower in (False, True))
        for position, chain in enumerate(chains):
            for x, lanes in ((leaving[position], chain[1:-1]), (entering[position], chain[-2:0:-1])) if chain else ():
                for slot in takewhile(lambda s: s.size.height == 0, lanes):
                    x = _nearest(x, slot, layers[slot.layer], place[slot])
                    slot.x = x


def _nearest(x: float, slot: _Slot, layer: Sequence[_Slot], position: int) -> float:
    """The place nearest to ``x`` that leaves the slot's neighbours in the layer alone."""
    if position:
        x = max(x, layer[position - 1].x + (layer[position - 1].size.width + slot.size.width) / 2 + GAP_X)
    if position + 1 < len(layer):
        x = min(x, layer[position + 1].x - (layer[position + 1].size.width + slot.size.width) / 2 - GAP_X)
    return x


def _measure(
    boxes: Sequence[Size],
    arrows: Sequence[Arrow],
    slots: Sequence[_Slot],
    layers: list[list[_Slot]],
    chains: Sequence[list[_Slot]],
    upward: Sequence[bool],
) -> Placement:
    left = min((slot.x - slot.size.width / 2 for layer in layers for slot in layer), default=0.0)
    tops: list[float] = []
    bottoms: list[float] = []
    y = 0.0
    for layer in layers:
        height = max((slot.size.height for slot in layer), default=0.0)
        tops.append(y)
        bottoms.append(y + height)
        y += height + GAP_Y
    for layer in layers:
        for slot in layer:
            slot.x -= left
    width = max((slot.x + slot.size.width / 2 for layer in layers for slot in layer), default=0.0)

    def middle(slot: _Slot) -> Point:
        return slot.x, (tops[slot.layer] + bottoms[slot.layer]) / 2

    leaving = _ports(boxes, slots, chains, lower=False)
    entering = _ports(boxes, slots, chains, lower=True)
    curves: list[tuple[Point, ...]] = []
    labels: list[Point | None] = []
    looped = [0.0] * len(boxes)
    for position, (arrow, chain) in enumerate(zip(arrows, chains, strict=True)):
        if not chain:
            curve, label = _loop(middle(slots[arrow.source]), boxes[arrow.source], arrow.label, looped[arrow.source])
            looped[arrow.source] += LOOP + (arrow.label.width if arrow.label else 0.0)
            curves.append(curve)
            labels.append(label)
            continue
        first, last = chain[0], chain[-1]
        assert first.box is not None
        assert last.box is not None
        start = middle(first)[1] + boxes[first.box].height / 2
        end = middle(last)[1] - boxes[last.box].height / 2
        points = [(leaving[position], start), (leaving[position], bottoms[first.layer])]
        for slot in chain[1:-1]:
            points += [(slot.x, tops[slot.layer]), (slot.x, bottoms[slot.layer])]
        points += [(entering[position], tops[last.layer]), (entering[position], end)]
        curves.append(tuple(reversed(points)) if upward[position] else tuple(points))
        labels.append(next((middle(slot) for slot in chain[1:-1] if slot.size is arrow.label), None))
    size = Size(width, max(y - GAP_Y, 0.0))
    return Placement(size, tuple(middle(slot) for slot in slots), tuple(labels), tuple(curves))


def _loop(centre: Point, box: Size, label: Size | None, offset: float) -> tuple[tuple[Point, ...], Point | None]:
    """An arrow from a box to itself, ``offset`` away from its right side, and where its label stands."""
    x, y = centre
    side, far = x + box.width / 2, x + box.width / 2 + offset + LOOP
    curve = ((side, y + box.height / 4), (far + (label.width / 2 if label else 0.0), y), (side, y - box.height / 4))
    return curve, (far + label.width / 2, y) if label else None


def _ports(
    boxes: Sequence[Size], slots: Sequence[_Slot], chains: Sequence[list[_Slot]], *, lower: bool
) -> dict[int, float]:
    """Where arrows touch their upper box's bottom or their lower box's top: side by side, in the order they come."""
    touching: dict[int, list[int]] = {}
    for position, chain in enumerate(chains):
        if chain:
            end = chain[-1] if lower else chain[0]
            assert end.box is not None
            touching.setdefault(end.box, []).append(position)
    ports: dict[int, float] = {}
    for box, positions in touching.items():
        positions.sort(key=lambda p: chains[p][-2].x if lower else chains[p][1].x)
        step = min(28.0, boxes[box].width * 0.7 / len(positions))
        for i, position in enumerate(positions):
            ports[position] = slots[box].x + step * (i - (len(positions) - 1) / 2)
    return ports

"""Parts of a set: what is bounded over one holds wherever its boxes do, whatever the multipliers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import Ready, objectives, tightened
from tests.bounds.networks import Config, descend, input_box, samples, transformer
from vertex_softmax.bounds.ascent import Ascent, Beginning, ascend, free_parameters
from vertex_softmax.bounds.backward import backward
from vertex_softmax.bounds.branch_and_bound import inner_ranges
from vertex_softmax.bounds.choice import Choice, Multipliers, Targets
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.contract import Splittable
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules

torch.set_num_threads(1)
ULPS = 2.0**-40
"""Of the largest terms of a pass, 1 + |value| + multiplier·|box|: what a few hundred additions may round away."""
CONFIGS = {
    "relu": Config(seed=2),
    "gelu": Config(depth=2, heads=2, tokens=2, activation="gelu", seed=3),
    "norm": Config(norm="pre", class_token=True, pooling="token", tokens=2, seed=4),
    "causal": Config(gated=True, activation="silu", mask="causal", seed=5),
    "padding": Config(norm="post", activation="tanh", mask="padding", gain=3.0, seed=6),
    "max": Config(activation="relu", pooling="max", fused=False, tokens=2, seed=7),
}
RULES = {
    "affine": Rules(attention=RowRule.AFFINE),
    "two pieces": Rules(attention=RowRule.AFFINE, pieces=2),
    "lse": Rules(attention=RowRule.LSE),
    "vertex": Rules(attention=RowRule.VERTEX),
}
COUNT = 8
each = pytest.mark.parametrize("name", CONFIGS)
every = pytest.mark.parametrize("rule", RULES)


@functools.cache
def ready(name: str, radius: float = 0.3) -> Ready:
    config = CONFIGS[name]
    return tightened(transformer(config), *input_box(config, 1, radius, 1))


def fixed(whole: Ready) -> tuple[Node, Node]:
    """The nodes that cannot be split."""
    return whole.graph.input, whole.question.index.start


def cuttable(whole: Ready) -> list[Node]:
    """Inputs of what may be split."""
    found = [user.inputs[i] for user in whole.nodes if isinstance(user.op, Splittable) for i in user.op.split_inputs]
    fine = [n for n in found if n not in fixed(whole) and not isinstance(n.op, Constant)]
    return list(dict.fromkeys(fine))


def parted(whole: Ready, boxes: dict[Node, Interval], count: int, inner: dict[Node, Interval] | None = None) -> Ready:
    """Parts of the whole's set."""
    return Ready(whole.question.on_parts(), whole.boxes.parts(count, boxes, inner or {}))


@dataclasses.dataclass
class Made:
    whole: Ready
    boxes: dict[Node, Interval]
    """(COUNT, *shape); of part 0 nothing is cut"""
    anchors: Tensor
    """(COUNT, *input): a point of each part"""
    inner: dict[Node, Interval] = dataclasses.field(default_factory=dict)
    """of the σ of normalisations, (COUNT, rows...); all of it is cut or is the root's to rounding"""

    def parts(self, rows: slice = slice(None)) -> Ready:
        boxes, inner = (
            {node: Interval(*(x[rows] for x in box)) for node, box in of.items()} for of in (self.boxes, self.inner)
        )
        return parted(self.whole, boxes, len(self.anchors[rows]), inner)


def sigma(node: Node, values: dict[Node, Tensor]) -> Tensor:
    """The σ of every row of a normalisation, (n, COUNT, rows...) or without the first."""
    return (node.op._rows(values[node.inputs[0]]).square().mean(-1) + node.op.eps).sqrt()


def made(name: str, seed: int) -> Made:
    """Random cuts of most nodes that may be split: from a hair to nearly all of what lies beyond the anchor."""
    whole, g = ready(name), torch.Generator().manual_seed(seed)
    lower, upper = whole.box
    anchors = samples(lower, upper, COUNT, seed)[:, 0]
    values = whole.graph.values(anchors)
    boxes = {}
    for node in cuttable(whole):
        share, sort = (torch.rand(2, COUNT, *node.shape, generator=g, dtype=torch.float64) for _ in range(2))
        share = torch.where(sort < 0.3, 1e-3 * share, share)
        share[:, 0] = 0
        ends = [x.expand(COUNT, *node.shape) for x in whole.boxes[node]]
        few = torch.rand(2, COUNT, *node.shape, generator=g, dtype=torch.float64) < 0.6
        few &= ends[1] - ends[0] > 1e-6  # a constant's box is a point, and its values are that to rounding
        moved = [end + few[k] * share[k] * (values[node] - end) for k, end in enumerate(ends)]
        low, high = torch.minimum(moved[0], values[node]), torch.maximum(moved[1], values[node])
        boxes[node] = Interval(torch.maximum(low, ends[0]), torch.minimum(high, ends[1]))
    inner = {}
    for node, box in inner_ranges(whole.question, whole.boxes, Rules()).items():
        at = sigma(node, values)
        share = torch.rand(2, *at.shape, generator=g, dtype=torch.float64)
        low, high = (end + s * (at - end) for end, s in zip(box, share, strict=True))
        low[0], high[0] = box.lower[0], box.upper[0]
        inner[node] = Interval(torch.minimum(low, at), torch.maximum(high, at))
    return Made(whole, boxes, anchors, inner)


def inside(case: Made, x: Tensor) -> Tensor:
    """Which points (n, COUNT, *input) lie in their part, (n, COUNT): the cuts hold of the graph's own values."""
    values, there = case.whole.graph.values(x), []
    for node, (low, high) in case.boxes.items():
        whole = case.whole.boxes[node]
        above = (values[node] >= low) | (low <= whole.lower)
        there.append((above & ((values[node] <= high) | (high >= whole.upper))).flatten(2).all(-1))
    for node, (low, high) in case.inner.items():
        value = sigma(node, values)
        fine = (value >= low) & (value <= high)
        fine[:, 0] = True  # nothing is cut there
        there.append(fine.flatten(2).all(-1))
    return torch.stack(there).all(0)


def points(case: Made, A: Tensor, seed: int) -> Tensor:
    """Points of the set, (n, COUNT, *input): random, corners, where objectives are small, and those pulled to the
    anchor until they lie in the part, so that many lie at its border."""
    graph, (lower, upper) = case.whole.graph, case.whole.box
    low, high = (x.expand(COUNT, *lower.shape[1:]) for x in (lower, upper))
    found = [samples(low, high, 60, seed), descend(graph, graph.output, A, low, high, starts=2, steps=12)]
    for node, (left, right) in case.boxes.items():  # against the cut sides
        ways = torch.stack([left - case.whole.boxes[node].lower, right - case.whole.boxes[node].upper], 1)
        found.append(descend(graph, node, ways.sign(), low, high, starts=1, steps=8))
    x = torch.cat(found)
    near, far = torch.zeros(x.shape[:2], dtype=x.dtype), torch.ones(x.shape[:2], dtype=x.dtype)
    at = lambda t: (case.anchors + t.reshape(*t.shape, 1, 1) * (x - case.anchors)).clamp(low, high)  # noqa: E731
    for _ in range(12):
        middle = (near + far) / 2
        fine = inside(case, at(middle))
        near, far = torch.where(fine, middle, near), torch.where(fine, far, middle)
    return torch.cat([x, at(near), case.anchors[None]])


def drawn(case: Made, made: Ready, A: Tensor, rules: Rules, seed: int, *, target: bool) -> Choice:
    """Random values of all free parameters, multipliers of very different sizes, and random targets."""
    g = torch.Generator().manual_seed(seed)
    parameters: dict[Node, dict[str, Tensor]] = {}
    for p in free_parameters(made.question, made.boxes, made.on_output(A), rules, Beginning()):
        t = torch.rand(p.value.shape, generator=g, dtype=torch.float64)
        parameters.setdefault(p.node, {})[p.name] = p.range.low + t * (p.range.high - p.range.low)
    multipliers, targets = {}, {}
    for node in case.boxes:
        shape = (COUNT, A.shape[1], *node.shape)
        draw = lambda: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: B023, E731
        multipliers[node] = Multipliers(
            *(draw() * 10 ** (draw() - 1) for _ in range(2))
        )  # a third negative: these are 0
        for side in multipliers[node]:
            side[:, ::3] *= 1e-2
        if target:
            targets[node] = Targets(*(torch.where(draw() > 0, draw(), torch.nan) for _ in range(2)))
    return Choice(parameters, multipliers, targets)


def values_at(whole: Ready, A: Tensor, x: Tensor) -> Tensor:
    """Objectives A (COUNT, S, *output) at x (n, COUNT, *input): (n, COUNT, S)."""
    return (A * whole.graph.evaluate(x).unsqueeze(2)).flatten(3).sum(-1)


def check(case: Made, A: Tensor, x: Tensor, bound: Tensor, scale: Tensor | float = 0.0) -> None:
    there = inside(case, x)
    assert there.any(0).all(), "a part without a point tells nothing"
    values = values_at(case.whole, A, x)
    least = torch.where(there.unsqueeze(-1), values, torch.inf).amin(0)
    over = bound - least - ULPS * (1 + values.abs().amax(0) + scale)
    assert not bound.isnan().any()
    assert (over <= 0).all(), f"above a value of the part by {float(over.max()):.3g}"


def size_of(made: Ready, multipliers: Mapping[Node, Multipliers]) -> Tensor:
    """Σ multiplier·|box|, (COUNT, S)."""
    found = torch.zeros(())
    for node, (least, most) in multipliers.items():
        low, high = (x.unsqueeze(1).abs() for x in made.boxes[node])
        found = found + (least * low + most * high).flatten(2).sum(-1)
    return found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@each
@every
def test_no_value_of_a_part_is_below_its_bound(name: str, rule: str, seed: int) -> None:
    case = made(name, 10 * seed + 1)
    rules = dataclasses.replace(RULES[rule], free=True)
    A = objectives(case.whole.graph, COUNT, seed)
    x = points(case, A, seed)
    with torch.no_grad():
        parts = case.parts()
        assert parts.boxes.batch == COUNT
        assert parts.question.region is case.whole.question.region
        check(case, A, x, parts.bound(A, rules))
        for k in range(4):
            choice = drawn(case, parts, A, rules, 100 * seed + k, target=k % 2 == 1)
            linear = backward(parts.question, parts.boxes, parts.on_output(A), rules, choice)
            assert linear.multipliers, "no multiplier was met"
            for node, used in linear.multipliers.items():
                for given, side in zip(choice.multipliers[node], used, strict=True):
                    assert (side >= given.clamp(min=0)).all()
            check(case, A, x, parts.bound(A, rules, choice), size_of(parts, linear.multipliers))


@pytest.mark.parametrize("name", ["relu", "gelu", "padding"])
def test_an_ascent_over_a_part_is_sound_and_gains(name: str) -> None:
    case = made(name, 5)
    A = objectives(case.whole.graph, COUNT)
    x = points(case, A, 5)
    parts = case.parts()
    cuts = {
        node: Multipliers(*(torch.full((COUNT, 1, *node.shape), 0.01).double() for _ in range(2)))
        for node in case.boxes
    }
    with torch.no_grad():
        rules = dataclasses.replace(RULES["affine"], free=True)
        start = parts.bound(A, rules)
    for size in (0.05, 2.0):
        ascent = Ascent(steps=6, step_size=size, decay=0.9)
        beginning = Beginning(cuts=cuts, best=True)
        done = ascend(parts.question, parts.boxes, parts.on_output(A), RULES["affine"], ascent, beginning=beginning)
        assert (done.bound >= start).all()
        found = done.choice.multipliers
        assert found
        assert all((side >= 0).all() for sides in found.values() for side in sides)
        assert any((side > 0).any() for sides in found.values() for side in sides)
        check(case, A, x, done.bound, size_of(parts, found))
        with torch.no_grad():  # what is returned is where the best bound was
            again = parts.bound(A, rules, done.choice)
            exact = parts.bound(A, dataclasses.replace(rules, sums=True), done.choice)
        assert (torch.maximum(again, exact) >= done.bound - 1e-9 * (1 + done.bound.abs()))[done.bound > start].all()
    assert (done.bound > start + 1e-6).any()


@each
@every
def test_parts_together_are_what_each_is_alone(name: str, rule: str) -> None:
    case = made(name, 7)
    rules = dataclasses.replace(RULES[rule], free=True)
    A = objectives(case.whole.graph, COUNT, 7)[:, :5]
    with torch.no_grad():
        parts = case.parts()
        choice = drawn(case, parts, A, rules, 7, target=True)
        together = parts.bound(A, rules, choice)
        for k in (0, 3, 6):
            row = slice(k, k + 1)
            targets = {node: Targets(*(x[row] for x in of)) for node, of in choice.targets.items()}
            one = dataclasses.replace(choice.map(lambda x, row=row: x[row]), targets=targets)
            alone = case.parts(row).bound(A[row], rules, one)
            torch.testing.assert_close(together[row], alone, rtol=1e-10, atol=1e-10)


@each
@every
def test_nothing_cut_is_the_whole(name: str, rule: str) -> None:
    whole, rules = ready(name), RULES[rule]
    A = objectives(whole.graph, 3)
    with torch.no_grad():
        want = whole.bound(A[:1], rules)
        plain = parted(whole, {}, 3).bound(A, rules)
        nodes = cuttable(whole)
        same = {node: Interval(*(x.expand(3, *node.shape) for x in whole.boxes[node])) for node in nodes}
        nothing = {node: torch.zeros(3, A.shape[1], *node.shape).double() for node in nodes}
        zero = {node: Multipliers(none, none) for node, none in nothing.items()}
        free = {node: Targets(none + torch.nan, none + torch.nan) for node, none in nothing.items()}
        parts = parted(whole, same, 3)
        for found in (
            plain,
            parts.bound(A, rules),
            parts.bound(A, rules, Choice(multipliers=zero)),
            parts.bound(A, rules, Choice(multipliers=zero, targets=free)),
        ):
            torch.testing.assert_close(found, want.expand_as(found), rtol=1e-12, atol=1e-12)


@each
def test_a_cut_is_a_gain_somewhere(name: str) -> None:
    case = made(name, 3)
    A = objectives(case.whole.graph, COUNT)
    with torch.no_grad():
        whole = case.whole.bound(A[:1], RULES["affine"])
        found = case.parts().bound(A, RULES["affine"])
    torch.testing.assert_close(found[:1], whole, rtol=1e-12, atol=1e-12)  # part 0 is the whole set
    assert (found[1:] > whole + 1e-3).any()
    assert bool(case.inner) == (CONFIGS[name].norm != "none")
    if case.inner:  # and so it is of σ alone
        with torch.no_grad():
            alone = parted(case.whole, {}, COUNT, case.inner).bound(A, RULES["affine"])
        torch.testing.assert_close(alone[:1], whole, rtol=1e-9, atol=1e-9)
        assert (alone[1:] > whole + 1e-3).any()
        check(Made(case.whole, {}, case.anchors, case.inner), A, points(case, A, 3), alone)


@each
def test_only_what_reads_a_cut_is_relaxed_anew(name: str) -> None:
    """And it is relaxed for all parts at once; everything else is the whole's own relaxation."""
    case, rules = made(name, 3), RULES["affine"]
    parts, index = case.parts(), case.whole.question.index
    anew = {user for node in case.boxes for user in index.users(node)} | set(case.inner)
    for node in case.whole.nodes:
        if node.inputs and not node.op.affine and not isinstance(node.op, Constant):
            mine = parts.question.relaxations.of(node, parts.boxes, rules)
            whole = case.whole.question.relaxations.of(node, case.whole.boxes, rules)
            assert (mine is not whole) == (node in anew), node
            assert parts.question.relaxations.of(node, parts.boxes, rules) is mine

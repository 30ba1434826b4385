"""Subsets of a walk's set: what is bounded over one holds wherever its boxes do, whatever the multipliers."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from torch import Tensor
from vertex_softmax.bounds.subsets import Subsets
from vertex_softmax.methods.bounding import make_boxes

from tests.bounds.checks import objectives
from tests.bounds.networks import Config, descend, input_box, samples, transformer
from vertex_softmax.bounds.ascent import Ascent, Held, optimise, parameters
from vertex_softmax.bounds.backward import HELD, TARGETS, Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

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
    "affine": Rules(attention="affine"),
    "two pieces": Rules(attention="affine", pieces=2),
    "lse": Rules(attention="lse"),
    "vertex": Rules(attention="vertex"),
}
COUNT = 8
each = pytest.mark.parametrize("name", CONFIGS)
every = pytest.mark.parametrize("rule", RULES)


@functools.cache
def ready(name: str, radius: float = 0.3) -> Walk:
    config = CONFIGS[name]
    walk = Walk(transformer(config), *input_box(config, 1, radius, 1))
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    assert not walk.problems
    return walk


def cuttable(walk: Walk) -> list[Node]:
    """Inputs of what may be split."""
    found = [user.inputs[i] for user in walk.nodes for i in user.op.splits]
    fine = [n for n in found if n not in (walk.graph.input, walk.start) and not isinstance(n.op, Constant)]
    return list(dict.fromkeys(fine))


@dataclasses.dataclass
class Made:
    walk: Walk
    boxes: dict[Node, Interval]
    """(COUNT, *shape); of subset 0 nothing is cut"""
    anchors: Tensor
    """(COUNT, *input): a point of each subset"""
    inner: dict[Node, Interval] = dataclasses.field(default_factory=dict)
    """of the σ of normalisations, (COUNT, rows...); all of it is cut or is the root's to rounding"""

    def sub(self, rows: slice = slice(None)) -> Subsets:
        boxes, inner = (
            {node: Interval(*(x[rows] for x in box)) for node, box in of.items()} for of in (self.boxes, self.inner)
        )
        return Subsets(self.walk, boxes, len(self.anchors[rows]), inner)


def sigma(node: Node, values: dict[Node, Tensor]) -> Tensor:
    """The σ of every row of a normalisation, (n, COUNT, rows...) or without the first."""
    return (node.op._rows(values[node.inputs[0]]).square().mean(-1) + node.op.eps).sqrt()


def made(name: str, seed: int) -> Made:
    """Random cuts of most nodes that may be split: from a hair to nearly all of what lies beyond the anchor."""
    walk, g = ready(name), torch.Generator().manual_seed(seed)
    lower, upper = walk.boxes[walk.graph.input]
    anchors = samples(lower, upper, COUNT, seed)[:, 0]
    values = walk.graph.values(anchors)
    boxes = {}
    for node in cuttable(walk):
        share, sort = (torch.rand(2, COUNT, *node.shape, generator=g, dtype=torch.float64) for _ in range(2))
        share = torch.where(sort < 0.3, 1e-3 * share, share)
        share[:, 0] = 0
        ends = [x.expand(COUNT, *node.shape) for x in walk.boxes[node]]
        few = torch.rand(2, COUNT, *node.shape, generator=g, dtype=torch.float64) < 0.6
        few &= ends[1] - ends[0] > 1e-6  # a constant's box is a point, and its values are that to rounding
        moved = [end + few[k] * share[k] * (values[node] - end) for k, end in enumerate(ends)]
        low, high = torch.minimum(moved[0], values[node]), torch.maximum(moved[1], values[node])
        boxes[node] = Interval(torch.maximum(low, ends[0]), torch.minimum(high, ends[1]))
    inner = {}
    for node in walk.nodes:
        box = node.op.inner_box(walk.place(node, Rules())) if node.inputs else None
        if box is not None:
            at = sigma(node, values)
            share = torch.rand(2, *at.shape, generator=g, dtype=torch.float64)
            low, high = (end + s * (at - end) for end, s in zip(box, share, strict=True))
            low[0], high[0] = box.lower[0], box.upper[0]
            inner[node] = Interval(torch.minimum(low, at), torch.maximum(high, at))
    return Made(walk, boxes, anchors, inner)


def inside(case: Made, x: Tensor) -> Tensor:
    """Which points (n, COUNT, *input) lie in their subset, (n, COUNT): the cuts hold of the graph's own values."""
    values, there = case.walk.graph.values(x), []
    for node, (low, high) in case.boxes.items():
        whole = case.walk.boxes[node]
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
    anchor until they lie in the subset, so that many lie at its border."""
    graph, (lower, upper) = case.walk.graph, case.walk.boxes[case.walk.graph.input]
    low, high = (x.expand(COUNT, *lower.shape[1:]) for x in (lower, upper))
    found = [samples(low, high, 60, seed), descend(graph, graph.output, A, low, high, starts=2, steps=12)]
    for node, (left, right) in case.boxes.items():  # against the cut sides
        ways = torch.stack([left - case.walk.boxes[node].lower, right - case.walk.boxes[node].upper], 1)
        found.append(descend(graph, node, ways.sign(), low, high, starts=1, steps=8))
    x = torch.cat(found)
    near, far = torch.zeros(x.shape[:2], dtype=x.dtype), torch.ones(x.shape[:2], dtype=x.dtype)
    at = lambda t: (case.anchors + t.reshape(*t.shape, 1, 1) * (x - case.anchors)).clamp(low, high)  # noqa: E731
    for _ in range(12):
        middle = (near + far) / 2
        fine = inside(case, at(middle))
        near, far = torch.where(fine, middle, near), torch.where(fine, far, middle)
    return torch.cat([x, at(near), case.anchors[None]])


def drawn(case: Made, sub: Subsets, S: int, rules: Rules, seed: int, *, target: bool) -> dict[Node, dict[str, Tensor]]:
    """Random values of all free parameters, multipliers of very different sizes, and random targets."""
    g = torch.Generator().manual_seed(seed)
    chosen: dict[Node, dict[str, Tensor]] = {}
    for p in parameters(sub, case.walk.graph.output, S, rules):
        t = torch.rand(p.value.shape, generator=g, dtype=torch.float64)
        chosen.setdefault(p.node, {})[p.name] = p.range.low + t * (p.range.high - p.range.low)
    for node in case.boxes:
        shape = (COUNT, S, *node.shape)
        draw = lambda: torch.randn(shape, generator=g, dtype=torch.float64)  # noqa: B023, E731
        for name in HELD:  # a third negative: they count as 0
            chosen.setdefault(node, {})[name] = draw() * 10 ** (draw() - 1)
            chosen[node][name][:, ::3] *= 1e-2
        for name in TARGETS if target else ():
            chosen[node][name] = torch.where(draw() > 0, draw(), torch.nan)
    return chosen


def values_at(walk: Walk, A: Tensor, x: Tensor) -> Tensor:
    """Objectives A (COUNT, S, *output) at x (n, COUNT, *input): (n, COUNT, S)."""
    return (A * walk.graph.evaluate(x).unsqueeze(2)).flatten(3).sum(-1)


def check(case: Made, A: Tensor, x: Tensor, bound: Tensor, scale: Tensor | float = 0.0) -> None:
    there = inside(case, x)
    assert there.any(0).all(), "a subset without a point tells nothing"
    values = values_at(case.walk, A, x)
    least = torch.where(there.unsqueeze(-1), values, torch.inf).amin(0)
    over = bound - least - ULPS * (1 + values.abs().amax(0) + scale)
    assert not bound.isnan().any()
    assert (over <= 0).all(), f"above a value of the subset by {float(over.max()):.3g}"


def size_of(sub: Subsets, held: dict[Node, tuple[Tensor, Tensor]]) -> Tensor:
    """Σ multiplier·|box|, (COUNT, S)."""
    found = torch.zeros(())
    for node, (least, most) in held.items():
        low, high = (x.unsqueeze(1).abs() for x in sub.boxes[node])
        found = found + (least * low + most * high).flatten(2).sum(-1)
    return found


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@each
@every
def test_no_value_of_a_subset_is_below_its_bound(name: str, rule: str, seed: int) -> None:
    case = made(name, 10 * seed + 1)
    rules = dataclasses.replace(RULES[rule], free=True)
    A = objectives(case.walk.graph, COUNT, seed)
    x = points(case, A, seed)
    with torch.no_grad():
        sub = case.sub()
        assert (sub.batch, sub.start) == (COUNT, case.walk.start)
        check(case, A, x, sub.bound(sub.graph.output, Part(A), rules))
        for k in range(4):
            chosen = drawn(case, sub, A.shape[1], rules, 100 * seed + k, target=k % 2 == 1)
            back = sub.back(sub.graph.output, Part(A), rules, chosen)
            met = {node for node in chosen if HELD[0] in chosen[node]} & set(back.held)
            assert met, "no multiplier was met"
            for node in met:
                for name_, used in zip(HELD, back.held[node], strict=True):
                    assert (used >= chosen[node][name_].clamp(min=0)).all()
            bound = sub.bound(sub.graph.output, Part(A), rules, chosen)
            check(case, A, x, bound, size_of(sub, back.held))


@pytest.mark.parametrize("name", ["relu", "gelu", "padding"])
def test_an_ascent_over_a_subset_is_sound_and_gains(name: str) -> None:
    case = made(name, 5)
    A = objectives(case.walk.graph, COUNT)
    x = points(case, A, 5)
    sub = case.sub()
    scale = {node: Held(*(torch.full((COUNT, 1, *node.shape), 0.01).double() for _ in HELD)) for node in case.boxes}
    with torch.no_grad():
        rules = dataclasses.replace(RULES["affine"], free=True)
        start = sub.bound(sub.graph.output, Part(A), rules)
    for size in (0.05, 2.0):
        ascent = Ascent(steps=6, step_size=size, decay=0.9)
        done = optimise(sub, sub.graph.output, A, RULES["affine"], ascent, held=scale, keep=True)
        assert (done.bound >= start).all()
        held = {at: of for at, of in done.chosen.items() if HELD[0] in of}
        assert held
        assert all((x >= 0).all() for of in held.values() for k, x in of.items() if k in HELD)
        assert any((x > 0).any() for of in held.values() for k, x in of.items() if k in HELD)
        check(case, A, x, done.bound, size_of(sub, {at: (of[HELD[0]], of[HELD[1]]) for at, of in held.items()}))
        with torch.no_grad():  # what was kept is where the best bound was
            again = sub.bound(sub.graph.output, Part(A), rules, done.chosen)
            exact = sub.bound(sub.graph.output, Part(A), dataclasses.replace(rules, sums=True), done.chosen)
        assert (torch.maximum(again, exact) >= done.bound - 1e-9 * (1 + done.bound.abs()))[done.bound > start].all()
    assert (done.bound > start + 1e-6).any()


@each
@every
def test_subsets_together_are_what_each_is_alone(name: str, rule: str) -> None:
    case = made(name, 7)
    rules = dataclasses.replace(RULES[rule], free=True)
    A = objectives(case.walk.graph, COUNT, 7)[:, :5]
    with torch.no_grad():
        sub = case.sub()
        chosen = drawn(case, sub, A.shape[1], rules, 7, target=True)
        every_ = sub.bound(sub.graph.output, Part(A), rules, chosen)
        for k in (0, 3, 6):
            row = slice(k, k + 1)
            one = {at: {key: x[row] for key, x in of.items()} for at, of in chosen.items()}
            alone = case.sub(row).bound(sub.graph.output, Part(A[row]), rules, one)
            torch.testing.assert_close(every_[row], alone, rtol=1e-10, atol=1e-10)


@each
@every
def test_nothing_cut_is_the_whole(name: str, rule: str) -> None:
    walk, rules = ready(name), RULES[rule]
    A = objectives(walk.graph, 3)
    with torch.no_grad():
        whole = walk.bound(walk.graph.output, Part(A[:1]), rules)
        plain = Subsets(walk, {}, 3).bound(walk.graph.output, Part(A), rules)
        nodes = cuttable(walk)
        same = {node: Interval(*(x.expand(3, *node.shape) for x in walk.boxes[node])) for node in nodes}
        zero = {node: {key: torch.zeros(3, A.shape[1], *node.shape).double() for key in HELD} for node in nodes}
        none = {node: {**of, **dict.fromkeys(TARGETS, of[HELD[0]] + torch.nan)} for node, of in zero.items()}
        sub = Subsets(walk, same, 3)
        for found in (
            plain,
            sub.bound(walk.graph.output, Part(A), rules),
            sub.bound(walk.graph.output, Part(A), rules, zero),
            sub.bound(walk.graph.output, Part(A), rules, none),
        ):
            torch.testing.assert_close(found, whole.expand_as(found), rtol=1e-12, atol=1e-12)


@each
def test_a_cut_is_a_gain_somewhere(name: str) -> None:
    case = made(name, 3)
    A = objectives(case.walk.graph, COUNT)
    with torch.no_grad():
        whole = case.walk.bound(case.walk.graph.output, Part(A[:1]), RULES["affine"])
        found = case.sub().bound(case.walk.graph.output, Part(A), RULES["affine"])
    torch.testing.assert_close(found[:1], whole, rtol=1e-12, atol=1e-12)  # subset 0 is the whole set
    assert (found[1:] > whole + 1e-3).any()
    assert bool(case.inner) == (CONFIGS[name].norm != "none")
    if case.inner:  # and so it is of σ alone
        with torch.no_grad():
            alone = Subsets(case.walk, {}, COUNT, case.inner).bound(case.walk.graph.output, Part(A), RULES["affine"])
        torch.testing.assert_close(alone[:1], whole, rtol=1e-9, atol=1e-9)
        assert (alone[1:] > whole + 1e-3).any()
        check(Made(case.walk, {}, case.anchors, case.inner), A, points(case, A, 3), alone)


# by hand


def folded(attention: bool = False) -> tuple[Walk, Node]:
    """z = x₀ + 2 x₁ of x ∈ [−1, 1]², and y = (z, relu(z)), or (z, softmax(z, 0)·(1, 0)); z ∈ [−3, 3]."""
    x = build.source((2,))
    z = build.affine(x, torch.tensor([[1.0, 2.0]]).double(), torch.zeros(1).double(), "z")
    if attention:
        scores = build.concat([build.reshape(z, (1, 1), "s"), build.constant(torch.zeros(1, 1).double())], 1, "scores")
        value = build.constant(torch.tensor([[1.0], [0.0]]).double())
        other = build.reshape(build.apply(Attention(), scores, value, name="attention"), (1,), "other")
        z_or = scores
    else:
        other, z_or = build.apply(Relu(), z, name="relu"), z
    y = build.concat([z, other], 0, "y")
    walk = Walk(Graph(x, y), -torch.ones(1, 2).double(), torch.ones(1, 2).double())
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    return walk, z_or


def one_cut(walk: Walk, z: Node, low: float, high: float, A: list[float], **chosen: float) -> float:
    """The bound of A·y where z is in [low, high], with multipliers or targets as chosen."""
    full = lambda v: torch.full((1, 1, *z.shape), v).double()  # noqa: E731
    values = {z: {name: full(value) for name, value in chosen.items()}} if chosen else None
    sub = Subsets(walk, {z: Interval(full(low)[0], full(high)[0])}, 1)
    with torch.no_grad():
        return float(sub.bound(walk.graph.output, Part(torch.tensor([[A]]).double()), Rules(), values))


def test_multipliers_by_hand() -> None:
    walk, z = folded()
    on, off = (0.5, 3.0), (-3.0, -0.5)
    assert one_cut(walk, z, *on, [1, 0]) == -3  # the cut alone is not felt behind z
    assert one_cut(walk, z, *on, [1, 0], at_least=1.0, at_most=0.0) == 0.5
    assert one_cut(walk, z, *on, [1, 0], at_least=0.5, at_most=0.0) == 0.25 - 1.5
    assert one_cut(walk, z, *on, [1, 0], at_least=2.0, at_most=0.0) == 1.0 - 3  # too much of it
    assert one_cut(walk, z, *on, [1, 0], at_least=-1.0, at_most=-1.0) == -3  # counts as 0
    assert one_cut(walk, z, *on, [-1, 0], at_least=0.0, at_most=1.0) == -3
    assert one_cut(walk, z, *off, [-1, 0], at_least=0.0, at_most=1.0) == 0.5
    assert one_cut(walk, z, *off, [-1, 0], at_least=0.0, at_most=0.25) == 0.125 - 0.75 * 3
    assert one_cut(walk, z, *off, [1, 0], at_least=1.0, at_most=0.0) == -3
    assert one_cut(walk, z, -1.0, 2.0, [1, 0], at_least=2.0, at_most=1.0) == -4.0  # 2·(−1) − 1·2
    # relu on one side is linear: −relu(z) ≥ −u needs the other side's multiplier
    assert one_cut(walk, z, *on, [0, 1], at_least=1.0, at_most=0.0) == 0.5
    assert one_cut(walk, z, *off, [0, 1]) == 0
    assert one_cut(walk, z, *off, [0, -1]) == 0
    assert one_cut(walk, z, *on, [1, -1]) == 0


def test_targets_by_hand() -> None:
    """at_least grows until the coefficient is no more than its target, at_most until it is no less than its own."""
    walk, z = folded()
    nan = float("nan")
    zero = {"at_least": 0.0, "at_most": 0.0}
    on, off = (0.5, 3.0), (-3.0, -0.5)
    to = lambda least, most: {**zero, "target_at_least": least, "target_at_most": most}  # noqa: E731
    assert one_cut(walk, z, *on, [1, 0], **to(0.0, nan)) == 0.5
    assert one_cut(walk, z, *on, [1, 0], **to(0.5, nan)) == 0.25 - 1.5
    assert one_cut(walk, z, *on, [1, 0], **to(2.0, nan)) == -3  # it is no more than that as it is
    assert one_cut(walk, z, *on, [1, 0], **to(nan, nan)) == -3
    assert one_cut(walk, z, *on, [1, 0], **to(-float("inf"), nan)) == -3  # no number of steps gets there
    assert one_cut(walk, z, *off, [-1, 0], **to(nan, 0.0)) == 0.5
    assert one_cut(walk, z, *off, [-1, 0], **to(nan, -0.5)) == 0.25 - 1.5
    assert one_cut(walk, z, *off, [-1, 0], **to(nan, -2.0)) == -3
    assert one_cut(walk, z, *off, [1, 0], **to(nan, 0.0)) == -3  # 1 is no less than 0
    given = {"at_least": 0.25, "at_most": 0.0, "target_at_least": 0.0, "target_at_most": nan}
    assert one_cut(walk, z, *on, [1, 0], **given) == 0.5  # what was given counts
    assert one_cut(walk, z, *on, [1, 0], **{**given, "target_at_least": 0.9}) == 0.125 - 0.75 * 3  # and stays
    assert one_cut(walk, z, *on, [1, 0], **{**given, "at_least": -4.0}) == 0.5  # from 0 on, not from −4


def test_the_ascent_moves_the_sides_that_are_held_from_the_start_that_is_given() -> None:
    walk, z = folded()
    full = lambda v: torch.full((1, 1, 1), v).double()  # noqa: E731
    sub = Subsets(walk, {z: Interval(full(0.5)[0], full(3.0)[0])}, 1)
    A = torch.tensor([[[1.0, 0.0]]]).double()

    def ascended(steps: int, held: Held, **start: float) -> tuple[float, list[float]]:
        given = {z: {name: full(value) for name, value in start.items()}} if start else None
        ascent = Ascent(steps=steps, step_size=0.01)
        done = optimise(sub, walk.graph.output, A, Rules(), ascent, start=given, held={z: held}, keep=True)
        return float(done.bound), [float(done.chosen[z][name]) for name in HELD]

    bound, (least, most) = ascended(30, Held(full(1.0), full(0.0)))
    assert bound > 0.3
    assert (0.9 < least < 1.1, most) == (True, 0)
    assert ascended(30, Held(full(0.0), full(1.0))) == (-3.0, [0, 0])
    assert ascended(0, Held(full(1.0), full(1.0)), at_least=1.0, at_most=0.0) == (0.5, [1, 0])
    assert ascended(0, Held(full(1.0), full(1.0))) == (-3.0, [0, 0])


def test_scores_are_cut_like_any_number() -> None:
    """With z ≥ 1 the first key's share is at least σ(1), and with z ≤ −1 at most σ(−1), whatever the rule."""
    walk, scores = folded(attention=True)
    sigma = torch.tensor(1.0).double().sigmoid().item()
    for rules in RULES.values():
        for sign, want in ((1.0, sigma), (-1.0, -(1 - sigma))):
            low, high = (x.clone() for x in walk.boxes[scores])
            if sign > 0:
                low[0, 0, 0] = 1.0
            else:
                high[0, 0, 0] = -1.0
            sub = Subsets(walk, {scores: Interval(low, high)}, 1)
            A = torch.tensor([[[0.0, sign]]]).double()
            held = {scores: {name: torch.zeros(1, 1, 1, 2).double() for name in HELD}}
            with torch.no_grad():
                back = sub.back(walk.graph.output, Part(A), rules, held)
                slope = torch.zeros(()).double() if back.coefficients is None else back.coefficients[0, 0, 0]
                held[scores][HELD[0 if sign > 0 else 1]][0, 0, 0, 0] = slope.abs()  # x₀'s is the score's own
                found = float(sub.bound(walk.graph.output, Part(A), rules, held))
                plain = float(sub.bound(walk.graph.output, Part(A), rules))
            assert found <= want + 1e-12
            assert found >= plain - 1e-12
            assert found > (sigma if sign > 0 else -(1 - sigma)) - 0.4


def test_the_whole_walk_stays_as_it_was() -> None:
    walk = ready("relu")
    before, output = dict(walk.boxes), walk.graph.output
    A = objectives(walk.graph, COUNT)
    with torch.no_grad():
        first = walk.bound(output, Part(A[:1]), RULES["affine"])
        made("relu", 1).sub().bound(output, Part(A), RULES["affine"])
        assert torch.equal(walk.bound(output, Part(A[:1]), RULES["affine"]), first)
    assert all(walk.boxes[node] is box for node, box in before.items())


def test_the_deadline_is_the_whole_walks() -> None:
    walk, z = folded()
    walk.deadline = 0.0
    with pytest.raises(OutOfTimeError):
        one_cut(walk, z, 0.0, 3.0, [1, 0])


def test_what_cannot_be_cut_is_refused() -> None:
    walk, _ = folded()
    box = walk.boxes[walk.graph.input]
    with pytest.raises(InvalidValueError, match="own box"):
        Subsets(walk, {walk.graph.input: box}, 1)
    turned = build.source((2, 1))
    start = build.reshape(turned, (2,), "turned")
    graph = Graph(turned, build.apply(Relu(), start, name="relu"))
    other = Walk(graph, -torch.ones(1, 2, 1).double(), torch.ones(1, 2, 1).double())
    assert other.start is start
    with pytest.raises(InvalidValueError, match="own box"):
        Subsets(other, {start: Interval(*(x.reshape(1, 2) for x in box))}, 1)
    two = Walk(walk.graph, *(x.expand(2, 2) for x in box))
    with pytest.raises(InvalidValueError, match="batch of 2"):
        Subsets(two, {}, 1)

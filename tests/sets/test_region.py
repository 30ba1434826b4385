"""Regions: the least value of a linear function by brute force; and a new kind of set is one class."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import Ready, by_method, objectives, tightened
from tests.bounds.networks import Config, transformer
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion, Region

SHAPE = (2, 3)


def drawn(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def box(batch: int = 3, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> BoxRegion:
    """Boxes some of whose sides have no width."""
    lower = drawn(batch, *shape, seed=seed)
    wide = drawn(batch, *shape, seed=seed + 1).abs()
    wide[0].reshape(-1)[0] = 0
    return BoxRegion(lower, lower + wide)


def corners(region: Region) -> Tensor:
    """(2^n, batch, *shape)"""
    lower, upper = region.box
    size = lower[0].numel()
    which = torch.tensor(list(itertools.product((False, True), repeat=size))).reshape(-1, 1, *lower.shape[1:])
    return torch.where(which, upper, lower)


def coefficients(batch: int, count: int = 7, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """Some are 0, and one objective is 0 altogether."""
    A = drawn(batch, count, *shape, seed=5)
    A = torch.where(drawn(*A.shape, seed=6) > 1.0, torch.zeros_like(A), A)
    A[:, -1] = 0
    return A


def test_the_least_value_over_a_box_is_that_of_its_best_corner() -> None:
    region, A, constant = box(), coefficients(3), drawn(3, 7, seed=7)
    values = constant + (A * corners(region).unsqueeze(2)).flatten(3).sum(-1)  # (corners, batch, S)
    for found in (region.support(A, constant), region.minimise(A, constant)[0], region.support(A) + constant):
        torch.testing.assert_close(found, values.amin(0), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(region.support(A, 2.0), 2.0 + region.support(A), rtol=1e-13, atol=1e-13)


def test_the_point_of_a_box_attains_the_least_value_and_lies_in_it_exactly() -> None:
    region, A, constant = box(), coefficients(3), drawn(3, 7, seed=7)
    value, point = region.minimise(A, constant)
    assert point.shape == A.shape
    lower, upper = (end.unsqueeze(1) for end in region.box)
    assert ((point >= lower) & (point <= upper)).all()
    torch.testing.assert_close(constant + (A * point).flatten(2).sum(-1), value, rtol=1e-13, atol=1e-13)
    assert torch.equal(torch.where(A > 0, point, lower), lower.expand_as(A))
    assert torch.equal(torch.where(A < 0, point, upper), upper.expand_as(A))
    centre = region.box.centre.unsqueeze(1).expand_as(A)
    assert torch.equal(torch.where(A == 0, point, centre), centre)


def test_one_objective_for_all_inputs_is_each_inputs_own() -> None:
    region, A = box(), coefficients(1)
    want = region.support(A.expand(3, *A.shape[1:]))
    torch.testing.assert_close(region.support(A), want, rtol=0, atol=0)
    value, point = region.minimise(A)
    torch.testing.assert_close(value, want, rtol=1e-13, atol=1e-13)
    assert point.shape == (3, *A.shape[1:])


def test_a_rearranged_box_has_the_same_numbers_elsewhere() -> None:
    region = box()
    numbers = torch.randperm(6, generator=torch.Generator().manual_seed(1)).reshape(3, 2)
    moved = region.rearranged(numbers)
    for end, other in zip(region.box, moved.box, strict=True):
        for at in itertools.product(range(3), range(2)):
            assert torch.equal(other[:, *at], end.flatten(1)[:, numbers[at]])
    A = coefficients(3)
    taken = A.flatten(2)[..., numbers.flatten()].reshape(3, -1, 3, 2)
    torch.testing.assert_close(moved.support(taken), region.support(A), rtol=1e-13, atol=1e-13)


def test_some_of_the_boxes() -> None:
    region, A = box(), coefficients(3)
    part = region.at(slice(1, 3))
    assert torch.equal(part.lower, region.lower[1:])
    assert torch.equal(part.upper, region.upper[1:])
    assert torch.equal(part.support(A[1:]), region.support(A)[1:])


def test_what_a_question_is_over_is_its_start() -> None:
    """The region of a question is that of what mere rearrangements of the input lead to."""
    x = build.source((2, 3))
    flat = build.reshape(build.transpose(x, 0, 1, "turned"), (6,), "flat")
    graph = Graph(x, build.affine(flat, drawn(2, 6), None, "out"))
    region = box()
    question = Question.over(graph, region)
    assert question.given is region
    assert question.index.start is flat
    for end, other in zip(region.box, question.region.box, strict=True):
        assert torch.equal(other, end.transpose(1, 2).reshape(3, 6))


# A new kind of set


@dataclasses.dataclass(frozen=True, eq=False)
class L2Ball(Region):
    """‖x − centre‖ ≤ radius: all that bounds need to know of it."""

    centre: Tensor
    radius: Tensor
    """(batch,)"""

    @property
    def box(self) -> Interval:
        wide = self.radius.reshape(-1, *[1] * (self.centre.dim() - 1))
        return Interval(self.centre - wide, self.centre + wide)

    def support(self, A: Tensor, constant: Tensor | float = 0.0) -> Tensor:
        flat = A.flatten(2)
        middle = (flat @ self.centre.flatten(1).unsqueeze(-1)).squeeze(-1)
        return constant + middle - self.radius.unsqueeze(1) * flat.norm(dim=-1)

    def minimise(self, A: Tensor, constant: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
        size = A.flatten(2).norm(dim=-1)
        way = A / torch.where(size > 0, size, torch.ones_like(size)).reshape(*size.shape, *[1] * (A.dim() - 2))
        wide = self.radius.reshape(-1, *[1] * (A.dim() - 1))
        return self.support(A, constant), self.centre.unsqueeze(1) - wide * way

    def at(self, which: slice) -> L2Ball:
        return L2Ball(self.centre[which], self.radius[which])

    def rearranged(self, numbers: Tensor) -> L2Ball:
        moved = self.centre.flatten(1)[:, numbers.flatten()].reshape(-1, *numbers.shape)
        return L2Ball(moved, self.radius)

    def points(self, count: int, seed: int = 0) -> Tensor:
        """(count, batch, *shape): most of them at the border."""
        way = drawn(count, *self.centre.shape, seed=seed)
        way = way / way.flatten(2).norm(dim=-1).reshape(count, -1, *[1] * (self.centre.dim() - 1))
        share = drawn(count, 1, seed=seed + 1).abs().clamp(max=1.0)
        scaled = share * self.radius
        return self.centre + scaled.reshape(count, -1, *[1] * (self.centre.dim() - 1)) * way


def ball(shape: tuple[int, ...], radius: float, seed: int = 3) -> L2Ball:
    return L2Ball(drawn(2, *shape, seed=seed), torch.tensor([radius, radius / 2], dtype=torch.float64))


@pytest.mark.parametrize("turned", [False, True])
def test_an_affine_network_over_a_ball_has_the_closed_form(turned: bool) -> None:
    x = build.source((2, 3))
    flat = build.reshape(build.transpose(x, 0, 1, "turned") if turned else x, (6,), "flat")
    W, b, V = drawn(4, 6, seed=1), drawn(4, seed=2), drawn(3, 4, seed=4)
    graph = Graph(x, build.affine(build.affine(flat, W, b, "inner"), V, None, "out"))
    region = ball((2, 3), 0.7)
    A = objectives(graph, 2)
    found = by_method(Question.over(graph, region), "crown", A=A).lower
    start = region.centre.transpose(1, 2).reshape(2, 6) if turned else region.centre.reshape(2, 6)
    slopes = A @ (V @ W)
    middle = (A @ (V @ (W @ start.T + b[:, None])).T.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(found, middle - region.radius[:, None] * slopes.norm(dim=-1), rtol=1e-13, atol=1e-13)
    boxed = by_method(Question.over(graph, BoxRegion(*region.box)), "crown", A=A).lower
    assert (found > boxed).all()


def attacked(graph: Graph, region: L2Ball, A: Tensor, steps: int = 40) -> Tensor:
    """Points of the ball, (points, batch, *input): random ones, and where objectives are small by projected descent."""
    x = region.points(4 * A.shape[1])
    mine = A.transpose(0, 1).repeat(4, *[1] * (A.dim() - 1))
    wide = region.radius.reshape(-1, *[1] * (region.centre.dim() - 1))
    for k in range(steps):
        at = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((mine * graph.values(at)[graph.output]).sum(), at)
        size = g.flatten(2).norm(dim=-1).clamp(min=1e-300).reshape(*g.shape[:2], *[1] * (g.dim() - 2))
        off = x - 0.9**k * wide * g / size - region.centre
        length = off.flatten(2).norm(dim=-1).reshape(size.shape)
        x = region.centre + off * torch.minimum(torch.ones_like(length), wide / length.clamp(min=1e-300))
    return torch.cat([x.detach(), region.points(2000, seed=9)])


CONFIGS = {
    "relu": Config(heads=2, seed=2),
    "norm": Config(norm="pre", activation="gelu", class_token=True, pooling="token", seed=4),
}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "bab"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_transformer_over_a_ball_is_bounded_and_no_worse_than_over_its_box(name: str, method: str) -> None:
    config = CONFIGS[name]
    graph = transformer(config)
    A = objectives(graph, 2)
    for radius in (0.02, 0.4):
        region = ball((config.tokens, config.inputs), radius)
        bound = by_method(Question.over(graph, region), method, A=A)
        assert not bound.boxes.problems
        x = attacked(graph, region, A)
        values = (A * graph.evaluate(x).unsqueeze(2)).flatten(3).sum(-1)
        over = bound.lower - values.amin(0) - 1e-9 * (1 + values.abs().amax(0))
        assert (over <= 0).all(), f"a bound lies above a value in the ball by {float(over.max()):.3g}"
        for node, value in graph.values(x).items():
            lower, upper = bound.boxes[node]
            slack = 1e-9 * (1 + value.abs().amax(0))
            assert ((value >= lower - slack) & (value <= upper + slack)).all(), node
        boxed = by_method(Question.over(graph, BoxRegion(*region.box)), method, A=A)
        # tighter boxes may turn slopes the wrong way: by next to nothing over a small set
        better = bound.lower >= boxed.lower - (1e-5 if radius < 0.1 else 1e-9) * (1 + boxed.lower.abs())
        assert better.all() if radius < 0.1 else better.double().mean() > 0.8
        assert method == "ibp" or (bound.lower > boxed.lower).any()


@pytest.mark.parametrize("rule", RowRule)
@pytest.mark.parametrize("name", CONFIGS)
def test_over_the_same_boxes_a_ball_is_never_worse_than_its_box(name: str, rule: RowRule) -> None:
    """Whatever the relaxations: the linear functions are the same, and the ball is a part of the box."""
    config = CONFIGS[name]
    graph = transformer(config)
    region = ball((config.tokens, config.inputs), 0.4)
    whole = tightened(graph, *region.box)
    A = objectives(graph, 2)
    with torch.no_grad():
        boxed = whole.bound(A, Rules(attention=rule))
        found = Ready(Question.over(graph, region), whole.boxes).bound(A, Rules(attention=rule))
    assert (found >= boxed - 1e-12 * (1 + boxed.abs())).all()
    assert rule is RowRule.VERTEX or (found > boxed).any()  # that rule ends at the rows, the class token before them
    x = attacked(graph, region, A)
    values = (A * graph.evaluate(x).unsqueeze(2)).flatten(3).sum(-1)
    assert (found <= values.amin(0) + 1e-9 * (1 + values.abs().amax(0))).all()

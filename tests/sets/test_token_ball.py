"""Balls of every norm around tokens: membership in rationals, minima in closed form, and networks under attack."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from tests.slowly import few
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.sets import InputSet, LpBall, TokenBall
from vertex_softmax.sets.lp_region import LpRegion
from vertex_softmax.sets.region import BoxRegion

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Words(nn.Module):
    """Words, positions, one attention and a ReLU."""

    def __init__(self, seed: int = 0, size: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(30, size), nn.Parameter(torch.randn(7, size))
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.up, self.head = nn.Linear(size, 9), nn.Linear(9, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places[: ids.shape[1]]
        x = x + nn.functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x))
        return self.head(self.up(x).relu().mean(1))


MASK = torch.tensor([[True, False, True, False], [False, False, False, True], [False] * 4])


@pytest.mark.parametrize("p", [1, 2])
def test_membership_is_exact(p: int) -> None:
    x, eps = drawn(3, 4, 5), drawn(3, 4, 5, seed=1).abs()
    ball = TokenBall(x, eps, MASK, p=p)
    generator = torch.Generator().manual_seed(2)
    points = torch.cat([ball.sample(20, generator), ball.project(x.unsqueeze(1) + drawn(3, 20, 4, 5, seed=3))], 1)
    z = drawn(3, 20, 4, 5, seed=4)
    rim = z / torch.linalg.vector_norm(z, ord=p, dim=-1, keepdim=True)
    moves = (eps * MASK[..., None]).unsqueeze(1)
    near = [x.unsqueeze(1) + moves * each for each in (rim, rim * (1 - 1e-16), rim * (1 + 1e-15), 0.8 * z.sign())]
    points = torch.cat([points, points * (1 + 2.0**-52), *near, x.unsqueeze(1) + drawn(3, 9, 4, 5)], 1)
    seen = set()
    for k in range(points.shape[1]):
        told = ball.contains(points[:, k])
        for i in range(3):
            inside = True
            for t in range(4):
                away = [
                    Fraction(a) - Fraction(b) for a, b in zip(points[i, k, t].tolist(), x[i, t].tolist(), strict=True)
                ]
                if not MASK[i, t]:
                    inside &= not any(away)
                    continue
                total = sum((abs(a) / Fraction(e)) ** p for a, e in zip(away, eps[i, t].tolist(), strict=True))
                inside &= total <= 1
            assert bool(told[i]) == inside
            seen.add((inside, bool(InputSet.contains(ball, points[:, k])[i])))
    assert seen == {(True, True), (False, True), (False, False)}  # also in the box around the ball, and not in it
    assert bool(ball.contains(points[:, 0]).all())


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_every_move_of_an_attack_stays_inside(p: float) -> None:
    x = drawn(3, 4, 5)
    ball = TokenBall(x, torch.tensor([0.3, 1e-9, 2.0]), MASK, p=p)
    points = ball.sample(30, torch.Generator().manual_seed(0))
    for share in (0.5, 1.0, 3.0):
        points = ball.step(points, drawn(3, 30, 4, 5, seed=7), share)
        for k in range(points.shape[1]):
            assert bool(ball.contains(points[:, k]).all())
    fixed = ~MASK[:, None, :, None].expand_as(points)
    assert torch.equal(points[fixed], x.unsqueeze(1).expand_as(points)[fixed])


@pytest.mark.parametrize("p", [1, 2])
def test_minima_are_the_dual_norms_of_the_tokens(p: int) -> None:
    x, A = drawn(3, 4, 5), drawn(3, 6, 4, 5, seed=1)
    ball = TokenBall(x, 0.7, MASK, p=p)
    region = ball.region((4, 5), torch.float64, CPU)
    assert isinstance(region, LpRegion)
    size = torch.linalg.vector_norm(0.7 * A * MASK[:, None, :, None], ord=math.inf if p == 1 else 2, dim=-1).sum(-1)
    expected = (A * x.unsqueeze(1)).flatten(2).sum(-1) - size
    assert torch.allclose(region.support(A), expected, rtol=1e-12, atol=1e-12)
    assert isinstance(TokenBall(x, 0.7, MASK).region((4, 5), torch.float64, CPU), BoxRegion)


def test_parts_keep_the_norm() -> None:
    ball = TokenBall(drawn(3, 4, 5), 0.1, MASK, p=2)
    assert ball[1].p == 2
    assert torch.equal(ball[[2, 0]].tokens, MASK[[2, 0]])
    assert "p 2" in repr(ball)
    assert isinstance(ball[1].region((4, 5), torch.float64, CPU), LpRegion)
    assert TokenBall(drawn(3, 4, 5), 0.1).p == math.inf


@pytest.mark.parametrize("p", [3, 0, -1, "two", True, math.nan])
def test_other_norms_are_refused(p: object) -> None:
    with pytest.raises(VertexError, match="p is"):
        TokenBall(drawn(1, 4, 5), 0.1, p=p)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("p", "method"),
    few(
        list(itertools.product([1, 2], ["ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint"])),
        lambda *case: case in [(1, "crown"), (2, "joint")],
    ),
)
def test_no_bound_is_above_an_attack(p: int, method: str) -> None:
    """All points are checked by the module's own tail on float64 embeddings, not by the graph."""
    model = Words(seed=p).double().eval()
    ids = torch.tensor([[3, 14, 15, 9], [2, 6, 5, 3]])
    labels = model(ids).argmax(1)
    for tokens, eps in (([1], 0.6), ([0, 3], 0.3), (None, 0.15)):
        ball = TokenBall.of(model, ids, eps, tokens, p=p)
        result = vx.certify(model, ball, labels, method, attack=None)
        found = vx.attack(model, ball, labels, steps=30, restarts=6)
        points = torch.cat([found.inputs, ball.sample(200, torch.Generator().manual_seed(1))], 1)
        for k in range(points.shape[1]):
            assert bool(ball.contains(points[:, k]).all())
        whole = points.flatten(0, 1)
        x = whole + model.places[:4]
        x = x + nn.functional.scaled_dot_product_attention(model.query(x), model.key(x), model.value(x))
        logits = model.head(model.up(x).relu().mean(1)).reshape(2, -1, 3)
        margins = logits.gather(2, labels[:, None, None].expand(-1, logits.shape[1], 1)) - logits
        least = margins.amin(1)
        others = torch.arange(3) != labels[:, None]
        assert bool((result.lower[others] <= least[others] + 1e-9).all())
        if method == "crown":
            boxed = vx.certify(model, TokenBall.of(model, ids, eps, tokens), labels, method, attack=None)
            assert bool((result.lower[others] >= boxed.lower[others] - 1e-9).all())


def test_the_radius_of_words_in_other_norms() -> None:
    model = Words().double().eval()
    ids = torch.tensor([[3, 14, 15, 9]])
    label = model(ids).argmax(1)
    radii = {p: float(vx.radius(model, ids, label, "crown", p=p, tokens=[1])[0]) for p in (1, 2, math.inf)}
    assert 0 < radii[math.inf] <= radii[2] * 1.1 <= radii[1] * 1.1 * 1.1
    for p, radius in radii.items():
        assert bool(vx.certify(model, TokenBall.of(model, ids, radius, [1], p=p), label, "crown").certified.all())


def test_a_ball_for_each_token_is_that_of_lp_balls() -> None:
    x = drawn(2, 4, 5)
    ball, other = TokenBall(x, 0.3, p=2), LpBall(x, 0.3, 2, per_token=True)
    points = other.sample(10, torch.Generator().manual_seed(0))
    assert torch.equal(points, ball.sample(10, torch.Generator().manual_seed(0)))
    assert torch.equal(ball.lower, other.lower)
    assert torch.equal(ball.upper, other.upper)

"""Balls in ℓ1, ℓ2 and ℓ∞: minima against linear programs and closed forms, exact membership, bad input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from vertex_softmax import LpBall
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.sets.lp_region import LpRegion, Norm, _farthest
from vertex_softmax.sets.region import BoxRegion, Region

CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(0)


def draw(*dims: int) -> Tensor:
    return torch.rand(*dims, generator=GENERATOR, dtype=torch.float64)


def region(ball: LpBall, dtype: torch.dtype = torch.float64) -> Region:
    return ball.region(ball.shape[1:], dtype, CPU)


@pytest.mark.parametrize("seed", range(150))
def test_the_farthest_point_of_a_cut_ball(seed: int) -> None:
    """ℓ1: the optimum of the linear program. ℓ2: primal and dual values agree, so both are optimal."""
    generator = torch.Generator().manual_seed(seed)
    n = int(torch.randint(1, 7, (1,), generator=generator))
    size = torch.rand(n, generator=generator, dtype=torch.float64) * (torch.rand(n, generator=generator) < 0.8)
    way = (1.3 * torch.rand(n, generator=generator, dtype=torch.float64)).clamp(max=1)
    way = way * (torch.rand(n, generator=generator) < 0.85)
    value, at = _farthest(size, way, Norm.L1)
    best = linprog(-size.numpy(), A_ub=np.ones((1, n)), b_ub=[1], bounds=[(0, float(w)) for w in way])
    assert float(value) == pytest.approx(-best.fun, abs=1e-9)
    assert float((size * at).sum()) == pytest.approx(float(value), abs=1e-12)
    value, at = _farthest(size, way, Norm.L2)
    assert float((size * at).sum()) == pytest.approx(float(value), abs=1e-12)
    assert float(at.square().sum()) <= 1 + 1e-12
    assert bool((at <= way).all())


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_without_a_cut_it_is_the_dual_norm(p: int, per_token: bool) -> None:
    x, eps, A = draw(2, 3, 4), draw(2, 3, 4), torch.randn(2, 5, 3, 4, generator=GENERATOR, dtype=torch.float64)
    ball = LpBall(x, eps, p, per_token=per_token)
    b = (A * eps.unsqueeze(1)).reshape(2, 5, 3 if per_token else 1, -1)
    size = torch.linalg.vector_norm(b, ord=math.inf if p == 1 else 2, dim=-1).sum(-1)
    expected = (A * x.unsqueeze(1)).flatten(2).sum(-1) - size
    assert torch.allclose(region(ball).support(A), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [None, (0.0, 1.0)])
@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_minima_are_attained_in_the_set(p: int, per_token: bool, clip: tuple[float, float] | None) -> None:
    """The point has the value, lies in the set but for rounding, and no sampled point is below."""
    x, eps, A = draw(2, 3, 4), 0.7 * draw(2, 3, 4), torch.randn(2, 5, 3, 4, generator=GENERATOR, dtype=torch.float64)
    ball = LpBall(x, eps, p, clip, per_token=per_token)
    value, point = region(ball).minimise(A)
    assert torch.allclose((A * point).flatten(2).sum(-1), value, rtol=0, atol=1e-12)
    for i in range(5):
        assert bool(ball.contains(x + (point[:, i] - x) * (1 - 1e-9)).all())
    for _ in range(200):
        z = torch.randn(2, 3, 4, generator=GENERATOR, dtype=torch.float64) ** 3
        flat = z.reshape(2, 3 if per_token else 1, -1)
        z = (flat / torch.linalg.vector_norm(flat, ord=p, dim=-1, keepdim=True)).reshape(2, 3, 4)
        some = x + eps * z
        some = some if clip is None else some.clamp(*clip)
        assert bool(((A * some.unsqueeze(1)).flatten(2).sum(-1) >= value - 1e-12).all())


def test_the_maximum_norm_is_a_box() -> None:
    ball = LpBall(draw(2, 3), 0.1, math.inf)
    assert isinstance(region(ball), BoxRegion)
    assert LpBall(draw(2, 3), 0.1, "inf").p == math.inf  # type: ignore[arg-type]


def test_membership_is_exact() -> None:
    """(3, 4)/5 is on the unit circle, and the next number outward is not."""
    x = torch.zeros(1, 2, dtype=torch.float64)
    ball = LpBall(x, 5.0, 2)
    on = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    out = torch.tensor([[3.0, math.nextafter(4.0, 5.0)]], dtype=torch.float64)
    assert ball.contains(on).tolist() == [True]
    assert ball.contains(out).tolist() == [False]
    assert ball.contains(torch.full((1, 2), math.nan, dtype=torch.float64)).tolist() == [False]
    fixed = LpBall(x, torch.tensor([[1.0, 0.0]]), 1)
    assert fixed.contains(torch.tensor([[1.0, 0.0]], dtype=torch.float64)).tolist() == [True]
    assert fixed.contains(torch.tensor([[0.5, 1e-300]], dtype=torch.float64)).tolist() == [False]


@pytest.mark.parametrize("p", [1, 2])
def test_single_precision_is_rounded_outward(p: int) -> None:
    """The minimum over the float32 region is not above that over the real ball, but for float32 sums."""
    x, A = draw(3, 20) / 3, torch.randn(3, 4, 20, generator=GENERATOR, dtype=torch.float64)
    ball = LpBall(x, 1e-4, p)
    single = region(ball, torch.float32)
    assert isinstance(single, LpRegion)
    wide = LpRegion(
        single.norm, *(y.double() for y in (single.centre, single.radius, single.lower, single.upper)), single.members
    )
    assert bool((wide.support(A) <= region(ball).support(A) + 1e-15).all())


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("p", [1, 2])
def test_a_network_may_take_the_whole_batch_as_one_input(p: int, per_token: bool) -> None:
    """Then every input has its balls still: a linear function is least where each part of it is."""
    generator = torch.Generator().manual_seed(0)
    x, A = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    ball = LpBall(x, torch.tensor([0.5, 2.0]), p, per_token=per_token)
    one_by_one = ball.region((3, 4), torch.float64, torch.device("cpu"))
    whole = ball.region((2, 3, 4), torch.float64, torch.device("cpu"))
    least, point = whole.minimise(A[None, None])
    assert torch.allclose(least.flatten(), one_by_one.support(A.unsqueeze(1)).sum())
    assert torch.allclose((A * point[0, 0]).sum(), least)
    assert whole.columns().flatten(3).abs().sum((0, 1, 2)).count_nonzero() == x.numel()


def test_parts_and_rearrangements_of_regions() -> None:
    x, A = draw(3, 2, 3), torch.randn(3, 4, 2, 3, generator=GENERATOR, dtype=torch.float64)
    ball = LpBall(x, draw(3, 2, 3), 2, (0, 1), per_token=True)
    whole = region(ball)
    assert torch.equal(whole.at(slice(1, 2)).support(A[1:2]), whole.support(A)[1:2])
    numbers = torch.tensor([[5, 1], [0, 3], [2, 4]])
    turned = whole.rearranged(numbers)
    moved = A.flatten(2)[..., numbers.flatten()].reshape(3, 4, 3, 2)
    assert torch.allclose(turned.support(moved), whole.support(A), rtol=1e-14, atol=1e-14)
    assert torch.equal(ball[1].lower, ball.lower[1:2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eps": -0.1}, "at least 0"),
        ({"eps": math.nan}, "finite"),
        ({"p": 3}, "p = 1, 2 and inf"),
        ({"p": "two"}, "pass 1, 2 or math.inf"),
        ({"p": True}, "pass 1, 2 or math.inf"),
        ({"clip": (0.9, 1.0)}, "outside clip"),
        ({"clip": (1.0, 0.0)}, "lower end comes first"),
        ({"per_token": True}, "per_token needs"),
        ({"eps": torch.ones(7)}, "broadcast"),
    ],
)
def test_bad_input(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"x": torch.full((2, 4), 0.5), "eps": 0.1, "p": 2, **change}
    with pytest.raises(VertexError, match=words):
        LpBall(**arguments)  # type: ignore[arg-type]

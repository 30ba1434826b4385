"""Points that sets give to attacks lie in the sets, without tolerance; projections are the nearest points."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.sets import Box, InputSet, LinfBall, LpBall, TokenBall
from vertex_softmax.sets.lp_points import in_balls
from vertex_softmax.sets.lp_region import Norm
from vertex_softmax.sets.points import points_of

DOUBLE = torch.float64
NORMS = (1, 2, math.inf)
RADII = (0.0, 5e-324, 1e-320, 1e-300, 1e-17, 1e-8, 0.1, 1.0, 1e3, 1e150, 1e300)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def sets() -> list[InputSet]:
    """Sets of every kind: points, tiny and huge ones, cut ones, with a radius for each number and for each token."""
    x = random(3, 4, 5).clamp(-1, 1)
    each = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    each[0, 1], each[1, :, 2], each[2] = 0.0, 1e-300, 1e-3
    found: list[InputSet] = [
        Box(x - each, x + 0.1),
        Box(x, x),
        Box(x - each, x + each, reference=x),
        Box(torch.full((1, 4, 5), -1.7e308, dtype=DOUBLE), torch.full((1, 4, 5), 1.7e308, dtype=DOUBLE)),
        TokenBall(x, 0.3, tokens=[1, 3]),
        TokenBall(x, each, tokens=torch.tensor([[True, False] * 2, [False] * 4, [True] * 4])),
        TokenBall(x, 0.1, tokens=[0], ids=torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [5, 5, 5, 5]])),
        *(TokenBall(x, eps, tokens=[1, 3], p=p) for p in (1, 2) for eps in (0.3, 1e-300, 1e300, each)),
        TokenBall(x, each, tokens=torch.tensor([[True, False] * 2, [False] * 4, [True] * 4]), p=2),
    ]
    for eps in (*RADII, torch.tensor([0.0, 0.5, 1e-9]), each):
        found += [LinfBall(x, eps), LinfBall(x, eps, clip=(-1, 1))]
        for p in NORMS:
            found += (
                [LpBall(x, eps, p), LpBall(x, eps, p, clip=(-1, 1)), LpBall(x, eps, p, (-1, 0.9), per_token=True)]
                if (x.max() <= 0.9)
                else [
                    LpBall(x, eps, p),
                    LpBall(x, eps, p, clip=(-1, 1)),
                    LpBall(x, eps, p, clip=(-1, 1), per_token=True),
                ]
            )
    return found


SETS = sets()


def check_inside(some: InputSet, points: Tensor, count: int) -> None:
    assert tuple(points.shape) == (len(some), count, *some.shape[1:])
    assert points.dtype == DOUBLE
    for i in range(count):
        assert some.contains(points[:, i]).all()


@pytest.mark.parametrize("some", SETS, ids=repr)
def test_every_point_is_in_the_set(some: InputSet) -> None:
    generator = torch.Generator().manual_seed(3)
    drawn = some.sample(6, generator)
    check_inside(some, drawn, 6)
    base = some.centre.unsqueeze(1)
    for size in (0.0, 1e-310, 1e-9, 1.0, 1e10, 1e305, math.inf):
        away = (
            base + size * random(len(some), 4, *some.shape[1:]).sign()
            if size == math.inf
            else base + size * random(len(some), 4, *some.shape[1:])
        )
        check_inside(some, some.project(away), 4)
    ends = torch.stack([some.lower, some.upper, some.centre, torch.full_like(some.lower, math.nan)], 1)
    check_inside(some, projected := some.project(ends), 4)
    assert torch.equal(projected[:, 2], some.centre)
    assert torch.equal(projected[:, 3], some.centre)
    check_inside(some, some.project(ends.float()), 4)
    for share in (0.0, 1e-12, 0.3, 1.0, 4.0, 1e30):
        for gradient in (
            random(*drawn.shape, seed=5),
            0 * drawn,
            1e300 * random(*drawn.shape),
            1e-310 * random(*drawn.shape),
        ):
            check_inside(some, some.step(drawn, gradient, share), 6)
    broken = torch.full_like(drawn, math.inf)
    broken[:, ::2] = math.nan
    check_inside(some, some.step(drawn, broken, 0.5), 6)
    shown = points_of(some, some.shape[1:])
    check_inside(some, shown, shown.shape[1])


@pytest.mark.parametrize("some", SETS, ids=repr)
def test_points_of_a_set_stay(some: InputSet) -> None:
    points = some.sample(5, torch.Generator().manual_seed(9))
    assert torch.equal(some.project(points), points)
    half = some.project(some.centre.unsqueeze(1) / 2 + points / 2)
    assert torch.equal(some.project(half), half)
    assert torch.equal(some.step(points, torch.zeros_like(points), 0.5), points)


def test_a_random_point_is_not_the_centre_and_the_inputs_draw_alike() -> None:
    for some in (LinfBall(random(2, 6), 0.5), *(LpBall(random(2, 6), 0.5, p) for p in NORMS)):
        points = some.sample(8, torch.Generator().manual_seed(0))
        assert (points != some.centre.unsqueeze(1)).flatten(2).any(-1).all()
        torch.testing.assert_close(*(points - some.centre.unsqueeze(1)))
        alone = some[1].sample(8, torch.Generator().manual_seed(0))
        assert torch.equal(alone[0], points[1])
    rim = LpBall(torch.zeros(1, 6), 0.5, 1).sample(8, torch.Generator().manual_seed(0))[0, 1::2]
    assert ((rim != 0).sum(-1) == 1).all()
    torch.testing.assert_close(rim.abs().amax(-1), torch.full((4,), 0.5, dtype=DOUBLE))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_projection_is_the_nearest_point(p: int, seed: int) -> None:
    """Against a general optimiser, one ball and a ball for each token."""
    centre, point = random(1, 2, 3, seed=seed), random(1, 2, 3, seed=10 + seed) * 2
    for per_token in (False, True):
        ball = LpBall(centre, 0.7, p, per_token=per_token)
        mine = ball.project(point.unsqueeze(1))[0, 0]
        off, rows = (point - centre)[0].numpy(), range(2) if per_token else [slice(None)]

        def room(z, row, off=off):
            z = z[: off.size] - z[off.size :] if p == 1 else z
            part = z.reshape(off.shape)[row]
            return 0.7 - abs(part).sum() if p == 1 else 0.49 - (part**2).sum()

        if p == 2:
            limits = [{"type": "ineq", "fun": room, "args": (row,)} for row in rows]
            best = minimize(lambda z, off=off: ((z - off.ravel()) ** 2).sum(), 0 * off.ravel(), constraints=limits)
            theirs = torch.from_numpy(best.x.reshape(off.shape)) + centre[0]
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
        else:  # z = a − b with a, b ≥ 0: smooth
            limits = [
                {"type": "ineq", "fun": lambda z, row: 0.7 - (z[:6] + z[6:]).reshape(2, 3)[row].sum(), "args": (row,)}
                for row in rows
            ]
            start = [0.0] * 12
            best = minimize(
                lambda z, off=off: ((z[:6] - z[6:] - off.ravel()) ** 2).sum(),
                start,
                constraints=limits,
                bounds=[(0, None)] * 12,
            )
            theirs = torch.from_numpy((best.x[:6] - best.x[6:]).reshape(off.shape)) + centre[0]
            torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("p", [1, 2])
def test_far_points_go_to_the_rim(p: int) -> None:
    ball = LpBall(torch.zeros(1, 3), 1.0, p)
    for size in (1e5, 1e20, 1e100, 1e300):
        way = torch.tensor([3.0, -1.0, 0.5], dtype=DOUBLE)
        found = ball.project((size * way).reshape(1, 1, 3))[0, 0]
        expected = torch.tensor([1.0, 0.0, 0.0], dtype=DOUBLE) if p == 1 else way / way.norm()
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("clip", [None, (-0.5, 0.6)])
@pytest.mark.parametrize("p", NORMS)
def test_steps_reach_the_least_of_a_linear_function(p: float, clip: tuple[float, float] | None) -> None:
    centre, slope = random(2, 3, 4).clamp(-0.5, 0.6), random(2, 1, 3, 4, seed=4)
    for per_token in (False, True):
        ball = LpBall(centre, 0.8, p, clip=clip, per_token=per_token)
        least = ball.support(slope)
        x = ball.centre.unsqueeze(1)
        for i in range(60):
            x = ball.step(x, slope, 0.5 * (1 - i / 60))
        reached = (x * slope).flatten(2).sum(-1)
        assert (reached >= least - 1e-12).all()
        # exact but for clipped ℓ2, whose projection is not the nearest point
        torch.testing.assert_close(reached, least, atol=0.1 if clip and p == 2 else 1e-6, rtol=0)


@given(st.integers(0, 1 << 30), st.sampled_from(RADII[2:]), st.sampled_from([1, 2]), st.integers(1, 40))
@settings(deadline=None, max_examples=200)
def test_beyond_doubt_is_beyond_doubt(seed: int, eps: float, p: int, size: int) -> None:
    """The quick answers agree with rational arithmetic, at the rim itself and a few floats beside it."""
    ball = LpBall(random(1, size, seed=seed), eps, p)
    z = random(1, size, seed=seed + 1)
    z = z / (z.abs().sum() if p == 1 else z.norm())
    for share in (1.0, 1 - 1e-16, 1 - 1e-15, 1 - 1e-13, 1 + 1e-15, 1 + 1e-13, 0.5, 2.0):
        x = ball.centre + ball.eps * z * share
        exact = ball._in_ball(0, x[0], ball._members()[0])
        sure = in_balls(ball._offsets(x.unsqueeze(1)), Norm(p))
        assert exact or not bool(sure.inside)
        assert not exact or not bool(sure.outside)
        assert bool(ball.contains(x)) is (exact and bool(((x >= ball.lower) & (x <= ball.upper)).all()))


def test_a_reference_is_the_centre_of_a_box() -> None:
    lower, upper = torch.zeros(2, 3), torch.ones(2, 3)
    point = torch.tensor([[0.1, 0.2, 0.3], [0.0, 1.0, 0.5]])
    box = Box(lower, upper, reference=point)
    assert torch.equal(box.centre, point.double())
    assert torch.equal(box[1].centre, point[1:].double())
    assert torch.equal(Box(lower, upper).centre, torch.full((2, 3), 0.5, dtype=DOUBLE))
    assert Box(lower, upper).reference is None
    point[0, 0] = 0.9  # a copy
    assert box.reference is not None
    assert float(box.reference[0, 0]) == pytest.approx(0.1)
    for bad, message in (
        (point + 1, r"reference is 1.89\d+ at index \(0, 0\), outside the box from 0.0 to 1.0"),
        (point[:1], r"reference has shape \(1, 3\), lower \(2, 3\)"),
        (torch.full((2, 3), math.nan), "reference is nan"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Box(lower, upper, reference=bad)

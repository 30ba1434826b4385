"""1/σ between its linear bounds, wherever they touch, over boxes and over ellipsoids of generators."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, generator
from tests.ops.test_parallel import drawn, members
from vertex_softmax.ops.contract import Context
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.normalization import Normalize, NormRelaxation
from vertex_softmax.ops.rules import RowRule, Rules

D = 3
EPS = (1e-2, 1e-5, 1e-12)
PARALLEL = Rules(attention=RowRule.AFFINE, parallel=True)
TOUCHES = (-3.0, -1.0, -0.2, 0.0, 1e-6, 0.3, 1.0, 3.0)
SETS = ("box", "around zero", "at zero", "far", "thin", "point", "generators", "hull", "ellipsoid far", "beside")


def grid(box: Interval, count: int = 6) -> Tensor:
    """A dense grid of each box (BATCH, 2, D), (points, BATCH, 2, D)."""
    t = torch.tensor(list(itertools.product(torch.linspace(0, 1, count).tolist(), repeat=D)), dtype=torch.float64)
    return box.lower + t.reshape(-1, 1, 1, D) * (box.upper - box.lower)


def rows(kind: str, seed: int) -> tuple[Interval, Generators | None, Tensor]:
    """The box of y (BATCH, 2, D), its generators, and points of it."""
    if kind in {"generators", "hull", "ellipsoid far"}:
        made = drawn(seed, 2, D, scale=0.5)
        if kind == "ellipsoid far":
            made = made._replace(centre=made.centre + 5)
        ys = members((made,), 300, seed)[0]
        return (Interval(ys.amin(0), ys.amax(0)) if kind == "hull" else made.box()), made, ys
    if kind == "beside":  # a box made tighter since, that does not hold the generators' centre
        made = drawn(seed, 2, D, scale=6.0)
        ys = members((made,), 300, seed)[0]
        top = (ys - made.centre).sum((-2, -1)).argsort(0, descending=True)[:10]  # (10, BATCH)
        ys = ys[top, torch.arange(BATCH)]
        return Interval(ys.amin(0), ys.amax(0)), made, ys
    g = generator(seed)
    centre = torch.randn(BATCH, 2, D, generator=g, dtype=torch.float64)
    radius = torch.rand(BATCH, 2, D, generator=g, dtype=torch.float64)
    if kind == "around zero":
        centre = 0.3 * radius * centre.tanh()
    elif kind == "at zero":
        centre = radius
    elif kind == "far":
        centre = 100 + centre
    elif kind == "thin":
        radius = radius * torch.tensor([1.0, 1e-9, 0.0], dtype=torch.float64)
    elif kind == "point":
        radius = 0 * radius
    box = Interval(centre - radius, centre + radius)
    return box, None, grid(box)


def relax(op: Normalize, box: Interval, made: Generators | None) -> NormRelaxation:
    summary = None if made is None else op.summarise({0: made})
    found = op.relax(Context(boxes=(box,), summary=summary))
    assert isinstance(found, NormRelaxation)
    return found


def check_inverse(eps: float, kind: str, seed: int = 0) -> None:
    """low ≤ 1/σ ≤ high at every point, for every touch; and the band of parallel rules; and the range itself."""
    op = Normalize(eps)
    box, made, ys = rows(kind, seed)
    norm = relax(op, box, made)
    rho = (ys.square().mean(-1) + eps).rsqrt()
    ends = norm.inverse.lower.squeeze(1), norm.inverse.upper.squeeze(1)
    assert (rho >= ends[0] * (1 - 1e-12)).all(), f"{kind}: 1/σ below its range"
    assert (rho <= ends[1] * (1 + 1e-12)).all(), f"{kind}: 1/σ above its range"

    def line(slope: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        slope, at = slope.squeeze(1), at.squeeze(1)
        size = (slope.abs() * ys.abs()).sum(-1) + at.abs()
        return (slope * ys).sum(-1) + at, 1e-12 * (size + rho)

    for touch in TOUCHES:
        chosen = norm.with_parameters({"touch": torch.full_like(norm.touch, touch)})
        low, slack = line(*chosen.below())
        assert (low <= rho + slack).all(), f"{kind} touch {touch}: {float((low - rho).max()):.3g} above 1/σ"
        slope, middle, half = chosen._band(*chosen.below())
        at, slack = line(slope, middle)
        assert ((rho - at).abs() <= half.squeeze(1) + slack).all(), f"{kind} touch {touch}: beyond the band"
    high, slack = line(norm.high_slope, norm.high)
    assert (high >= rho - slack).all(), f"{kind}: the upper bound is {float((rho - high).max()):.3g} below 1/σ"


def check_touch(eps: float, kind: str, seed: int = 0, count: int = 1) -> None:
    """η·(y/σ) from below with every touch, per objective."""
    op = Normalize(eps, count)
    box, made, ys = rows(kind, seed)
    if count == 2:  # both rows are one
        box, ys = Interval(*(x.unsqueeze(1) for x in box)), ys.unsqueeze(2)
        made = None if made is None else Generators(*(x.unsqueeze(1) for x in made))
    g = generator(seed + 3)
    A = torch.randn(BATCH, 8, *ys.shape[2:], generator=g, dtype=torch.float64)
    A[:, 0], A[:, 1] = A[:, 0].abs(), -A[:, 1].abs()
    norm = relax(op, box, made)
    values = op.evaluate(ys)
    left = (A * values.unsqueeze(2)).flatten(3).sum(-1)
    for touch in (torch.tensor(TOUCHES), 6 * torch.rand(8, generator=g) - 3):
        chosen = norm.with_parameters(
            {"touch": touch.double().reshape(1, 8, 1).expand_as(norm.touch.expand(BATCH, 8, -1))}
        )
        step = chosen.backward(A)
        back = step.coefficients[0]
        assert back is not None
        right = (back * ys.unsqueeze(2)).flatten(3).sum(-1) + step.constant
        size = (A.abs() * values.abs().amax(0).unsqueeze(1) + back.abs() * ys.abs().amax(0).unsqueeze(1)).flatten(2)
        slack = 1e-12 * (size.sum(-1) + step.constant.abs())
        over = right - left - slack
        assert (over <= 0).all(), f"{kind}: a touch is {float(over.max()):.3g} above the objective"


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("eps", EPS)
def test_the_inverse_of_sigma(eps: float, kind: str) -> None:
    for seed in range(4):
        check_inverse(eps, kind, seed)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_touch_is_sound(eps: float, kind: str, count: int) -> None:
    for seed in range(4):
        check_touch(eps, kind, seed, count)


def test_without_eps_away_from_zero() -> None:
    for kind in ("far", "ellipsoid far"):
        check_inverse(0.0, kind)
        check_touch(0.0, kind)


def test_what_generators_say_of_a_norm() -> None:
    """|c·(y − c)| and |y − c|² of all members are at most what the summary says."""
    op = Normalize(1e-5)
    for seed in range(5):
        made = drawn(seed, 2, 5, scale=0.7)
        ys = members((made,), 400, seed)[0] - made.centre
        found = op.summarise({0: made})
        assert ((made.centre * ys).sum(-1).abs() <= found.along * (1 + 1e-12) + 1e-14).all()
        assert (ys.square().sum(-1) <= found.far * (1 + 1e-12) + 1e-14).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_row_next_to_0_whose_plane_is_rounding_alone(dtype: torch.dtype) -> None:
    """y_d/σ at the least y: σ there is as small as what the plane's two terms, which cancel, are rounded by."""
    unit, d = torch.finfo(dtype).eps, 5
    for seed in range(60):
        size = 0.5 + 2.5 * torch.rand(1, 1, d, generator=generator(seed), dtype=torch.float64)
        low = size * unit * 2 * torch.rand(size.shape, generator=generator(seed + 100), dtype=torch.float64)
        high = 2 * size
        low[..., -1] = high[..., -1] = 10 * unit
        box = Interval(low.to(dtype), high.to(dtype))
        A = torch.zeros(1, 1, 1, d, dtype=dtype)
        A[..., -1] = -1
        step = Normalize(0.0).relax(Context((box,))).backward(A)
        y = box.lower.double()
        assert step.constant is not None
        assert step.coefficients[0] is not None
        found = float(step.constant) + float((step.coefficients[0].double() * y).sum())
        true = -float(y[..., -1] / y.square().mean().sqrt())
        assert found <= true + 1e-2

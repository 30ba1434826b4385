"""A box cut by a half-space: least values against linear programs, points of the set, and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from tests.sets.test_region import box, coefficients, drawn
from vertex_softmax.sets import cut_region
from vertex_softmax.sets.cut_region import CutRegion
from vertex_softmax.sets.region import BoxRegion


def cut(share: float, seed: int = 0) -> CutRegion:
    """Boxes of which this share of the way of a linear function is left; one of its slopes is 0."""
    whole = box(seed=seed)
    slope = drawn(*whole.lower.shape, seed=seed + 2)
    slope[1].reshape(-1)[1] = 0
    least = torch.where(slope > 0, slope * whole.lower, slope * whole.upper).flatten(1).sum(-1)
    most = torch.where(slope > 0, slope * whole.upper, slope * whole.lower).flatten(1).sum(-1)
    return CutRegion(whole.lower, whole.upper, slope, least + share * (most - least))


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.03, 0.4, 0.97, 1.0, 1.5])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_the_least_value_is_that_of_a_linear_program(share: float, seed: int) -> None:
    region, A, constant = cut(share, seed), coefficients(3), drawn(3, 7, seed=7)
    found = region.support(A, constant)
    value, point = region.minimise(A, constant)
    for b in range(3):
        lower, upper, slope = (x[b].flatten().numpy() for x in (region.lower, region.upper, region.slope))
        limit = float(region.limit[b]) + 1e-12  # room for a program whose set is a point
        for s in range(7):
            c = A[b, s].flatten().numpy()
            done = linprog(c, slope[None], [limit], bounds=np.stack([lower, upper], 1), method="highs")
            assert done.status == 0
            want = float(constant[b, s]) + done.fun
            assert abs(float(found[b, s]) - want) < 1e-7
            assert abs(float(value[b, s]) - want) < 1e-7
    assert bool(((point >= region.lower.unsqueeze(1)) & (point <= region.upper.unsqueeze(1))).all())
    over = (point * region.slope.unsqueeze(1)).flatten(2).sum(-1) - region.limit.unsqueeze(1)
    assert float(over.max()) < 1e-12
    reached = constant + (A * point).flatten(2).sum(-1)
    torch.testing.assert_close(reached, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_no_point_of_the_set_is_below_the_least_value(dtype: torch.dtype) -> None:
    region = cut(0.3)
    region = CutRegion(*(x.to(dtype) for x in (*region.box, region.slope, region.limit)))
    A = coefficients(3).to(dtype)
    share = torch.rand(4000, *region.lower.shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
    x = region.lower + share.round(decimals=0) * (region.upper - region.lower)  # corners
    x = torch.cat([x, region.lower + share * (region.upper - region.lower)])
    inside = (region.slope * x).flatten(2).sum(-1) <= region.limit
    values = (A * x.unsqueeze(2)).flatten(3).sum(-1)
    values = torch.where(inside.unsqueeze(-1), values, torch.inf).amin(0)
    assert bool((region.support(A) <= values + 32 * torch.finfo(dtype).eps * (1 + values.abs())).all())


def test_it_is_never_below_the_box_and_the_box_where_nothing_is_cut() -> None:
    A = coefficients(3)
    for share in (0.1, 0.6, 1.0):
        region = cut(share)
        assert bool((region.support(A) >= BoxRegion(*region.box).support(A) - 1e-12).all())
    torch.testing.assert_close(region.support(A), BoxRegion(*region.box).support(A), rtol=1e-13, atol=1e-13)


def test_the_gradient_is_the_point_but_for_the_number_at_the_bend() -> None:
    region, A = cut(0.35), drawn(3, 5, 2, 3, seed=9).requires_grad_()
    region.support(A).sum().backward()
    assert A.grad is not None
    apart = (A.grad - region.minimise(A.detach())[1]).flatten(2).abs() > 1e-9
    assert int(apart.sum(-1).max()) <= 1
    out = torch.maximum(region.lower.unsqueeze(1) - A.grad, A.grad - region.upper.unsqueeze(1))
    assert float(out.max()) < 1e-14


def test_some_inputs_and_another_order() -> None:
    region, A = cut(0.3), coefficients(3)
    torch.testing.assert_close(region.at(slice(1, 2)).support(A[1:2]), region.support(A)[1:2])
    order = torch.randperm(6, generator=torch.Generator().manual_seed(0)).reshape(3, 2)
    moved = region.rearranged(order)
    assert isinstance(moved, CutRegion)
    torch.testing.assert_close(moved.support(A.flatten(2)[..., order]), region.support(A))


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.03, 0.4, 0.97, 1.0, 1.5])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_bins_give_almost_the_least_value_and_never_more(
    share: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = cut(share, 10)
    A = coefficients(3) * scale
    A[0, 0], A[1, 1] = 0.0, region.slope[1] * scale
    A[2, 2] = -region.slope[2] * scale
    exact = region.support(A)
    monkeypatch.setattr(cut_region, "SORTED", 0)
    found = region.support(A)
    size = (A.abs() * torch.maximum(region.lower.abs(), region.upper.abs()).unsqueeze(1)).flatten(2).sum(-1)
    assert bool((found <= exact + 1e-12 * size).all())  # multipliers are up to BINS times the coefficients
    assert bool((found >= exact - 5e-3 * size).all())
    assert bool((found >= BoxRegion(*region.box).support(A) - 5e-3 * size).all())


def test_bins_have_numbers_where_coefficients_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite coefficients, and a slope of 0: no multiplier is better than a NaN."""
    monkeypatch.setattr(cut_region, "SORTED", 0)
    region = cut(0.3)
    flat = CutRegion(*region.box, torch.zeros_like(region.slope), region.limit * 0)
    A = coefficients(3)
    torch.testing.assert_close(flat.support(A), BoxRegion(*region.box).support(A))
    A[0, 0].view(-1)[0] = torch.inf
    found = region.support(A)
    assert not bool(found[1:].isnan().any())
    assert not bool(found[0, 1:].isnan().any())

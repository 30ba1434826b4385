"""A tensor known to within an interval: no value between the ends is below a bound or outside a box."""

from __future__ import annotations

import pytest
import torch

from vertex_softmax.ops.contract import Context
from vertex_softmax.ops.enclosed import Enclosed
from vertex_softmax.ops.rules import RowRule, Rules


def drawn(shape: tuple[int, ...], width: float) -> Enclosed:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return Enclosed(lower, lower + width * torch.rand(shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("width", [0.0, 1e-15, 1.0, 1e6])
@pytest.mark.parametrize("diagonal", [None, 0, 1])
def test_no_value_is_below_the_bound(width: float, diagonal: int | None) -> None:
    op = drawn((3, 4), width)
    A = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ends = torch.where(A > 0, op.lower, op.upper)
    keep = [2 + d for d in range(2) if d != diagonal]
    least = (A * ends).sum(keep)
    step = op.relax(Context(boxes=())).backward(A, diagonal)
    size = (A.abs() * torch.maximum(op.lower.abs(), op.upper.abs())).sum(keep)
    assert step.coefficients == ()
    assert step.constant is not None
    assert step.constant.shape == least.shape
    assert bool((step.constant <= least + 1e-15 * size).all())
    assert bool((step.constant >= least - 1e-14 * size).all())
    parallel = op.relax(Context(boxes=(), rules=Rules(attention=RowRule.AFFINE, parallel=True))).backward(A, diagonal)
    assert parallel.constant is not None
    assert parallel.error is not None
    torch.testing.assert_close(parallel.constant - parallel.error, step.constant)


@pytest.mark.parametrize("width", [0.0, 1e-15, 1.0, 1e6])
def test_both_ends_are_in_the_zonotope_and_in_the_box(width: float) -> None:
    op = drawn((3, 4), width)
    zonotope, box = op.propagate((), (), "known"), op.interval()
    assert not zonotope.blocks
    for end in (op.lower, op.upper):
        assert bool(((end - zonotope.centre).abs() <= zonotope.slack).all())
        assert bool((box.lower <= end).all())
        assert bool((end <= box.upper).all())

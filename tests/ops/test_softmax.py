"""The linear softmax bounds where floats end: weights of 1e-300, subnormal ones, coefficients that undo them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.ops.cases import Case
from tests.ops.checks import backward, check_backward, concrete
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Log
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.ops.softmax import Softmax, probabilities


def grid(lower: Tensor, upper: Tensor, count: int = 200) -> Tensor:
    """Points (points, 1, K) of a box (1, K): all corners of few keys, and the interior."""
    g = torch.Generator().manual_seed(0)
    t = torch.rand(count, *lower.shape, generator=g, dtype=torch.float64)
    t = torch.cat([t, t.round()])
    return lower + t * (upper - lower)


@pytest.mark.parametrize(
    ("dtype", "gaps"), [(torch.float64, (40, 300, 355, 400, 650, 690, 705)), (torch.float32, (5, 40, 44, 60, 80, 86))]
)
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0, 3.0])
def test_log_softmax_however_small_the_weight(dtype: torch.dtype, gaps: tuple[int, ...], width: float) -> None:
    """log p needs p to relative precision: coefficients of 1/p on weights p of e^−gap."""
    for gap in gaps:
        lower = torch.tensor([[0.0, gap, 1.0]], dtype=dtype)
        box = Interval(lower, lower + width)
        op = Softmax()
        weights = op.interval(box)
        if bool((weights.lower < torch.finfo(dtype).tiny).any()):
            continue
        lines = backward(Log(), torch.tensor([[[1.0, 0, 0], [0, 0, 1]]], dtype=dtype), (weights,))
        step = backward(op, lines.coefficients[0], (box,))
        assert lines.constant is not None
        xs = grid(box.lower.double(), box.upper.double())
        found = concrete(step, [xs]) + lines.constant.double()
        true = xs.log_softmax(-1)[..., [0, 2]]
        slack = (1e-12 if dtype == torch.float64 else 1e-4) * gap
        assert (found <= true + slack).all(), (gap, float((found - true).max()))


@pytest.mark.parametrize(("dtype", "ends"), [(torch.float64, (600, 746)), (torch.float32, (80, 104))])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("rule", ["softmax", *RowRule])
def test_subnormal_weights(dtype: torch.dtype, ends: tuple[int, int], sign: float, rule: RowRule | str) -> None:
    """A weight between the smallest normal number and 0 has few digits, so its logarithm is no end of a chord."""
    for width in torch.linspace(*ends, 60, dtype=torch.float64).tolist():
        lower, upper = torch.tensor([[-width, 0.0]], dtype=dtype), torch.zeros(1, 2, dtype=dtype)
        A = torch.tensor([[[sign, 0.0]]], dtype=dtype)
        xs = grid(lower.double(), upper.double())
        xs = torch.cat([xs, lower.double()[None]])
        true = sign * xs.softmax(-1)[..., 0:1]
        if not isinstance(rule, RowRule):
            found = concrete(backward(Softmax(), A, (Interval(lower, upper),)), [xs])
        else:
            values = torch.tensor([[1.0], [0.0]], dtype=dtype)[None]
            box = (Interval(lower[None], upper[None]), Interval(values, values))
            step = backward(Attention(), A[..., :1, None], box, Rules(attention=rule))
            found = concrete(step, [xs[:, :, None], values[None].double()])
        assert (found <= true + (1e-13 if dtype == torch.float64 else 1e-6)).all(), (width, float((found - true).max()))


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e3, 1e6])
def test_scores_far_from_zero(offset: float) -> None:
    """Only differences of scores matter; a common offset costs rounding and nothing else."""
    case = Case(Softmax(), ((2, 4),), size=torch.ones_like)
    g = torch.Generator().manual_seed(1)
    centre = offset + torch.randn(3, 2, 4, generator=g, dtype=torch.float64)
    radius = torch.rand(3, 2, 4, generator=g, dtype=torch.float64)
    check_backward(case, (Interval(centre - radius, centre + radius),), Rules())


def test_one_key_far_above_the_others() -> None:
    """Its weight is 1 to rounding at one end and 0 at the other."""
    case = Case(Attention(), ((2, 3), (3, 2)), size=lambda _s, v: v.amax(-2, keepdim=True))
    g = torch.Generator().manual_seed(2)
    lower = torch.randn(3, 2, 3, generator=g, dtype=torch.float64)
    upper = lower + torch.rand(3, 2, 3, generator=g, dtype=torch.float64)
    for high in (30.0, 40.0, 300.0, 900.0):
        up = upper.clone()
        up[..., 0] += high
        low = lower.clone()
        low[:, 1, 0] += high  # the second row: certainly above
        values = torch.randn(3, 3, 2, generator=g, dtype=torch.float64)
        box = (Interval(low, up), Interval(values - 0.5, values + 0.5))
        for rule in RowRule:
            check_backward(case, box, dataclasses.replace(Rules(), attention=rule))


def test_an_offset_of_wide_rows_changes_nothing() -> None:
    """Each score is exact, and so are their differences: an offset of 10⁸ is no part of the answer."""
    row = torch.tensor([[0.25, -720.0, 0.5, 0.125]], dtype=torch.float64)
    plain, moved = (probabilities(Interval(row + x, row + x)) for x in (0.0, 2.0**27))
    for one, other in zip(plain, moved, strict=True):
        assert torch.equal(one, other)

"""Parabolas of ReLU: within their error at every number, and the error no larger than it must be."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.curves import Parabola, relu_parabola


def intervals(count: int, seed: int = 0) -> tuple[Tensor, Interval]:
    """Intervals of all kinds with 0 inside, and a centre for each, which need not lie inside."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.rand(2, count, generator=generator, dtype=torch.float64)
    ends = torch.where(torch.rand(2, count, generator=generator) < 0.3, ends.pow(8), ends)  # also very uneven ones
    lower, upper = -ends[0], ends[1]
    centre = (lower + upper) / 2 + 0.2 * torch.randn(count, generator=generator, dtype=torch.float64)
    return centre, Interval(lower, upper)


def left_over(parabola: Parabola, c: Tensor, x: Tensor) -> Tensor:
    away = x - c
    return x.relu() - (parabola.value + parabola.slope * away + parabola.curvature * away.square())


@pytest.mark.parametrize("mixed", [0.0, 0.1, 0.5, 2.0, torch.inf])
def test_every_number_is_within_the_error(mixed: float) -> None:
    c, box = intervals(4000)
    width = box.upper - box.lower
    parabola = relu_parabola(c, box, mixed * width.square() / 4)
    share = torch.linspace(0, 1, 301, dtype=torch.float64).unsqueeze(-1)
    points = torch.cat([box.lower + share * width, torch.zeros(1, len(c), dtype=torch.float64)])
    left = left_over(parabola, c, points).abs()
    rounding = 1e-14 * (1 + c.abs() + parabola.curvature * (1 + c.abs()).square())
    assert bool((left <= parabola.error + rounding).all())
    assert bool((left.amax(0) >= 0.99 * parabola.error - rounding).all())  # attained, so that no error is too large


def test_in_exact_arithmetic() -> None:
    """At a thousand points of some intervals, by fractions and without any tolerance but the float of the error."""
    c, box = intervals(12, seed=1)
    parabola = relu_parabola(c, box, torch.zeros_like(c))
    for i in range(len(c)):
        centre, low, up = (Fraction(float(x[i])) for x in (c, *box))
        value, slope, bow, error = (
            Fraction(float(x[i])) for x in (parabola.value, parabola.slope, parabola.curvature, parabola.error)
        )
        allowed = error * (1 + Fraction(1, 10**12)) + (up - low + abs(centre)) / 10**13
        for k in range(1001):
            x = low + (up - low) * k / 1000
            away = x - centre
            assert abs(max(x, Fraction(0)) - value - slope * away - bow * away * away) <= allowed


def test_symmetric_intervals_have_a_quarter_of_the_error_of_a_line() -> None:
    one = torch.ones(1, dtype=torch.float64)
    parabola = relu_parabola(0 * one, Interval(-one, one), 0 * one)
    assert float(parabola.error) == 1 / 16
    assert float(parabola.curvature) == 1 / 2
    line = relu_parabola(0 * one, Interval(-one, one), 10 * one)
    assert (float(line.curvature), float(line.error)) == (0, 1 / 4)


def test_no_other_parabola_is_better() -> None:
    """The least error over a fine grid of curvatures and slopes is the one that is taken."""
    for near in (1.0, 0.8, 0.5, 0.4, 0.25, 0.1, 0.02):
        low, up = torch.tensor([-near], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        taken = float(relu_parabola((low + up) / 2, Interval(low, up), 0 * low).error)
        x = torch.cat(
            [torch.linspace(-near, 0, 101, dtype=torch.float64), torch.linspace(0, 1, 101, dtype=torch.float64)]
        )
        g, b = torch.meshgrid(
            torch.linspace(0, 0.6, 61, dtype=torch.float64),
            torch.linspace(-0.2, 1.2, 141, dtype=torch.float64),
            indexing="ij",
        )
        rest = x.relu() - g.unsqueeze(-1) * x * x - b.unsqueeze(-1) * x
        best = float(((rest.amax(-1) - rest.amin(-1)) / 2).min())
        assert taken <= best + 1e-9
        assert taken >= best * 0.97


def test_decided_numbers_are_exact_and_missing_boxes_are_nan() -> None:
    nan = torch.nan
    lower = torch.tensor([0.0, 1.0, -2.0, -3.0, nan, -1.0], dtype=torch.float64)
    upper = torch.tensor([2.0, 3.0, -1.0, 0.0, nan, nan], dtype=torch.float64)
    c = torch.tensor([1.0, 2.0, -1.5, -1.0, 0.0, 0.0], dtype=torch.float64)
    parabola = relu_parabola(c, Interval(lower, upper), torch.ones_like(c))
    assert parabola.value[:4].tolist() == [1.0, 2.0, 0.0, 0.0]
    assert parabola.slope[:4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert not bool(parabola.curvature[:4].any() or parabola.error[:4].any())
    assert parabola.finite.tolist() == [True] * 4 + [False] * 2


def test_intervals_too_narrow_to_divide_by_are_not_finite() -> None:
    tiny = torch.tensor([5e-324], dtype=torch.float64)
    parabola = relu_parabola(0 * tiny, Interval(-tiny, tiny), 0 * tiny)
    assert not bool(parabola.finite.any()) or float(parabola.error) >= 0

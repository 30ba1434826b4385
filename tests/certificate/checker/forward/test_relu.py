"""Parabolas of ReLU against rationals, with no tolerance, and forms through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flint import fmpq

from tests.certificate import exact as network
from tests.certificate.checker.forward.test_ops import KINDS, argument, judge, picking
from tests.certificate.checker.helpers import Array, exact, module

relu, curves, forms = (module(f"forward.{name}") for name in ("relu", "curves", "forms"))
ProvedInterval = module("rounding").ProvedInterval
ENDS = (1e-12, 3e-7, 0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 40.0, 1e6)
TINY, HUGE = 1e-150, 1e150
positive = np.frompyfunc(network.CURVES["Relu"], 1, 1)


def points(low: float, up: float, slope: float, bow: float) -> list[fmpq]:
    """Rationals of an interval: its ends, 0, the turning points of both sides and many others."""
    lo, hi, a, g = exact(low), exact(up), exact(slope), exact(bow)
    found = [lo + (hi - lo) * k / 40 for k in range(41)] + [fmpq(0), lo / 2, hi / 2]
    if g != 0:
        found += [(1 - a) / (2 * g), -a / (2 * g)]
    return [x for x in found if lo <= x <= hi]


def left_of(x: fmpq, slope: float, bow: float) -> fmpq:
    """max(x, 0) − slope·x − bow·x², exactly."""
    return max(x, fmpq(0)) - exact(slope) * x - exact(bow) * x * x


def test_every_slope_and_every_curvature_is_sound() -> None:
    """The range holds what is left at every point, and the turning points are nearly attained."""
    rng = np.random.default_rng(0)
    for scale in (TINY, 1e-8, 1.0, 1e8, HUGE):
        low, up = -scale * rng.uniform(0, 1, 60) ** 3, scale * rng.uniform(0, 1, 60) ** 3
        slope = rng.uniform(-1, 2, 60)
        bow = rng.uniform(0, 2, 60) * rng.integers(0, 2, 60) / scale
        with np.errstate(all="ignore"):
            found = relu.deviation(low, up, slope, bow)
        for i in range(60):
            all_ = [left_of(x, slope[i], bow[i]) for x in points(low[i], up[i], slope[i], bow[i])]
            assert exact(found.lo[i]) <= min(all_), (scale, i)
            assert exact(found.hi[i]) >= max(all_), (scale, i)
            width = float(max(all_) - min(all_))
            assert found.hi[i] - found.lo[i] <= width * (1 + 1e-9) + 1e-300


def parabola_of(c: Array, box: Any, answers: dict[str, bool] | None = None, wide: Array | None = None) -> Any:
    """Of numbers that are linear in one input, with choices or by what looks better."""
    lines = np.zeros((2, 1, *c.shape))
    lines[0, 0] = (box.hi - box.lo) / 2
    zero = np.zeros_like(c)
    x = forms.Form(centre=c, blocks={forms.LINES: lines}, own=zero if wide is None else wide, slack=zero)
    pick = picking(answers) if answers is not None else lambda _, better: better
    with np.errstate(all="ignore"):
        return relu.parabola(x, box, box.reach(c), pick)


def is_above(p: Any, c: Array, box: Any) -> None:
    """|max(x, 0) − parabola| ≤ own + lost at every point of every box, in rationals."""
    for i in range(len(c)):
        for x in points(box.lo[i], box.hi[i], 0.5, p.bow[i] if np.isfinite(p.bow[i]) else 0.0):
            away = x - exact(c[i])
            at = exact(p.value[i]) + exact(p.slope[i]) * away + exact(p.bow[i]) * away * away
            assert abs(max(x, fmpq(0)) - at) <= exact(p.own[i]) + exact(p.lost[i]), (c[i], box.lo[i], box.hi[i], x)


ALL = [{name: bool(k >> i & 1) for i, name in enumerate(relu.BITS)} for k in range(8)]


@pytest.mark.parametrize("share", range(8))
def test_parabolas(share: int) -> None:
    """Every share of curvature over intervals of all forms and scales, with a centre anywhere."""
    rng = np.random.default_rng(share)
    low, up = (x.ravel() for x in np.meshgrid(ENDS, ENDS))
    box = ProvedInterval(-low, up)
    for c in (box.middle(), -low, up + 0.3, rng.uniform(-1, 1, low.size) * (low + up)):
        p = parabola_of(c, box, ALL[share])
        assert np.isfinite(np.stack([p.value, p.slope, p.bow, p.own, p.lost])).all()
        is_above(p, c, box)


def test_the_best_parabola() -> None:
    """A sixteenth of a symmetric interval's half width, where a line has a quarter; and better than a line anywhere."""
    full, none = (dict.fromkeys(relu.BITS, value) for value in (True, False))
    box = ProvedInterval(np.array([-1.0]), np.array([1.0]))
    assert parabola_of(np.zeros(1), box, full).own[0] == pytest.approx(1 / 16, rel=1e-12)
    assert parabola_of(np.zeros(1), box, none).own[0] == pytest.approx(1 / 4, rel=1e-12)
    low, up = (x.ravel() for x in np.meshgrid(ENDS[1:-1], ENDS[1:-1]))
    box = ProvedInterval(-low, up)
    bent, line = (parabola_of(box.middle(), box, a).own for a in (full, none))
    assert (bent < line).all()
    rng = np.random.default_rng(0)  # no other parabola has a smaller error
    for i in range(low.size):
        slope, bow = relu.between(-low[i], up[i], np.float64(1.0))
        far = max(low[i], up[i])
        others = slope + 0.2 * rng.standard_normal(200), np.abs(bow + 0.2 / far * rng.standard_normal(200))
        around = relu.deviation(np.full(200, -low[i]), np.full(200, up[i]), *others)
        assert ((around.hi - around.lo) / 2).min() >= bent[i] * (1 - 1e-9)


def test_less_curvature_where_the_rest_is_large() -> None:
    box = ProvedInterval(-np.ones(3), np.ones(3))
    bow = parabola_of(np.zeros(3), box, wide=np.array([0.0, 0.3, 1.0])).bow
    assert bow[0] == pytest.approx(0.5)
    assert bow[0] > bow[1] > bow[2] == 0


def test_where_the_sign_is_known_nothing_is_lost() -> None:
    lo = np.array([0.0, 1e-3, -2.0, -1e-300, 0.0, TINY, -HUGE])
    hi = np.array([1.0, 2.0, 0.0, -0.0, 0.0, HUGE, -TINY])
    box = ProvedInterval(lo, hi)
    c = box.middle()
    for answers in ALL:
        p = parabola_of(c, box, answers)
        on = lo >= 0
        assert (p.value == np.where(on, c, 0.0)).all()
        assert (p.slope == on).all()
        assert not np.stack([p.bow, p.own, p.lost]).any()


def test_scales_at_which_a_line_is_taken() -> None:
    """Curvatures at which products underflow are not used; the range is still right."""
    ends = np.array([TINY, 1e-12, 1e-300, HUGE, 1e-20, 1.0])
    box = ProvedInterval(-ends, ends * np.array([1, 1, 1, 1, 1e-20, 1e-100]))
    p = parabola_of(box.middle(), box, ALL[-1])
    assert (p.bow[[0, 1, 2, 3]] == 0).all()
    assert ((p.bow == 0) | ((p.bow >= relu.LEAST) & (p.bow <= relu.MOST))).all()
    is_above(p, box.middle(), box)


def test_what_is_not_finite_stays_so() -> None:
    """No number comes of a box without ends: the row is taken from the line, or from the box."""
    inf, nan = np.inf, np.nan
    lo, hi = np.array([-inf, -1.0, -inf, nan, -1.0, nan]), np.array([1.0, inf, inf, 1.0, nan, nan])
    for answers in ALL:
        p = parabola_of(np.zeros(6), ProvedInterval(lo, hi), answers)
        bad = ~np.isfinite(np.stack([p.value, p.slope, p.bow, p.own, p.lost])).all(0)
        assert bad.all()
    x = argument(np.random.default_rng(0), (2, 3), 0.4, 0.1, 0.1)
    box = x.box()
    box.lo[0, 1] = -inf
    with np.errstate(all="ignore"):
        found = curves.curved(x, "Relu", box, None, 2, 100, picking())
    assert not np.isfinite(found.rough[0, 1])
    assert np.isfinite(found.rough[1]).all()


def test_rows_whose_squares_overflow_take_the_line() -> None:
    x = argument(np.random.default_rng(0), (2, 3), 1e160, 0.0, 0.0)
    x.blocks[forms.LINES][..., 1, :] /= 1e160
    with np.errstate(all="ignore"):
        found = curves.curved(x, "Relu", x.box(), None, 2, 100, picking())
        line, _ = curves.bent(x, "Relu", x.box(), None)
    assert np.isfinite(found.rough).all()
    assert (found.blocks[forms.LINES][..., 0, :] == line.blocks[forms.LINES][..., 0, :]).all()
    assert found.blocks[forms.PAIRS][..., 1, :].any()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("round_", [False, True])
def test_forms_through_curves(kind: str, round_: bool) -> None:
    """All shares of curvature, on numbers of which most may have either sign."""
    closest = 0.0
    for share, scale in [*((k, 1.0) for k in (0, 3, 7)), (7, 1e-5), (7, 1e7)]:
        line, error, own = (scale * part for part in KINDS[kind])
        x = argument(np.random.default_rng(share), (2, 3), line, error, own, base=0.1 * scale)
        with np.errstate(all="ignore"):
            found = curves.curved(x, "Relu", x.box(), None, 2, 100, picking(ALL[share] | {"round": round_}))
        closest = max(closest, judge([x], found, lambda v: np.maximum(v, 0), positive, share, 600))
    assert closest > 0.2

"""Affine bounds of softmax rows: never above what any scores and values give."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.certificate.checker.helpers import PRECISION, Array, above, below, precisely
from tests.certificate.checker.rows_cases import (
    FAMILIES,
    Case,
    Interval,
    Mask,
    case,
    centred,
    log_softmax,
    rows,
    sampled,
)


def worst(s: Array, there: Mask, w: Any, a: Array, m: Array) -> arb:
    """The least Σ p_j w_j − a·s − m·w over w in its box, for one s."""
    logs, _ = log_softmax(list(s), there)
    total = arb(0)
    for j in range(len(s)):
        slope = (logs[j].exp() if j in logs else arb(0)) - arb(float(m[j]))
        total += (slope * arb(float(w.lo[j]))).min(slope * arb(float(w.hi[j])))
        if j in logs:
            total -= arb(float(a[j])) * arb(float(s[j]))
    return total


class Choice(NamedTuple):
    """What affine is given, for S objectives: w, a, m (S, n, K), mu (S, n, M)."""

    w: Any
    a: Array
    m: Array
    mu: Array


def choice(rng: np.random.Generator, row: Any, kind: str) -> Choice:
    """Boxes of w of every kind; a, m and mu as an optimiser would have them, or silly."""
    S, (n, keys), pieces = 6, row.visible.shape, row.low.shape[-2]
    shape = (S, n, keys)
    centre = rng.standard_normal(shape) * rng.choice([1.0, 100.0, 1e-6], (S, 1, 1)) + rng.choice(
        [0.0, 0.0, -5.0], (S, 1, 1)
    )
    width = np.array([0.0, 1e-9, 0.1, 3.0, 100.0, 0.0])[:, None, None] * rng.random(shape)
    w = Interval(centre - width, centre + width)
    m = np.broadcast_to(row.middle, shape).copy()
    mean = (m * centre).sum(-1, keepdims=True)
    mu = np.broadcast_to(mean, (S, n, pieces)) + 0.1 * rng.standard_normal((S, n, pieces)) * (pieces > 1)
    a = m * (centre - mean)
    if kind == "above":  # w − μ > 0: the least is between the ends of the range
        mu = np.broadcast_to((centre - width).min(-1, keepdims=True), (S, n, pieces)) - rng.random((S, n, pieces))
        a = m * (centre - mu.mean(-1, keepdims=True))
    if kind == "silly":
        a, m = rng.standard_normal(shape) * 3, rng.standard_normal(shape)
        mu = rng.standard_normal((S, n, pieces)) * 10
    if kind == "huge":
        a, m, mu = (
            rng.standard_normal(shape) * 1e9,
            rng.standard_normal(shape) * 1e6,
            rng.standard_normal((S, n, pieces)) * 1e8,
        )
    if kind == "nothing":
        a, m, mu = np.zeros(shape), np.zeros(shape), np.zeros((S, n, pieces))
    return Choice(w, np.where(row.visible, a, 0.0), m, mu)


def check_affine(rng: np.random.Generator, row: Any, known: Case, chosen: Choice, points: int = 2) -> int:
    found, done = rows.affine(row, *chosen), 0
    assert found.shape == chosen.w.lo.shape[:-1]
    for i in range(row.visible.shape[0]):
        for s in sampled(rng, known.scores.lo[i], known.scores.hi[i], points):
            for k in range(found.shape[0]):
                truth = worst(s, known.there[i], chosen.w[k, i], chosen.a[k, i], chosen.m[k, i])
                assert below(float(found[k, i]), truth), (k, i, s, found[k, i], truth)
                done += 1
    return done


@pytest.mark.parametrize("kind", ["usual", "above", "silly", "huge", "nothing"])
@pytest.mark.parametrize("family", FAMILIES)
@precisely
def test_affine_bounds(family: str, kind: str) -> None:
    rng = np.random.default_rng(6)
    for keys, pieces, masked in ((1, 1, False), (2, 3, False), (4, 1, False), (4, 2, True), (5, 4, False)):
        known = case(rng, family, 2, keys, masked)
        row = rows.rows(*known, None, pieces)
        assert check_affine(rng, row, known, choice(rng, row, kind)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["usual", "above", "silly", "huge", "nothing"])
@pytest.mark.parametrize("family", FAMILIES)
@precisely
def test_many_affine_bounds(family: str, kind: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(200 + seed)
        for keys, pieces, masked in itertools.product((1, 2, 3, 7), (1, 2, 4), (False, True)):
            known = case(rng, family, 2, keys, masked)
            row = rows.rows(*known, None, pieces)
            check_affine(rng, row, known, choice(rng, row, kind), 4)


@precisely
def test_affine_bounds_of_centred_scores() -> None:
    rng = np.random.default_rng(7)
    for keys, off, total, pieces in itertools.product((2, 4), (1.0, 1e-3), (1.0, 1.01), (1, 3)):
        known = centred(rng, keys, off, total)
        row = rows.rows(known.scores, known.there, (known.omega, known.box), pieces)
        for kind in ("usual", "above", "silly"):
            chosen = choice(rng, row, kind)
            found = rows.affine(row, *chosen)
            for s, k in itertools.product(known.points[:12], range(6)):
                assert below(
                    float(found[k, 0]), worst(s, known.there[0], chosen.w[k, 0], chosen.a[k, 0], chosen.m[k, 0])
                )


def attained(p: float, offset: float, value: float) -> tuple[Case, Choice, Array]:
    """Two keys, p and 1 − p, lse(s) = 0, a box of 2⁻⁴⁶, and a line that touches inside it at key 0.

    Then all that B loses is rounding: a wrong term of a series shows.
    """
    s = np.array([[math.log(p), math.log1p(-p)]])
    known = Case(Interval(s - 2.0**-46, s + 2.0**-46), np.ones((1, 2), dtype=bool))
    w = Interval(np.array([[[value + offset, offset]]]))
    a = np.array([[[value * p, 0.0]]])
    return known, Choice(w, a, np.zeros((1, 1, 2)), np.full((1, 1, 1), offset)), s


@precisely
def test_affine_bounds_where_they_are_attained() -> None:
    """At every place between two numbers of the grid of exponentials, from above and below."""
    count = 0
    for step, whole in itertools.product(np.linspace(-1, 1, 41), (0.05, 0.7, 3.0, 15.0, 30.0)):
        r = -(np.round(whole * 4096) + step / 2) / 4096
        for offset, value in ((0.0, 1.0), (-3.0, 0.37), (2.0, 800.0), (0.0, 1e-5)):
            known, chosen, s = attained(math.exp(r), offset, value)
            row = rows.rows(*known, None, 1)
            found = float(rows.affine(row, *chosen)[0, 0])
            truth = worst(s[0], known.there[0], chosen.w[0, 0], chosen.a[0, 0], chosen.m[0, 0])
            assert below(found, truth), (r, offset, value, found, truth)
            slack = value * math.exp(r) * (1e-13 + 1e-14 * abs(r)) + 1e-14 * abs(offset)
            assert above(found + slack, truth), (r, offset, value, found, truth)
            count += 1
    assert count == 820


@precisely
def test_affine_bounds_far_below_the_grid() -> None:
    """log(a/v) < −64, or a/v that underflows: the series is taken at the last number of the grid."""
    s = np.array([[-300.0, 0.0], [-80.0, 0.0], [-64.5, 0.0], [-2000.0, 0.0]])
    known = Case(Interval(s - 1, s + 1), np.ones((4, 2), dtype=bool))
    row = rows.rows(*known, None, 1)
    rng = np.random.default_rng(8)
    for scale in (1.0, 1e-200, 1e200, 1e300):
        v = np.full((3, 4, 2), scale)
        a = np.zeros((3, 4, 2))
        a[..., 0] = np.maximum(scale * np.exp(np.array([-300.0, -80.0, -64.5, -700.0])), 5e-324)
        for k, factor in enumerate((1.0, 2.0, 0.5)):
            a[k] *= factor
        chosen = Choice(Interval(v), a, np.zeros((3, 4, 2)), np.zeros((3, 4, 1)))
        check_affine(rng, row, known, chosen)


@precisely
def test_affine_bounds_of_numbers_that_are_tiny() -> None:
    """w − μ near the least floats: products underflow, and TINY pays."""
    rng = np.random.default_rng(9)
    known = case(rng, "ordinary", 3, 4)
    row = rows.rows(*known, None, 2)
    for scale in (2.0**-880, 2.0**-899, 2.0**-901, 2.0**-1000, 2.0**-1060, 2.0**-1074):
        usual = choice(rng, row, "above")
        chosen = Choice(Interval(usual.w.lo * scale, usual.w.hi * scale), usual.a * scale, usual.m, usual.mu * scale)
        check_affine(rng, row, known, chosen)


@precisely
def test_affine_bounds_of_scores_that_are_all_large() -> None:
    """Σ a is 0 to rounding, and not in truth: (Σ a) lse(s) is far more than what all else rounds."""
    rng = np.random.default_rng(15)
    for keys, top in itertools.product((2, 3, 7), (9e5, -9e5)):
        known = Case(Interval(np.full((20, keys), top)), np.ones((20, keys), dtype=bool))
        row = rows.rows(*known, None, 1)
        a = rng.standard_normal((4, 20, keys))
        a[..., -1] = -a[..., :-1].sum(-1)
        zero = np.zeros(a.shape)
        check_affine(rng, row, known, Choice(Interval(zero), a, zero, zero[..., :1]), 0)


@precisely
def test_affine_bounds_of_which_every_term_is_rounded() -> None:
    """(p_j − m_j) w_j with m_j the nearest float to p_j: all that is left of large numbers is what they round."""
    rng = np.random.default_rng(16)
    for keys in (1, 2, 5):
        known = case(rng, "points", 20, keys)
        row = rows.rows(*known, None, 1)
        w = rng.standard_normal((6, 20, keys)) * 1e9
        m = np.broadcast_to(row.e_low.middle()[:, 0], w.shape)
        check_affine(rng, row, known, Choice(Interval(w), 0 * w, m, 0 * w[..., :1]), 0)


@precisely
def test_affine_bounds_of_numbers_that_are_huge_where_p_underflows() -> None:
    """e^r lies between 0 and the least float: 1e300 times that is a lot, and 1e300 e^{-2000} is nothing."""
    s = np.array([[-2000.0, 0.0], [-745.0, 0.0], [-744.0, 0.0], [-710.0, 0.0]])
    known = Case(Interval(s), np.ones((4, 2), dtype=bool))
    row = rows.rows(*known, None, 1)
    w = np.zeros((4, 4, 2))
    w[..., 0] = np.array([1e300, -1e300, 1e10, 5e307])[:, None]
    check_affine(np.random.default_rng(0), row, known, Choice(Interval(w), 0 * w, 0 * w, w[..., 1:] * 0), 0)


@precisely
def test_affine_bounds_of_a_few_times_the_least_float() -> None:
    """Products p w are rounded to whole numbers of the least float, up too: only TINY pays for all of them."""
    for keys in range(1, 13):
        known = Case(Interval(np.zeros((1, keys))), np.ones((1, keys), dtype=bool))
        row = rows.rows(*known, None, 1)
        w = np.broadcast_to(5e-324 * np.arange(1.0, 31)[:, None, None], (30, 1, keys))
        check_affine(np.random.default_rng(0), row, known, Choice(Interval(w), 0 * w, 0 * w, 0 * w[..., :1]), 0)


@precisely
def test_affine_bounds_are_near_the_truth() -> None:
    """Points w, the gradient at the centre and a box of 1e-3: what is lost is of second order."""
    rng = np.random.default_rng(10)
    centre = rng.standard_normal((3, 5))
    known = Case(Interval(centre - 5e-4, centre + 5e-4), np.ones((3, 5), dtype=bool))
    row = rows.rows(*known, None, 1)
    c = rng.standard_normal((1, 3, 5))
    m = np.broadcast_to(row.middle, c.shape)
    mu = (m * c).sum(-1, keepdims=True)
    a = m * (c - mu)
    found = rows.affine(row, Interval(c), a, m * 0, mu)
    for i in range(3):
        truth = worst(centre[i], known.there[i], Interval(c[0, i]), a[0, i], 0 * m[0, i])
        assert below(float(found[0, i]), truth)
        assert above(float(found[0, i]) + 1e-5, truth)


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from(FAMILIES), st.floats(-6, 6))
def test_any_affine_bound(keys: int, pieces: int, seed: int, family: str, power: float) -> None:
    rng = np.random.default_rng(seed)
    known = case(rng, family, 1, keys, bool(seed % 2))
    row = rows.rows(*known, None, pieces)
    usual = choice(rng, row, ("usual", "above", "silly")[seed % 3])
    chosen = usual._replace(a=usual.a * 10.0**power, mu=usual.mu * rng.choice([1.0, -1.0, 0.0, 3.0]))
    with ctx.workprec(PRECISION):
        check_affine(rng, row, known, chosen, 1)

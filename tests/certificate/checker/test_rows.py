"""Rows of attention: ranges of log p, affine bounds and vertices, against Arb at corners and between them."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from flint import arb, ctx, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from certificate.checker.helpers import PRECISION, Array, above, below, exact, holds, module, precisely, rational

rows, rounding, file = module("rows"), module("rounding"), module("file")
Interval = rounding.Interval
Mask = NDArray[np.bool_]

FAMILIES = ("ordinary", "points", "tiny", "wide", "wider", "far", "farthest", "dominating", "equal")


class Case(NamedTuple):
    """Score boxes (n, K), and which keys there are."""

    scores: Any
    there: Mask


def case(rng: np.random.Generator, family: str, n: int, keys: int, masked: bool = False) -> Case:
    centre = rng.standard_normal((n, keys)) * 2
    if family in ("far", "farthest"):
        centre = rng.choice([-1.0, 1.0], (n, keys)) * rng.choice([1e4, 10.0], (n, keys)) + centre
        centre = np.clip(centre * (90 if family == "farthest" else 1), -9.9e5, 9.9e5)
    if family == "dominating":
        centre[:, 0] += rng.choice([40.0, 300.0, 900.0], n)
    if family == "equal":
        centre = np.zeros((n, keys))
    width = {"points": 0.0, "tiny": 1e-9, "wide": 20.0, "wider": 2000.0}.get(family, 2.0) * rng.random((n, keys))
    there = np.ones((n, keys), dtype=bool)
    if masked:
        there = rng.random((n, keys)) < 0.6
        there[np.arange(n), rng.integers(0, keys, n)] = True
        centre = np.where(there, centre, rng.choice([1e30, -1e9, 0.0, 50.0], (n, keys)))
    return Case(Interval(centre - width * rng.random((n, keys)), centre + width * rng.random((n, keys))), there)


def sampled(rng: np.random.Generator, lo: Array, hi: Array, count: int = 6) -> list[Array]:
    """Scores of one row: the corners that are extreme for some key, random corners, and random floats between."""
    keys = len(lo)
    found = [lo, hi]
    for j in range(keys):
        one = np.arange(keys) == j
        found += [np.where(one, lo, hi), np.where(one, hi, lo)]
    found += [np.where(rng.random(keys) < 0.5, lo, hi) for _ in range(count)]
    return found + [np.clip(lo + (hi - lo) * rng.random(keys), lo, hi) for _ in range(count)]


def log_softmax(s: list[Any], there: Mask) -> tuple[dict[int, arb], arb]:
    """log p_j of the keys there are, and lse(s): of floats or rationals."""
    keys = [int(j) for j in np.flatnonzero(there)]
    top = max(keys, key=lambda j: rational(s[j]))
    exps = {j: arb(rational(s[j]) - rational(s[top])).exp() for j in keys}
    total = sum((exps[j] for j in keys if j != top), arb(0)).log1p()
    logs = {j: arb(rational(s[j]) - rational(s[top])) - total for j in keys}
    others = sum((exps[j] for j in keys if j != top), arb(0))
    logs[top] = -others.log1p()
    return logs, arb(rational(s[top])) + total


def in_some_piece(row: Any, at: tuple[int, ...], logs: dict[int, arb]) -> bool:
    return any(
        all(below(float(row.low[at][m, j]), v) and above(float(row.high[at][m, j]), v) for j, v in logs.items())
        for m in range(row.low.shape[-2])
    )


# Ranges of log p


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("masked", [False, True])
def test_ranges_hold_at_every_point(family: str, masked: bool) -> None:
    rng = np.random.default_rng(0)
    with ctx.workprec(PRECISION):
        for keys, pieces in itertools.product((1, 2, 3, 6), (1, 2, 4)):
            given_ = case(rng, family, 3, keys, masked)
            row = rows.rows(*given_, None, pieces)
            assert row.low.shape == (3, pieces, keys)
            assert (row.low <= row.high).all()
            assert pieces > 1 or (row.high <= 0).all()  # a piece that is empty may be anything
            assert np.isfinite(row.low).all()
            for i in range(3):
                for s in sampled(rng, given_.scores.lo[i], given_.scores.hi[i], 3):
                    logs, lse = log_softmax(list(s), given_.there[i])
                    assert in_some_piece(row, (i,), logs), (family, keys, pieces, s)
                    assert above(float(row.most[i]), abs(lse))


@precisely
def test_ranges_are_sharp_in_one_piece() -> None:
    """Each end is log p_j at the corner that is extreme for key j."""
    rng = np.random.default_rng(1)
    for family, masked in itertools.product(("ordinary", "wide", "tiny", "dominating", "far"), (False, True)):
        given_ = case(rng, family, 4, 5, masked)
        row = rows.rows(*given_, None, 1)
        for i in range(4):
            lo, hi = given_.scores.lo[i], given_.scores.hi[i]
            for j in np.flatnonzero(given_.there[i]):
                one = np.arange(5) == j
                least = log_softmax(list(np.where(one, lo, hi)), given_.there[i])[0][int(j)]
                most = log_softmax(list(np.where(one, hi, lo)), given_.there[i])[0][int(j)]
                room = 1e-12 * (1 + abs(float(least)))
                assert below(float(row.low[i, 0, j]), least)
                assert above(float(row.low[i, 0, j]) + room, least)
                assert above(float(row.high[i, 0, j]), most)
                assert below(float(row.high[i, 0, j]) - room, most)


@precisely
def test_pieces_are_narrower() -> None:
    given_ = Case(Interval(np.full((1, 4), -2.0), np.full((1, 4), 2.0)), np.ones((1, 4), dtype=bool))
    widths = []
    for pieces in (1, 2, 4, 8):
        row = rows.rows(*given_, None, pieces)
        widths.append(float((row.high - row.low).mean()))
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 0.8 * widths[0]


@pytest.mark.parametrize("family", FAMILIES)
@precisely
def test_exponentials_of_the_ends_and_weights(family: str) -> None:
    """e_low and e_high hold e^low and e^high; weights hold e^l and e^u up to one factor per row."""
    rng = np.random.default_rng(2)
    given_ = case(rng, family, 3, 4, masked=True)
    row = rows.rows(*given_, None, 2)
    for at in np.ndindex(*row.low.shape):
        assert holds(row.e_low[at], arb(float(row.low[at])).exp())
        assert holds(row.e_high[at], arb(float(row.high[at])).exp())
    assert (row.e_low.lo >= 0).all()
    ((low, high),) = row.weights
    for i in range(3):
        known = []
        for interval, ends in ((low, given_.scores.lo), (high, given_.scores.hi)):
            for j in range(4):
                if given_.there[i, j]:
                    known.append((interval[i, j], arb(float(ends[i, j])).exp()))
                else:
                    assert interval.lo[i, j] == interval.hi[i, j] == 0
        for (a, x), (b, y) in itertools.product(known, repeat=2):
            assert not bool(arb(float(a.lo)) * y > arb(float(b.hi)) * x)
            assert float(a.lo) >= 0


@precisely
def test_the_middle_is_near_softmax() -> None:
    given_ = case(np.random.default_rng(3), "ordinary", 3, 4, masked=True)
    row = rows.rows(*given_, None, 1)
    for i in range(3):
        logs, _ = log_softmax(list(given_.scores.middle()[i]), given_.there[i])
        for j in range(4):
            assert abs(row.middle[i, j] - (float(logs[j].exp()) if j in logs else 0)) < 1e-9


def test_stacks_of_rows() -> None:
    rng = np.random.default_rng(4)
    flat = case(rng, "ordinary", 6, 4, masked=True)
    one = rows.rows(*flat, None, 2)
    shape = (2, 3, 4)
    stacked = rows.rows(
        Interval(flat.scores.lo.reshape(shape), flat.scores.hi.reshape(shape)), flat.there.reshape(shape), None, 2
    )
    assert (stacked.low.reshape(6, 2, 4) == one.low).all()
    assert (stacked.high.reshape(6, 2, 4) == one.high).all()
    assert (stacked.most.ravel() == one.most).all()
    c = rng.standard_normal((5, 2, 3, 4))
    assert (rows.vertex(stacked, c).reshape(5, 6) == rows.vertex(one, c.reshape(5, 6, 4))).all()
    w = Interval(c, c + 0.1)
    a, m, mu = np.where(stacked.there, c, 0), c * 0.3, rng.standard_normal((5, 2, 3, 2))
    flat_w = Interval(w.lo.reshape(5, 6, 4), w.hi.reshape(5, 6, 4))
    found = rows.affine(stacked, w, a, m, mu)
    other = rows.affine(one, flat_w, a.reshape(5, 6, 4), m.reshape(5, 6, 4), mu.reshape(5, 6, 2))
    assert (found.reshape(5, 6) == other).all()


def test_rows_that_are_not_accepted() -> None:
    ones = np.ones((1, 2), dtype=bool)
    for value in (1.1e6, -1.1e6, math.nan, math.inf):
        scores = Interval(np.array([[0.0, value]]))
        with pytest.raises(file.Rejected, match="scores beyond"):
            rows.rows(scores, ones, None, 1)
        with pytest.raises(file.Rejected, match="scores beyond"):
            rows.rows(Interval(np.zeros((1, 2))), ones, (np.full((1, 2), 0.5), scores), 1)
        rows.rows(scores, np.array([[True, False]]), None, 1)
    with pytest.raises(file.Rejected, match="all masked"):
        rows.rows(Interval(np.zeros((2, 2))), np.array([[True, True], [False, False]]), None, 1)
    with pytest.raises(file.Rejected, match="all masked"):
        rows.rows(Interval(np.zeros((2, 0))), np.ones((2, 0), dtype=bool), None, 1)


# Scores less a weighted mean


class Centred(NamedTuple):
    """A score box of one row, ω, a box of t = s − ω·s, and the scores for which both hold."""

    scores: Any
    there: Mask
    omega: Array
    box: Any
    points: list[Array]


def means(s: Array, omega: Array) -> list[fmpq]:
    mean = sum((exact(a) * exact(b) for a, b in zip(s, omega, strict=True)), fmpq(0))
    return [exact(x) - mean for x in s]


def centred(rng: np.random.Generator, keys: int, off: float, total: float, masked: bool = False) -> Centred:
    """Scores that shift together by up to 4, and apart by `off`; ω near softmax or not at all, with a given sum."""
    base = rng.standard_normal(keys) * 2
    there = np.ones(keys, dtype=bool) if not masked else np.arange(keys) < max(1, keys - 2)
    omega = np.where(there, np.exp(base), 0)
    omega = np.abs(omega * (1 + 0.2 * rng.standard_normal(keys) * (rng.random() < 0.5)))
    omega = np.where(there, rng.exponential(1, keys), 0) if rng.random() < 0.4 else omega
    omega = omega / omega.sum() * total
    points = [base + shift + off * rng.uniform(-1, 1, keys) for shift in rng.uniform(-4, 4, 14)]
    ends = [base + shift + off * rng.choice([-1.0, 1.0], keys) for shift in rng.uniform(-4, 4, 10)]
    points += ends
    scores = Interval(np.min(points, axis=0), np.max(points, axis=0))
    some = [means(s, omega) for s in points[5:]]
    lo = np.array([float(np.nextafter(float(arb(min(column))), -np.inf)) for column in zip(*some, strict=True)])
    hi = np.array([float(np.nextafter(float(arb(max(column))), np.inf)) for column in zip(*some, strict=True)])
    inside = [
        s for s in points if all(exact(a) <= t <= exact(b) for a, t, b in zip(lo, means(s, omega), hi, strict=True))
    ]
    return Centred(
        Interval(scores.lo[None], scores.hi[None]), there[None], omega[None], Interval(lo[None], hi[None]), inside
    )


@pytest.mark.parametrize("total", [1.0, 1 + 1e-9, 1 - 1e-4, 1.01, 0.97, 0.5, 3.0, 1e-3])
@pytest.mark.parametrize("off", [1.0, 1e-3, 1e-8, 0.0])
@precisely
def test_ranges_of_centred_scores(off: float, total: float) -> None:
    """Weights with a sum that is not 1 are right too, or refused where it is far from 1."""
    rng = np.random.default_rng(5)
    for keys, pieces, masked in itertools.product((1, 2, 4, 6), (1, 3), (False, True)):
        known = centred(rng, keys, off, total, masked)
        try:
            row = rows.rows(known.scores, known.there, (known.omega, known.box), pieces)
        except file.Rejected:
            assert abs(total - 1) > 0.1
            continue
        assert len(known.points) >= 10
        for s in known.points:
            logs, lse = log_softmax(list(s), known.there[0])
            assert in_some_piece(row, (0,), logs), (off, total, keys, pieces, s, known)
            assert above(float(row.most[0]), abs(lse))
            c = rng.standard_normal((1, 1, keys))
            value = sum((arb(float(c[0, 0, j])) * v.exp() for j, v in logs.items()), arb(0))
            assert below(float(rows.vertex(row, c)[0, 0]), value)
        if total == 1.0 and not masked and pieces == 1:
            assert ((row.high - row.low) <= 7 * off + 1e-6).all()


@precisely
def test_weights_that_are_not_all_positive_or_stand_at_masked_keys() -> None:
    """Then the mean of t is not known, and only the box itself is used."""
    known = Case(Interval(np.array([[0.0, 0.0, 10.0]])), np.array([[True, True, False]]))
    for omega, t in (
        (np.array([[0.5, 0.5, 1.0]]), np.array([[-10.0, -10.0, 0.0]])),
        (np.array([[0.5, 0.5, -1.0]]), np.array([[10.0, 10.0, 20.0]])),
        (np.array([[1.0, 0.0, 0.0]]), np.array([[0.0, 0.0, 10.0]])),
        (np.array([[2.0, -1.0, 0.0]]), np.array([[0.0, 0.0, 10.0]])),
    ):
        for pieces in (1, 2):
            row = rows.rows(*known, (omega, Interval(t)), pieces)
            logs, _ = log_softmax([0.0, 0.0, 10.0], known.there[0])
            assert in_some_piece(row, (0,), logs)
            assert below(float(rows.vertex(row, np.array([[[1.0, 3.0, -9.0]]]))[0, 0]), arb(2))


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.floats(-12, 0), st.floats(0.98, 1.02), st.integers(1, 4))
def test_any_centred_scores(keys: int, seed: int, power: float, total: float, pieces: int) -> None:
    known = centred(np.random.default_rng(seed), keys, 10.0**power, total)
    row = rows.rows(known.scores, known.there, (known.omega, known.box), pieces)
    with ctx.workprec(PRECISION):
        assert all(in_some_piece(row, (0,), log_softmax(list(s), known.there[0])[0]) for s in known.points)


# Affine bounds


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
    S, (n, keys), pieces = 6, row.there.shape, row.low.shape[-2]
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
    return Choice(w, np.where(row.there, a, 0.0), m, mu)


def check_affine(rng: np.random.Generator, row: Any, known: Case, chosen: Choice, points: int = 2) -> int:
    found, done = rows.affine(row, *chosen), 0
    assert found.shape == chosen.w.lo.shape[:-1]
    for i in range(row.there.shape[0]):
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


# Vertices


def least(known: Case, i: int, c: Array) -> arb:
    """min Σ p_j c_j over all vertices of one row's box."""
    keys = np.flatnonzero(known.there[i])
    ends = [[arb(float(end[i, j])) for j in keys] for end in (known.scores.lo, known.scores.hi)]
    top = max((e for both in ends for e in both), key=float)
    e = [[(x - top).exp() for x in both] for both in ends]
    best = None
    for corner in itertools.product((0, 1), repeat=len(keys)):
        mass = sum((e[side][k] for k, side in enumerate(corner)), arb(0))
        value = (
            sum((e[side][k] * arb(float(c[j])) for k, (side, j) in enumerate(zip(corner, keys, strict=True))), arb(0))
            / mass
        )
        best = value if best is None else best.min(value)
    assert best is not None
    assert best.is_finite()
    return best


def coefficients(rng: np.random.Generator, n: int, keys: int) -> Array:
    c = rng.standard_normal((7, n, keys)) * np.array([1.0, 1.0, 1e6, 1e-9, 1e-310, 1e300, 0.0])[:, None, None]
    c[1] = np.round(c[1])
    return c


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_vertices(family: str, masked: bool) -> None:
    rng = np.random.default_rng(11)
    with ctx.workprec(PRECISION if family not in ("wider", "farthest", "far", "dominating") else 4 * PRECISION):
        for keys in (1, 2, 3, 6):
            known = case(rng, family, 2, keys, masked)
            row = rows.rows(*known, None, 1)
            c = coefficients(rng, 2, keys)
            found = rows.vertex(row, c)
            assert found.shape == (7, 2)
            for k, i in np.ndindex(7, 2):
                truth = least(known, i, c[k, i])
                assert below(float(found[k, i]), truth), (family, keys, found[k, i], truth)
                if family in ("ordinary", "points", "tiny", "equal", "wide"):
                    scale = np.abs(c[k, i][known.there[i]]).max()
                    assert above(float(found[k, i]) + 1e-9 * scale + 1e-300, truth), (family, keys, found[k, i], truth)


@precisely
def test_a_vertex_is_never_above_by_one_float() -> None:
    """Boxes that are points: the value is a ratio, and what is returned is not above it."""
    rng = np.random.default_rng(12)
    known = case(rng, "points", 60, 3)
    c = rng.standard_normal((3, 60, 3))
    c[1] = np.abs(c[1])
    c[2] = 1 + c[2] * 1e-15
    found = rows.vertex(rows.rows(*known, None, 1), c)
    for k, i in np.ndindex(3, 60):
        truth = least(known, i, c[k, i])
        assert below(float(found[k, i]), truth)
        assert above(float(found[k, i]) + 1e-12 * np.abs(c[k, i]).max(), truth)


@precisely
def test_equal_coefficients_are_the_bound() -> None:
    known = case(np.random.default_rng(13), "wide", 4, 3, masked=True)
    row = rows.rows(*known, None, 1)
    for value in (1.0, -2.5, 1e300, 0.0, 5e-324):
        found = rows.vertex(row, np.where(known.there, value, -1e9)[None])
        assert (found <= value).all()
        assert (found >= value - 1e-9 * abs(value) - 5e-324).all()


@precisely
def test_no_candidate_above_the_least_value_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are put above what the search finds, by an ulp or by a lot: φ must see it."""
    rng, real = np.random.default_rng(17), rounding.rounding
    for family in ("ordinary", "wide"):
        known = case(rng, family, 25, 4, masked=True)
        row = rows.rows(*known, None, 1)
        c = rng.standard_normal((2, 25, 4))
        truths = [least(known, i, c[k, i]) for k, i in np.ndindex(2, 25)]
        for off in (0.0, 1e-18, 3e-18, 1e-17, 1e-16, 1e-12, 1e-6, 1e-3, 0.02, 0.3):
            monkeypatch.setattr(rows, "rounding", lambda n, off=off: -off if n == 1 else real(n))
            found = rows.vertex(row, c)
            assert all(below(float(x), truth) for x, truth in zip(found.ravel(), truths, strict=True)), off


@precisely
def test_vertices_where_floats_lose_the_weights() -> None:
    """Weights beside 1 that are below an ulp, and below the least float: what the search finds is not believed."""
    lo = np.array([[-38.0, -200.0, -200.0], [-60.0, -90.0, -300.0], [-700.0, -740.0, -800.0], [-800.0, -900.0, -900.0]])
    hi = np.array([[0.0, -38.0, -39.0], [0.0, -50.0, -45.0], [0.0, -700.0, -700.0], [0.0, -750.0, -790.0]])
    known = Case(Interval(lo, hi), np.ones((4, 3), dtype=bool))
    ways = ([1.0, 0.0, 0.5], [1.0, 0.9, -4.0], [-1.0, -2.0, -2.0], [1e9, 0.0, 1.0])
    c = np.stack([np.tile(row, (4, 1)) for row in ways])
    found = rows.vertex(rows.rows(*known, None, 1), c)
    for k, i in np.ndindex(4, 4):
        assert below(float(found[k, i]), least(known, i, c[k, i]))


@precisely
def test_vertices_of_wide_boxes_are_tight() -> None:
    """The minimum is 1/2; e^{-38} is lost beside 1, so that a search which starts with all at u would stay there."""
    known = Case(Interval(np.array([[-38.0, -60.0]]), np.array([[0.0, -38.0]])), np.ones((1, 2), dtype=bool))
    c = np.array([[[1.0, 0.0]]])
    truth = least(known, 0, c[0, 0])
    found = float(rows.vertex(rows.rows(*known, None, 1), c)[0, 0])
    assert below(found, truth)
    assert above(found + 1e-9, truth)


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.floats(-30, 30), st.floats(0, 20), st.floats(-1e6, 1e6)),
        min_size=1,
        max_size=6,
    )
)
def test_any_vertex(keys: list[tuple[float, float, float]]) -> None:
    lo, width, c = (np.array(x) for x in zip(*keys, strict=True))
    known = Case(Interval(lo[None], (lo + width)[None]), np.ones((1, len(keys)), dtype=bool))
    with ctx.workprec(PRECISION):
        found = rows.vertex(rows.rows(*known, None, 1), c[None, None])[0, 0]
        assert below(float(found), least(known, 0, c))


def test_vertices_of_many_keys_hold_at_random_corners() -> None:
    rng = np.random.default_rng(14)
    known = case(rng, "wide", 2, 200)
    c = rng.standard_normal((2, 2, 200))
    found = rows.vertex(rows.rows(*known, None, 1), c)
    with ctx.workprec(PRECISION):
        for k, i in np.ndindex(2, 2):
            lo, hi = known.scores.lo[i], known.scores.hi[i]
            for t in (found[k, i], found[k, i] + 0.01, found[k, i] + 0.1):
                s = np.where(c[k, i] > t, lo, hi)
                logs, _ = log_softmax(list(s), known.there[i])
                value = sum((v.exp() * arb(float(c[k, i, j])) for j, v in logs.items()), arb(0))
                assert below(float(found[k, i]), value)

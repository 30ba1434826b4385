"""Rows of attention: ranges of log p, affine bounds and vertices, against Arb at corners and between them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.certificate.checker.helpers import PRECISION, above, below, holds, precisely
from tests.certificate.checker.rows_cases import (
    FAMILIES,
    Case,
    Interval,
    case,
    centred,
    file,
    log_softmax,
    rows,
    sampled,
)


def in_some_piece(row: Any, at: tuple[int, ...], logs: dict[int, arb]) -> bool:
    return any(
        all(below(float(row.low[at][m, j]), v) and above(float(row.high[at][m, j]), v) for j, v in logs.items())
        for m in range(row.low.shape[-2])
    )


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
    a, m, mu = np.where(stacked.visible, c, 0), c * 0.3, rng.standard_normal((5, 2, 3, 2))
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

"""The exact vertex bound of a row: never above the least value, in exact arithmetic."""

from __future__ import annotations

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
    case,
    least,
    log_softmax,
    rounding,
    rows,
)


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

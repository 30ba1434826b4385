"""Ellipsoids hold what they are made of, in every direction: judged in rationals."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb, fmpq

from tests.certificate.checker.helpers import Array, exact, floats, module, precisely

ellipsoids, forms = module("forward.ellipsoids"), module("forward.forms")
FAMILIES = ("ordinary", "any scale", "tiny", "squares below the least", "powers")


def dots(columns: Array, eta: Array) -> list[fmpq]:
    """η·g for columns (..., d), flattened."""
    return [
        sum((exact(a) * exact(b) for a, b in zip(g, eta, strict=True)), fmpq(0))
        for g in columns.reshape(-1, columns.shape[-1])
    ]


def length(found: list[fmpq]) -> arb:
    return arb(sum((v * v for v in found), fmpq(0))).sqrt()


def reach(ellipsoid: object, row: int, eta: Array) -> arb:
    """scale √(ηᵀ matrix η)."""
    matrix, scale = ellipsoid.matrix[row], ellipsoid.scale[row]
    inner = [sum((exact(a) * exact(b) for a, b in zip(line, eta, strict=True)), fmpq(0)) for line in matrix]
    square = sum((v * exact(e) for v, e in zip(inner, eta, strict=True)), fmpq(0))
    assert square >= 0
    return arb(exact(scale)) * arb(square).sqrt()


def nearly_orthogonal(columns: Array, rng: np.random.Generator) -> list[Array]:
    """Random directions, one number alone, and directions that hardly see the columns."""
    flat = columns.reshape(-1, columns.shape[-1])
    size = np.abs(flat).max()
    found = [*rng.standard_normal((3, flat.shape[-1])), np.eye(flat.shape[-1])[0]]
    if size > 0 and np.isfinite(size):
        found += list(np.linalg.svd(flat / size)[2][-2:])
    return found


@precisely
@pytest.mark.parametrize("family", FAMILIES)
def test_around_a_form(family: str) -> None:
    rng = np.random.default_rng(2)
    rows, d = 2, 4
    blocks = {
        forms.LINES: floats(rng, family, (3, 1, rows, d)),
        forms.PAIRS: floats(rng, family, (1, 3, rows, d)),
        7: floats(rng, family, (2, 3, rows, d)) * np.array([1.0, 0.0])[:, None, None, None],
    }
    loose = np.abs(floats(rng, family, (rows, d))) * (rng.random((rows, d)) < 0.5)
    form = forms.Form(centre=np.zeros((rows, d)), blocks=blocks, own=loose, slack=np.zeros((rows, d)))
    with np.errstate(all="ignore"):
        found = ellipsoids.around(form)
    if not np.isfinite(found.matrix).all() or not np.isfinite(found.scale).all():
        assert family == "any scale"
        return
    for row in range(rows):
        everything = np.concatenate([x[:, :, row].reshape(-1, d) for x in blocks.values()])
        for eta in nearly_orthogonal(everything, rng):
            most = sum((length(dots(x, eta)) for key in (forms.LINES, 7) for x in blocks[key][:, :, row]), arb(0))
            along = dots(blocks[forms.PAIRS][0, :, row], eta)
            most += max(abs(arb(a * along[0] + b * along[1] + a * b * along[2])) for a in (-1, 1) for b in (-1, 1))
            most += sum((arb(exact(v) * abs(exact(e))) for v, e in zip(loose[row], eta, strict=True)), arb(0))
            assert not most > reach(found, row, eta), (family, row)


@precisely
def test_around_a_box() -> None:
    """Errors of single numbers alone: attained where all have the sign of η."""
    loose = np.array([[0.5, 2.0, 0.0]])
    form = forms.Form(centre=np.zeros((1, 3)), blocks={}, own=loose / 2, slack=loose / 2)
    found = ellipsoids.around(form)
    for eta in ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [-1.0, 1.0, 5.0]):
        most = sum((arb(exact(v) * abs(exact(e))) for v, e in zip(loose[0], eta, strict=True)), arb(0))
        assert not most > reach(found, 0, np.array(eta))


@precisely
@pytest.mark.parametrize("family", ["ordinary", "tiny", "squares below the least", "powers"])
def test_columns_and_sums(family: str) -> None:
    rng = np.random.default_rng(3)
    x, y = floats(rng, family, (2, 3, 4)), floats(rng, family, (2, 2, 4))
    with np.errstate(all="ignore"):
        a, b = ellipsoids.of_columns(x), ellipsoids.of_columns(y)
        both = ellipsoids.summed([a, b])
        times = np.abs(rng.standard_normal((5, 2)))
        times[0] = 0
        keys = ellipsoids.over_keys(times, a)
    for row in range(2):
        for eta in nearly_orthogonal(np.concatenate([x[row], y[row]]), rng):
            of_x, of_y = (sum((abs(arb(v)) for v in dots(z[row], eta)), arb(0)) for z in (x, y))
            assert not of_x > reach(a, row, eta)
            assert not of_x + of_y > reach(both, row, eta)
            assert not reach(a, row, eta) + reach(b, row, eta) > reach(both, row, eta)
    for i, eta in enumerate(rng.standard_normal((5, 4))):
        whole = sum((arb(exact(times[i, j])) * reach(a, j, eta) for j in range(2)), arb(0))
        assert not whole > reach(keys, i, eta)


@precisely
@pytest.mark.parametrize("family", ["ordinary", "any scale", "tiny", "powers"])
def test_factors(family: str) -> None:
    """L Lᵀ − M has no negative value, in the directions where it may have one."""
    rng = np.random.default_rng(4)
    d = 5
    flat = floats(rng, family, (4, d, d))
    flat[1, :, 2:] = 0  # of low rank
    flat[2] = 0
    with np.errstate(all="ignore"):
        matrix = ellipsoids.raised(flat @ np.swapaxes(flat, -1, -2), d)
        matrix[2] = 0
        matrix[3, 0, 1] = matrix[3, 1, 0] = 2 * max(matrix[3, 0, 0], matrix[3, 1, 1])  # not positive
        L = ellipsoids.factor(matrix)
    for k in range(4):
        if not np.isfinite(L[k]).all():
            continue
        size = np.abs(matrix[k]).max() or 1.0
        if not np.isfinite(size):
            continue
        vectors = np.linalg.eigh(matrix[k] / size)[1].T
        for eta in [*vectors, *rng.standard_normal((3, d))]:
            left = sum((v * v for v in dots(np.ascontiguousarray(L[k].T), eta)), fmpq(0))
            right = sum((v * exact(e) for v, e in zip(dots(matrix[k], eta), eta, strict=True)), fmpq(0))
            assert left >= right, (family, k)
    assert not L[2].any()


@precisely
def test_balls_hold_the_ellipsoid() -> None:
    rng = np.random.default_rng(6)
    d = 3
    x = rng.standard_normal((4, 2, d))
    x[1] = 0
    found = ellipsoids.of_columns(x)._replace(columns=None)
    zero = np.zeros((4, d))
    form = ellipsoids.with_error(forms.Form(centre=zero, blocks={}, own=zero, slack=zero), [found], 9)
    for row in range(4):
        for eta in rng.standard_normal((3, d)):
            balls = sum((length(dots(ball[:, row], eta)) for ball in form.blocks[9]), arb(0))
            balls += sum((arb(exact(s) * abs(exact(e))) for s, e in zip(form.slack[row], eta, strict=True)), arb(0))
            of_x = sum((abs(arb(v)) for v in dots(x[row], eta)), arb(0))
            assert not of_x > balls
    others = form.blocks[9].copy()
    for ball in others:
        assert sum(bool(ball[:, row].any()) for row in range(4)) == 1


def test_too_large_is_a_box() -> None:
    zero = np.zeros((2, 3))
    found = ellipsoids.of_columns(np.ones((2, 1, 3)))._replace(columns=None)
    form = forms.Form(centre=zero, blocks={}, own=zero, slack=zero)
    old, ellipsoids.MOST_SHAPES = ellipsoids.MOST_SHAPES, 10
    try:
        boxed = ellipsoids.with_error(form, [found], 9)
    finally:
        ellipsoids.MOST_SHAPES = old
    assert not boxed.blocks
    assert (boxed.own >= 1).all()
    assert (boxed.own < 1.001).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_stays_none(wrong: float) -> None:
    """An error that is not known is never taken for none."""
    fine = ellipsoids.of_columns(np.ones((2, 1, 3)))
    with np.errstate(all="ignore"):
        for times in (np.array([[1.0, wrong]]), np.array([[wrong, 0.0]])):
            found = ellipsoids.over_keys(times, fine)
            assert not np.isfinite(found.scale[0] * found.matrix[0]).all()
        spoiled = fine._replace(scale=np.array([1.0, wrong]))
        found = ellipsoids.summed([spoiled, fine])
        assert not np.isfinite(found.scale[1] * found.matrix[1]).all()
        assert np.isfinite(found.scale[0] * found.matrix[0]).all()
        zero = np.zeros((2, 3))
        form = ellipsoids.with_error(forms.Form(centre=zero, blocks={}, own=zero, slack=zero), [found], 9)
        assert not np.isfinite(form.rough[1]).any()
        assert not np.isfinite(fine.times(np.array([wrong, 1.0])).scale[0])
        matrix = fine.matrix.copy()
        matrix[0, 1, 2] = matrix[0, 2, 1] = wrong
        assert not np.isfinite(ellipsoids.factor(matrix)[0]).all()
        assert not np.isfinite(ellipsoids.ErrorEllipsoid(matrix, fine.scale).farthest()[0])


def test_columns_stay_apart() -> None:
    """One unknown for each column of each row, next to the ball of what is no sum of columns."""
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((4, 2, 3)), rng.standard_normal((4, 1, 3))
    x[1, 0] = 0
    zero = np.zeros((4, 3))
    ball = ellipsoids.of_columns(x)._replace(columns=None)
    errors = [ellipsoids.of_columns(x), ball, ellipsoids.of_columns(y)]
    form = ellipsoids.with_error(forms.Form(centre=zero, blocks={}, own=zero, slack=zero), errors, 9)
    alone = ellipsoids.with_error(forms.Form(centre=zero, blocks={}, own=zero, slack=zero), [ball], 9)
    assert sorted(form.blocks) == [9, 9 + ellipsoids.APART]
    assert (form.blocks[9] == alone.blocks[9]).all()
    columns = form.blocks[9 + ellipsoids.APART][:, 0]  # (balls, rows, d)
    assert len(columns) == 11
    for row in range(4):
        mine = columns[(columns[:, row] != 0).any(-1)][:, row]
        both = np.concatenate([x[row], y[row]])
        assert sorted(map(tuple, mine)) == sorted(map(tuple, both[(both != 0).any(-1)]))

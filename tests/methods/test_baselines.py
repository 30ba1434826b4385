"""The baselines are bounds for every valid box, in order of tightness, and equal to plain versions of themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vertex_softmax as vx
from vertex_softmax.methods.baselines import ibp_min, simplex_min, wei_lse_min
from vertex_softmax.softmax_box import reference

Floats = NDArray[np.float64]
Boxes = tuple[Floats, Floats, Floats]
BASELINES = (ibp_min, simplex_min, wei_lse_min)


def ordinary(rng: np.random.Generator, n: int, K: int) -> Boxes:
    centre, radius = rng.normal(size=(n, K)), 2 * rng.random((n, K))
    return rng.normal(size=(n, K)), centre - radius, centre + radius


def tiny(rng: np.random.Generator, n: int, K: int) -> Boxes:
    c, lower, _ = ordinary(rng, n, K)
    return c, lower, lower + np.exp(rng.uniform(-40, 0, (n, K)))


def wide(rng: np.random.Generator, n: int, K: int) -> Boxes:
    ends = np.sort(rng.uniform(-700, 700, (2, n, K)), axis=0)
    return rng.normal(size=(n, K)) * np.exp(rng.uniform(-8, 8, (n, K))), ends[0], ends[1]


def far(rng: np.random.Generator, n: int, K: int) -> Boxes:
    c, lower, upper = ordinary(rng, n, K)
    offset = rng.uniform(-700, 700, (n, 1))
    return c, lower + offset, upper + offset


def dominated(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """One key far above the others, so that 1 − p rounds to 0."""
    c, lower, upper = ordinary(rng, n, K)
    lower[:, 0] += 60
    upper[:, 0] += 60
    return c, lower, upper


def degenerate(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Points, ties, masks, coefficients of one sign and zeros."""
    lower = rng.integers(-3, 4, (n, K)).astype(np.float64)
    upper = lower + rng.integers(0, 3, (n, K)) * rng.random((n, 1))
    masked = rng.random((n, K)) < 0.25
    masked[np.arange(n), rng.integers(0, K, n)] = False
    c = rng.integers(-2, 3, (n, K)) * 0.5 + rng.integers(-3, 4, (n, 1))
    return c, np.where(masked, -np.inf, lower), np.where(masked, -np.inf, upper)


def points(rng: np.random.Generator, n: int, K: int) -> Boxes:
    c, lower, _ = wide(rng, n, K)
    return c, lower, lower.copy()


FAMILIES = (ordinary, tiny, wide, far, dominated, degenerate, points)


def batches(n: int) -> Iterator[Boxes]:
    rng = np.random.default_rng(7)
    for family, K in itertools.product(FAMILIES, (1, 2, 3, 5, 8, 17, 64)):
        yield family(rng, n, K)


def tolerance(c: Floats, lower: Floats, upper: Floats) -> Floats:
    """Rounding as the docstring of baselines.py states it, with the exact minimum's own."""
    width = np.where(upper > -np.inf, upper - np.where(upper > -np.inf, lower, 0), 0).max(-1)
    reach = np.abs(np.where(upper > -np.inf, upper, 0)).max(-1)
    return 2.0**-53 * (c.shape[-1] + width + reach + 20) * np.abs(c).max(-1) * (1 + width)


def test_no_baseline_is_above_the_exact_minimum_and_the_order_holds() -> None:
    boxes = 0
    for c, lower, upper in batches(600):
        exact = vx.softmax_box_min(c, lower, upper)
        ibp, simplex, wei = (baseline(c, lower, upper) for baseline in BASELINES)
        slack = tolerance(c, lower, upper)
        assert np.isfinite([ibp, simplex, wei]).all()
        assert (simplex >= ibp).all()
        assert (simplex <= exact + slack).all()
        assert (wei <= exact + slack).all()
        boxes += len(c)
    assert boxes > 25_000


def test_ibp_and_simplex_are_proved_lower_bounds_of_the_very_numbers() -> None:
    for c, lower, upper in batches(25):
        assert vx.is_lower_bound(ibp_min(c, lower, upper), c, lower, upper).all()
        assert vx.is_lower_bound(simplex_min(c, lower, upper), c, lower, upper).all()


def test_against_all_vertices_and_interior_points() -> None:
    rng = np.random.default_rng(3)
    for family in (ordinary, tiny, degenerate):
        for row in zip(*family(rng, 40, 5), strict=True):
            least = reference.exhaustive_min(*row)
            with np.errstate(invalid="ignore"):
                inside = np.where(row[1] == row[2], row[1], row[1] + rng.random((50, 5)) * (row[2] - row[1]))
            least = min(least, *(reference.ratio(row[0], scores) for scores in inside))
            for baseline in BASELINES:
                assert baseline(*row) <= least + 1e-14 * (1 + np.abs(row[0]).max())


def plain_simplex(c: Floats, lower: Floats, upper: Floats) -> float:
    p, most = reference.probabilities(lower, upper)
    for j in np.argsort(c):
        p[j] += min(most[j] - p[j], max(0.0, 1 - p.sum()))
    return float(c @ p)


def plain_wei(c: Floats, lower: Floats, upper: Floats) -> float:
    """F and its gradient as they are written, for boxes of moderate size without points."""
    K, s = len(c), (lower + upper) / 2
    least, greatest = reference.probabilities(lower, upper)
    chord = (np.exp(upper) - np.exp(lower)) / (upper - lower)
    mass = (np.exp(lower) + chord * (s - lower)).sum()
    low = np.exp(s) / mass
    low_gradient = np.diag(low) - np.outer(low, chord) / mass
    slope = (greatest - least) / (np.log(greatest) - np.log(least))
    high = least + slope * (s - np.log(np.exp(s).sum()) - np.log(least))
    high_gradient = slope[:, None] * (np.eye(K) - np.exp(s) / np.exp(s).sum())
    positive, negative = np.maximum(c, 0), np.minimum(c, 0)
    gradient = positive @ low_gradient + negative @ high_gradient
    return float(positive @ low + negative @ high - np.abs(gradient) @ (upper - lower) / 2)


@pytest.mark.parametrize(("baseline", "plain"), [(simplex_min, plain_simplex), (wei_lse_min, plain_wei)])
def test_equals_its_plain_version(baseline: Callable[..., Floats], plain: Callable[..., float]) -> None:
    rng = np.random.default_rng(5)
    for K in (2, 3, 6, 12):
        boxes = ordinary(rng, 60, K)
        expected = [plain(*row) for row in zip(*boxes, strict=True)]
        np.testing.assert_allclose(baseline(*boxes), expected, rtol=0, atol=2e-14 * K)


def test_ibp_equals_its_plain_version() -> None:
    c, lower, upper = ordinary(np.random.default_rng(6), 60, 7)
    for row, found in zip(zip(c, lower, upper, strict=True), ibp_min(c, lower, upper), strict=True):
        ends = reference.probabilities(row[1], row[2])
        assert found == pytest.approx(np.minimum(row[0] * ends[0], row[0] * ends[1]).sum(), abs=1e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_point_box_gives_the_value_at_the_point(baseline: Callable[..., Floats]) -> None:
    c, lower, upper = points(np.random.default_rng(8), 300, 9)
    exact = vx.softmax_box_min(c, lower, upper)
    found = baseline(c, lower, upper)
    assert (np.abs(found - exact) <= 2.0**-53 * 30_000 * np.abs(c).max(-1)).all()


@pytest.mark.parametrize("baseline", BASELINES)
def test_a_masked_key_is_as_if_it_were_not_there(baseline: Callable[..., Floats]) -> None:
    c, lower, upper = ordinary(np.random.default_rng(9), 200, 6)
    hidden = [np.insert(x, (0, 3, 6), value, axis=-1) for x, value in ((c, -50.0), (lower, -np.inf), (upper, -np.inf))]
    np.testing.assert_allclose(baseline(*hidden), baseline(c, lower, upper), rtol=0, atol=2e-12)


@pytest.mark.parametrize("baseline", BASELINES)
def test_shifting_all_scores_and_scaling_the_coefficients(baseline: Callable[..., Floats]) -> None:
    c, lower, upper = ordinary(np.random.default_rng(10), 200, 6)
    found = baseline(c, lower, upper)
    np.testing.assert_allclose(baseline(c, lower + 700, upper + 700), found, rtol=0, atol=1e-11)
    np.testing.assert_allclose(baseline(c * 2.0**1000, lower, upper) * 2.0**-1000, found, rtol=1e-15)
    np.testing.assert_allclose(baseline(c * 2.0**-900, lower, upper) * 2.0**900, found, rtol=1e-15)


@pytest.mark.parametrize("baseline", BASELINES)
def test_numbers_near_the_ends_of_the_floats(baseline: Callable[..., Floats]) -> None:
    huge, least = 1.7e308, 5e-324
    for c in ([huge, -huge, huge], [least, -least, 0.0], [huge, -1e-300, least]):
        for width in (0.0, 1.0, 1e4, 1e300, huge):
            lower, upper = np.full(3, -width), np.array([width, 0.0, width])
            found = baseline(np.array(c), lower, upper)
            slack = 1e-12 * max(map(abs, c)) if baseline is wei_lse_min else 0.0
            assert vx.is_lower_bound(float(found) - slack, np.array(c), lower, upper), (c, width)


@pytest.mark.parametrize("baseline", BASELINES)
def test_broadcasting_dtypes_and_tensors(baseline: Callable[..., Floats]) -> None:
    rng = np.random.default_rng(11)
    c = rng.normal(size=(5, 1, 4, 6))
    _, lower, upper = (x.reshape(3, 1, 6) for x in ordinary(rng, 3, 6))
    found = baseline(c, lower, upper)
    assert found.shape == (5, 3, 4)
    assert found.dtype == np.float64
    full = [np.broadcast_to(x, (5, 3, 4, 6)) for x in (c, lower, upper)]
    np.testing.assert_allclose(found, baseline(*full), rtol=1e-14)
    np.testing.assert_array_equal(found, baseline(*map(torch.from_numpy, (c, lower, upper))))
    single = [x.astype(np.float32) for x in (c, lower, upper)]
    np.testing.assert_array_equal(baseline(*single), baseline(*(x.astype(np.float64) for x in single)))
    assert baseline(c[:0], lower, upper).shape == (0, 3, 4)
    assert isinstance(baseline(c[0, 0, 0], lower[0, 0], upper[0, 0]), np.float64)


@pytest.mark.parametrize("baseline", BASELINES)
def test_bad_boxes_are_refused(baseline: Callable[..., Floats]) -> None:
    zero = np.zeros(3)
    for c, lower, upper in ((zero, zero + 1, zero), (zero + np.nan, zero, zero), (zero, zero - np.inf, zero - np.inf)):
        with pytest.raises(vx.VertexError):
            baseline(c, lower, upper)

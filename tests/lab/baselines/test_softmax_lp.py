"""Softmax-LP: what its module says of linear programs, and that the multipliers found are good ones, against HiGHS."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.optimize import linprog

import vertex_softmax as vx
from tests.lab.baselines.boxes import Floats, batches, ordinary, rounding
from vertex_lab.baselines import simplex_min, softmax_lp, softmax_lp_min, wei_lse_min
from vertex_softmax.runs.demo.baselines.problem import components, read
from vertex_softmax.runs.demo.baselines.wei import LsePlanes, planes


def by_highs(c: Floats, lower: Floats, upper: Floats) -> float:
    """The program as it is written: z in [−1, 1] for the scores, then p."""
    problem = read(c, lower, upper)
    tangents = planes(problem)
    below, slide, above = tangents.below, tangents.slide, tangents.above
    slope, middle, radius = tangents.slope, tangents.middle, tangents.radius
    K, own = len(c), np.diag(radius)
    planes_below = np.hstack([below[:, None] * (own - slide), -np.eye(K)])
    planes_above = np.hstack([-slope[:, None] * (own - middle * radius), np.eye(K)])
    found = linprog(
        np.r_[np.zeros(K), c],
        A_ub=np.vstack([planes_below, planes_above]),
        b_ub=np.r_[-below, above],
        A_eq=np.r_[np.zeros(K), np.ones(K)][None],
        b_eq=[1.0],
        bounds=[(-1, 1)] * K + list(zip(*components(problem), strict=True)),
        method="highs",
    )
    assert found.status == 0
    return float(found.fun)


def test_the_program_of_all_pairs_is_the_exact_minimum() -> None:
    rng = np.random.default_rng(1)
    for K in (2, 3, 5):
        for c, lower, upper in zip(*ordinary(rng, 15, K), strict=True):
            pairs = [(i, j) for i in range(K) for j in range(K) if i != j]
            rows = np.zeros((len(pairs), K))
            for row, (i, j) in zip(rows, pairs, strict=True):
                row[i], row[j] = np.exp(lower[j]), -np.exp(upper[i])
            found = linprog(c, A_ub=rows, b_ub=np.zeros(len(pairs)), A_eq=np.ones((1, K)), b_eq=[1.0], method="highs")
            assert found.fun == pytest.approx(float(vx.softmax_box_min(c, lower, upper)), abs=1e-9)


@pytest.mark.parametrize("width", [0.2, 1.0, 2.0])
def test_close_to_the_programs_optimum_and_not_above_it(width: float) -> None:
    rng = np.random.default_rng(2)
    for K in (2, 3, 6, 12):
        c, lower, upper = ordinary(rng, 25, K)
        lower, upper = lower * width, lower * width + (upper - lower) * width / 2
        best = np.array([by_highs(*row) for row in zip(c, lower, upper, strict=True)])
        found, exact = softmax_lp_min(c, lower, upper), vx.softmax_box_min(c, lower, upper)
        assert (found <= best + 1e-8).all()
        assert (best <= exact + 1e-8).all()
        lost = np.maximum(simplex_min(c, lower, upper), wei_lse_min(c, lower, upper))
        assert (best - found).mean() <= 0.1 * (best - lost).mean() + 1e-4
        assert (best - found).max() <= 0.02


def test_every_multiplier_gives_a_bound() -> None:
    """Weak duality, with multipliers that nobody would choose."""
    rng = np.random.default_rng(3)
    for c, lower, upper in batches(20, keys=(1, 3, 8)):
        problem = read(c, lower, upper)
        fine = ~problem.too_wide(2.0**20)
        problem = problem.tamed(2.0**20)
        tangents, (least, greatest) = planes(problem), components(problem)
        exact, slack = vx.softmax_box_min(c, lower, upper), rounding(c, lower, upper)
        for size in (1e-3, 1.0, 1e3):
            t, low, high = rng.normal(size=(len(c), 1)), *(size * rng.exponential(size=(2, *c.shape)))
            at = softmax_lp._Multipliers(t * size, low, high)
            dual = np.ldexp(softmax_lp._dual(problem.scaled, tangents, least, greatest, at), problem.exponent)
            assert (dual <= exact + 2 * slack)[fine].all()


def test_no_iteration_at_all_is_still_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_lp, "STEPS", 0)
    c, lower, upper = ordinary(np.random.default_rng(4), 50, 6)
    expected = np.maximum(simplex_min(c, lower, upper), wei_lse_min(c, lower, upper))
    np.testing.assert_array_equal(softmax_lp_min(c, lower, upper), expected)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = ordinary(np.random.default_rng(5), 30, 6)
    whole = softmax_lp_min(*boxes)
    monkeypatch.setattr(softmax_lp, "PIECE", 1)
    np.testing.assert_allclose(softmax_lp_min(*boxes), whole, rtol=0, atol=1e-12)


def _without_slides(problem: object) -> LsePlanes:
    found = planes(problem)  # type: ignore[arg-type]
    return dataclasses.replace(found, slide=np.zeros_like(found.slide))


def _lowered(problem: object) -> LsePlanes:
    found = planes(problem)  # type: ignore[arg-type]
    return dataclasses.replace(found, above=0.8 * found.above)


@pytest.mark.parametrize("mutant", [_without_slides, _lowered])
def test_wrong_planes_are_caught(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(softmax_lp, "planes", mutant)
    c, lower, upper = ordinary(np.random.default_rng(6), 400, 6)
    assert not (softmax_lp_min(c, lower, upper) <= vx.softmax_box_min(c, lower, upper) + 1e-12).all()

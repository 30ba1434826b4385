"""GaLileo-style: every choice it could make is a bound, its search finds good ones, and boxes may be shared."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import vertex_softmax as vx
from tests.lab.baselines.boxes import Floats, batches, ordinary, rounding
from vertex_lab.baselines import galileo, galileo_min
from vertex_lab.baselines.edge_planes import Boxes, EdgePlanes, edge_planes


def plain(c: Floats, lower: Floats, upper: Floats, grid: int) -> float:
    """The best of all choices, for one row."""
    found = [edge_planes(Boxes.of(lower[None], upper[None]), x) for x in np.linspace(0, 1, grid)]
    best = -np.inf
    for low, high, level in itertools.product(found, found, np.linspace(c.min(), c.max(), grid)):
        positive, negative = np.maximum(c - level, 0), np.minimum(c - level, 0)
        slope = positive @ low.slope[0] + negative @ high.slope[0]
        best = max(best, level + positive @ low.low[0] + negative @ high.high[0] - np.abs(slope).sum())
    return float(best)


def test_the_search_finds_good_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galileo, "GRID", 9)
    rng = np.random.default_rng(1)
    for K in (2, 4, 7):
        c, lower, upper = ordinary(rng, 12, K)
        best = np.array([plain(*row, 9) for row in zip(c, lower, upper, strict=True)])
        found, exact = galileo_min(c, lower, upper), vx.softmax_box_min(c, lower, upper)
        assert (best <= exact + 1e-13).all()
        assert (found <= exact + 1e-13).all()
        assert (best - found).mean() <= 0.15 * (exact - best).mean() + 1e-3  # found may be better: it begins between


def check_bounds() -> None:
    for c, lower, upper in batches(40, keys=(1, 2, 3, 6)):
        assert (galileo_min(c, lower, upper) <= vx.softmax_box_min(c, lower, upper) + rounding(c, lower, upper)).all()


@pytest.mark.parametrize(("grid", "rounds"), [(1, 1), (2, 1), (5, 3)])
def test_other_grids_and_rounds_are_bounds(grid: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galileo, "GRID", grid)
    monkeypatch.setattr(galileo, "ROUNDS", rounds)
    check_bounds()


def test_more_rounds_are_no_looser(monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = ordinary(np.random.default_rng(2), 60, 5)
    monkeypatch.setattr(galileo, "ROUNDS", 1)
    once = galileo_min(*boxes)
    monkeypatch.setattr(galileo, "ROUNDS", 3)
    assert (galileo_min(*boxes) >= once).all()


@pytest.mark.parametrize("piece", [1, 30, 1 << 8, 1 << 16])
def test_a_shared_box_is_as_good_as_a_repeated_one(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    c = rng.normal(size=(3, 1, 4, 5))
    _, lower, upper = (x.reshape(2, 1, 5) for x in ordinary(rng, 2, 5))
    whole = galileo_min(*(np.broadcast_to(x, (3, 2, 4, 5)).copy() for x in (c, lower, upper)))
    monkeypatch.setattr(galileo, "PIECE", piece)
    np.testing.assert_allclose(galileo_min(c, lower, upper), whole, rtol=0, atol=1e-14)


def test_a_span_beyond_600_is_trivial_and_below_it_is_not() -> None:
    c = np.array([1.0, 2.0, 4.0])
    for span, trivial in ((599.0, False), (601.0, True)):
        lower, upper = np.array([0.0, 0.0, -span]), np.array([0.0, 0.0, -span])
        assert galileo_min(c, lower, upper) == pytest.approx(1.0 if trivial else 1.5, abs=1e-12)


def _wrong_side(boxes: Boxes, share: float) -> EdgePlanes:
    found = edge_planes(boxes, share)
    return found._replace(low=found.high)


def _no_slopes(boxes: Boxes, share: float) -> EdgePlanes:
    found = edge_planes(boxes, share)
    return found._replace(slope=0 * found.slope)


@pytest.mark.parametrize("mutant", [_wrong_side, _no_slopes])
def test_wrong_planes_are_caught(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galileo, "edge_planes", mutant)
    with pytest.raises(AssertionError):
        check_bounds()


def test_the_least_value_of_a_plane_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(galileo, "_least", lambda a, b: a[0] + b[0])
    with pytest.raises(AssertionError):
        check_bounds()

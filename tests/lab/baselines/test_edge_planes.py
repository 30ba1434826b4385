"""Every plane of every component is on its side of it, everywhere in the box, and touches it or nearly so."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.lab.baselines.boxes import FAMILIES, Floats, inside, ordinary, span
from vertex_lab.baselines import edge_planes as module
from vertex_lab.baselines.edge_planes import WIDEST, Boxes, EdgePlanes, edge_planes
from vertex_softmax.runs.demo.baselines.problem import read

SHARES = (0.0, 0.37, 1.0)


def cases(n: int) -> Iterator[tuple[Floats, Floats, Boxes]]:
    rng = np.random.default_rng(1)
    for family in FAMILIES:
        for K in (1, 2, 3, 5, 9):
            problem = read(*family(rng, n, K)).tamed(WIDEST)
            yield problem.lower, problem.upper, Boxes.of(problem.lower, problem.upper)


def residual(s: Floats, lower: Floats, upper: Floats, boxes: Boxes, planes: EdgePlanes) -> Floats:
    """p_j − Σ_k slope_jk (s_k − m_k), (n, K), which must be between low and high."""
    y = np.exp(s - s.max(-1, keepdims=True))
    moving = boxes.radius > 0
    with np.errstate(invalid="ignore"):
        z = np.where(moving, (s - 0.5 * (lower + upper)) / np.where(moving, boxes.radius, 1.0), 0.0)
    return np.asarray(y / y.sum(-1, keepdims=True) - np.einsum("njk,nk->nj", planes.slope, z))


def slack(lower: Floats, upper: Floats, planes: EdgePlanes) -> Floats:
    """Rounding of the planes and of the residual, whose scores are not shifted."""
    reach = np.abs(np.where(upper > -np.inf, upper, 0.0)).max(-1)
    size = lower.shape[-1] + 20 + span(lower, upper) + reach
    return 2.0**-51 * size[:, None] * (1 + np.abs(planes.slope).sum(-1))


def check_sides(n: int = 40, points: int = 40) -> None:
    """Random points with many scores at their ends, then for each component a coordinate search for a violation."""
    rng = np.random.default_rng(2)
    for lower, upper, boxes in cases(n):
        for share in SHARES:
            planes = edge_planes(boxes, share)
            allowed = slack(lower, upper, planes)
            for _ in range(points):
                found = residual(inside(rng, lower, upper), lower, upper, boxes, planes)
                assert (planes.low <= found + allowed).all()
                assert (planes.high >= found - allowed).all()


def test_every_plane_is_on_its_side() -> None:
    check_sides()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_search_for_a_violation_finds_none_and_comes_close(sign: float) -> None:
    """Coordinate descent of ± the residual on a fine grid: the intercepts are nearly the best."""
    rng = np.random.default_rng(3)
    for K in (2, 3, 6):
        _, lower, upper = ordinary(rng, 25, K)
        boxes = Boxes.of(lower, upper)
        for share in SHARES:
            planes = edge_planes(boxes, share)
            limit = planes.low if sign > 0 else -planes.high
            for j in range(K):
                best = np.full(25, np.inf)
                for start in (lower, upper, 0.5 * (lower + upper), inside(rng, lower, upper)):
                    s = start.copy()
                    here = sign * residual(s, lower, upper, boxes, planes)[:, j]
                    for k in [*range(K), *range(K)]:
                        for part in np.linspace(0, 1, 21):
                            other = s.copy()
                            other[:, k] = lower[:, k] + part * (upper[:, k] - lower[:, k])
                            value = sign * residual(other, lower, upper, boxes, planes)[:, j]
                            s = np.where((value < here)[:, None], other, s)
                            here = np.minimum(value, here)
                    best = np.minimum(best, here)
                assert (limit[:, j] <= best + 1e-13).all()
                assert (best - limit[:, j]).mean() < 0.05


def test_slopes_are_those_of_the_edges_at_the_extreme_vertices() -> None:
    _, lower, upper = ordinary(np.random.default_rng(4), 20, 5)
    boxes, K = Boxes.of(lower, upper), 5
    for share, own, rest in ((0.0, lower, upper), (1.0, upper, lower)):
        slope = edge_planes(boxes, share).slope / boxes.radius[:, None, :]
        for j in range(K):
            vertex = np.where(np.arange(K) == j, own, rest)
            p = np.exp(vertex)
            p = p / p.sum(-1, keepdims=True)
            np.testing.assert_allclose(slope[:, j], p[:, [j]] * ((np.arange(K) == j) - p), rtol=1e-12, atol=1e-15)


def test_components_that_are_masked_or_alone() -> None:
    lower = np.array([[0.0, -np.inf, -np.inf], [-np.inf, 1.0, 2.0]])
    planes = edge_planes(Boxes.of(lower, lower + 1.0), 0.5)
    np.testing.assert_array_equal(planes.low[0], [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(planes.high[0], [1.0, 0.0, 0.0])
    assert not planes.slope[0].any()
    assert planes.low[1, 0] == planes.high[1, 0] == 0
    assert not planes.slope[1, 0].any()
    assert not planes.slope[1, :, 0].any()


def test_a_point_box_has_the_value_as_both_intercepts() -> None:
    _, lower, _ = ordinary(np.random.default_rng(5), 30, 6)
    planes = edge_planes(Boxes.of(lower, lower), 0.3)
    p = np.exp(lower)
    p = p / p.sum(-1, keepdims=True)
    np.testing.assert_allclose(planes.low, p, rtol=0, atol=1e-15)
    np.testing.assert_allclose(planes.high, p, rtol=0, atol=1e-15)


def _ends_only(own: Floats, sign: float) -> tuple[Floats, Floats, Floats]:
    return np.zeros(own.shape, bool), own, np.ones_like(own)


def _without_crossing(ends: tuple[Floats, Floats], masses: object, a: module._Cut, b: module._Cut) -> Floats:
    return np.maximum(ends[0] + a.gain, ends[1] + b.gain)


@pytest.mark.parametrize(
    ("name", "mutant", "pieces"), [("_stationary", _ends_only, 8), ("_piece", _without_crossing, 1)]
)
def test_an_incomplete_search_is_caught(
    name: str, mutant: object, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, mutant)
    monkeypatch.setattr(module, "PIECES", pieces)
    with pytest.raises(AssertionError):
        check_sides()


def test_few_pieces_are_still_on_the_right_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECES", 1)
    check_sides(points=10)

"""Wei-LSE equals a plain version of itself, and each of its planes bounds its component."""

from __future__ import annotations

import numpy as np

import vertex_softmax as vx
from tests.lab.baselines.boxes import FAMILIES, Floats, inside, ordinary, span
from vertex_lab.baselines import wei_lse_min
from vertex_softmax.runs.demo.baselines.problem import read
from vertex_softmax.runs.demo.baselines.wei import WIDEST, planes
from vertex_softmax.softmax_box import reference


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


def test_equals_its_plain_version() -> None:
    rng = np.random.default_rng(5)
    for K in (2, 3, 6, 12):
        boxes = ordinary(rng, 60, K)
        expected = [plain_wei(*row) for row in zip(*boxes, strict=True)]
        np.testing.assert_allclose(wei_lse_min(*boxes), expected, rtol=0, atol=2e-14 * K)


def test_every_plane_bounds_its_component() -> None:
    rng = np.random.default_rng(6)
    for family in FAMILIES:
        c, lower, upper = family(rng, 80, 6)
        problem = read(c, lower, upper).tamed(WIDEST)
        lower, upper = problem.lower, problem.upper
        tangents = planes(problem)
        below, slide, above = tangents.below, tangents.slide, tangents.above
        slope, middle, radius = tangents.slope, tangents.middle, tangents.radius
        slack = 2.0**-53 * (26 + span(lower, upper))[:, None]
        for _ in range(40):
            s = inside(rng, lower, upper)
            with np.errstate(invalid="ignore", divide="ignore"):
                z = np.where(radius > 0, (s - (0.5 * lower + 0.5 * upper)) / radius, 0.0)
            p = np.exp(s - s.max(-1, keepdims=True))
            p = p / p.sum(-1, keepdims=True)
            low = below * (1 + radius * z - (slide * z).sum(-1, keepdims=True))
            high = above + slope * (radius * z - (middle * radius * z).sum(-1, keepdims=True))
            assert (low <= p + slack * (1 + np.abs(low))).all(), family
            assert (high >= p - slack * (1 + np.abs(high))).all(), family


def test_scores_that_are_lost_beside_the_largest_one() -> None:
    """−800 and 1e5 are the same number after subtracting 3e299: the planes would be wrong, so the bound is trivial."""
    c, lower, upper = np.array([-0.06, -0.29]), np.array([-800.0, 1e5]), np.array([3e299, 1e5])
    assert wei_lse_min(c, lower, upper) == -0.29
    for width in (2.0**20, 2.0**21):
        row = (np.array([-0.06, -0.29]), np.array([-1.0, 0.0]), np.array([width, 0.0]))
        assert wei_lse_min(*row) <= vx.softmax_box_min(*row) + 2.0**-53 * width

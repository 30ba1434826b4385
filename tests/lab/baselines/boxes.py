"""Families of coefficients and score boxes that break bounds, and what rounding may cost on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Boxes = tuple[Floats, Floats, Floats]
"""c, lower, upper: (rows, K) each"""

HUGE, LEAST = 1.7e308, 5e-324


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


def bent(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """One key rises from far below the others to far above them: its share bends within the interval."""
    c, lower, upper = ordinary(rng, n, K)
    lower[:, 0] -= rng.uniform(0, 30, n)
    upper[:, 0] += rng.uniform(0, 30, n)
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


def nearly_equal(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Coefficients that differ in their last digits only."""
    _, lower, upper = ordinary(rng, n, K)
    return 1 + rng.normal(size=(n, K)) * 10.0 ** rng.uniform(-17, 0, (n, 1)), lower, upper


def enormous(rng: np.random.Generator, n: int, K: int) -> Boxes:
    """Scores to ±1e300 and intervals of every size, where adding 1 to a score changes nothing."""
    places = [-1e300, -1e17, -5e5, -1e4, -800.0, -740.0, -30.0, 0.0, 30.0, 700.0, 1e4, 1e17, 4e299]
    widths = [0.0, 1e-300, 1e-16, 1e-3, 1.0, 30.0, 745.0, 1e5, 1e17, 3e299]
    lower = rng.choice(places, (n, K))
    return rng.normal(size=(n, K)), lower, lower + rng.choice(widths, (n, K))


Family = Callable[[np.random.Generator, int, int], Boxes]
FAMILIES: tuple[Family, ...] = (
    ordinary,
    tiny,
    wide,
    far,
    dominated,
    bent,
    degenerate,
    points,
    nearly_equal,
    enormous,
)


def batches(n: int, keys: tuple[int, ...] = (1, 2, 3, 5, 8, 17, 64), seed: int = 7) -> Iterator[Boxes]:
    rng = np.random.default_rng(seed)
    for family, K in itertools.product(FAMILIES, keys):
        yield family(rng, n, K)


def span(lower: Floats, upper: Floats) -> Floats:
    """The greatest score less the least, of the keys that are not masked; (rows)."""
    return np.asarray(upper.max(-1) - np.where(upper > -np.inf, lower, np.inf).min(-1))


def rounding(c: Floats, lower: Floats, upper: Floats) -> Floats:
    """What baselines/__init__.py allows Wei-LSE and softmax-LP, the exact minimum's own rounding with it; (rows)."""
    return 2.0**-53 * (c.shape[-1] + 20 + np.minimum(span(lower, upper), 2.0**20)) * np.abs(c).max(-1)


def inside(rng: np.random.Generator, lower: Floats, upper: Floats) -> Floats:
    """A point in every box, each score at an end in three of five cases; the shape of the ends."""
    share = rng.random(lower.shape)
    share = np.where(rng.random(lower.shape) < 0.6, share.round(), share)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(lower == upper, lower, np.clip(lower + share * (upper - lower), lower, upper)))


def value(c: Floats, scores: Floats) -> Floats:
    """c · softmax(scores), (rows)."""
    y = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray((c * y).sum(-1) / y.sum(-1))

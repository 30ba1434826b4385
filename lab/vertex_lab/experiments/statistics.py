"""Comparing two methods on the same trials, and how far a difference may be chance.

Everything is computed from per-trial numbers; the denominator of each figure is returned beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 10_000
IMPROVED = 1e-9
"""A bound counts as improved if it is larger by more than this: below, the two differ by rounding."""


class Paired(NamedTuple):
    """b − a on the same trials."""

    trials: int
    mean: float
    median: float
    improved: float
    """the share of trials with b > a"""


class Resampled(NamedTuple):
    """The mean over seeds of a difference, and its percentile interval when the seeds are resampled."""

    seeds: int
    mean: float
    low: float
    high: float


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Differences of two methods' bounds on the same trials, in the same order.

    >>> paired([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 4.0, 3.0])
    Paired(trials=4, mean=0.75, median=0.5, improved=0.5)
    """
    differences = np.array([y - x for x, y in zip(a, b, strict=True)], np.float64)
    if not len(differences):
        return Paired(0, math.nan, math.nan, math.nan)
    improved = float((differences > IMPROVED).mean())
    return Paired(len(differences), float(differences.mean()), float(np.median(differences)), improved)


def only(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int]:
    """How many trials b certifies and a does not, and the reverse.

    >>> only([True, False, False], [False, True, True])
    (2, 1)
    """
    return (
        sum(y and not x for x, y in zip(a, b, strict=True)),
        sum(x and not y for x, y in zip(a, b, strict=True)),
    )


def resampled(by_seed: Mapping[int, float], *, level: float = 0.95, seed: int = 0) -> Resampled:
    """A mean over seeds with its percentile interval: `DRAWS` times as many seeds are drawn with replacement.

    With two or three seeds this says how stable a figure is and is no test of significance; with one, low = high.

    >>> resampled({0: 0.25, 1: 0.25})
    Resampled(seeds=2, mean=0.25, low=0.25, high=0.25)
    """
    values = np.array([by_seed[key] for key in sorted(by_seed)], np.float64)
    if not len(values):
        return Resampled(0, math.nan, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(0, len(values), (DRAWS, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return Resampled(len(values), float(values.mean()), float(low), float(high))


def near_zero(margins: Sequence[float], limit: float) -> int:
    """How many certified margins lie in (0, limit]: where rounding could have decided.

    >>> near_zero([-1.0, 5e-7, 1e-6, 2e-6], 1e-6)
    2
    """
    return sum(0 < margin <= limit for margin in margins)


def rate_error(rate: float, count: int) -> float:
    """The standard error √(r (1 − r)/n) of a rate of n trials.

    >>> rate_error(0.5, 100)
    0.05
    """
    return math.sqrt(rate * (1 - rate) / count) if count else math.nan


def mean_error(values: Sequence[float]) -> float:
    """The standard error of the mean of these values; NaN for fewer than two."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan

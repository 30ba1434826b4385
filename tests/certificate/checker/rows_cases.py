"""Rows of scores and their true extremes, for the tests of the checker's rows."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from flint import arb, fmpq
from numpy.typing import NDArray

from tests.certificate.checker.helpers import Array, exact, module, rational

rows, rounding, file = module("rows"), module("rounding"), module("file")


Interval = rounding.ProvedInterval


Mask = NDArray[np.bool_]


FAMILIES = ("ordinary", "points", "tiny", "wide", "wider", "far", "farthest", "dominating", "equal")


class Case(NamedTuple):
    """Score boxes (n, K), and which keys there are."""

    scores: Any
    there: Mask


def case(rng: np.random.Generator, family: str, n: int, keys: int, masked: bool = False) -> Case:
    centre = rng.standard_normal((n, keys)) * 2
    if family in ("far", "farthest"):
        centre = rng.choice([-1.0, 1.0], (n, keys)) * rng.choice([1e4, 10.0], (n, keys)) + centre
        centre = np.clip(centre * (90 if family == "farthest" else 1), -9.9e5, 9.9e5)
    if family == "dominating":
        centre[:, 0] += rng.choice([40.0, 300.0, 900.0], n)
    if family == "equal":
        centre = np.zeros((n, keys))
    width = {"points": 0.0, "tiny": 1e-9, "wide": 20.0, "wider": 2000.0}.get(family, 2.0) * rng.random((n, keys))
    there = np.ones((n, keys), dtype=bool)
    if masked:
        there = rng.random((n, keys)) < 0.6
        there[np.arange(n), rng.integers(0, keys, n)] = True
        centre = np.where(there, centre, rng.choice([1e30, -1e9, 0.0, 50.0], (n, keys)))
    return Case(Interval(centre - width * rng.random((n, keys)), centre + width * rng.random((n, keys))), there)


def sampled(rng: np.random.Generator, lo: Array, hi: Array, count: int = 6) -> list[Array]:
    """Scores of one row: the corners that are extreme for some key, random corners, and random floats between."""
    keys = len(lo)
    found = [lo, hi]
    for j in range(keys):
        one = np.arange(keys) == j
        found += [np.where(one, lo, hi), np.where(one, hi, lo)]
    found += [np.where(rng.random(keys) < 0.5, lo, hi) for _ in range(count)]
    return found + [np.clip(lo + (hi - lo) * rng.random(keys), lo, hi) for _ in range(count)]


def log_softmax(s: list[Any], there: Mask) -> tuple[dict[int, arb], arb]:
    """log p_j of the keys there are, and lse(s): of floats or rationals."""
    keys = [int(j) for j in np.flatnonzero(there)]
    top = max(keys, key=lambda j: rational(s[j]))
    exps = {j: arb(rational(s[j]) - rational(s[top])).exp() for j in keys}
    total = sum((exps[j] for j in keys if j != top), arb(0)).log1p()
    logs = {j: arb(rational(s[j]) - rational(s[top])) - total for j in keys}
    others = sum((exps[j] for j in keys if j != top), arb(0))
    logs[top] = -others.log1p()
    return logs, arb(rational(s[top])) + total


class Centred(NamedTuple):
    """A score box of one row, ω, a box of t = s − ω·s, and the scores for which both hold."""

    scores: Any
    there: Mask
    omega: Array
    box: Any
    points: list[Array]


def means(s: Array, omega: Array) -> list[fmpq]:
    mean = sum((exact(a) * exact(b) for a, b in zip(s, omega, strict=True)), fmpq(0))
    return [exact(x) - mean for x in s]


def centred(rng: np.random.Generator, keys: int, off: float, total: float, masked: bool = False) -> Centred:
    """Scores that shift together by up to 4, and apart by `off`; ω near softmax or not at all, with a given sum."""
    base = rng.standard_normal(keys) * 2
    there = np.ones(keys, dtype=bool) if not masked else np.arange(keys) < max(1, keys - 2)
    omega = np.where(there, np.exp(base), 0)
    omega = np.abs(omega * (1 + 0.2 * rng.standard_normal(keys) * (rng.random() < 0.5)))
    omega = np.where(there, rng.exponential(1, keys), 0) if rng.random() < 0.4 else omega
    omega = omega / omega.sum() * total
    points = [base + shift + off * rng.uniform(-1, 1, keys) for shift in rng.uniform(-4, 4, 14)]
    ends = [base + shift + off * rng.choice([-1.0, 1.0], keys) for shift in rng.uniform(-4, 4, 10)]
    points += ends
    scores = Interval(np.min(points, axis=0), np.max(points, axis=0))
    some = [means(s, omega) for s in points[5:]]
    lo = np.array([float(np.nextafter(float(arb(min(column))), -np.inf)) for column in zip(*some, strict=True)])
    hi = np.array([float(np.nextafter(float(arb(max(column))), np.inf)) for column in zip(*some, strict=True)])
    inside = [
        s for s in points if all(exact(a) <= t <= exact(b) for a, t, b in zip(lo, means(s, omega), hi, strict=True))
    ]
    return Centred(
        Interval(scores.lo[None], scores.hi[None]), there[None], omega[None], Interval(lo[None], hi[None]), inside
    )


def least(known: Case, i: int, c: Array) -> arb:
    """min Σ p_j c_j over all vertices of one row's box."""
    keys = np.flatnonzero(known.there[i])
    ends = [[arb(float(end[i, j])) for j in keys] for end in (known.scores.lo, known.scores.hi)]
    top = max((e for both in ends for e in both), key=float)
    e = [[(x - top).exp() for x in both] for both in ends]
    best = None
    for corner in itertools.product((0, 1), repeat=len(keys)):
        mass = sum((e[side][k] for k, side in enumerate(corner)), arb(0))
        value = (
            sum((e[side][k] * arb(float(c[j])) for k, (side, j) in enumerate(zip(corner, keys, strict=True))), arb(0))
            / mass
        )
        best = value if best is None else best.min(value)
    assert best is not None
    assert best.is_finite()
    return best

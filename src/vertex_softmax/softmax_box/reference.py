"""The theorem in readable form: numpy, float64, one row at a time.

For coefficients c and a score box [l, u], with weights y_j = e^{s_j} in [L_j, U_j] = [e^{l_j}, e^{u_j}],

    c · softmax(s) = R(y) = Σ c_j y_j / Σ y_j,

a ratio that is monotone in every single y_j. So its minimum sits at a vertex (Theorem 1), and after sorting c
ascending at one of the K + 1 *threshold* vertices τ_m: upper end on the m smallest coefficients, lower end on the rest
(Theorem 2). Everything else in this package computes the same number faster, or proves it.

These functions are for reading and for testing; they do not validate.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float64]


def ratio(c: Row, scores: Row) -> float:
    """c · softmax(scores), shifted by the largest score so that nothing overflows."""
    y = np.exp(scores - scores.max())
    return float(c @ y / y.sum())


def exhaustive_min(c: Row, lower: Row, upper: Row) -> float:
    """The smallest value over all 2^K vertices of the box (Theorem 1). For small K only."""
    corners = itertools.product(*zip(lower, upper, strict=True))
    return min(ratio(c, np.array(corner)) for corner in corners)


def threshold_min(c: Row, lower: Row, upper: Row) -> float:
    """The smallest of the K + 1 threshold values τ_m (Theorem 2, Algorithm 1)."""
    order = np.argsort(c, kind="stable")
    c, lower, upper = c[order], lower[order], upper[order]
    return min(ratio(c, np.concatenate([upper[:m], lower[m:]])) for m in range(len(c) + 1))


def phi(t: float, c: Row, lower: Row, upper: Row) -> float:
    """φ(t) = Σ_j min((c_j − t) L_j, (c_j − t) U_j), up to a positive factor: t is a lower bound iff φ(t) ≥ 0.

    φ is concave and decreasing, and its root is the minimum: φ(t) = min over y in the box of Σ (c_j − t) y_j, and
    Σ (c_j − t) y_j ≥ 0 for every y says exactly that R(y) ≥ t for every y.
    """
    a = upper.max()
    return float(np.minimum((c - t) * np.exp(lower - a), (c - t) * np.exp(upper - a)).sum())


def newton_min(c: Row, lower: Row, upper: Row) -> float:
    """The root of φ without a sort: t ← R(y(t)) with the upper end where c_j < t, else the lower end.

    This is Newton's method on φ (Dinkelbach's on R). Each t is the value of a vertex, t falls strictly until the
    vertex no longer changes, and there are finitely many vertices: it stops, and where it stops φ(t) = 0.

    In floating point it must not stop too early. On a wide box one key k can outweigh all others at its upper end; then
    R(y(t)) is c_k up to rounding, and if rounding leaves t one ulp above c_k, key k stays at its upper end, R(y(t)) is
    not below t, and t looks like the minimum although moving key k to its lower end might bring R far down. So the next
    vertex is taken at a probe, below t by more than the rounding error of R (at most K + 4 ulps of the mean of |c|); if
    the minimum is below the probe, R comes out below t there. Only where that does not help is it taken at t itself.
    """
    band = (len(c) + 10) * np.finfo(np.float64).eps / 2
    value, size, below = *_vertex(c, lower, upper, float(c.mean())), True
    while True:
        better, next_size = _vertex(c, lower, upper, value - band * size if below else value)
        if better < value:
            value, size, below = better, next_size, True
        elif below:
            below = False
        else:
            return value


def _vertex(c: Row, lower: Row, upper: Row, t: float) -> tuple[float, float]:
    """The value of the vertex y(t), and the mean of |c| there."""
    scores = np.where(c < t, upper, lower)
    return ratio(c, scores), ratio(np.abs(c), scores)


def probabilities(lower: Row, upper: Row) -> tuple[Row, Row]:
    """The range of every softmax component: p_j is least at (l_j, u elsewhere), greatest at (u_j, l elsewhere)."""
    one = np.eye(len(lower))
    least = np.array([ratio(one[j], np.where(one[j] > 0, lower, upper)) for j in range(len(lower))])
    greatest = np.array([ratio(one[j], np.where(one[j] > 0, upper, lower)) for j in range(len(lower))])
    return least, greatest


def choices_exhaustive_min(values: Row, scores: Row) -> float:
    """The least c · softmax(s) over all C^K combinations of one choice (score, value) per key; both are (K, C)."""
    keys = np.arange(len(values))
    combinations = itertools.product(range(values.shape[1]), repeat=len(values))
    return min(ratio(values[keys, list(choice)], scores[keys, list(choice)]) for choice in combinations)


def choices_phi(t: float, values: Row, scores: Row) -> float:
    """φ(t) = Σ_j min_c (v_jc − t) e^{s_jc}, up to a positive factor: t is a lower bound iff φ(t) ≥ 0.

    Every key's choice enters one summand only, so φ(t) is the minimum over all combinations of Σ_j (v_j − t) e^{s_j},
    and that is ≥ 0 exactly for those combinations with c · softmax(s) ≥ t.
    """
    return float(((values - t) * np.exp(scores - scores.max())).min(-1).sum())


# The arguments of the public affine_minorant.
def affine_minorant(lower: Row, upper: Row, value_lower: Row, value_upper: Row, a: Row, m: Row, mu: Row) -> float:
    """The affine vertex rule: B with Σ_j p_j v_j ≥ a·s + m·v + B over both boxes; one μ per piece of lse(s)'s range.

    With r = log p and D = lse(s), s = r + D. Since Σ p_j = 1, Σ_j p_j v_j − a·s − m·v is

        μ + Σ_j [(v_j − μ) e^{r_j} − a_j r_j − m_j v_j] − (Σa) D,

    and where D₀ ≤ D ≤ D₁ every summand is at least its own minimum over the r_j and v_j that occur there.
    """
    keys = [j for j in range(len(upper)) if upper[j] > -np.inf]
    masked = [j for j in range(len(upper)) if upper[j] == -np.inf]
    cuts = np.linspace(lse(lower), lse(upper), len(mu) + 1)
    totals = []
    for level, first, last in zip(mu, cuts[:-1], cuts[1:], strict=True):
        total = level - max(a.sum() * first, a.sum() * last)
        for j in keys:
            least = lower[j] - lse(np.where(np.arange(len(upper)) == j, lower, upper))
            greatest = upper[j] - lse(np.where(np.arange(len(upper)) == j, upper, lower))
            if len(mu) > 1:
                least, greatest = max(least, lower[j] - last), min(greatest, upper[j] - first)
            ends = (min(least, greatest), max(least, greatest))  # they cross by rounding only
            total += inner_min(ends, (value_lower[j], value_upper[j]), a[j], m[j], level)
        for j in masked:  # p_j = 0
            total += min(-m[j] * value_lower[j], -m[j] * value_upper[j])
        totals.append(float(total))
    return min(totals)


def lse(scores: Row) -> float:
    """log Σ_j e^{s_j} of the scores s."""
    return float(np.logaddexp.reduce(scores))


def inner_min(r_ends: tuple[float, float], v_ends: tuple[float, float], a: float, m: float, mu: float) -> float:
    """The least (v − μ) e^r − a r − m v for r and v between their ends.

    Linear in v, so v is at an end; then in r at an end, or where (v − μ) e^r = a.
    """
    candidates = []
    for v in v_ends:
        points = list(r_ends)
        if v > mu and a > 0:
            points.append(min(max(np.log(a) - np.log(v - mu), r_ends[0]), r_ends[1]))
        candidates += [(v - mu) * np.exp(r) - a * r - m * v for r in points]
    return float(min(candidates))

"""Rows of attention: Σ_j p_j w_j from below, p = softmax(s) for scores s in a box and numbers w in their own boxes.

Two rules, each sound for every value of what it is given:
- affine: Σ p_j w_j ≥ a·s + m·w + B. With r_j = log p_j and D = lse(s), a·s = a·r + (Σ a) D and Σ p_j = 1, so
  B = μ + Σ_j min of (w − μ) e^r − a_j r − m_j w over r in the range of log p_j and w in its box, less max (Σ a) D. That
  is linear in w: it sits at an end. For v = w − μ > 0 and a > 0, v e^r − a r is least where v e^r = a: there it is
  a (1 − log(a/v)), and everywhere at least that; log(a/v) = r₀ + log(1 + x) ≤ r₀ + x − x²/2 + x³/3 for any r₀, with
  1 + x = a / (v e^{r₀}). Else it is least at an end. The range of D may be cut into pieces, each with its own μ.
- vertex: t ≤ Σ p_j c_j for all scores in the box if and only if φ(t) = Σ_j e^{s_j} (c_j − t) ≥ 0 with s_j = l_j where
  c_j > t and u_j where not: every summand is then as small as it gets.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from .file import Rejected
from .rounding import DIGITS, MORE, TINY, Array, Interval, down, enclose, exp_on_grid, rounding, up

LARGEST_SCORE = 1e6
FEW = rounding(12)
"""The lemma for a handful of operations."""
SMALL = 2.0**-900


NEGLIGIBLE = 2000.0


def negligible(masked: Array, others: Array) -> None:
    """Reject unless every masked key has a weight below e⁻²⁰⁰⁰, from what its score is at most and others at least.

    (..., n, K) both, −inf where a key is none of them. Bounds take such a weight as 0. With K keys, of weight ϖ ≤
    K e⁻²⁰⁰⁰ together, Σ p_j w_j differs from the same sum over the others' softmax by at most 2 ϖ max |w_j|, which
    whoever uses it pays: 2⁻⁵³ Σ |w_j| is more, for any K that fits into memory.
    """
    gap = up(masked.max(-1) - others.max(-1))
    if not (gap <= -NEGLIGIBLE).all():
        raise Rejected("a masked key has a finite penalty, which is not proved to leave it no weight")


class Rows(NamedTuple):
    """What is known of log p_j over a score box: (..., n, M, K) in M pieces; masked keys have 0 and are not `there`."""

    there: NDArray[np.bool_]
    """(..., n, K)"""
    low: Array
    high: Array
    e_low: Interval
    e_high: Interval
    most: Array
    """(..., n): the largest |lse(s)|"""
    weights: tuple[tuple[Interval, Interval], ...]
    """e^l and e^u, up to a factor per row, of each box of the same scores, (..., n, K)"""
    middle: Array
    """softmax near the centre, (..., n, K): a place for default slopes"""


def rows(scores: Interval, there: NDArray[np.bool_], centred: tuple[Array, Interval] | None, pieces: int) -> Rows:
    """The ranges over a box of scores (..., n, K); `centred`: ω, and a box of t = s − ω·s."""
    boxes = (scores,) if centred is None else (scores, centred[1])
    for known in boxes:
        if not (known.size[there] <= LARGEST_SCORE).all() or not there.any(-1).all():
            raise Rejected(f"scores beyond {LARGEST_SCORE}, or a row of scores that are all masked")
    shape, keys = scores.lo.shape[:-1], scores.lo.shape[-1]
    low, high = (np.zeros((*shape, pieces, keys)) for _ in range(2))
    most = np.zeros(shape)
    before, ctx.prec = ctx.prec, DIGITS
    try:
        for at in np.ndindex(*shape):
            j = np.flatnonzero(there[at])
            log, sums = _ranges(scores.lo[at][j], scores.hi[at][j])
            most[at] = max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))
            box = (scores.lo[at][j], scores.hi[at][j])
            if centred is not None and (centred[0][at][j] > 0).all() and not centred[0][at][~there[at]].any():
                box = (centred[1].lo[at][j], centred[1].hi[at][j])
                log, sums = _centred(log, centred[0][at][j], box, scores.size[at][j])
            low[at][:, j], high[at][:, j] = _cut(log, box, sums, pieces)
    finally:
        ctx.prec = before
    e_low, e_high = enclose(arb.exp, low), enclose(arb.exp, high)
    weights = tuple(_weights(box, there) for box in boxes)
    with np.errstate(over="ignore", under="ignore"):
        centre = np.where(there, scores.middle(), -np.inf)
        middle = np.exp(centre - centre.max(-1, keepdims=True))
    middle /= middle.sum(-1, keepdims=True)
    return Rows(there, low, high, _positive(e_low), _positive(e_high), most, weights, middle)


def _positive(x: Interval) -> Interval:
    return Interval(np.maximum(x.lo, 0), x.hi)


def _weights(box: Interval, there: NDArray[np.bool_]) -> tuple[Interval, Interval]:
    """e^{l − c} and e^{u − c}, c the largest u of the row; 0 where masked."""
    c = np.where(there, box.hi, -np.inf).max(-1, keepdims=True)
    found = []
    for end in (box.lo, box.hi):
        off = Interval(np.where(there, end, c)) - c
        least, largest = enclose(arb.exp, off.lo).lo, enclose(arb.exp, off.hi).hi
        found.append(Interval(np.where(there, np.maximum(least, 0), 0.0), np.where(there, largest, 0.0)))
    return found[0], found[1]


def _float(x: arb, side: int) -> float:
    """The end of a ball, outward."""
    end = x.lower() if side < 0 else x.upper()
    found = float(end)
    if not np.isfinite(found):
        raise Rejected("a logarithm of a sum of exponentials is not finite")
    return float(np.nextafter(found, side * np.inf))


Balls = list[arb]


def _sums(e: Balls) -> tuple[Balls, arb]:
    """Of all but each one, and of all: by adding up only."""
    before, after = [arb(0)], [arb(0)]
    for x, y in zip(e, reversed(e), strict=True):
        before.append(before[-1] + x)
        after.append(after[-1] + y)
    n = len(e)
    return [before[i] + after[n - 1 - i] for i in range(n)], before[-1]


def _ranges(lo: Array, hi: Array) -> tuple[list[tuple[arb, arb]], tuple[arb, arb]]:
    """log p_j of every key from −log(1 + Σ_{k≠j} e^{u_k} / e^{l_j}) to the same with the ends exchanged; and of lse."""
    e_lo, e_hi = ([arb(float(x)).exp() for x in end] for end in (lo, hi))
    (others_lo, sum_lo), (others_hi, sum_hi) = _sums(e_lo), _sums(e_hi)
    log = [(-(others_hi[j] / e_lo[j]).log1p(), -(others_lo[j] / e_hi[j]).log1p()) for j in range(len(e_lo))]
    return log, (sum_lo.log(), sum_hi.log())


def _centred(
    log: list[tuple[arb, arb]], omega: Array, box: tuple[Array, Array], size: Array
) -> tuple[list[tuple[arb, arb]], tuple[arb, arb]]:
    """Narrower ranges from those of t = s − ω·s, of which p is the softmax too; and of lse(t).

    With q = ω/Σω, κ = q·t = (1 − Σω) ω·s / Σω (0 but for rounding) and H = −Σ q log q: lse(t) ≥ κ + H, and with
    d = t − log q − H − κ, so that q·d = 0, lse(t) = κ + H + log(1 + Σ q (e^d − 1 − d)); e^d − 1 − d is convex.
    """
    total = sum((arb(float(x)) for x in omega), arb(0))
    q = [arb(float(x)) / total for x in omega]
    reach = sum((arb(float(x)) * arb(float(y)) for x, y in zip(omega, size, strict=True)), arb(0))
    kappa = (1 - total) / total * arb(0, float(up(np.float64(float(reach.upper())))))  # type: ignore[arg-type]
    logs = [x.log() for x in q]
    base = kappa - sum((x * y for x, y in zip(q, logs, strict=True)), arb(0))
    curved = arb(0)
    for x, y, ends in zip(q, logs, zip(*box, strict=True), strict=True):
        d = [arb(float(t)) - y - base for t in ends]
        bends = [v.expm1() - v for v in d]
        curved += x * bends[0].max(bends[1]).max(arb(0))
    own, sums = _ranges(*box)
    least, largest = base.max(sums[0]), (base + curved.log1p()).min(sums[1])
    narrower = [
        (x[0].max(y[0]).max(arb(float(lo)) - largest), x[1].min(y[1]).min(arb(float(hi)) - least))
        for x, y, lo, hi in zip(log, own, *box, strict=True)
    ]
    return narrower, (least, largest)


def _cut(
    log: list[tuple[arb, arb]], box: tuple[Array, Array], sums: tuple[arb, arb], pieces: int
) -> tuple[Array, Array]:
    """Ends of log p_j, (M, K): in the piece [D, D'] of the range of lse it lies in [l_j − D', u_j − D] too."""
    low = np.array([_float(x, -1) for x, _ in log])
    high = np.minimum([_float(x, 1) for _, x in log], 0.0)
    cuts = np.linspace(_float(sums[0], -1), _float(sums[1], 1), pieces + 1)
    cuts[-1] = max(cuts[-1], _float(sums[1], 1))
    lows, highs = np.repeat(low[None], pieces, 0), np.repeat(high[None], pieces, 0)
    if pieces > 1:
        lows = np.maximum(lows, down(box[0] - cuts[1:, None]))
        highs = np.minimum(highs, up(box[1] - cuts[:-1, None]))
    return np.minimum(lows, highs), np.maximum(lows, highs)  # a piece that is empty may be anything


def affine(row: Rows, w: Interval, a: Array, m: Array, mu: Array) -> Array:
    """B: w, a, m (S, ..., n, K) and mu (S, ..., n, M) → (S, ..., n); a is 0 at masked keys."""
    slope, coefficient, level = a[..., None, :], m[..., None, :], mu[..., None]
    ends = []
    for end in (w.lo, w.hi):
        value = end[..., None, :]
        found = np.where(row.there[..., None, :], _least(value - level, slope, row), 0.0)
        rest = coefficient * value
        ends.append(found - rest - FEW * (np.abs(found) + np.abs(rest)))
    terms = np.minimum(*ends)
    keys = terms.shape[-1]
    total = mu + terms.sum(-1) - rounding(keys + 2) * (np.abs(mu) + np.abs(terms).sum(-1)) - TINY * 8 * keys
    drift = (np.abs(a.sum(-1)) + rounding(keys) * np.abs(a).sum(-1)) * row.most * MORE
    found = total.min(-1)
    return np.asarray(down(found - drift) - FEW * (np.abs(found) + drift))


def _least(v: Array, a: Array, row: Rows) -> Array:
    """At most v e^r − a r for r in [low, high]; v was rounded once."""
    up_ = v >= 0
    ends = []
    for r, e in ((row.low, row.e_low), (row.high, row.e_high)):
        grown, slope = v * np.where(up_, e.lo, e.hi), a * r
        ends.append(grown - slope - FEW * (np.abs(v) * e.hi + np.abs(slope)))
    found = np.minimum(*ends)
    # between the ends unless the derivative certainly has one sign there
    inside = up_ & (a > 0) & ~(v * row.e_low.lo * (1 - FEW) >= a) & ~(v * row.e_high.hi * (1 + FEW) <= a)
    small = inside & (v <= SMALL)  # then 0 < a < 2 v: both summands are ≥ 0, and a/v would underflow
    found = np.where(small, np.minimum(found, 0.0), found)
    at = np.broadcast_to(inside & ~small, found.shape)
    v_in, a_in = (np.broadcast_to(x, found.shape)[at] for x in (v, a))
    r0, e0 = exp_on_grid(np.log(a_in / v_in))
    x = a_in / (v_in * e0.lo) * (1 + FEW) - 1
    x = x + FEW * np.abs(x)
    log = r0 + (x - x * x / 2 + x * x * x / 3)
    bottom = a_in * (1 - log) - FEW * a_in * (1 + np.abs(r0) + np.abs(x) + x * x + np.abs(x * x * x))
    found[at] = np.where(np.isfinite(bottom), bottom, -np.inf)
    return np.asarray(found)


def vertex(row: Rows, c: Array) -> Array:
    """t ≤ Σ p_j c_j over each box, the best of them: (S, ..., n, K) → (S, ..., n)."""
    seen = np.where(row.there, c, np.inf)
    best = down(seen.min(-1))
    scale = np.where(row.there, np.abs(c), 0.0).max(-1)
    for low, high in row.weights:
        t = np.where(row.there, c, -np.inf).max(-1)
        for _ in range(40):  # at each vertex the value; it only falls, and stops at the least
            e = np.where(c >= t[..., None], low.lo, high.hi)
            mass = e.sum(-1)
            new = np.where(mass > 0, (e * c).sum(-1) / np.where(mass > 0, mass, 1.0), t)
            if not (new < t).any():
                break
            t = np.minimum(t, new)
        for step in (8.0, 1e3, 1e6):
            try_ = t - step * c.shape[-1] * rounding(1) * scale
            best = np.where(_phi(row, low, high, c, try_), np.maximum(best, try_), best)
    return np.asarray(best)


def _phi(row: Rows, low: Interval, high: Interval, c: Array, t: Array) -> NDArray[np.bool_]:
    """Is φ(t) certainly ≥ 0?"""
    off = np.where(row.there, c - t[..., None], 0.0)
    terms = off * np.where(off > 0, low.lo, high.hi)
    keys = c.shape[-1]
    return np.asarray(terms.sum(-1) >= rounding(keys + 4) * np.abs(terms).sum(-1) + TINY * 8 * keys)

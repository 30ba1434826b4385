"""Rows of attention: lower bounds of Σ_j p_j w_j, with p = softmax(s) for scores s in a box and w in a box of its own.

Two rules, each sound for every choice of its parameters:
- affine: Σ p_j w_j ≥ a·s + m·w + B. With r_j = log p_j and D = lse(s), a·s = a·r + (Σ a) D and Σ p_j = 1, so
  B = μ + Σ_j min of (w − μ) e^r − a_j r − m_j w over r in the range of log p_j and w in its box, less max (Σ a) D. That
  is linear in w: it sits at an end. For v = w − μ > 0 and a > 0, v e^r − a r is least where v e^r = a: there it is
  a (1 − log(a/v)), and everywhere at least that; log(a/v) = r₀ + log(1 + x) ≤ r₀ + x − x²/2 + x³/3 for any r₀, with
  1 + x = a / (v e^{r₀}). Else it is least at an end. The range of D may be cut into pieces, each with its own μ.
- vertex: t ≤ Σ p_j c_j for all scores in the box if and only if φ(t) = Σ_j e^{s_j} (c_j − t) ≥ 0 with s_j = l_j where
  c_j > t and u_j where not: every summand is then as small as it gets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from .file import Rejected
from .rounding import DIGITS, MORE, TINY, Array, ProvedInterval, down, enclose, exp_on_grid, rounding, up

LARGEST_SCORE = 1e6
"""Scores beyond this size are rejected."""
FEW = rounding(12)
"""The rounding lemma's factor for a handful of operations."""
SMALL = 2.0**-900
"""Values up to this size are bounded without dividing by them: a quotient might underflow."""
NEGLIGIBLE = 2000.0
"""How far below the largest score a masked key's score must be for its weight to count as 0."""


def negligible(masked: Array, others: Array) -> None:
    """Reject unless every masked key certainly has a softmax weight below e⁻²⁰⁰⁰.

    masked (..., n, K): upper bounds of the scores of masked keys, −inf at the others. others (..., n, K): lower bounds
    of the scores of the keys that are not masked, −inf at masked ones. Bounds take the weight of a masked key as 0.
    With K keys, of weight ϖ ≤ K e⁻²⁰⁰⁰ together, Σ p_j w_j differs from the same sum over the others' softmax by at
    most 2 ϖ max |w_j|, which the caller accounts for: 2⁻⁵³ Σ |w_j| is more, for any K that fits into memory.
    """
    gap = up(masked.max(-1) - others.max(-1))
    if not (gap <= -NEGLIGIBLE).all():
        raise Rejected("a masked key has a finite penalty, and its weight is not proved to be negligible")


@dataclass(frozen=True, kw_only=True, eq=False)
class SoftmaxRows:
    """Ranges of log p_j over a score box (..., n, K), p the softmax of each row, in M pieces of the range of lse(s).

    Entries of masked keys are 0 and have no meaning.
    """

    visible: NDArray[np.bool_]
    """(..., n, K): which keys are not masked"""
    low: Array
    """(..., n, M, K): a lower bound of log p_j in each piece"""
    high: Array
    """(..., n, M, K): an upper bound of log p_j in each piece"""
    e_low: ProvedInterval
    """(..., n, M, K): exp(low)"""
    e_high: ProvedInterval
    """(..., n, M, K): exp(high)"""
    most: Array
    """(..., n): an upper bound of |lse(s)|"""
    weights: tuple[tuple[ProvedInterval, ProvedInterval], ...]
    """e^l and e^u, up to a factor per row, of each box [l, u] that is known of the scores, (..., n, K)"""
    middle: Array
    """(..., n, K): softmax near the centre of the box, from which default slopes are taken"""

    def at(self, index: tuple[int, ...], which: NDArray[np.int64]) -> SoftmaxRows:
        """Some of the rows, of one index of what is before them: the row numbers `which`, (R,), as n rows."""

        def taken(x: Any) -> Any:
            return x[index][which]

        return SoftmaxRows(
            visible=taken(self.visible),
            low=taken(self.low),
            high=taken(self.high),
            e_low=taken(self.e_low),
            e_high=taken(self.e_high),
            most=taken(self.most),
            weights=tuple((taken(low), taken(high)) for low, high in self.weights),
            middle=taken(self.middle),
        )


def rows(
    scores: ProvedInterval, visible: NDArray[np.bool_], centred: tuple[Array, ProvedInterval] | None, pieces: int
) -> SoftmaxRows:
    """The ranges over a box of scores (..., n, K); `centred`: weights ω (..., n, K), and a box of t = s − ω·s."""
    boxes = (scores,) if centred is None else (scores, centred[1])
    for known in boxes:
        if not (known.size[visible] <= LARGEST_SCORE).all() or not visible.any(-1).all():
            raise Rejected(f"scores beyond {LARGEST_SCORE}, or a row of scores that are all masked")
    shape, keys = scores.lo.shape[:-1], scores.lo.shape[-1]
    low, high = (np.zeros((*shape, pieces, keys)) for _ in range(2))
    most = np.zeros(shape)
    old_precision, ctx.prec = ctx.prec, DIGITS
    try:
        for index in np.ndindex(*shape):
            unmasked = np.flatnonzero(visible[index])
            log, sums = _ranges(scores.lo[index][unmasked], scores.hi[index][unmasked])
            most[index] = max(abs(_float(sums[0], -1)), abs(_float(sums[1], 1)))
            box = (scores.lo[index][unmasked], scores.hi[index][unmasked])
            if (
                centred is not None
                and (centred[0][index][unmasked] > 0).all()
                and not centred[0][index][~visible[index]].any()
            ):
                box = (centred[1].lo[index][unmasked], centred[1].hi[index][unmasked])
                log, sums = _centred(log, centred[0][index][unmasked], box, scores.size[index][unmasked])
            low[index][:, unmasked], high[index][:, unmasked] = _cut(log, box, sums, pieces)
    finally:
        ctx.prec = old_precision
    e_low, e_high = enclose(arb.exp, low), enclose(arb.exp, high)
    weights = tuple(_weights(box, visible) for box in boxes)
    return SoftmaxRows(
        visible=visible,
        low=low,
        high=high,
        e_low=_positive(e_low),
        e_high=_positive(e_high),
        most=most,
        weights=weights,
        middle=middle_weights(scores, visible),
    )


def middle_weights(scores: ProvedInterval, visible: NDArray[np.bool_]) -> Array:
    """The softmax near the centre of a box of scores, (..., n, K); nothing depends on its rounding."""
    with np.errstate(over="ignore", under="ignore"):
        centre = np.where(visible, scores.middle(), -np.inf)
        middle = np.exp(centre - centre.max(-1, keepdims=True))
    return np.asarray(middle / middle.sum(-1, keepdims=True))


def _positive(x: ProvedInterval) -> ProvedInterval:
    """The interval with its lower end raised to 0: for numbers that are known to be ≥ 0."""
    return ProvedInterval(np.maximum(x.lo, 0), x.hi)


def _weights(box: ProvedInterval, visible: NDArray[np.bool_]) -> tuple[ProvedInterval, ProvedInterval]:
    """e^{l − c} and e^{u − c} of a score box [l, u], (..., n, K), with c the largest u of the row; 0 where masked."""
    c = np.where(visible, box.hi, -np.inf).max(-1, keepdims=True)
    exponentials = []
    for end in (box.lo, box.hi):
        off = ProvedInterval(np.where(visible, end, c)) - c
        least, largest = enclose(arb.exp, off.lo).lo, enclose(arb.exp, off.hi).hi
        exponentials.append(
            ProvedInterval(np.where(visible, np.maximum(least, 0), 0.0), np.where(visible, largest, 0.0))
        )
    return exponentials[0], exponentials[1]


def _float(x: arb, side: int) -> float:
    """The lower (side −1) or upper (side 1) end of an Arb ball as a float, rounded outward."""
    end = x.lower() if side < 0 else x.upper()
    value = float(end)
    if not np.isfinite(value):
        raise Rejected("a logarithm of a sum of exponentials is not finite")
    return float(np.nextafter(value, side * np.inf))


Balls = list[arb]


def _sums(e: Balls) -> tuple[Balls, arb]:
    """For each entry the sum of all other entries, and the sum of all; by additions only, so that nothing cancels."""
    before, after = [arb(0)], [arb(0)]
    for x, y in zip(e, reversed(e), strict=True):
        before.append(before[-1] + x)
        after.append(after[-1] + y)
    n = len(e)
    return [before[i] + after[n - 1 - i] for i in range(n)], before[-1]


def _ranges(lo: Array, hi: Array) -> tuple[list[tuple[arb, arb]], tuple[arb, arb]]:
    """The range of log p_j of every key, and the range of lse(s), over the scores of one row in [lo, hi].

    log p_j reaches from −log(1 + Σ_{k≠j} e^{u_k} / e^{l_j}) to the same with the ends exchanged.
    """
    e_lo, e_hi = ([arb(float(x)).exp() for x in end] for end in (lo, hi))
    (others_lo, sum_lo), (others_hi, sum_hi) = _sums(e_lo), _sums(e_hi)
    log = [(-(others_hi[j] / e_lo[j]).log1p(), -(others_lo[j] / e_hi[j]).log1p()) for j in range(len(e_lo))]
    return log, (sum_lo.log(), sum_hi.log())


def _centred(
    log: list[tuple[arb, arb]], omega: Array, box: tuple[Array, Array], size: Array
) -> tuple[list[tuple[arb, arb]], tuple[arb, arb]]:
    """Narrower ranges of log p_j from a box of t = s − ω·s, of which p is the softmax too; and the range of lse(t).

    log: the ranges known from the scores; size: the largest |s_j|.
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
    """The ends of log p_j in M pieces of the range of lse, (M, K) each.

    In the piece [D, D'], log p_j lies in [l_j − D', u_j − D] too.
    """
    low = np.array([_float(x, -1) for x, _ in log])
    high = np.minimum([_float(x, 1) for _, x in log], 0.0)
    cuts = np.linspace(_float(sums[0], -1), _float(sums[1], 1), pieces + 1)
    cuts[-1] = max(cuts[-1], _float(sums[1], 1))
    lows, highs = np.repeat(low[None], pieces, 0), np.repeat(high[None], pieces, 0)
    if pieces > 1:
        lows = np.maximum(lows, down(box[0] - cuts[1:, None]))
        highs = np.minimum(highs, up(box[1] - cuts[:-1, None]))
    # Where the ends cross, the piece is empty and any range is sound.
    return np.minimum(lows, highs), np.maximum(lows, highs)


def placed(row: SoftmaxRows, w: ProvedInterval, place: Array, slope: Array, level: Array) -> tuple[Array, Array, Array]:
    """Parameters a, m, μ of the affine rule by their places: place, slope (S, ..., n, K), level (S, ..., n, M).

    So the same few numbers serve many functionals w (S, ..., n, K) that are much alike. With places 0 of all three, m
    is the least weight, a the gradient and μ the value of the row at the centre. Any parameters are sound: nothing is
    rounded outward here.
    """
    low, high = row.low.min(-2), row.high.max(-2)
    p = np.where(row.visible, np.clip(row.middle, np.exp(low), np.exp(high)), 0.0)
    p = p / p.sum(-1, keepdims=True)
    centre = w.middle()
    value = (p * centre).sum(-1, keepdims=True)
    off = centre - value
    scale = np.abs(off).max(-1, keepdims=True) + (p * (w.hi - w.lo)).sum(-1, keepdims=True)
    off = off + slope * scale
    off = off - (p * off).sum(-1, keepdims=True)
    m = np.where(row.visible, np.exp(low + place * (high - low)), 0.0)
    return p * off, m, value + level * scale


def affine(row: SoftmaxRows, w: ProvedInterval, a: Array, m: Array, mu: Array) -> Array:
    """The constant B of the affine rule: w, a, m (S, ..., n, K) and mu (S, ..., n, M) → (S, ..., n).

    a must be 0 at masked keys.
    """
    slope, coefficient, level = a[..., None, :], m[..., None, :], mu[..., None]
    ends = []
    for end in (w.lo, w.hi):
        value = end[..., None, :]
        lowest = np.where(row.visible[..., None, :], _least(value - level, slope, row), 0.0)
        rest = coefficient * value
        ends.append(lowest - rest - FEW * (np.abs(lowest) + np.abs(rest)))
    terms = np.minimum(*ends)
    keys = terms.shape[-1]
    total = mu + terms.sum(-1) - rounding(keys + 2) * (np.abs(mu) + np.abs(terms).sum(-1)) - TINY * 8 * keys
    drift = (np.abs(a.sum(-1)) + rounding(keys) * np.abs(a).sum(-1)) * row.most * MORE
    lowest = total.min(-1)
    return np.asarray(down(lowest - drift) - FEW * (np.abs(lowest) + drift))


def _least(v: Array, a: Array, row: SoftmaxRows) -> Array:
    """A lower bound of v e^r − a r over r in [low, high]; v may be off by one rounding."""
    positive = v >= 0
    ends = []
    for r, e in ((row.low, row.e_low), (row.high, row.e_high)):
        grown, slope = v * np.where(positive, e.lo, e.hi), a * r
        ends.append(grown - slope - FEW * (np.abs(v) * e.hi + np.abs(slope)))
    least = np.minimum(*ends)
    # the minimum is between the ends unless the derivative certainly has one sign on the whole range
    inside = positive & (a > 0) & ~(v * row.e_low.lo * (1 - FEW) >= a) & ~(v * row.e_high.hi * (1 + FEW) <= a)
    small = inside & (v <= SMALL)  # then 0 < a < 2 v: both summands are ≥ 0, and a/v would underflow
    least = np.where(small, np.minimum(least, 0.0), least)
    solved = np.broadcast_to(inside & ~small, least.shape)
    v_in, a_in = (np.broadcast_to(x, least.shape)[solved] for x in (v, a))
    r0, e0 = exp_on_grid(np.log(a_in / v_in))
    x = a_in / (v_in * e0.lo) * (1 + FEW) - 1
    x = x + FEW * np.abs(x)
    log = r0 + (x - x * x / 2 + x * x * x / 3)
    bottom = a_in * (1 - log) - FEW * a_in * (1 + np.abs(r0) + np.abs(x) + x * x + np.abs(x * x * x))
    least[solved] = np.where(np.isfinite(bottom), bottom, -np.inf)
    return np.asarray(least)


def vertex(row: SoftmaxRows, c: Array) -> Array:
    """The vertex rule: the largest proved t ≤ Σ p_j c_j over the known boxes; c (S, ..., n, K) → (S, ..., n)."""
    seen = np.where(row.visible, c, np.inf)
    best = down(seen.min(-1))
    scale = np.where(row.visible, np.abs(c), 0.0).max(-1)
    for low, high in row.weights:
        t = np.where(row.visible, c, -np.inf).max(-1)
        for _ in range(40):  # the value at the vertex that belongs to t; it only falls, and stops at the minimum
            e = np.where(c >= t[..., None], low.lo, high.hi)
            mass = e.sum(-1)
            new = np.where(mass > 0, (e * c).sum(-1) / np.where(mass > 0, mass, 1.0), t)
            if not (new < t).any():
                break
            t = np.minimum(t, new)
        for step in (8.0, 1e3, 1e6):
            candidate = t - step * c.shape[-1] * rounding(1) * scale
            best = np.where(_phi(row, low, high, c, candidate), np.maximum(best, candidate), best)
    return np.asarray(best)


def _phi(row: SoftmaxRows, low: ProvedInterval, high: ProvedInterval, c: Array, t: Array) -> NDArray[np.bool_]:
    """Whether φ(t) is certainly ≥ 0, (S, ..., n)."""
    off = np.where(row.visible, c - t[..., None], 0.0)
    terms = off * np.where(off > 0, low.lo, high.hi)
    keys = c.shape[-1]
    return np.asarray(terms.sum(-1) >= rounding(keys + 4) * np.abs(terms).sum(-1) + TINY * 8 * keys)

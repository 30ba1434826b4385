"""Weights of softmax as p_j = σ(z_j): α + β t_j ± δ, bounded however far the scores move.

With the words of exponentials.py and R_j = Σ_{k≠j} ω_k, r_k = ω_k/R_j,
  z_j = log(ω_j e^{t_j}) − log Σ_{k≠j} ω_k e^{t_k} = o_j + t_j − log Σ_{k≠j} r_k e^{t_k},  o_j = log(ω_j/R_j).
Let θ = Σ ω t, which is next to 0. The mean of the other t is m_j = Σ_{k≠j} r_k t_k = (θ − ω_j t_j)/R_j, so that
  z_j = o_j + x_j − θ/R_j − D_j,  x_j = t_j (1 + ω_j/R_j),  D_j = log Σ_{k≠j} r_k e^{t_k − m_j} ≥ 0 (Jensen).
With s = −m_j, e^{t+s} − 1 − t − s = (e^t − 1 − t) + (e^s − 1)(e^t − 1) + (e^s − 1 − s) and Σ r (t + s) = 0,
  D_j ≤ log(1 + Σ r (e^τ − 1 − τ) + (e^|s| − 1) Σ r (e^τ − 1) + e^|s| − 1 − |s|).
For any slope b ≥ 0, p − b x = (σ(z) − b z) + b o − b (x − z + o), where x − z + o = D + θ/R is in its range, and
σ(z) − b z is bounded over the range of z by tangents (checker/curves.py).
"""

from __future__ import annotations

import numpy as np
from flint import arb

from .. import curves
from ..rounding import MORE, Array, ProvedInterval, down, enclose, rounding, up
from .exponentials import KeyWeights, ProvedScores
from .forms import Bools, grown

FARTHEST = 1e4
"""Ends of ranges of z are moved to within this of 0, outward where they are infinite."""


def logistic(c: ProvedScores) -> KeyWeights:
    """p = α + β t ± δ, and the range of p; (..., n, K)."""
    keys = c.weights.shape[-1]
    others, more = 1 - np.eye(keys), grown(keys)
    visible, tau = c.weights > 0, c.reach
    rest = (c.weights @ others) / more  # R at least
    varies = visible & (rest > 0)
    rest = np.where(varies, rest, 1.0)
    R = ProvedInterval(rest, rest * more * more)
    omega = np.where(varies, c.weights, 1.0)
    ratio = ProvedInterval(omega) / R
    log = _log(ratio)
    steep = (ratio + 1).middle()  # of x over t; what it is off by goes into δ
    off = (ratio + 1).reach(steep) * tau
    wide = (ratio + 1).hi * tau * MORE
    drift = c.theta[..., None] / rest * MORE
    s = ratio.hi * tau * MORE + drift
    grows, bends = (enclose(f, tau).hi for f in (arb.expm1, lambda x: x.expm1() - x))
    small = s <= 300
    of_s, bend_s = (enclose(f, np.where(small, s, 0.0)).hi for f in (arb.expm1, lambda x: x.expm1() - x))
    inside = ((c.weights * bends) @ others + of_s * ((c.weights * grows) @ others)) * more / rest + bend_s
    most = np.where(small & (inside < 1e300), enclose(arb.log1p, np.minimum(inside * MORE, 1e300)).hi, np.inf)
    D = ProvedInterval(-drift, (most + drift) * MORE)  # of x − z + o
    # the range of z, by its parts and by the ends of all scores
    e_up, e_down = (enclose(arb.exp, end) for end in (tau, -tau))
    least, largest = (c.weights * np.maximum(e_down.lo, 0)) @ others / more, (c.weights * e_up.hi) @ others * more
    tops = _log(ProvedInterval(omega) * e_up.hi / ProvedInterval(np.where(varies, least, 1.0))).hi
    bottoms = _log(ProvedInterval(omega) * np.maximum(e_down.lo, 0) / ProvedInterval(np.where(varies, largest, 1.0))).lo
    z_high = np.fmin(tops, (log + wide - D.lo).hi)
    z_low = np.fmax(bottoms, (log - wide - D.hi).lo)
    z_high = np.where(varies, np.clip(z_high, -FARTHEST, np.inf), 0.0)
    z_low = np.where(varies, np.clip(z_low, -np.inf, FARTHEST), 0.0)
    z = ProvedInterval(np.minimum(z_low, z_high), z_high)
    return _weights(c, visible, varies, z, log, D, steep, off, wide)


def _log(x: ProvedInterval) -> ProvedInterval:
    """log of numbers > 0; −inf and inf where an end is 0 or infinite."""
    fine = [np.isfinite(end) & (end > 0) for end in (x.lo, x.hi)]
    low, high = (enclose(arb.log, np.where(ok, end, 1.0)) for ok, end in zip(fine, (x.lo, x.hi), strict=True))
    return ProvedInterval(np.where(fine[0], low.lo, -np.inf), np.where(fine[1], high.hi, np.inf))


# Nine: all that is known of z, which `logistic` has from the scores; the band needs all of it.
def _weights(
    c: ProvedScores, visible: Bools, varies: Bools, z: ProvedInterval, log: ProvedInterval, D: ProvedInterval,
    steep: Array, off: Array, wide: Array,
) -> KeyWeights:  # fmt: skip
    """The band of each key over its ranges."""
    ends = ProvedInterval(np.maximum(z.lo, -FARTHEST), np.minimum(z.hi, FARTHEST))
    at = enclose(_sigmoid, ends.lo), enclose(_sigmoid, ends.hi)
    low = np.where(z.lo >= -FARTHEST, np.maximum(at[0].lo, 0), 0.0)
    high = np.where(z.hi <= FARTHEST, np.minimum(at[1].hi, 1), 1.0)
    bounded = (z.lo >= -FARTHEST) & (z.hi <= FARTHEST) & np.isfinite(D.hi)
    lo, hi = np.where(bounded, z.lo, 0.0), np.where(bounded, z.hi, 0.0)
    centre = 1 / (1 + np.exp(-np.clip(log.middle(), -700, 700)))
    width = np.where(wide > 0, 2 * wide, 1.0)
    slopes = [np.clip((high - low) / width, 0, 0.25), np.clip(centre * (1 - centre), 0, 0.25)]
    found = []
    for b in slopes:
        turn = 2 * np.log1p(np.sqrt(np.maximum(1 - 4 * b, 0))) - np.log(np.maximum(4 * b, 1e-300))
        shift = ProvedInterval(b) * log
        bottom = curves.floor("Sigmoid", 1, b, [-turn], lo, hi) + (shift - ProvedInterval(b) * D.hi).lo
        top = -curves.floor("Sigmoid", -1, -b, [turn], lo, hi) + (shift - ProvedInterval(b) * D.lo).hi
        bottom, top = np.where(bounded, down(bottom), -np.inf), np.where(bounded, up(top), np.inf)
        bottom = np.fmax(bottom, (ProvedInterval(low) - ProvedInterval(b) * wide).lo)
        top = np.fmin(top, (ProvedInterval(high) + ProvedInterval(b) * wide).hi)
        alpha = bottom / 2 + top / 2
        found.append((alpha, b, ProvedInterval(bottom, top).reach(alpha)))
    less = found[1][2] < found[0][2]
    alpha, b, half = (np.where(less, y, x) for x, y in zip(*found, strict=True))
    beta = b * steep
    delta = (half + b * off + rounding(4) * beta * c.reach) * MORE
    alone = visible & ~varies  # the only key of its row
    return KeyWeights(
        alpha=np.where(varies, alpha, alone * 1.0),
        beta=np.where(varies, beta, 0.0),
        gamma=np.zeros_like(alpha),
        delta=np.where(varies, delta, 0.0),
        low=np.where(varies, low, alone * 1.0),
        high=np.where(varies, high, alone * 1.0),
    )


def _sigmoid(x: arb) -> arb:
    return 1 / (1 + (-x).exp())

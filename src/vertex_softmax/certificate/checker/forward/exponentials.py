"""e^t = α + β t + γ t² ± δ for |t| ≤ τ, with floats that are chosen; and the centred scores t of rows of attention.

(Weights are those of keys: ω_j times such a function, or p_j itself, see logistic.py.)

Parabola. t³ = ¾τ²t ± τ³/4 and t⁴ = τ²t² − τ⁴/8 ± τ⁴/8 (Chebyshev's polynomials); what the series has beyond is
between ±τ⁵ cosh(τ)/120 =: ±ρ_s (odd) and between 0 and τ⁶ cosh(τ)/720 =: ρ_c (even). So
  β = 1 + τ²/8,  γ = ½ + τ²/24,  α = 1 − τ⁴/192 + ρ_c/2,  δ = τ³/24 + τ⁴/192 + ρ_s + ρ_c/2.
Line. For any a > 0, e^t − a t is convex: at most its larger end, at least a − a log a. γ = 0.

Scores. A row of softmax does not change if its scores do by a common number. With any weights ω_j > 0 (floats near the
softmax of the centre) s_j = log ω_j + κ + δ_j + s'_j, |δ_j| small, and m = Σ ω_k s'_k, let t_j = s'_j + δ_j − m. Then
  p_j = ω_j e^{t_j} / Z,  Z = Σ ω e^t = Σ ω + Σ ω t + Σ ω (e^t − 1 − t),
where Σ ω ≈ 1, |Σ ω t| ≤ |1 − Σ ω| |m| + Σ ω |δ|, and 0 ≤ e^t − 1 − t ≤ e^τ − 1 − τ.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ..rounding import MORE, Array, ProvedInterval, enclose, rounding
from .forms import LOST, Form, grown, image

WIDEST = 300.0
"""Rows with scores that move farther are not expanded: exponentials overflow."""
LEAST = 1e-290
"""Every key that is not masked has at least this weight."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProvedScores:
    """Of rows of attention, (..., n, K); 0 where a key is masked."""

    weights: Array
    """ω"""
    t: Form
    """around 0"""
    reach: Array
    """τ: |t| at most"""
    z: ProvedInterval
    """the range of Z, (..., n)"""
    theta: Array
    """|Σ ω t| at most, (..., n)"""
    useful: NDArray[np.bool_]
    """(..., n): the rows that may be expanded"""


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyWeights:
    """Weights of keys as functions of their t, α + β t + γ t² ± δ, and their ranges; (..., n, K)."""

    alpha: Array
    beta: Array
    gamma: Array
    delta: Array
    low: Array
    high: Array

    def reach(self, level: Array) -> Array:
        """How far a weight is from a level, at most."""
        return ProvedInterval(self.low, self.high).reach(level)


def centred(scores: Form, visible: NDArray[np.bool_]) -> ProvedScores:
    """Of scores (..., n, K), of which the visible ones are not masked."""
    keys = scores.centre.shape[-1]
    masked = np.where(visible, scores.centre, -np.inf)
    top = masked.max(-1, keepdims=True)
    e = np.exp(masked - top)
    mass = e.sum(-1, keepdims=True)
    weights = np.where(visible, np.maximum(e / mass, LEAST), 0.0)
    level = top + np.log(mass)
    logs = enclose(arb.log, np.where(visible, weights, 1.0))
    delta = np.where(visible, (ProvedInterval(np.where(visible, scores.centre, 0.0)) - logs - level).size, 0.0)

    def less_mean(x: Array) -> Array:
        return np.where(visible, x - (weights * x).sum(-1, keepdims=True), 0.0)

    found = image(
        scores.deviation,
        less_mean,
        lambda x: np.where(visible, x + (weights * x).sum(-1, keepdims=True), 0.0),
        keys + 4,
    )
    others, alone = 1 - np.eye(keys), np.abs(1 - weights) * MORE

    def of_own(x: Array) -> Array:
        """|(1 − ω_j) e_j − Σ_{k≠j} ω_k e_k| at most, for |e| ≤ x."""
        return np.where(visible, (alone * x + (weights * x) @ others) * grown(keys), 0.0)

    size = scores.rough + (weights * scores.rough).sum(-1, keepdims=True)
    slack = of_own(scores.slack) + rounding(keys + 6) * size * grown(keys) + delta + LOST
    t = Form(
        centre=np.zeros_like(weights),
        blocks=found.blocks,
        own=of_own(scores.own),
        slack=np.where(visible, slack * MORE, 0.0),
    )
    reach = np.where(visible, t.tight, 0.0)
    useful = np.asarray((reach <= WIDEST).all(-1))
    reach = np.where(useful[..., None], reach, 0.0)
    off = ProvedInterval(weights).sum().reach(np.ones(weights.shape[:-1]))
    mean = (weights * scores.rough).sum(-1) * grown(keys)
    theta = (off * mean + (weights * delta).sum(-1) * grown(keys)) * MORE
    drift = off + theta
    bent = (weights * enclose(lambda x: x.expm1() - x, reach).hi).sum(-1) * grown(keys)
    z = ProvedInterval(1 - drift * MORE - rounding(2), (1 + drift + bent) * MORE)
    return ProvedScores(weights=weights, t=t, reach=reach, z=z, theta=theta, useful=useful & (z.lo > 0))


def line(c: ProvedScores) -> KeyWeights:
    """ω e^t by a line whose slope is that of the chord."""
    tau = c.reach
    steep = np.where(tau > 1e-3, np.sinh(tau) / np.where(tau > 1e-3, tau, 1.0), 1 + tau * tau / 6)
    up, down_ = enclose(arb.exp, tau), enclose(arb.exp, -tau)
    most = np.maximum((up - ProvedInterval(steep) * tau).hi, (down_ + ProvedInterval(steep) * tau).hi)
    least = (ProvedInterval(steep) * (1 - enclose(arb.log, steep))).lo
    alpha = most / 2 + least / 2
    delta = ProvedInterval(least, most).reach(alpha)
    return _weighed(c, (alpha, steep, np.zeros_like(tau), delta), (down_.lo, up.hi))


def parabola(c: ProvedScores) -> KeyWeights:
    """ω e^t by the parabola."""
    tau = c.reach
    cosh = enclose(arb.cosh, tau).hi
    odd, even = tau**5 * cosh / 120, tau**6 * cosh / 720
    alpha, beta, gamma = 1 - tau**4 / 192 + even / 2, 1 + tau**2 / 8, 0.5 + tau**2 / 24
    lost = rounding(20) * (1 + tau**4 / 192 + even + beta * tau + gamma * tau**2)
    delta = (tau**3 / 24 + tau**4 / 192 + odd + even / 2 + lost) * MORE
    ends = enclose(arb.exp, -tau).lo, enclose(arb.exp, tau).hi
    return _weighed(c, (alpha, beta, gamma, delta), ends)


def _weighed(c: ProvedScores, of_exp: tuple[Array, ...], ends: tuple[Array, Array]) -> KeyWeights:
    """ω times a function of t; the products are rounded, which is an error too."""
    alpha, beta, gamma, delta = of_exp
    lost = rounding(4) * (np.abs(alpha) + beta * c.reach + gamma * c.reach**2)
    low, high = (ProvedInterval(c.weights) * ProvedInterval(end) for end in (np.maximum(ends[0], 0), ends[1]))
    return KeyWeights(
        alpha=c.weights * alpha,
        beta=c.weights * beta,
        gamma=c.weights * gamma,
        delta=c.weights * (delta + lost) * MORE,
        low=np.maximum(low.lo, 0),
        high=high.hi,
    )


def either(first: NDArray[np.bool_], a: KeyWeights, b: KeyWeights) -> KeyWeights:
    """a where `first`, else b."""
    names = [field.name for field in fields(KeyWeights)]
    return KeyWeights(**{name: np.where(first, getattr(a, name), getattr(b, name)) for name in names})

"""A lower and an upper plane of every softmax component by the slopes of the box's edges, with the best intercepts.

Invariant of `edge_planes`, to rounding: for every s in the box, with m its middle,

    low_j  ≤  p_j(s) − Σ_k slope_jk (s_k − m_k)  ≤  high_j.

Slopes. p_j is least at the vertex (l_j, u elsewhere) and greatest at (u_j, l elsewhere). The K edges that meet at a
vertex have the slopes ∂p_j/∂s_k there: p_j (1 − p_j) for k = j, −p_j p_k for the others. `share` in [0, 1] goes from
the slopes at the first vertex to those at the second. The intercepts are right for any slopes of these signs.

Intercepts. Write A = slope_jj ≥ 0, α_k = −slope_jk ≥ 0, Y = e^{s_j}, M = Σ_{k≠j} e^{s_k}, so p_j = Y / (Y + M), and

    h(s) = p_j − A (s_j − m_j) + Σ_{k≠j} α_k (s_k − m_k).

1. *Own score.* For fixed other scores, h has slope p_j (1 − p_j) − A in s_j: a local minimum at p_j = π and a local
   maximum at p_j = 1 − π, with π (1 − π) = A and π ≤ 1/2. So h is least with s_j at an end or with p_j = π, and
   greatest with s_j at an end or with p_j = 1 − π; inside, s_j = log(odds · M). What is left is to bound
   f(M) + Σ_k α_k (s_k − m_k) for three functions f that are convex in M: Y / (Y + M) less a constant at either end,
   and a constant − A log M inside.
2. *Least.* For every μ > 0 the minimum of f(M) + μ M over M is known, and

       Σ_k α_k (s_k − m_k) − μ M  =  Σ_k [α_k (s_k − m_k) − μ e^{s_k}]

   has summands that are concave in s_k, so least at an end of the interval. So every μ gives a lower bound. For the
   best one, sort: key k is at its upper end if μ > α_k (u_k − l_k) / (e^{u_k} − e^{l_k}), and M agrees with f'(M) = −μ.
3. *Greatest.* For every λ > 0, Σ_k α_k (s_k − m_k) ≤ H' + λ (M − M') with s'_k = log(α_k / λ) clipped to its interval,
   M' = Σ_k e^{s'_k} and H' = Σ_k α_k (s'_k − m_k): α_k s_k − λ e^{s_k} is greatest at s'_k. PIECES + 1 values of λ cut
   the range of M at the points M'. Between two of them the sum is below both lines and f is below its chord, and the
   greatest value of that is at an end or where the lines cross.

Step 2 loses little: where h is least, the Hessian leaves at most one score inside its interval.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.runs.demo.baselines.problem import Floats

PIECES = 8
WIDEST = 600.0
"""The scores of a box may not span more: e^−WIDEST and its reciprocal are far from the ends of the floats."""


class EdgePlanes(NamedTuple):
    """Planes of all components of n boxes; 0 for a masked component, the constant 1 for one that is alone."""

    slope: Floats
    """(n, K, K): of component j in (s_k − m_k) / radius_k, which is in [−1, 1]"""
    low: Floats
    """(n, K)"""
    high: Floats
    """(n, K)"""


class Boxes(NamedTuple):
    """What the planes of n boxes are made of, (n, K); `rest` and `rise` are (n, K, K), 0 where key k does not count."""

    L: Floats
    U: Floats
    radius: Floats
    middle: Floats
    """of the scores, shifted as the weights are"""
    rest: Floats
    """L_k for component j and another key k"""
    rise: Floats
    """U_k − L_k likewise"""
    counts: NDArray[np.bool_]
    """(n, K, K): k is not j, and not masked"""

    @classmethod
    def of(cls, lower: Floats, upper: Floats) -> Boxes:
        """Of ends (n, K) that do not span more than WIDEST (`Problem.tamed`); −inf is a masked key."""
        masked = upper == -np.inf
        top = upper.max(-1, keepdims=True)
        ends = [np.where(masked, top, end) for end in (lower, upper)]
        width = ends[1] - ends[0]
        L, U = (np.where(masked, 0.0, np.exp(end - top)) for end in ends)
        counts = ~np.eye(L.shape[-1], dtype=bool) & ~masked[:, None, :]
        rest, rise = (np.where(counts, x[:, None, :], 0.0) for x in (L, U * -np.expm1(-width)))
        return cls(L, U, 0.5 * width, 0.5 * (ends[0] - top) + 0.5 * (ends[1] - top), rest, rise, counts)


def edge_planes(boxes: Boxes, share: float) -> EdgePlanes:
    """The planes of all components, for one share."""
    flat = (boxes.U == 0) | ~boxes.counts.any(-1)
    least, greatest = boxes.rest.sum(-1), (boxes.rest + boxes.rise).sum(-1)
    masses = np.where(flat, 1.0, boxes.L + greatest), np.where(flat, 1.0, boxes.U + least)
    shares = (1 - share) * boxes.L / masses[0], share * boxes.U / masses[1]
    own = shares[0] * (greatest / masses[0]) + shares[1] * (least / masses[1])
    falls = (shares[0] / masses[0])[..., None] * (boxes.rest + boxes.rise)
    falls = falls + (shares[1] / masses[1])[..., None] * boxes.rest
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # components that are flat
        low, high = _least(boxes, own, falls), _greatest(boxes, own, falls)
    slope = (own[..., None] * np.eye(own.shape[-1]) - falls) * boxes.radius[:, None, :]
    one = np.where(boxes.U > 0, 1.0, 0.0)
    return EdgePlanes(np.where(flat[..., None], 0.0, slope), np.where(flat, one, low), np.where(flat, one, high))


def _stationary(own: Floats, sign: float) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Whether p (1 − p) = own has a solution, the one below (sign −1) or above 1/2, and its odds p / (1 − p)."""
    there = (own > 0) & (own < 0.25)
    root = np.sqrt(1 - 4 * np.where(there, own, 0.1))
    small = 2 * np.where(there, own, 0.1) / (1 + root)  # (1 − root) / 2 without cancellation
    p, q = (small, 1 - small) if sign < 0 else (1 - small, small)
    return there, p, p / q


def _least(boxes: Boxes, own: Floats, falls: Floats) -> Floats:
    """`low`, step 2 of the module's text: own (n, K), falls (n, K, K)."""
    moves = falls * boxes.radius[:, None, :]
    switch = np.where(boxes.rise > 0, 2 * moves / np.where(boxes.rise > 0, boxes.rise, 1.0), np.inf)
    order = np.argsort(switch, -1)
    switch = np.take_along_axis(switch, order, -1)
    none = boxes.rest.sum(-1, keepdims=True)
    mass = np.concatenate([none, none + np.take_along_axis(boxes.rise, order, -1).cumsum(-1)], -1)
    before = np.concatenate([np.zeros_like(none), switch], -1)

    def best(steepness: Floats) -> Floats:
        """The μ where −f'(M), given with the first 0 … K keys raised, meets the rising `switch`."""
        at = (switch < steepness[..., :-1]).sum(-1)[..., None]
        meets = np.maximum(np.take_along_axis(steepness, at, -1), np.take_along_axis(before, at, -1))
        return np.asarray(meets[..., 0], np.float64)

    def others(mu: Floats) -> Floats:
        ends = np.minimum(-moves, moves - mu[..., None] * boxes.rise) - mu[..., None] * boxes.rest
        return np.asarray(ends.sum(-1), np.float64)

    found = np.full_like(own, np.inf)
    for weight, move in ((boxes.L, -boxes.radius), (boxes.U, boxes.radius)):
        mu = best(weight[..., None] / (weight[..., None] + mass) / (weight[..., None] + mass))
        mu = np.where(np.isfinite(mu), mu, 0.0)
        found = np.minimum(found, 2 * np.sqrt(weight * mu) - mu * weight - own * move + others(mu))

    there, p, odds = _stationary(own, -1.0)
    first, last = np.maximum(boxes.L / odds, mass[..., 0]), np.minimum(boxes.U / odds, mass[..., -1])
    ends = [np.minimum((mass[..., 1:] < end[..., None]).sum(-1), own.shape[-1] - 1)[..., None] for end in (first, last)]
    limits = [np.take_along_axis(switch, end, -1)[..., 0] for end in ends]
    mu = np.clip(best(own[..., None] / mass), *limits)
    mu = np.where(np.isfinite(mu) & (mu > 0), mu, own / mass[..., -1])
    M = np.clip(own / mu, first, last)
    value = p - own * (np.log(odds * M) - boxes.middle) + mu * M + others(mu)
    return np.where(there & (first <= last), np.minimum(found, value), found)


def _greatest(boxes: Boxes, own: Floats, falls: Floats) -> Floats:
    """`high`, step 3 of the module's text: own (n, K), falls (n, K, K)."""
    moving = boxes.counts & (falls > 0)  # a key without a slope is at its lower end, where f is greatest
    low, high = (np.where(moving, x, 1.0) for x in (boxes.rest, boxes.rest + boxes.rise))
    steepest = np.where(moving, falls / low, 0.0).max(-1)
    steepest = np.where(steepest > 0, steepest, 1.0)
    flattest = np.minimum(np.where(moving, falls / high, np.inf).min(-1), steepest)
    still = np.where(moving, 0.0, boxes.rest).sum(-1)
    middle, gains = np.where(moving, boxes.middle[:, None, :], 0.0), np.where(moving, falls, 0.0)
    cuts = []
    for i in range(PIECES + 1):
        slope = steepest ** (1 - i / PIECES) * flattest ** (i / PIECES)
        weights = np.clip(falls / slope[..., None], low, high)
        cuts.append(
            _Cut(slope, np.where(moving, weights, 0.0).sum(-1) + still, (gains * (np.log(weights) - middle)).sum(-1))
        )

    there, p, odds = _stationary(own, 1.0)
    first, last = boxes.L / odds, boxes.U / odds

    def inside(M: Floats) -> Floats:
        return np.asarray(p - own * (np.log(odds * M) - boxes.middle), np.float64)

    found = np.full_like(own, -np.inf)
    for a, b in itertools.pairwise(cuts):
        for weight, move in ((boxes.L, -boxes.radius), (boxes.U, boxes.radius)):
            ends = weight / (weight + a.mass), weight / (weight + b.mass)
            found = np.maximum(found, _piece(ends, (a.mass, b.mass), a, b) - own * move)
        masses = np.maximum(a.mass, first), np.minimum(b.mass, last)
        value = _piece((inside(masses[0]), inside(masses[1])), masses, a, b)
        found = np.where(there & (masses[0] <= masses[1]), np.maximum(found, value), found)
    return found


class _Cut(NamedTuple):
    """λ, M' and H' of step 3, (n, K) each."""

    slope: Floats
    mass: Floats
    gain: Floats

    def line(self, M: Floats) -> Floats:
        return np.asarray(self.gain + self.slope * (M - self.mass), np.float64)


def _piece(ends: tuple[Floats, Floats], masses: tuple[Floats, Floats], a: _Cut, b: _Cut) -> Floats:
    """The greatest sum of the chord with these ends and the lower one of the lines of a and b, between two masses."""
    apart, long = a.slope - b.slope, masses[1] - masses[0]
    cross = (b.gain - a.gain + a.slope * a.mass - b.slope * b.mass) / np.where(apart > 0, apart, 1.0)
    cross = np.clip(cross, *masses)
    part = np.where(long > 0, (cross - masses[0]) / np.where(long > 0, long, 1.0), 0.0)
    found = [
        f + np.minimum(a.line(M), b.line(M))
        for f, M in zip((*ends, (1 - part) * ends[0] + part * ends[1]), (*masses, cross), strict=True)
    ]
    return np.maximum(found[0], np.maximum(found[1], found[2]))

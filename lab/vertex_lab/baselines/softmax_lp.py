"""The linear program an LP-based verifier would solve for c · softmax(s): two planes per component, and Σ p_j = 1.

Which program? The box says that p_i e^{l_j} ≤ p_j e^{u_i} for all pairs, which is linear in p. But a p on the simplex
that satisfies all of these *is* a softmax over the box: max_i p_i e^{−u_i} ≤ min_j p_j e^{−l_j}, so with any λ between
the two the weights y = p / λ lie in [e^l, e^u]. That program is therefore exact: its optimum is the vertex minimum
(Charnes and Cooper), and no baseline. A verifier that hands softmax to an LP solver gives it linear bounds of every
component in the scores instead, and that is the program here:

    minimise c · p   over s in the box and p,   with   Σ_j p_j = 1,   p^L_j ≤ p_j ≤ p^U_j   and
    lower plane_j(s) ≤ p_j ≤ upper plane_j(s),   the Wei-LSE tangent planes at the middle of the box (wei.py).

It contains simplex (no planes) and Wei-LSE (the planes alone, contracted with c), so it is at least as tight as both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vertex_softmax.runs.demo.baselines.problem import Floats, ScoreBoxProblem, components, in_pieces, read, unscaled
from vertex_softmax.runs.demo.baselines.simplex import simplex_bound
from vertex_softmax.runs.demo.baselines.wei import WIDEST, LsePlanes, contracted, planes, wei_bound
from vertex_softmax.softmax_box.arguments import Array

STEPS = 240
CHECK = 20
PIECE = 1 << 14
"""Numbers per array and piece: what the iteration touches stays in the cache."""


class _Multipliers(NamedTuple):
    """Of Σ p = 1 (rows, 1), and of the lower and upper planes (rows, K)."""

    t: Floats
    low: Floats
    high: Floats


def softmax_lp_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum, to rounding (that of `wei_lse_min`), and at least `simplex_min` and `wei_lse_min`.

    Weak duality: for every t, and multipliers 0 ≤ low_j ≤ (c_j − t)⁺ and 0 ≤ high_j ≤ (t − c_j)⁺,

        c · p  ≥  t + Σ_j (c_j − t − low_j + high_j) p^end_j
                    + min over the box of Σ_j low_j lower plane_j(s) − high_j upper plane_j(s),

    p^end_j the end of [p^L_j, p^U_j] that the sign of its factor asks for. So the bound is sound wherever the
    multipliers come from. They come from STEPS steps of the primal-dual method of Chambolle and Pock with diagonal
    steps, restarted at its average every CHECK steps where that is the better one; the best value seen is returned. On
    the sweep's boxes that is within 10⁻⁴ of the program's optimum in the mean, and 3 · 10⁻³ at most (values about 1).
    A step costs O(K) per row: the planes share two vectors. Rows do not interact.
    """
    problem = read(c, lower, upper)
    found = in_pieces(_bound, problem, PIECE // problem.c.shape[-1])
    return np.maximum(found, np.maximum(simplex_bound(problem), wei_bound(problem)))


def _bound(problem: ScoreBoxProblem) -> Floats:
    """(rows, K) to (rows); −inf where the scores span more than WIDEST."""
    with np.errstate(invalid="ignore", over="ignore"):  # steps may be far too long; a NaN is never the best value
        found = _climb(problem.scaled, planes(problem.tamed(WIDEST)), *components(problem))
    return np.asarray(np.where(problem.too_wide(WIDEST), -np.inf, unscaled(found, problem.exponent)), np.float64)


def _dual(c: Floats, tangents: LsePlanes, least: Floats, greatest: Floats, at: _Multipliers) -> Floats:
    """The right-hand side of `softmax_lp_min`'s inequality, (rows); the multipliers are clipped into their ranges."""
    t = np.clip(at.t, c.min(-1, keepdims=True), c.max(-1, keepdims=True))
    d = c - t
    low, high = np.minimum(at.low, np.maximum(d, 0.0)), np.minimum(at.high, np.maximum(-d, 0.0))
    rest = ((d - low + high) * np.where(d < 0, greatest, least)).sum(-1)
    return np.asarray(t[..., 0] + rest + contracted(tangents, low, -high), np.float64)


def _climb(c: Floats, tangents: LsePlanes, least: Floats, greatest: Floats) -> Floats:
    """The best dual value found, (rows). z and q in [−1, 1] are scores and components from the middles of their boxes.

    Step sizes are one over the absolute row and column sums of the constraints (Pock and Chambolle 2011), times and
    over `weight`, the size of the objective.
    """
    below, slide, above = tangents.below, tangents.slide, tangents.above
    slope, middle, radius = tangents.slope, tangents.middle, tangents.radius
    shared = middle * radius
    centre, half = 0.5 * (least + greatest), 0.5 * (greatest - least)
    own = np.abs(radius - slide)
    weight = np.abs(c - c.mean(-1, keepdims=True)).max(-1, keepdims=True)
    weight = np.where(weight > 0, weight, 1.0)
    step_z = _inverse(below * own + slide * (_total(below) - below) + slope * radius + shared * _total(slope)) / weight
    step_q = _inverse(3.0 * half) / weight
    step_low = weight * _inverse(below * (own + _total(slide) - slide) + half)
    step_high = weight * _inverse(slope * (radius + _total(shared)) + half)
    step_t = weight * _inverse(_total(half))

    at = _Multipliers(_total(c * middle), np.zeros_like(c), np.zeros_like(c))
    z, q = np.zeros_like(c), np.zeros_like(c)
    best = np.full(len(c), -np.inf)
    sums = [np.zeros_like(x) for x in (z, q, *at)]
    for step in range(1, STEPS + 1):
        low, high = at.low * below, at.high * slope
        slope_z = (low - high) * radius - slide * _total(low) + shared * _total(high)
        slope_q = (c - at.t - at.low + at.high) * half
        before = z, q
        z, q = np.clip(z - step_z * slope_z, -1.0, 1.0), np.clip(q - step_q * slope_q, -1.0, 1.0)
        ahead, p = 2 * z - before[0], centre + half * (2 * q - before[1])
        at = _Multipliers(
            at.t + step_t * (1 - _total(p)),
            np.maximum(at.low + step_low * (below * (1 + radius * ahead - _total(slide * ahead)) - p), 0.0),
            np.maximum(at.high + step_high * (p - above - slope * (radius * ahead - _total(shared * ahead))), 0.0),
        )
        sums = [total + x for total, x in zip(sums, (z, q, *at), strict=True)]
        if step % CHECK == 0:
            means = [total / CHECK for total in sums]
            here, mean = (_dual(c, tangents, least, greatest, m) for m in (at, _Multipliers(*means[2:])))
            best = np.fmax(best, np.fmax(here, mean))
            use = (mean > here)[:, None]
            z, q, *rest = (np.where(use, x, y) for x, y in zip(means, (z, q, *at), strict=True))
            at = _Multipliers(*rest)
            sums = [np.zeros_like(x) for x in sums]
    return best


def _total(x: Floats) -> Floats:
    return np.asarray(x.sum(-1, keepdims=True), np.float64)


def _inverse(x: Floats) -> Floats:
    """1/x, and 0 where x is 0: such a variable or constraint moves nothing."""
    return np.asarray(np.where(x > 0, 1.0 / np.where(x > 0, x, 1.0), 0.0), np.float64)

"""Wei et al. (2023): every softmax component lies between a convex and a concave function; here, their tangent planes.

Invariant of `planes`, to rounding: for every s in the box, with z = (s − middle of the box) / radius in [−1, 1],

    p_j(s) ≥ below_j (1 + radius_j z_j − Σ_k slide_k z_k),
    p_j(s) ≤ above_j + slope_j (radius_j z_j − Σ_k middle_k radius_k z_k).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vertex_softmax.runs.demo.baselines.problem import Floats, ScoreBoxProblem, read, unscaled
from vertex_softmax.softmax_box.arguments import Array

WIDEST = 2.0**20
"""Scores that span more get the trivial bound min c: shifting them by the largest one would lose the others' digits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LsePlanes:
    """A lower and an upper plane for every softmax component (see the module): (..., K) each, 0 at masked keys."""

    below: Floats
    """the lower plane at the middle of the box"""
    slide: Floats
    """the shared slopes of all lower planes, relative to their values at the middle"""
    above: Floats
    """the upper plane at the middle of the box"""
    slope: Floats
    """the slope of the upper plane in s_j − lse(s)"""
    middle: Floats
    """softmax at the middle of the box"""
    radius: Floats
    """half the width of each score's interval"""


def wei_lse_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum, to rounding: the tangent plane of the contracted Wei-LSE bounds, over the box.

    With chord_k the chord of exp over [l_k, u_k], the convex and the concave bound of Wei et al. (2023) are

        p_j(s) ≥ L_j(s) = e^{s_j} / Σ_k chord_k(s_k),
        p_j(s) ≤ U_j(s) = the chord of exp over [log p^L_j, log p^U_j] at s_j − lse(s),

    and F(s) = Σ_j c⁺_j L_j(s) + c⁻_j U_j(s) is convex (L_j is log-convex; U_j is an increasing affine function of a
    concave one). So F lies above its tangent plane at the middle of the box, whose minimum over the box is

        F(mid) − Σ_k |∂F/∂s_k(mid)| (u_k − l_k) / 2.

    This is the published baseline: one plane, contracted with c; it may be below min c. At the middle a chord is the
    mean of its ends and its slope times (u − l)/2 is half their difference, so intervals of width zero need no case of
    their own.
    """
    return wei_bound(read(c, lower, upper))


def wei_bound(problem: ScoreBoxProblem) -> Floats:
    """`wei_lse_min` of a validated problem, (...)."""
    tangents, scaled = planes(problem.tamed(WIDEST)), problem.scaled
    bound = unscaled(contracted(tangents, np.maximum(scaled, 0.0), np.minimum(scaled, 0.0)), problem.exponent)
    return np.asarray(np.where(problem.too_wide(WIDEST), problem.least_coefficient(), bound), np.float64)[()]


def contracted(tangents: LsePlanes, positive: Floats, negative: Floats) -> Floats:
    """The least Σ_j positive_j lower plane_j + negative_j upper plane_j over the box, positive ≥ 0 ≥ negative."""
    low, high = positive * tangents.below, negative * tangents.slope
    moves = (low + high - high.sum(-1, keepdims=True) * tangents.middle) * tangents.radius
    moves = moves - low.sum(-1, keepdims=True) * tangents.slide
    return np.asarray((low + negative * tangents.above).sum(-1) - np.abs(moves).sum(-1), np.float64)


def planes(problem: ScoreBoxProblem) -> LsePlanes:
    """The tangent planes of L_j and U_j at the middle of the box. No row may span more than WIDEST: `Problem.tamed`."""
    masked = problem.masked
    with np.errstate(invalid="ignore"):  # −inf − −inf at masked keys
        top = problem.upper.max(-1, keepdims=True)
        x, z = problem.lower - top, problem.upper - top
        middle = 0.5 * x + 0.5 * z
        log_least = np.where(masked, 0.0, _log_component(x, z))
        log_greatest = np.where(masked, 0.0, _log_component(z, x))
        log_p = middle - _lse(middle)
        gap = np.maximum(log_greatest - log_least, 0.0)  # rounding may make the ends of a point cross
        divisor = np.where(gap > 0, gap, 1.0)
        slope = np.exp(log_greatest) * np.where(gap > 0, -np.expm1(-gap) / divisor, 1.0)
        L, U = np.exp(x), np.exp(z)
        mass = (0.5 * L + 0.5 * U).sum(-1, keepdims=True)
        above = np.exp(log_greatest) - slope * np.where(masked, 0.0, log_greatest - log_p)
        found = {
            "below": np.exp(middle) / mass,
            "slide": 0.5 * (U - L) / mass,
            "above": above,
            "slope": slope,
            "middle": np.exp(log_p),
            "radius": 0.5 * z - 0.5 * x,
        }
    return LsePlanes(**{name: np.where(masked, 0.0, values) for name, values in found.items()})


def _lse(x: Floats) -> Floats:
    """log Σ_k e^{x_k}, (..., 1); at least one x_k is finite."""
    top = x.max(-1, keepdims=True)
    return np.asarray(top + np.log(np.exp(x - top).sum(-1, keepdims=True)), np.float64)


def _log_component(own: Floats, rest: Floats) -> Floats:
    """log of component j with key j at own_j and every other key at rest: −log(1 + e^{lse_{k≠j} rest_k − own_j}).

    Σ_{k≠j} is a prefix and a suffix joined in the log domain, never a total minus one term: that would cancel. O(K).
    """
    pad = [(0, 0)] * (own.ndim - 1)
    prefix = np.pad(np.logaddexp.accumulate(rest, axis=-1)[..., :-1], [*pad, (1, 0)], constant_values=-np.inf)
    suffix = np.logaddexp.accumulate(rest[..., ::-1], axis=-1)[..., ::-1]
    suffix = np.pad(suffix[..., 1:], [*pad, (0, 1)], constant_values=-np.inf)
    return np.asarray(-np.logaddexp(0.0, np.logaddexp(prefix, suffix) - own), np.float64)

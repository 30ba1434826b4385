"""Lower bounds of c · softmax(s) over a score box that are looser than the exact minimum: what Vertex is compared with.

Invariant: every function here is at most the minimum of c · softmax(s) over lower ≤ s ≤ upper, for every valid box:
degenerate intervals, ties, masked keys (−inf), scores and coefficients of any finite size. Exponents are shifted by the
largest score and never clamped; nothing is divided by a small number plus an epsilon.

    exact minimum ≥ simplex_min ≥ ibp_min,        exact minimum ≥ wei_lse_min

`ibp_min` and `simplex_min` hold for the computed floats (their rounding is subtracted); `wei_lse_min` holds to
rounding, a few (K + widest interval) · 2⁻⁵³ of max |c| · (1 + widest interval).

Arrays or tensors (..., K), float32 or float64, that broadcast; results are numpy float64 of shape (...). Everything is
O(K) per row but one sort in `simplex_min`, and vectorised over rows and keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.softmax_box import softmax_box_probabilities
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors

Floats = NDArray[np.float64]

UNIT = 2.0**-53
WIDEST = 1e300
UNDERFLOW = 1e-300  # more than K products of numbers of size ≤ 2 can lose by underflow


class _Problem(NamedTuple):
    """Checked input in float64, (..., K), c not broadcast: c = scaled · 2^exponent with |scaled| < 1."""

    c: Floats
    scaled: Floats
    exponent: NDArray[np.intc]
    lower: Floats
    upper: Floats
    masked: NDArray[np.bool_]

    def least_coefficient(self) -> Floats:
        """min c over the keys that are not masked: below every weighted mean, and free of rounding."""
        return np.asarray(np.where(self.masked, np.inf, self.c).min(-1), np.float64)

    def too_wide(self) -> NDArray[np.bool_]:
        """Rows whose scores span more than WIDEST: differences may overflow, so the bound is trivial. Shape (...)."""
        least = np.where(self.masked, np.inf, self.lower).min(-1)
        return np.asarray(0.5 * self.upper.max(-1) - 0.5 * least > 0.5 * WIDEST, np.bool_)


def ibp_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum: Σ_j min(c_j p^L_j, c_j p^U_j), each component at its own worst end.

    >>> ibp_min(np.array([0.0, 1.0]), np.array([-1.0, -1.0]), np.array([1.0, 1.0])).round(6)
    np.float64(0.119203)

    p^L and p^U are the exact ranges of the softmax components (`softmax_box_probabilities`); that they add up to one is
    not used, so the bound may be below min c.
    """
    problem = _problem(c, lower, upper)
    return _unscaled(_dual(problem.scaled, *_components(problem), np.zeros(())), problem.exponent)


def simplex_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum: min Σ c_j p_j over p^L ≤ p ≤ p^U with Σ p_j = 1, solved exactly.

    The greedy solution starts at p^L and gives the mass that is missing to the smallest coefficients first. The bound
    returned is the value of the dual at the coefficient t of the last key served,

        t + Σ_j min((c_j − t) p^L_j, (c_j − t) p^U_j) = max over t of the same,

    which is a lower bound for *every* t (add t (1 − Σ p_j) = 0 to the objective), so rounding in the greedy step costs
    tightness and never soundness; t = 0 is `ibp_min`.
    """
    problem = _problem(c, lower, upper)
    least, greatest = _components(problem)
    full = np.broadcast_shapes(problem.scaled.shape, least.shape)
    order = np.broadcast_to(np.argsort(problem.scaled, axis=-1), full)
    spread = np.take_along_axis(np.broadcast_to(greatest - least, full), order, -1)
    served = least.sum(-1, keepdims=True) + spread.cumsum(-1) >= 1
    served[..., -1] = True  # rounding may leave the total just below one
    last = np.take_along_axis(order, served.argmax(-1)[..., None], -1)
    t = np.take_along_axis(np.broadcast_to(problem.scaled, full), last, -1)
    bound = np.maximum(_dual(problem.scaled, least, greatest, t), _dual(problem.scaled, least, greatest, np.zeros(())))
    return np.maximum(_unscaled(bound, problem.exponent), problem.least_coefficient())


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
    problem = _problem(c, lower, upper)
    with np.errstate(invalid="ignore", over="ignore"):  # −inf − −inf at masked keys; boxes that are too wide
        bound = _unscaled(_lowest_of_plane(problem), problem.exponent)
    return np.asarray(np.where(problem.too_wide(), problem.least_coefficient(), bound), np.float64)[()]


def _lowest_of_plane(problem: _Problem) -> Floats:
    """The bound of `wei_lse_min` for the scaled coefficients; where −inf − −inf is NaN, masked keys get weight 0."""
    masked = problem.masked
    top = problem.upper.max(-1, keepdims=True)
    x, z = problem.lower - top, problem.upper - top
    middle = 0.5 * x + 0.5 * z
    radius = np.where(masked, 0.0, 0.5 * z - 0.5 * x)
    log_least = np.where(masked, 0.0, _log_component(x, z))
    log_greatest = np.where(masked, 0.0, _log_component(z, x))
    log_p = middle - _lse(middle)
    gap = np.maximum(log_greatest - log_least, 0.0)  # rounding may cross two equal numbers: they are a point
    divisor = np.where(gap > 0, gap, 1.0)
    slope = np.exp(log_greatest) * np.where(gap > 0, -np.expm1(-gap) / divisor, 1.0)
    L, U = np.exp(x), np.exp(z)
    mass = (0.5 * L + 0.5 * U).sum(-1, keepdims=True)
    below = np.exp(middle) / mass
    above = np.exp(log_greatest) - slope * np.where(masked, 0.0, log_greatest - log_p)

    c = np.where(masked, 0.0, problem.scaled)
    positive, negative = np.maximum(c, 0.0), np.minimum(c, 0.0)
    low, high = positive * below, negative * slope
    value = (low + negative * above).sum(-1)
    moves = (low + high - high.sum(-1, keepdims=True) * np.exp(log_p)) * radius
    moves = moves - low.sum(-1, keepdims=True) * (0.5 * (U - L) / mass)
    return np.asarray(value - np.abs(moves).sum(-1), np.float64)


def _problem(c: Array, lower: Array, upper: Array) -> _Problem:
    found, _ = tensors(c=c, lower=lower, upper=upper)
    lo, up = torch.broadcast_tensors(found["lower"], found["upper"])
    diagnose(lo, up, found["c"])
    coefficients, low, high = (x.detach().cpu().double().numpy() for x in (found["c"], lo, up))
    exponent = np.frexp(np.abs(coefficients).max(-1))[1]
    scaled = np.ldexp(coefficients, -exponent[..., None])
    return _Problem(coefficients, scaled, exponent, low, high, high == -np.inf)


def _components(problem: _Problem) -> tuple[Floats, Floats]:
    """(p^L, p^U), certainly outward; 0 and 1 where the box is too wide."""
    wide = problem.too_wide()[..., None] & ~problem.masked
    lower, upper = (np.where(wide, 0.0, end) for end in (problem.lower, problem.upper))
    least, greatest = softmax_box_probabilities(lower, upper, outward=True)
    return np.where(wide, 0.0, least), np.where(wide, 1.0, greatest)


def _dual(c: Floats, least: Floats, greatest: Floats, t: Floats) -> Floats:
    """t + Σ_j min((c_j − t) p^L_j, (c_j − t) p^U_j), less its rounding; t is () or (..., 1), the result (...).

    A term is rounded twice and added at most K times, then t once: with (K + 8) ε for K + 3 and its second order, the
    error is below (K + 8) ε (|t| + Σ |terms|), and UNDERFLOW covers what is too small to be seen.
    """
    d = c - t
    terms = d * np.where(d < 0, greatest, least)
    t = np.broadcast_to(t, (1,)) if t.ndim == 0 else t
    error = (c.shape[-1] + 8) * UNIT * (np.abs(t[..., 0]) + np.abs(terms).sum(-1)) + UNDERFLOW
    return np.asarray(t[..., 0] + terms.sum(-1) - error, np.float64)


def _unscaled(bound: Floats, exponent: NDArray[np.intc]) -> Floats:
    """bound · 2^exponent, rounded down where it is subnormal; −inf where it is below every float."""
    with np.errstate(over="ignore", under="ignore"):
        result = np.ldexp(bound, exponent)
        tiny = (np.abs(result) < np.finfo(np.float64).tiny) & (np.ldexp(result, -exponent) > bound)
    return np.asarray(np.where(tiny, np.nextafter(result, -np.inf), result), np.float64)[()]


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

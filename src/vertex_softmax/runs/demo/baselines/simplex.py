"""The baselines that use only the range of every softmax component: IBP, and IBP with Σ p_j = 1.

Invariant: exact minimum ≥ simplex_min ≥ ibp_min for the computed floats, from which rounding errors are subtracted.
"""

from __future__ import annotations

import numpy as np

from vertex_softmax.runs.demo.baselines.problem import (
    UNDERFLOW,
    UNIT,
    Floats,
    ScoreBoxProblem,
    components,
    read,
    unscaled,
)
from vertex_softmax.softmax_box.arguments import Array


def ibp_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum: Σ_j min(c_j p^L_j, c_j p^U_j), each component at its own worst end.

    >>> ibp_min(np.array([0.0, 1.0]), np.array([-1.0, -1.0]), np.array([1.0, 1.0])).round(6)
    np.float64(0.119203)

    p^L and p^U are the exact ranges of the softmax components (`softmax_box_probabilities`); that they add up to one is
    not used, so the bound may be below min c.
    """
    problem = read(c, lower, upper)
    return unscaled(_dual(problem.scaled, *components(problem), np.zeros(())), problem.exponent)


def simplex_min(c: Array, lower: Array, upper: Array) -> Floats:
    """Never above the exact minimum: min Σ c_j p_j over p^L ≤ p ≤ p^U with Σ p_j = 1, solved exactly.

    The greedy solution starts at p^L and gives the mass that is missing to the smallest coefficients first. The bound
    returned is the value of the dual at the coefficient t of the last key served,

        t + Σ_j min((c_j − t) p^L_j, (c_j − t) p^U_j) = max over t of the same,

    which is a lower bound for *every* t (add t (1 − Σ p_j) = 0 to the objective), so rounding in the greedy step costs
    tightness and never soundness; t = 0 is `ibp_min`.
    """
    return simplex_bound(read(c, lower, upper))


def simplex_bound(problem: ScoreBoxProblem) -> Floats:
    """`simplex_min` of a validated problem, (...)."""
    least, greatest = components(problem)
    full = np.broadcast_shapes(problem.scaled.shape, least.shape)
    order = np.broadcast_to(np.argsort(problem.scaled, axis=-1), full)
    spread = np.take_along_axis(np.broadcast_to(greatest - least, full), order, -1)
    served = least.sum(-1, keepdims=True) + spread.cumsum(-1) >= 1
    served[..., -1] = True  # rounding may leave the total just below one
    last = np.take_along_axis(order, served.argmax(-1)[..., None], -1)
    t = np.take_along_axis(np.broadcast_to(problem.scaled, full), last, -1)
    bound = np.maximum(_dual(problem.scaled, least, greatest, t), _dual(problem.scaled, least, greatest, np.zeros(())))
    return np.maximum(unscaled(bound, problem.exponent), problem.least_coefficient())


def _dual(c: Floats, least: Floats, greatest: Floats, t: Floats) -> Floats:
    """t + Σ_j min((c_j − t) p^L_j, (c_j − t) p^U_j), less its rounding; t is () or (..., 1), the result (...).

    A term is rounded twice and added at most K times, then t once: with (K + 8) ε for K + 3 and its second order, the
    error is below (K + 8) ε (|t| + Σ |terms|), and UNDERFLOW covers what products lose by underflow.
    """
    d = c - t
    terms = d * np.where(d < 0, greatest, least)
    t = np.broadcast_to(t, (1,)) if t.ndim == 0 else t
    error = (c.shape[-1] + 8) * UNIT * (np.abs(t[..., 0]) + np.abs(terms).sum(-1)) + UNDERFLOW
    return np.asarray(t[..., 0] + terms.sum(-1) - error, np.float64)

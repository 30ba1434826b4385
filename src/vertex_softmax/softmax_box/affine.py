"""An affine lower bound of Σ_j p_j v_j in the scores and the values, p = softmax(s): the affine vertex rule.

Invariant of `affine_minorant`: for every s in [lower, upper] and every v in [value_lower, value_upper],
  Σ_j p_j v_j ≥ a·s + m·v + B,
whatever a, m and μ are. With r_j = log p_j and D = lse(s), a·s = a·r + (Σa) D, and since Σ p_j = 1,
  Σ p_j v_j − a·r − m·v = μ + Σ_j [(v_j − μ) e^{r_j} − a_j r_j − m_j v_j] ≥ μ + Σ_j min of
  (v − μ) e^r − a_j r − m_j v over r in [log p^L_j, log p^U_j], v in [v^L_j, v^U_j].
The inner minimum is closed form: for every r it is linear in v, so v sits at an end, and then w e^r − a r, w = v − μ,
is least where its derivative changes from − to +, at r = log(a/w), or else at an end.

Pieces: D runs over [lse(l), lse(u)]. This range may be cut into M pieces, each with its own μ; in the piece [D₀, D₁]
r_j lies in [l_j − D₁, u_j − D₀] as well, and (Σa) D is at most the larger of its two ends. B is the least over the
pieces. A box is connected, so D takes every value of its range and no piece is empty: where rounding makes the ends of
an interval cross they are exchanged, and no piece is ever dropped.

affine_outward.py computes the same with a proved bound on the rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.softmax_box.affine_outward import proved_minorant
from vertex_softmax.softmax_box.arguments import Array, check_affine, tensors
from vertex_softmax.softmax_box.log_ranges import log_probabilities, pieces
from vertex_softmax.softmax_box.outward import gradual_underflow, round_down


@gradual_underflow()
def affine_minorant(  # the box, and the free numbers of the rule: a public signature
    lower: Array,
    upper: Array,
    value_lower: Array,
    value_upper: Array,
    a: Array,
    m: Array,
    mu: Array,
    *,
    outward: bool = False,
) -> Array:
    """B with Σ_j p_j v_j ≥ a·s + m·v + B for all s in [lower, upper], v in [value_lower, value_upper], to rounding.

    >>> import numpy as np
    >>> l, u, v = np.array([-1.0, -1.0]), np.array([1.0, 1.0]), np.array([0.0, 1.0])
    >>> p = np.array([0.5, 0.5])  # the gradient of p·v at the middle as slope, its value there as multiplier
    >>> affine_minorant(l, u, v, v, p * (v - 0.5), 0 * p, np.array([0.5])).round(6)
    np.float64(0.331953)

    Arguments: numpy arrays or torch tensors, float32 or float64, (..., K), mu (..., M); they broadcast against each
    other to a result of shape (...). M is the number of pieces that the range of lse(s) is cut into, each with its own
    multiplier; every value of a, m and mu gives a valid bound, and M = 1 is the plain rule. A key with lower = upper =
    −inf is masked: its weight is 0, its slope a must be 0, and it has no share in a·s. For an upper bound negate the
    values, a, m, mu and the result.

    Computed in float64, O(M K), and returned in the dtype of the arguments; a row whose terms overflow gets −inf.
    Differentiable in every argument. `outward=True` subtracts a proved rounding term: then B is certainly valid for
    these very numbers (affine_outward.py has the proof), and carries no gradient.
    """
    box = {"lower": lower, "upper": upper, "value_lower": value_lower, "value_upper": value_upper, "a": a, "m": m}
    checked, back = tensors(pieces=("mu",), **box, mu=mu)
    check_affine(**checked)
    dtype = checked["mu"].dtype
    arguments = tuple(x.double() for x in checked.values())
    if outward:
        with torch.no_grad():
            return back(round_down(proved_minorant(*arguments), dtype))
    B = _minorant(*arguments).to(dtype)
    return back(B.masked_fill(B.isnan() | B.isposinf(), -torch.inf))


def _minorant(  # the arguments of the public affine_minorant
    lower: Tensor, upper: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> Tensor:
    """B of the module's docstring for valid arguments, (..., K) and mu (..., M), to (...)."""
    ranges = pieces(lower, upper, mu.shape[-1])
    v_low, v_high, slope, coefficient = (x.unsqueeze(-2) for x in (value_lower, value_upper, a, m))
    low, high = torch.minimum(ranges.low, ranges.high), torch.maximum(ranges.low, ranges.high)
    B = minorant_constant(low, high, v_low, v_high, slope, coefficient, mu.unsqueeze(-1))
    at_cuts = a.sum(-1, keepdim=True) * (ranges.shift + ranges.cuts)  # (Σa) D
    return (B - torch.maximum(at_cuts[..., :-1], at_cuts[..., 1:])).amin(-1)


def minorant_constant(  # the arguments of affine_minorant, with log p in place of scores
    log_low: Tensor, log_high: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> Tensor:
    """μ + Σ_j of the inner minima, (...), for log p in [log_low, log_high], where −inf marks a masked key.

    The arguments (..., K) broadcast; mu is (..., 1).
    """
    unmasked = ~(log_high == -torch.inf)  # a NaN is not a masked key
    low = torch.where(unmasked, log_low, torch.zeros_like(log_low))
    high = torch.where(unmasked, log_high, torch.zeros_like(log_high))
    e_low, e_high = low.exp(), high.exp()
    # a masked key: p = 0, so only −m v remains
    terms = [
        torch.where(unmasked, least(v - mu, a, low, high, e_low, e_high), torch.zeros_like(mu)) - m * v
        for v in (value_lower, value_upper)
    ]
    return mu.squeeze(-1) + torch.minimum(*terms).sum(-1)


def least(w: Tensor, a: Tensor, left: Tensor, right: Tensor, e_left: Tensor, e_right: Tensor) -> Tensor:
    """min over r in [left, right] of w e^r − a r; e_left, e_right are e^left and e^right."""
    up_left, up_right = w * e_left, w * e_right
    ends = torch.minimum(up_left - a * left, up_right - a * right)
    with torch.no_grad():  # at the bottom the derivative in r is 0, so no gradient flows through it
        inside = (up_left < a) & (a < up_right)  # then w > 0 and a > 0
        ratio = a / torch.where(inside, w, torch.ones_like(w))
        inside &= ratio > 0
        ratio = torch.where(inside, ratio, torch.ones_like(ratio))
        bottom = ratio.log()
    return torch.where(inside, w * ratio - a * bottom, ends)


__all__ = ["affine_minorant", "least", "log_probabilities", "minorant_constant"]

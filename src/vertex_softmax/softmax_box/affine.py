"""An affine lower bound of Σ_j p_j v_j in the scores and the values, p = softmax(s): the affine vertex rule.

Invariant of `affine_minorant`: for every s in [lower, upper] and every v in [value_lower, value_upper],
  Σ_j p_j v_j ≥ a·s + m·v + B,
whatever a, m and μ are. With r_j = log p_j, a·s = a·r + (Σa) lse(s), and since Σ p_j = 1,
  Σ p_j v_j − a·r − m·v = μ + Σ_j [(v_j − μ) e^{r_j} − a_j r_j − m_j v_j] ≥ μ + Σ_j min of
  (v − μ) e^r − a_j r − m_j v over r in [log p^L_j, log p^U_j], v in [v^L_j, v^U_j].
The inner minimum is closed form: v sits at v^L where e^r ≥ m_j and at v^U below, which cuts the r-interval at log m_j;
on either side w e^r − a r is least at r = log(a/w) if w, a > 0 and that lies inside, else at an end. What is left of
Σa, by rounding or by choice, costs the larger of (Σa) lse at the two ends.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.softmax_box.outward import gradual_underflow


def log_probabilities(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """log of the least and the greatest value of every softmax component over the box, (..., K); −inf where masked.

    log p^L_j = −log(1 + Σ_{k≠j} e^{u_k − l_j}), and with the ends exchanged log p^U_j; through a (..., K, K) array.
    """
    K = lower.shape[-1]
    same = torch.eye(K, dtype=torch.bool, device=lower.device)
    there = upper > -torch.inf
    found = []
    for mine, theirs in ((lower, upper), (upper, lower)):
        own = torch.where(there, mine, torch.zeros_like(mine))
        apart = (theirs.unsqueeze(-2) - own.unsqueeze(-1)).masked_fill(same, 0.0)
        found.append(torch.where(there, -apart.logsumexp(-1), torch.full_like(mine, -torch.inf)))
    return found[0], torch.maximum(found[0], found[1])


def least(w: Tensor, a: Tensor, left: Tensor, right: Tensor, e_left: Tensor, e_right: Tensor) -> Tensor:
    """min over r in [left, right] of w e^r − a r; e_left, e_right are e^left and e^right."""
    ends = torch.minimum(w * e_left - a * left, w * e_right - a * right)
    bowl = (w > 0) & (a > 0)
    one = torch.ones_like(w * a)
    safe_a, safe_w = torch.where(bowl, a, one), torch.where(bowl, w, one)
    bottom = torch.log(safe_a / safe_w)
    inside = bowl & (bottom > left) & (bottom < right)
    return torch.where(inside, safe_a - safe_a * bottom, ends)


def minorant_constant(
    log_low: Tensor, log_high: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> Tensor:
    """μ + Σ_j of the inner minima, (...); arguments (..., K) broadcast, mu (..., 1); −inf is a masked key."""
    there = log_high > -torch.inf
    low = torch.where(there, log_low, torch.zeros_like(log_low))
    high = torch.where(there, log_high, torch.zeros_like(log_high))
    positive = m > 0
    cut = torch.where(positive, m, torch.ones_like(m)).log()
    cut = torch.where(positive, torch.minimum(torch.maximum(cut, low), high), low)
    e_low, e_cut, e_high = low.exp(), cut.exp(), high.exp()
    below = least(value_upper - mu, a, low, cut, e_low, e_cut) - m * value_upper
    above = least(value_lower - mu, a, cut, high, e_cut, e_high) - m * value_lower
    term = torch.minimum(below, above)
    # a masked key: p = 0, only −m v is left
    masked = torch.minimum(-m * value_lower, -m * value_upper)
    return mu.squeeze(-1) + torch.where(there, term, masked).sum(-1)


@gradual_underflow()
def affine_minorant(
    lower: Tensor, upper: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> Tensor:
    """B with Σ_j p_j v_j ≥ a·s + m·v + B over the boxes of scores and values; (..., K) → (...), mu (...).

    Shapes broadcast. A key with lower = upper = −inf is masked; its slope a_j must be 0.
    """
    log_low, log_high = log_probabilities(lower, upper)
    B = minorant_constant(log_low, log_high, value_lower, value_upper, a, m, mu.unsqueeze(-1))
    rest = a.sum(-1)
    ends = (rest * lower.logsumexp(-1), rest * upper.logsumexp(-1))
    return B - torch.maximum(*ends)

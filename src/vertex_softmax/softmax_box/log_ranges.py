"""The ranges of log p_j over a box of scores, and over the parts of it where lse(s) lies in a piece of its range.

Invariant: for every s in the box, log p_j(s) lies in the range, attained at both ends where there is one piece, to
rounding. affine_outward.py bounds the rounding of exactly these operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def log_probabilities(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """log of the least and the greatest value of every softmax component over the box, (..., K); −inf where masked.

    log p^L_j = −log(1 + e^z), z = lse_{k≠j}(u_k) − l_j, and with the ends exchanged log p^U_j; O(K).
    """
    there = ~(upper == -torch.inf)  # a NaN is not a masked key
    found = []
    for mine, theirs in ((lower, upper), (upper, lower)):
        shift, mass = _others(theirs)
        alone = mass == 0
        z = torch.where(there & ~alone, shift - mine, torch.zeros_like(mine))
        z = z + torch.where(alone, torch.ones_like(mass), mass).log()
        log = -(torch.maximum(z, torch.zeros_like(z)) + torch.log1p((-z.abs()).exp()))
        log = torch.where(alone, torch.zeros_like(log), log)
        found.append(torch.where(there, log, torch.full_like(log, -torch.inf)))
    return found[0], torch.maximum(found[0], found[1])


def _others(x: Tensor) -> tuple[Tensor, Tensor]:
    """(shift_j, Σ_{k≠j} e^{x_k − shift_j}), (..., K), shift_j the largest of the others; the sum is 0 if they are −inf.

    That is the largest of all x but for the key that has it, whose others are shifted by the second largest. Summed by
    a prefix and a suffix, never a total minus one term.
    """
    top, at = x.detach().max(-1, keepdim=True)
    first = torch.arange(x.shape[-1], device=x.device) == at
    rest = x.masked_fill(first, -torch.inf)
    second = rest.detach().amax(-1, keepdim=True)
    top, second = (torch.where(s.isinf(), torch.zeros_like(s), s) for s in (top, second))
    y = (x - top).exp()
    prefix = pad(y.cumsum(-1)[..., :-1], (1, 0))
    suffix = pad(y.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    mass = torch.where(first, (rest - second).exp().sum(-1, keepdim=True), prefix + suffix)
    return torch.where(first, second, top), mass


class Pieces(NamedTuple):
    """Where lse(s) runs, and log p_j in every piece of that."""

    low: Tensor
    """The least log p_j, (..., M, K); −inf where masked. Rounding may put it above `high`."""
    high: Tensor
    """The greatest log p_j, likewise."""
    cuts: Tensor
    """lse(l) = D₀ ≤ … ≤ D_M = lse(u), less `shift`, (..., M + 1); neighbours are the ends of a piece."""
    shift: Tensor
    """The largest u_j, (..., 1): the same scores moved far from 0 must not lose digits."""


def pieces(lower: Tensor, upper: Tensor, M: int, widening: Callable[[Tensor, int], Tensor] | None = None) -> Pieces:
    """The range of lse(s) in M equal steps; its ends are moved outward by `widening` of them and K.

    The cuts are in order also after rounding, which is monotone: (D_M − D₀) k/M, rounded, is at most D_M − D₀ for
    k < M < 2⁵⁰. With one piece l_j − lse(u) ≤ log p^L_j, and nothing is to be gained.
    """
    shape = np.broadcast_shapes(lower.shape, upper.shape)
    lower, upper = lower.expand(shape), upper.expand(shape)
    low, high = (x.unsqueeze(-2) for x in log_probabilities(lower, upper))
    shift = upper.detach().amax(-1, keepdim=True)
    ends = []
    for x in (lower, upper):
        top = x.detach().amax(-1, keepdim=True)
        ends.append((top - shift) + (x - top).exp().sum(-1, keepdim=True).log())
    first, last = ends[0], torch.maximum(ends[0], ends[1])
    inner = first + (last - first) * (torch.arange(1, M, dtype=first.dtype, device=first.device) / M)
    if widening is not None:
        first, last = first - widening(first, shape[-1]), last + widening(last, shape[-1])
    D = torch.cat([first, inner, last], -1)
    if M > 1:
        low = torch.maximum(low, (lower - shift).unsqueeze(-2) - D[..., 1:, None])
        high = torch.minimum(high, (upper - shift).unsqueeze(-2) - D[..., :-1, None])
    return Pieces(low, high, D, shift)

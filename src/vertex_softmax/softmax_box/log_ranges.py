"""The ranges of log p_j over a box of scores, and over the parts of it where lse(s) lies in a piece of its range.

Invariant: up to rounding, log p_j(s) lies in the range for every s in the box; with one piece both ends are attained.
affine_outward.py bounds the rounding of exactly these operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


def log_probabilities(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """log of the least and the greatest value of every softmax component over the box, (..., K); −inf where masked.

    log p^L_j = −log(1 + e^z), z = lse_{k≠j}(u_k) − l_j, and with the ends exchanged log p^U_j; O(K).
    """
    unmasked = ~(upper == -torch.inf)  # a NaN is not a masked key
    ends = []
    for own, others in ((lower, upper), (upper, lower)):
        shift, mass = _others(others)
        alone = mass == 0
        z = torch.where(unmasked & ~alone, shift - own, torch.zeros_like(own))
        z = z + torch.where(alone, torch.ones_like(mass), mass).log()
        log = -(torch.maximum(z, torch.zeros_like(z)) + torch.log1p((-z.abs()).exp()))
        log = torch.where(alone, torch.zeros_like(log), log)
        ends.append(torch.where(unmasked, log, torch.full_like(log, -torch.inf)))
    return ends[0], torch.maximum(ends[0], ends[1])


def _others(x: Tensor) -> tuple[Tensor, Tensor]:
    """(shift_j, Σ_{k≠j} e^{x_k − shift_j}), each (..., K), where shift_j = max_{k≠j} x_k; the sum is 0 if that is −inf.

    shift_j is the largest x, or for the key that has it the second largest. The others are summed by a prefix and a
    suffix, never as a total minus one term, which would cancel.
    """
    top, argmax = x.detach().max(-1, keepdim=True)
    first = torch.arange(x.shape[-1], device=x.device) == argmax
    rest = x.masked_fill(first, -torch.inf)
    second = rest.detach().amax(-1, keepdim=True)
    top, second = (torch.where(s.isinf(), torch.zeros_like(s), s) for s in (top, second))
    y = (x - top).exp()
    prefix = pad(y.cumsum(-1)[..., :-1], (1, 0))
    suffix = pad(y.flip(-1).cumsum(-1).flip(-1)[..., 1:], (0, 1))
    mass = torch.where(first, (rest - second).exp().sum(-1, keepdim=True), prefix + suffix)
    return torch.where(first, second, top), mass


@dataclass(frozen=True, kw_only=True)
class LogRanges:
    """The range of lse(s) over a box of scores, cut into M pieces, and the range of every log p_j in each piece."""

    low: Tensor
    """The least log p_j, (..., M, K); −inf where masked. Rounding may put it above `high`."""
    high: Tensor
    """The greatest log p_j, (..., M, K); −inf where masked."""
    cuts: Tensor
    """lse(l) − shift = D₀ ≤ … ≤ D_M = lse(u) − shift, (..., M + 1); neighbours are the ends of a piece."""
    shift: Tensor
    """The largest u_j, (..., 1): subtracted so that scores far from 0 lose no digits."""


def pieces(lower: Tensor, upper: Tensor, M: int, widening: Callable[[Tensor, int], Tensor] | None = None) -> LogRanges:
    """The ranges for M pieces of equal length; the ends D₀ and D_M are moved outward by `widening(end, K)` if given.

    The cuts are in order also after rounding, which is monotone: (D_M − D₀) k/M, rounded, is at most D_M − D₀ for
    k < M < 2⁵⁰. With one piece l_j − lse(u) ≤ log p^L_j, so that the cuts would not improve the ranges.
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
    return LogRanges(low=low, high=high, cuts=D, shift=shift)

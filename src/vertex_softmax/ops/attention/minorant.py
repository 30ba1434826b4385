"""The affine vertex rule over one score box: the ranges of log p, and the free slopes.

Invariant: for any values of the parameters, Σ_j p_j w_j ≥ a·s + m·w + B for all scores and functionals in their boxes.

The constant B may be computed for each piece of the range of lse(s) separately, with narrower ranges of log p; the
least constant of all pieces holds everywhere.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.attention.shared import centre_of, shifted_box
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import beside
from vertex_softmax.softmax_box.affine import log_probabilities, minorant_constant


@dataclasses.dataclass(frozen=True, eq=False)
class Minorant:
    """The ranges of log p over one score box, and the free parameters that place a, m and μ.

    Tensors are (batch, 1, ..., n, K) unless stated otherwise; log p is −inf where a key is masked.
    """

    log_low: Tensor
    log_high: Tensor
    middle: Tensor
    """the softmax at the centre, clamped to the range of every component"""
    most: Tensor
    """(batch, 1, ..., n): the largest |lse(s)|; times |Σ a|, which is 0 but for rounding, it is taken off the bound"""
    pieces: Interval
    """(batch, 1, ..., n, M, K): the ranges of log p in each of the M pieces of the range of lse(s)"""
    place: Tensor | None = None
    """the position of log m between log p^L (0) and log p^U (1); None: m = p"""
    slope: Tensor | None = None
    """what is added to the full gradient a, relative to p and the row's scale; None: nothing"""
    level: Tensor | None = None
    """(..., n, M): what is added to the row's value to get μ of each piece, relative to the row's scale; None:
    nothing"""
    weight: Tensor | None = None
    """λ, (..., n, 1): the share of the row that is bounded by the exact score-box optimum; None: 0"""

    def chosen(self, w: Interval) -> tuple[Tensor, Tensor, Tensor]:
        """The a, m and μ of the rule for functionals w (batch, S, ..., n, K).

        By default a is the full gradient at the centre, m = p, and μ is the row's value there.
        """
        p = self.middle / self.middle.sum(-1, keepdim=True)
        centre = w.centre
        value = (p * centre).sum(-1, keepdim=True)
        off = centre - value
        scale = off.abs().amax(-1, keepdim=True) + (p * (w.upper - w.lower)).sum(-1, keepdim=True)
        if self.slope is not None:
            off = off + self.slope * scale
            off = off - (p * off).sum(-1, keepdim=True)
        a = p * off
        mu = value if self.level is None else value + self.level * scale
        m = p
        if self.place is not None:
            present = self.log_high > -torch.inf
            low = torch.where(present, self.log_low, torch.zeros_like(self.log_low))
            high = torch.where(present, self.log_high, torch.zeros_like(self.log_high))
            m = torch.where(present, (low + self.place * (high - low)).exp(), torch.zeros_like(low))
        return a, m, mu

    def bound(self, w: Interval) -> tuple[Tensor, Tensor, Tensor]:
        """The a, m and B with Σ_j p_j w_j ≥ a·s + m·w + B, for functionals w (batch, S, ..., n, K)."""
        a, m, mu = self.chosen(w)
        low, high, slope, coefficient = (x.unsqueeze(-2) for x in (w.lower, w.upper, a, m))
        B = minorant_constant(*self.pieces, low, high, slope, coefficient, mu.unsqueeze(-1)).amin(-1)
        return a, m, B - a.sum(-1).abs() * self.most


def minorant(scores: Interval, centred: CentredRows | None = None, pieces: int = 1) -> Minorant:
    """The ranges of log p over a score box, and the point at which the rule takes its default slopes."""
    low, high = log_probabilities(scores.lower, scores.upper)
    ends = [scores.lower.logsumexp(-1, keepdim=True), scores.upper.logsumexp(-1, keepdim=True)]
    box = scores
    most = torch.maximum(*(end.abs() for end in ends)).squeeze(-1)
    if centred is not None:
        box = shifted_box(centred, scores)
        lower, upper, ends = centred_log_probabilities(centred, box)
        low = torch.maximum(low, lower)
        high = torch.maximum(torch.minimum(high, upper), low)
    middle = centre_of(scores).softmax(-1)
    middle = torch.minimum(torch.maximum(middle, low.exp()), high.exp())
    ranges = Interval(*map(beside, _pieces(Interval(low, high), box, Interval(*ends), pieces)))
    return Minorant(log_low=beside(low), log_high=beside(high), middle=beside(middle), most=beside(most), pieces=ranges)


def _pieces(log: Interval, scores: Interval, sums: Interval, count: int) -> Interval:
    """The ranges of log p in each piece of the range of lse(s).

    In a piece [D, D'] of that range, log p_j = s_j − lse(s) also lies in [l_j − D', u_j − D]. Ends that cross by
    rounding are swapped, so that no piece is ever dropped.
    """
    if count == 1:
        return Interval(log.lower.unsqueeze(-2), log.upper.unsqueeze(-2))
    steps = torch.arange(count + 1, dtype=log.lower.dtype, device=log.lower.device) / count
    cuts = sums.lower + (sums.upper - sums.lower) * steps  # (batch, ..., n, M + 1)
    cuts = torch.cat([sums.lower, cuts[..., 1:-1], sums.upper], -1).unsqueeze(-1)
    lower = torch.maximum(log.lower.unsqueeze(-2), scores.lower.unsqueeze(-2) - cuts[..., 1:, :])
    upper = torch.minimum(log.upper.unsqueeze(-2), scores.upper.unsqueeze(-2) - cuts[..., :-1, :])
    return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))


def centred_log_probabilities(centred: CentredRows, shifted: Interval) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The ranges of log p_j from those of t_j = s_j − ω·s, and the two ends (…, 1) of the range of lse(t).

    p = softmax(t). With H = −Σ ω log ω and d_j = t_j − log ω_j − H, ω·t = 0 and so ω·d = 0. Then lse(t) = H + log Σ ω
    e^d, and
      0 ≤ log Σ ω e^d = log(1 + Σ ω (e^d − 1 − d)),
    which is of second order. So log p_j is t_j − H minus at most that, where e^d − 1 − d, being convex, is largest at
    an end of d.
    """
    weights = centred.weights
    counted = weights > 0
    log = torch.where(counted, weights, torch.ones_like(weights)).log()
    entropy = -(weights * log).sum(-1, keepdim=True)
    ends = [torch.where(counted, t - log - entropy, torch.zeros_like(t)) for t in centred.box]
    curved = torch.maximum(*(torch.expm1(d) - d for d in ends))
    low, high = log_probabilities(*shifted)
    least = torch.maximum(entropy, shifted.lower.logsumexp(-1, keepdim=True))
    # a key whose ω underflowed is not masked, but missing in Σ ω e^d
    missed = ((shifted.upper > -torch.inf) & ~counted).any(-1, keepdim=True)
    most = entropy + torch.log1p((weights * curved).sum(-1, keepdim=True))
    whole = shifted.upper.logsumexp(-1, keepdim=True)
    most = torch.maximum(least, torch.where(missed, whole, torch.minimum(most, whole)))
    low = torch.maximum(low, shifted.lower - most)
    high = torch.minimum(high, shifted.upper - least)
    return low, torch.maximum(low, high), [least, most]

"""The invariant: what `choice_terms`, `least_sum` and `lower_bound` return is never above the exact number.

Proof
-----
All arguments are read as exact reals, in double precision; ε = 2⁻⁵³, a hat marks a computed number. The assumptions are
those of outward.py: IEEE 754 rounding of + − ×, and e^x with a relative error of at most EXP_ULPS = 4 ε where
x ≥ LOWEST; the latter is an assumption about the library's exp, tried by the tests but not proved here.
Subnormal numbers are what they are (`gradual_underflow`).

1. *A term* (v − t) e^{s − a} at any finite a. d̂ = fl(v − t) = d (1 + δ), |δ| ≤ ε, with the right sign.
   x̂ = fl(s − a) = x (1 + δ). Where d̂ > 0, x̂ is lowered to HIGHEST at most: that only lowers the exact term. Where
   d̂ < 0 and x̂ > HIGHEST, −inf is returned. Otherwise, as in steps 1 to 3 of outward.py, the computed product differs
   from the exact term by at most SAFETY ε |d̂ ŷ| (|x̂| + EXTRA_ULPS) + UNDERFLOW (1 + |d̂|), where a weight below
   e^LOWEST counts as 0. |x̂| ≤ 708 there, so second-order terms are covered by SAFETY. The result is the product minus
   this error, computed with rounding errors below ε (|product| + 2 |error|), which the spare EXTRA_ULPS cover where
   products are normal, and then moved down by one float, which covers a subnormal result. Where d̂ = 0 the exact d is
   0 and the term is 0 exactly.
2. *The sum* of K lower bounds m_j, each exact: adding them in any order is off by at most SAFETY (K − 1) ε Σ |m_j|, for
   K ≤ MOST_KEYS; the computed bound of this error is off by second-order amounts only, and the last subtraction by one
   rounding, which moving down by one float covers. A sum of floats is exact where it is subnormal.
3. *The bound*: t is a lower bound of every combination if φ(t) ≥ 0, at every shift a (both sides are multiplied by
   e^{−a}). A candidate is returned only if the sum of the keys' least terms, so computed, is ≥ 0; if none passes, the
   least allowed value, which is below every weighted mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.softmax_box.outward import EXTRA_ULPS, LIMITS, SAFETY, TRIES

HIGHEST = 300.0
MOST_KEYS = 1 << 40
"""(K + EXTRA_ULPS) ε is below 1/64 for as many keys."""


def choice_terms(v: Tensor, s: Tensor, t: Tensor, shift: Tensor) -> Tensor:
    """Lower bounds (..., K, C) of (v − t) e^{s − shift}; t and shift are (..., 1, 1), and |v|, |t| ≤ 2^500."""
    limits = LIMITS[torch.float64]
    d = v - t
    x = s - shift
    high = x > HIGHEST
    x = x.clamp(max=HIGHEST)
    tiny = x < limits.lowest
    y = torch.where(tiny, 0.0, x.clamp(min=limits.lowest).exp())
    term = d * y
    ulps = torch.where(tiny, 0.0, x.abs()) + float(EXTRA_ULPS)
    error = SAFETY * (limits.unit * (term.abs() * ulps) + limits.underflow * (1 + d.abs()))
    low = down(term - error)
    low = torch.where(high & (d < 0), -torch.inf, low)
    return torch.where(d == 0, 0.0, low)


def least_sum(terms: Tensor, allowed: Tensor) -> Tensor:
    """A lower bound (...) of Σ_j min over the allowed c of terms_jc; every key has an allowed choice."""
    least = torch.where(allowed, terms, torch.inf).amin(-1)
    error = SAFETY * float(least.shape[-1]) * LIMITS[torch.float64].unit * least.abs().sum(-1)
    return torch.where(least.isinf().any(-1), -torch.inf, down(least.sum(-1) - error))


def lower_bound(v: Tensor, s: Tensor, allowed: Tensor, t: Tensor) -> Tensor:
    """A proved lower bound (...) of the exact minimum, close below the candidate t (...)."""
    low = v.masked_fill(~allowed, torch.inf).amin((-2, -1))
    result, step = low.clone(), torch.zeros_like(t)
    scale = v.masked_fill(~allowed, 0.0).abs().amax((-2, -1))
    least = torch.maximum(t.abs(), scale) * LIMITS[torch.float64].unit
    open_ = t > low
    for _ in range(TRIES):
        candidate = t - step
        open_ = open_ & (candidate > low)
        if not bool(open_.any()):
            break
        at = candidate[..., None, None]
        choice = least_choices(v, s, allowed, at)
        a = s.gather(-1, choice[..., None]).amax((-2, -1), keepdim=True)  # any number would be sound
        proved = open_ & (least_sum(choice_terms(v, s, at, a), allowed) >= 0)
        result = torch.where(proved, candidate, result)
        open_ = open_ & ~proved
        step = 2 * torch.maximum(step, least)
    return result


def least_choices(v: Tensor, s: Tensor, allowed: Tensor, t: Tensor) -> Tensor:
    """Every key's choice (..., K) of the least (v − t) e^s among those allowed, to rounding; t is (..., 1, 1).

    Terms are compared by sign and logarithm, so that scores of any range are told apart.
    """
    size = s + (v - t).abs().log()  # −inf where v = t
    negative = torch.where(allowed & (v < t), size, -torch.inf)
    other = torch.where(allowed & (v >= t), size, torch.inf)
    best, most = negative.max(-1)
    return torch.where(best > -torch.inf, most, other.argmin(-1))


def down(value: Tensor) -> Tensor:
    """The float below."""
    return torch.nextafter(value, torch.full_like(value, -torch.inf))

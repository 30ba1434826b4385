"""The invariant: a number returned by `proved_minorant` is a valid B of the affine vertex rule, whatever was rounded.

Proof
-----
All arguments are read as exact reals. ε = 2⁻⁵³ is the unit roundoff, a hat marks a computed number, and everything is
in double precision (single-precision arguments are converted, which is exact, and the result is rounded down). The only
assumptions are IEEE 754 rounding of + − × ÷, that e^x is computed with a relative error of at most EXP_ULPS = 4 ε where
x ≥ LOWEST (and lies between 0 and UNDERFLOW where not), and log x and log(1 + x) with one of at most LOG_ULPS = 4 ε
where x is normal; these are assumptions about the library, tried by the tests but not proved here. Sums hold for every
order of addition. Subnormal numbers are what they are (`gradual_underflow`).
SAFETY covers all terms of second order, as in outward.py.

1. *Logarithms of sums.* With x_k ≤ 0 the shifted scores, one of them 0, T = Σ e^{x_k} ≥ 1. Rounding of x_k costs
   ε |x_k| e^{x_k}, and Σ e^{x_k} |x_k| / T = entropy − log T ≤ log K; weights below e^LOWEST cost K UNDERFLOW at most,
   which is nothing beside ε. So T̂ is off by ε (K + 4 + log K) relatively, and log T̂ by ε (K + 4 + 5 log K).
   D = lse − shift = (max − shift) + log T, where |max − shift| ≤ |D| + log K: ε (K + 4 + 6 log K + 2 |D|).
2. *Ranges of log p.* z = (shift − own) + log T has |shift − own| ≤ |z| + log K, so it is off by
   ε (K + 4 + 6 log K + 2 |z|). log p = −(max(z, 0) + log(1 + e^{−|z|})) changes by e^z/(1 + e^z) ≤ 1 times that;
   2 |z| e^z/(1 + e^z) is at most 2 |log p| for z > 0 and below 0.6 for z < 0. The logarithm of 1 + e^{−|z|}, at most
   log 2, is off by 8 ε log 2 and the last sum by ε |log p|. Together ε (K + 11 + 6 log K + 3 |log p|).
3. *Widening.* 6 log K ≤ K + 5 for every K, so every number x of steps 1 and 2 is off by less than
   η(x) = SAFETY ε (2 K + 16 + 5 |x|), which includes the rounding of x ± η(x) itself. The range of D is widened by η
   first; its inner cuts may be any floats in between, in order, and are. x = (l_j − shift) − D₁ is off by
   ε (|x| + |D₁|) + ε |x|, that is by less than η(x) + SAFETY ε |D₁|. Then for every piece [D₀, D₁] the ends
   max(log p^L, l − shift − D₁) and min(log p^U, u − shift − D₀), moved outward by η + SAFETY ε max |D|, contain r_j
   for every s in the box with D₀ ≤ lse(s) − shift ≤ D₁ (the exact maximum of two numbers is at least the exact value
   of the one whose computed value is larger). r_j ≤ 0 always. A piece that rounding has put outside the true range
   may have crossed ends: exchanged, they are kept.
4. *A summand at an end r.* ŵ = (v − μ)(1 + δ) has the right sign. w e^r collects 1 + 4 + 1 roundings, a r and m v one
   each, and two subtractions: the value is off by at most 8 ε size, size = |ŵ| ê + |a r̂| + |m v|. Where r < LOWEST
   e^r is set to 0, which is off by less than UNDERFLOW: in `size` ê is at least UNDERFLOW / ε.
5. *Which candidate.* If w ≤ 0 or a ≤ 0, w e^r − a r is concave or monotone: the least over [low, high] is at an end.
   Otherwise it is convex with its bottom at b = log(a/w), and its value there, a − a b, is a lower bound everywhere.
   An end is taken instead where computed numbers say that the bottom is not inside: ŵ e^low ≥ a or ŵ e^high ≤ a
   (with e^high at least UNDERFLOW). If that is wrong, b is within 8 ε of this end, and the value at the end exceeds
   that at the bottom by a (e^δ − 1 − δ) < 64 ε² a, where a ≤ |w| e^r (1 + 8 ε): second order.
6. *The bottom.* a/ŵ is off by 2 ε relatively, so b̂ by ε (2 + 4 |b̂|), and a − a b̂ − m v by at most
   8 ε (a + |a b̂| + |m v|). Where a/w is not normal, b̂ is the logarithm of the smallest normal number: b̂ > b, and
   a − a b̂ < a − a b is still a lower bound.
7. *Sums.* K + 2 further additions bring each summand and μ to the total. Every candidate is lowered by
   SAFETY ε (K + EXTRA_ULPS) size, EXTRA_ULPS = 20, before the least is taken, so that this pays for them too.
8. *The rest.* Σa is off by K ε Σ|a|; times D, and with two more additions, (Σa) D in a piece is at most the larger
   of its computed ends plus ε (K + 8) Σ|a| max |D|; D with its shift added, which rounds once. μ costs 4 ε |μ|.
   Products and quotients that underflow lose less than UNDERFLOW per key.

Where something overflows a size is infinite or NaN, so the total of its piece is NaN or infinite: −inf is returned.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.softmax_box.log_ranges import LogRanges, pieces
from vertex_softmax.softmax_box.outward import EXP_ULPS, EXTRA_ULPS, LIMITS, SAFETY

LOG_ULPS = EXP_ULPS
LIMIT = LIMITS[torch.float64]
UNIT = SAFETY * LIMIT.unit


def proved_minorant(  # the arguments of the public affine_minorant
    lower: Tensor, upper: Tensor, value_lower: Tensor, value_upper: Tensor, a: Tensor, m: Tensor, mu: Tensor
) -> Tensor:
    """A proved B of the affine vertex rule, (...), for valid float64 arguments (..., K) and mu (..., M)."""
    keys = upper.shape[-1]
    ranges = proved_ranges(lower, upper, mu.shape[-1])
    unmasked = (upper > -torch.inf).unsqueeze(-2)
    low, high = torch.where(unmasked, ranges.low, 0.0), torch.where(unmasked, ranges.high, 0.0)
    e_low, e_high = (x.exp().masked_fill(x < LIMIT.lowest, 0.0) for x in (low, high))
    lost = UNIT * (keys + EXTRA_ULPS)
    level, slope, coefficient = mu.unsqueeze(-1), a.unsqueeze(-2), m.unsqueeze(-2)
    terms = []
    for v in (value_lower.unsqueeze(-2), value_upper.unsqueeze(-2)):
        mv = coefficient * v
        least = _least(v - level, slope, mv, low, high, e_low, e_high, lost)
        terms.append(torch.where(unmasked, least, -mv - lost * mv.abs()))
    total = mu + torch.minimum(*terms).sum(-1)
    rest, size = a.sum(-1, keepdim=True), a.abs().sum(-1, keepdim=True)
    D0, D1 = ranges.shift + ranges.cuts[..., :-1], ranges.shift + ranges.cuts[..., 1:]
    furthest = torch.maximum(D0.abs(), D1.abs())
    error = UNIT * (4 * mu.abs() + (keys + 8) * size * furthest) + keys * LIMIT.underflow
    B = total - torch.maximum(rest * D0, rest * D1) - error
    return B.masked_fill(B.isnan() | B.isposinf(), -torch.inf).amin(-1)


def proved_ranges(lower: Tensor, upper: Tensor, M: int) -> LogRanges:
    """The ranges of `pieces`, widened so that they contain the exact ones: steps 1 to 3 of the proof."""
    keys = upper.shape[-1]
    ranges = pieces(lower, upper, M, _widening)
    low, high = ranges.low - _widening(ranges.low, keys), ranges.high + _widening(ranges.high, keys)
    if M > 1:  # then the cuts enter the ranges
        D = ranges.cuts
        reach = UNIT * torch.maximum(D[..., :-1].abs(), D[..., 1:].abs()).unsqueeze(-1)
        low, high = low - reach, high + reach
    ordered = torch.minimum(low, high).clamp(max=0.0), torch.maximum(low, high).clamp(max=0.0)
    return LogRanges(low=ordered[0], high=ordered[1], cuts=ranges.cuts, shift=ranges.shift)


def _widening(x: Tensor, keys: int) -> Tensor:
    """η(x) of step 3."""
    return UNIT * (5 * x.abs() + (2 * keys + 16))


def _least(  # the numbers of one summand, as the proof names them; the exponentials are shared between both values
    w: Tensor, a: Tensor, mv: Tensor, low: Tensor, high: Tensor, e_low: Tensor, e_high: Tensor, lost: float
) -> Tensor:
    """Below min over r in [low, high] of w e^r − a r − mv, by at least `lost` times its size: steps 4 to 7."""
    fixed = mv.abs()

    def value_at_end(r: Tensor, e: Tensor, up: Tensor) -> Tensor:
        slope = a * r
        size = w.abs() * e.clamp(min=LIMIT.underflow / LIMIT.unit) + slope.abs() + fixed
        return up - slope - mv - lost * size

    up_low, up_high = w * e_low, w * e_high
    ends = torch.minimum(value_at_end(low, e_low, up_low), value_at_end(high, e_high, up_high))
    inside = (w > 0) & (a > 0) & (up_low < a) & (a < w * e_high.clamp(min=LIMIT.underflow))
    ratio = a / torch.where(inside, w, 1.0)
    slope = a * torch.where(inside, ratio, 1.0).clamp(min=torch.finfo(torch.float64).tiny).log()
    bottom = a - slope - mv - lost * (a + slope.abs() + fixed)
    return torch.where(inside, bottom, ends)

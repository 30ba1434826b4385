"""The invariant: a number returned by `lower_bound` is never above the exact minimum, whatever produced the candidate.

Proof
-----
Let c, l, u be the given floating-point numbers, read as exact reals, ``y_j(t)`` the exact weight ``e^{s_j − a}`` with
s_j = u_j where c_j < t and s_j = l_j elsewhere, for any shift a, and

    φ(t) = Σ_j (c_j − t) y_j(t) = min over y in the box of Σ_j (c_j − t) y_j        (reference.phi).

t is a lower bound of the minimum if and only if φ(t) ≥ 0: the sum is ≥ 0 for every y exactly when R(y) ≥ t for every
y. So it is enough to show φ(t) ≥ 0 in floating point, and how t was found does not matter. Let ε be the unit roundoff
(2⁻⁵³ or 2⁻²⁴), and let a hat mark a computed number. The only assumptions are IEEE 754 rounding of + − × (a fused
multiply-add, which rounds once, only helps) and that e^x is computed with a relative error of at most EXP_ULPS = 4 ε.
Subnormal numbers may be flushed to zero on the way, but not in the input, the candidate or the result: see
`gradual_underflow`.

1. *Differences.* The comparison c_j < t is exact, so the chosen end is the right one. d̂_j = (c_j − t)(1 + δ), |δ| ≤ ε,
   with the right sign; a subtraction of floats is exact where it is subnormal (flushed, it is 0: see step 3).
2. *Weights.* x̂_j = (s_j − a)(1 + δ), so the exact weight is e^{x_j} = e^{x̂_j} e^{x_j − x̂_j} with
   |x_j − x̂_j| ≤ ε |x̂_j| (1 + 2ε), and ŷ_j = e^{x̂_j}(1 + θ), |θ| ≤ EXP_ULPS ε. Hence
   |y_j − ŷ_j| ≤ ŷ_j ε (|x̂_j| + EXP_ULPS)(1 + small), where small covers terms of second order; |x̂_j| ≤ 708, so
   ε |x̂_j| < 10⁻⁵ in both precisions. A weight below e^LOWEST is set to 0; then |y_j − ŷ_j| ≤ UNDERFLOW.
3. *Products.* d̂_j ŷ_j is rounded once more: relative ε, or at most the smallest normal number if it underflows. A
   processor that flushes subnormals may lose that much in the difference, the product and one addition: 3 times the
   smallest normal number, below UNDERFLOW; a key whose weight counts as 0 loses |c_j − t| e^LOWEST instead.
4. *Sum.* Adding numbers along paths of at most n additions gives Σ (1 + η_j) terms_j, |η_j| ≤ nε/(1 − nε). The native
   kernel fixes the order, so n is known; where the order is the library's, n = K, which holds for every order.

Together, with F̂ the computed sum and Ĝ = Σ |d̂_j ŷ_j| (n + EXTRA_ULPS + |x̂_j|) computed likewise,

    φ(t) ≥ F̂ − SAFETY · (ε Ĝ + K · UNDERFLOW · (1 + max c − min c)).

EXTRA_ULPS = 20 is at least 1 (step 1) + 4 (step 2) + 1 (step 3) + 4 (the tree that joins 16 lanes), with 10 to spare.
SAFETY = 1 + 1/16 exceeds every second-order factor and the rounding of Ĝ itself while (n + EXTRA_ULPS) ε ≤ 1/64, which
native.MOST_KEYS ensures (elsewhere single precision is summed in double). |c_j − t| ≤ max c − min c holds because
candidates lie in [min c, max c]; one above max c has only negative terms and is refused. `depth` in native/vectors.h
takes |x̂_j| from the exponent of ŷ_j: if ŷ_j ≥ 2^e then |x̂_j| ≤ −e·log 2 + 5 ε.

A candidate t̂ − step is returned only if this right-hand side is ≥ 0. The first step is twice what the residual at t̂
asks for; each later one doubles it and adds twice what the residual at the refused candidate asks for. If none passes,
min c is returned, which is a lower bound of every weighted mean of c.

The exponential
---------------
native/vectors.h computes e^x for LOWEST ≤ x ≤ 0 by basic operations alone: n = round(x log₂e), r = x − n log 2 in two
steps, a Taylor polynomial of degree 13 (7 in single precision) by Horner's rule, and 2^n by adding to the exponent.
n·LN2_HI is exact (11 + 42 or 7 + 15 bits), and so is x − n·LN2_HI: for n ≠ 0 both are multiples of the last bit of a
number of at least 1/4, and the difference is below 1/2. Rounding n·LN2_LO and the last subtraction costs at most
0.347 ε + |n| LN2_LO ε < 0.36 ε absolutely, and LN2_HI + LN2_LO misses log 2 by less than 2⁻⁹⁷ (2⁻⁴⁴), which times |n|
is below 0.01 ε. n differs from the nearest integer's choice only by the rounding of x log₂e, so |r| ≤ 0.347, and
truncation costs at most 0.347¹⁴/14! < 0.04 ε (0.347⁸/8! < 0.1 ε). Horner's rule b_k = a_k + r b_{k+1} adds errors by
e_k ≤ ε|b_k| + ε|r b_{k+1}| + |r| e_{k+1}. At r = 0.347: b = 1.415, 1.195, 0.564, 0.184, … gives e_2 ≤ 0.75 ε,
e_1 ≤ 1.66 ε, e_0 ≤ 2.41 ε on e^r = 1.415; at r = −0.347: b = 0.707, 0.845, 0.448, 0.160, … gives e_2 ≤ 0.6 ε,
e_1 ≤ 1.22 ε, e_0 ≤ 1.43 ε on e^r = 0.707; between them every b_k grows with r. Relative to e^r that is at most 2.1 ε,
and the errors of r (0.4 ε), of truncation (0.15 ε) and of the rounded coefficients (0.02 ε) bring it to 2.7 ε:
EXP_ULPS = 4 holds with room. Multiplying by 2^n is exact because LOWEST keeps the result normal.
Outside the native kernel the 4 ε are an assumption about the library's exp, tried by the tests but not proved here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

EXP_ULPS = 4  # in units of ε, so two ulps at most
EXTRA_ULPS = 20
SAFETY = 1.0625
TRIES = 24


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The constants of one precision; native/real64.h and real32.h define the same numbers."""

    unit: float
    """ε, the unit roundoff."""
    lowest: float
    """A weight e^x with x below this counts as 0 (LOWEST in the proof)."""
    underflow: float
    """An upper bound of what a key loses by underflow (UNDERFLOW in the proof)."""
    widest: float
    """The largest max u − max l that the fast paths handle."""
    largest: float
    """Σ |c| must stay below this, so that products do not overflow."""
    smallest: float
    """Σ |c| times the least sum of weights must reach this, so that products do not underflow."""


LIMITS = {
    torch.float64: Limits(
        unit=2.0**-53, lowest=-708.0, underflow=8e-308, widest=600.0, largest=2.0**1000, smallest=2.0**-960
    ),
    torch.float32: Limits(
        unit=2.0**-24, lowest=-87.0, underflow=4.1e-38, widest=60.0, largest=2.0**100, smallest=2.0**-96
    ),
}


@contextmanager
def gradual_underflow() -> Iterator[None]:
    """Within this context subnormal numbers are not flushed to zero, even under torch.set_flush_denormal(True).

    In that mode a subnormal coefficient or result would be read as 0, and the bound would be about other numbers.
    """
    flushed = math.ulp(0.0) * 1.0 == 0.0
    if flushed:
        torch.set_flush_denormal(False)
    try:
        yield
    finally:
        if flushed:
            torch.set_flush_denormal(True)


def weight_residual(c: Tensor, lower: Tensor, upper: Tensor, shift: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(F̂, error bound of F̂ without the underflow term, Σ y) at the vertex y(t); shapes (..., 1).

    c, lower, upper broadcast to (..., K); shift and t are (..., 1). Sums are in float64: then n = 0 additional ulps
    of single precision remain to be counted, and n = K of double precision.
    """
    limits = LIMITS[c.dtype]
    d = c - t
    x = torch.where(d < 0, upper, lower) - shift
    x = torch.where(x < limits.lowest, float("-inf"), x)
    y = x.exp()
    term = d * y
    additions = c.shape[-1] if c.dtype == torch.float64 else 1
    weight = torch.where(y > 0, -x, 0.0) + float(additions + EXTRA_ULPS)
    total = {"dim": -1, "keepdim": True, "dtype": torch.float64}
    residual: Tensor = term.sum(**total)  # type: ignore[call-overload]
    error: Tensor = (term.abs() * weight).sum(**total) * limits.unit  # type: ignore[call-overload]
    mass: Tensor = y.sum(**total)  # type: ignore[call-overload]
    return residual, error, mass


def lower_bound(c: Tensor, lower: Tensor, upper: Tensor, t: Tensor, shift: Tensor | None) -> Tensor:
    """A proved lower bound of the exact minimum, close below the candidate t (..., 1); NaN rows stay NaN.

    `shift` is the a of the proof, (..., 1), at least every score of every vertex that can be tried and at most
    LIMITS.widest above its largest; None chooses it anew for each candidate, as the log-domain path needs.
    """
    limits = LIMITS[c.dtype]
    low, high = c.amin(-1, keepdim=True), c.amax(-1, keepdim=True)
    lost = float(c.shape[-1]) * limits.underflow * (1 + (high.double() - low.double()))

    def margin(candidate: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.where(c < candidate, upper, lower).amax(-1, keepdim=True) if shift is None else shift
        residual, error, mass = weight_residual(c, lower, upper, a, candidate)
        return residual - SAFETY * (error + lost), mass

    spare, mass = margin(t)
    step = torch.where(spare >= 0, 0.0, -2 * spare / mass)
    least = t.abs().double() * limits.unit
    result = torch.where(t.isnan(), t, low)
    open_ = ~t.isnan()
    for _ in range(TRIES):
        candidate = (t.double() - step).to(t.dtype)
        open_ = open_ & (candidate > low)
        if not bool(open_.any()):
            break
        spare, mass = margin(candidate)
        proved = open_ & (spare >= 0)
        result = torch.where(proved, candidate, result)
        open_ = open_ & ~proved
        step = 2 * torch.maximum(step, least) + torch.where(spare < 0, -2 * spare / mass, 0.0)
    return result


def round_down(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest number of `dtype` that is not above `value`; NaN stays NaN."""
    near = value.to(dtype)
    below = torch.nextafter(near, torch.full_like(near, -float("inf")))
    return torch.where(near.to(value.dtype) > value, below, near)

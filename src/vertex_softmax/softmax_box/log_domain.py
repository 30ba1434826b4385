"""The same minimum where weights would underflow or products overflow: every round computes a stable softmax.

Invariant: a finite result for every valid row, however wide its box. Always in float64. Such rows are rare, so the code
favours clarity over speed.
"""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from vertex_softmax.softmax_box import outward as proof
from vertex_softmax.softmax_box.torch_backend import descend, without_masked

CHUNK = 1 << 22


def minimum(c: Tensor, lower: Tensor, upper: Tensor, *, outward: bool = False) -> Tensor:
    """min over the box of c · softmax(s) for valid rows (rows, K), to (rows), in the dtype of c."""
    return minimum_and_cut(c, lower, upper, outward=outward)[0]


def minimum_and_cut(c: Tensor, lower: Tensor, upper: Tensor, *, outward: bool = False) -> tuple[Tensor, Tensor]:
    """The minimum (rows), and the cut: it is attained where keys with c < cut are at their upper end. Chunked."""
    rows = max(1, CHUNK // c.shape[-1])
    parts = [
        _solve(c[i : i + rows].double(), lower[i : i + rows].double(), upper[i : i + rows].double(), outward)
        for i in range(0, c.shape[0], rows)
    ]
    value = torch.cat([part[0] for part in parts]) if parts else c.new_empty(0, dtype=torch.float64)
    cut = torch.cat([part[1] for part in parts]) if parts else value
    cut = -proof.round_down(-cut, c.dtype)  # up: then c < cut is the same for every coefficient of that dtype
    return proof.round_down(value, c.dtype) if outward else value.to(c.dtype), cut


def _solve(c: Tensor, lower: Tensor, upper: Tensor, outward: bool) -> tuple[Tensor, Tensor]:
    """(value, cut), each (rows), of float64 rows (rows, K)."""
    c = without_masked(c, upper)
    exponent = torch.frexp(c.abs().amax(-1, keepdim=True)).exponent
    scaled = _times_power(c, -exponent)  # max |scaled| is in [1/2, 1): exact but for what underflows
    if outward:  # the minimum grows with c, so coefficients that underflow must not round up
        scaled = torch.where(_times_power(scaled, exponent) > c, _below(scaled), scaled)

    def mean_at(t: Tensor, x: Tensor) -> Tensor:
        return (x * torch.where(scaled < t, upper, lower).softmax(-1)).sum(-1, keepdim=True)

    t, cut = descend(mean_at, scaled)
    cut = torch.where(scaled < cut, inf, c).amin(-1, keepdim=True)  # the same vertex, by an unscaled coefficient
    if outward:
        t = proof.lower_bound(scaled, lower, upper, t, None)
        back = _times_power(t, exponent)
        back = torch.where(_times_power(back, -exponent) > t, _below(back), back)
        least = scaled.amin(-1, keepdim=True)
        return torch.where(t > least, back, c.amin(-1, keepdim=True)).squeeze(-1), cut.squeeze(-1)
    return _times_power(t, exponent).squeeze(-1), cut.squeeze(-1)


def _below(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, -inf))


def _times_power(x: Tensor, exponent: Tensor) -> Tensor:
    """x · 2^exponent in two steps, because 2^exponent alone may overflow."""
    half = exponent.long() // 2
    return x * _power(half) * _power(exponent.long() - half)


def _power(exponent: Tensor) -> Tensor:
    """2^exponent for −1022 ≤ exponent ≤ 1023, exactly: the exponent bits of a float64 (torch.ldexp is not exact)."""
    return ((exponent + 1023) << 52).view(torch.float64)

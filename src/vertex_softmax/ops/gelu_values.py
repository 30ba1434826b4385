"""Values and slopes of GELU, both forms, to rounding relative to themselves: where they are tiny nothing cancels.

At −5.2, x/2 (1 + tanh u) is −6e-8, and in single precision 1 + tanh u is 0; a box that ended there would not hold the
value, and weights behind it can make much of that. So Φ(x) is computed as erfc(−x/√2)/2, and (1 + tanh u)/2 as σ(2u).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FAR = 1e3
"""Beyond 40 all is 0 or 1 to the last bit; x³ must not overflow."""


def value(x: Tensor) -> Tensor:
    """x Φ(x)"""
    return 0.5 * x * torch.erfc(x * -math.sqrt(0.5))


def slope(x: Tensor) -> Tensor:
    """Φ(x) + x φ(x)"""
    return 0.5 * torch.erfc(x * -math.sqrt(0.5)) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def exponent(x: Tensor, k: float, c: float) -> Tensor:
    """2 k (x + c x³)"""
    near = x.clamp(-FAR, FAR)
    return 2 * k * (near + c * near**3)


def value_by_tanh(x: Tensor, k: float, c: float) -> Tensor:
    """x/2 (1 + tanh(k (x + c x³)))"""
    return x * exponent(x, k, c).sigmoid()


def slope_by_tanh(x: Tensor, k: float, c: float) -> Tensor:
    """The derivative of `value_by_tanh`."""
    x = x.clamp(-FAR, FAR)
    twice = exponent(x, k, c)
    rises = twice.sigmoid()
    return rises + x * rises * (-twice).sigmoid() * 2 * k * (1 + 3 * c * x * x)


def rounded(x: Tensor, constants: tuple[float, float] | None) -> Tensor:
    """The share of a value at x ≤ 0 that the rounding of its exponent can make; constants of the form by tanh."""
    x = x.clamp(-40.0, 0.0)
    size = x * x / 2 if constants is None else exponent(x, *constants).abs()
    return 8 * torch.finfo(x.dtype).eps * size

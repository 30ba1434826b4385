"""The second and third derivatives of smooth activation functions, and a bound of the fourth on the whole line.

Each function returns f⁽²⁾(x), f⁽³⁾(x) and a number that |f⁽⁴⁾| never exceeds (tests/ops/test_higher_derivatives.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Higher = tuple[Tensor, Tensor, float]


def gelu(x: Tensor) -> Higher:
    """With the normal density φ: (2 − x²) φ and (x³ − 4x) φ; |f⁽⁴⁾| = |x⁴ − 7x² + 4| φ ≤ 4 φ(0) = 1.596."""
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return (2 - x * x) * density, (x * x - 4) * x * density, 1.6


def gelu_by_tanh(x: Tensor, k: float, c: float) -> Higher:
    """Of x/2 (1 + t), t = tanh u, u = k (x + c x³): t' = s u' with s = 1 − t², and so on; |f⁽⁴⁾| ≤ 1.604."""
    x = x.clamp(-1e3, 1e3)  # beyond 8 all of them are 0 to the last bit; x³ would overflow
    u = k * (x + c * x**3)
    t, s = torch.tanh(u), 4 * (2 * u).sigmoid() * (-2 * u).sigmoid()  # 1 − t² without cancellation
    u1, u2 = k * (1 + 3 * c * x * x), 6 * k * c * x
    first, second = s * u1, s * u2 - 2 * t * s * u1 * u1
    third = s * (4 * t * t - 2 * s) * u1**3 - 6 * t * s * u1 * u2 + 6 * k * c * s
    return first + x * second / 2, 1.5 * second + x * third / 2, 1.61


def sigmoid(x: Tensor) -> Higher:
    """(1 − 2σ) σ' and (1 − 6σ + 6σ²) σ'; |f⁽⁴⁾| ≤ 0.1277."""
    s, first = x.sigmoid(), x.sigmoid() * (-x).sigmoid()
    return (1 - 2 * s) * first, (1 - 6 * s + 6 * s * s) * first, 0.128


def silu(x: Tensor) -> Higher:
    """f⁽ᵏ⁾ = k σ⁽ᵏ⁻¹⁾ + x σ⁽ᵏ⁾; |f⁽⁴⁾| ≤ ½, attained at 0."""
    second, third, _ = sigmoid(x)
    return 2 * x.sigmoid() * (-x).sigmoid() + x * second, 3 * second + x * third, 0.5001


def tanh(x: Tensor) -> Higher:
    """With t = tanh x and f' = 1 − t²: −2t f' and (6t² − 2) f'; |f⁽⁴⁾| = |16t − 24t³| f' ≤ 4.086."""
    t, first = x.tanh(), 4 * (2 * x).sigmoid() * (-2 * x).sigmoid()
    return -2 * t * first, (6 * t * t - 2) * first, 4.09


def softplus(x: Tensor) -> Higher:
    """σ' and σ''; |f⁽⁴⁾| = |σ'''| ≤ ⅛, attained at 0."""
    s, first = x.sigmoid(), x.sigmoid() * (-x).sigmoid()
    return first, (1 - 2 * s) * first, 0.12501


def gate_of_mish(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g = tanh(log(1 + eˣ)) and its first three derivatives: g' = (1 − g²) σ with σ' = σ (1 − σ), and so on.

    1 − g² = 4 w / (1 + w)² with w = (1 + eˣ)⁻², which does not cancel far to the right.
    """
    s, rest = x.sigmoid(), (-x).sigmoid()
    w = rest * rest
    g, c = (1 - w) / (1 + w), 4 * w / (1 + w).square()
    e = x.clamp(max=0).exp()
    g = torch.where(x < 0, e * (e + 2) / (e * (e + 2) + 2), g)
    s1 = s * rest
    s2 = (1 - 2 * s) * s1
    g1 = c * s
    g2 = -2 * g * g1 * s + c * s1
    g3 = -2 * (g1 * g1 * s + g * g2 * s + 2 * g * g1 * s1) + c * s2
    return g, g1, g2, g3


def mish(x: Tensor) -> Higher:
    """Of x g: 2g' + x g'' and 3g'' + x g'''; |f⁽⁴⁾| ≤ 1.1008, attained at 0."""
    _, g1, g2, g3 = gate_of_mish(x)
    return 2 * g1 + x * g2, 3 * g2 + x * g3, 1.101

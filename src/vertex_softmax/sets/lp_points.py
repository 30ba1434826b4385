"""Points of balls in the ℓ1 and ℓ2 norms: which lie inside beyond doubt, the nearest ones, and random ones.

Invariant: `in_balls` calls points inside only if the real norms of their offsets are at most 1, and outside only if one
is more; where rounding could decide it says neither. What `onto_ball` returns is inside by more than rounding.

Offsets are z = (x − centre) / eps, by balls: (..., balls, size). The sum of |z|^p of `size` numbers in float64 differs
from the real one by less than `margin(size)` of it, whatever the order of the sum; what underflows is far less.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.foundation.two_sum import two_sum
from vertex_softmax.sets.lp_region import Norm

UNIT = 2.0**-52
"""The distance of 1 to the next float64: twice what one operation may round by, relatively."""
FAR = 2.0**1000
"""Offsets beyond it are moved to it, so that no sum of them overflows."""


def margin(size: int) -> float:
    """How much, relatively, the sum of |z|^p of `size` offsets may be off: x − centre, z, its square and every sum."""
    return (size + 8) * UNIT


@dataclasses.dataclass(frozen=True, eq=False)
class Doubt:
    """Which points lie in their balls, (...) bool both; neither where rounding could decide."""

    inside: Tensor
    outside: Tensor


def in_balls(z: Tensor, norm: Norm) -> Doubt:
    """Which offsets (..., balls, size) are in all their balls, and which are not in one of them, beyond doubt."""
    total, off = _powers(z.abs(), norm).sum(-1), margin(z.shape[-1])
    return Doubt((total <= 1 - 2 * off).all(-1), (total >= 1 + 2 * off).any(-1))


def onto_ball(z: Tensor, norm: Norm) -> Tensor:
    """The nearest offsets (..., size) of norm 1 at most; those that are inside beyond doubt are unchanged.

    No number moves away from 0, so that a box around the centre is not left either.
    """
    off = margin(z.shape[-1])
    z = z.clamp(-FAR, FAR)
    size = z.abs()
    total = _powers(size, norm).sum(-1, keepdim=True)
    outside = ~(total <= 1 - 2 * off)
    if norm is Norm.L1:
        size = torch.where(outside, _soft(size), size)
        length = size.sum(-1, keepdim=True)
    else:
        length = _length(size)
    shrink = torch.where(outside & (length > 0), torch.clamp((1 - 4 * off) / length, max=1.0), 1.0)
    return z.sign() * torch.minimum(size * shrink, z.abs())


def moved(centre: Tensor, offset: Tensor) -> Tensor:
    """centre + offset, rounded towards the centre: no number of the result is further from it than the offset says."""
    found, error = two_sum(centre, offset)
    over = error.sign() * offset.sign() < 0  # the sum was rounded away from the centre
    return torch.where(over, torch.nextafter(found, centre), found)


def directions(b: Tensor) -> Tensor:
    """b / |b|₂ for each ball, (..., size); 0 where b is."""
    most = b.abs().amax(-1, keepdim=True)
    part = torch.where(most > 0, b / torch.where(most > 0, most, torch.ones_like(most)), torch.zeros_like(b))
    length = part.square().sum(-1, keepdim=True).sqrt()
    return part / torch.where(length > 0, length, torch.ones_like(length))


def random_offsets(shape: tuple[int, ...], norm: Norm, generator: torch.Generator) -> Tensor:
    """Random offsets (count, balls, size) of norm 1 at most: uniform ones, and at odd places ones of norm 1.

    Those are vertices for ℓ1 and any points of the sphere for ℓ2.
    """
    size = shape[-1]
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    spread = torch.rand(shape, generator=generator, dtype=torch.float64)
    depth = torch.rand((*shape[:-1], 1), generator=generator, dtype=torch.float64).pow(1 / size)
    if norm is Norm.L2:
        rim = directions(normal)
        inner = rim
    else:
        rim = torch.zeros_like(normal).scatter(-1, spread.argmax(-1, keepdim=True), 1.0) * normal.sign()
        weights = -torch.log1p(-spread)
        inner = normal.sign() * weights / weights.sum(-1, keepdim=True)
    odd = (torch.arange(shape[0]) % 2 == 1).reshape(-1, *[1] * (len(shape) - 1))
    return torch.where(odd, rim, inner * depth)


def _powers(size: Tensor, norm: Norm) -> Tensor:
    return size if norm is Norm.L1 else size.square()


def _length(size: Tensor) -> Tensor:
    """The Euclidean lengths of numbers ≥ 0, (..., n) → (..., 1)."""
    most = size.amax(-1, keepdim=True)
    safe = torch.where(most > 0, most, torch.ones_like(most))
    return (size / safe).square().sum(-1, keepdim=True).sqrt() * safe


def _soft(size: Tensor) -> Tensor:
    """The nearest point, in the Euclidean sense, of the simplex Σ t ≤ 1, t ≥ 0, to numbers ≥ 0 whose sum is more.

    It is max(size − threshold, 0), and the threshold is at least the largest number less 1, which is taken off first:
    of numbers that are far away only their differences matter.
    """
    most = size.amax(-1, keepdim=True)
    size = torch.where(most > 1, (size - most + 1).clamp(min=0), size)
    ordered = size.sort(-1, descending=True).values
    excess = ordered.cumsum(-1) - 1
    count = torch.arange(1, size.shape[-1] + 1, device=size.device)
    kept = (ordered * count > excess).sum(-1, keepdim=True).clamp(min=1)
    threshold = excess.gather(-1, kept - 1) / kept
    return (size - threshold.clamp(min=0)).clamp(min=0)

"""Products of two unknowns: how far Σ_{i<j} q_ij ξ_i ξ_j can reach if all |ξ_i| ≤ 1.

Invariant: `reach`, `tight_reach` and `ball_reach` are upper bounds of |ξᵀMξ|, with rounding included.

With the symmetric matrix M, M_ij = q_ij / 2, the sum is ξᵀMξ. For any weights u_i > 0 the cube lies in the ellipsoid
Σ u_i ξ_i² ≤ Σ u_i =: U, so that
  |ξᵀMξ| ≤ U · λ,   λ the spectral norm of u^{−1/2} M u^{−1/2},
and λ is at most the Frobenius norm, or (tr W¹⁶)^{1/16} for that matrix W, which is close to λ. The weights are
u_i = |M_i|, the norm of a row. They matter: where a number depends mostly on a few unknowns, equal weights give a bound
that is many times as large.

For rows y of d numbers, with one matrix M for each number and common weights for the row, the Frobenius norm gives an
ellipsoid:
  |η·q(ξ)|² ≤ U² Σ_ij (η·M_ij)² / (u_i u_j) = ηᵀ (U² Σ_ij M_ij M_ijᵀ / (u_i u_j)) η.

Coefficients are stored packed, (batch, 1, n(n−1)/2, *shape), and multiplied by `unit`, the radius of a ball that
contains all products ξ_i ξ_j. So code that knows nothing of pairs can treat a block of them as a ball of radius 1.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

SQUARINGS = 3
"""λ is bounded by the p-norm of the eigenvalues, p = 2^(SQUARINGS + 1)."""
MOST_NUMBERS = 1 << 23
"""Matrices are made for at most this many numbers at a time (64 MiB in float64)."""


def unit(count: int) -> float:
    """√(n(n−1)/2), the largest length of the vector (ξ_i ξ_j)_{i<j}."""
    return math.sqrt(count * (count - 1) / 2)


@functools.lru_cache(maxsize=64)
def places(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The first and the second index of each packed pair i < j."""
    first, second = torch.triu_indices(count, count, 1, device=device)
    return first, second


def packed(full: Tensor) -> tuple[Tensor, Tensor]:
    """From coefficients of ξ_i ξ_j, (batch, n, n, *shape): those of the pairs i < j, and those of the squares
    (batch, n, *shape).
    """
    first, second = places(full.shape[1], full.device)
    return full[:, first, second] + full[:, second, first], full.diagonal(dim1=1, dim2=2).movedim(-1, 1)


def outer(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The product of Σ x_i ξ_i and Σ y_i ξ_i, (batch, n, *shape) each: coefficients of pairs and of squares."""
    first, second = places(x.shape[1], x.device)
    pairs = x[:, first] * y[:, second]
    return pairs.add_(x[:, second] * y[:, first]), x * y


def _relative(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Packed M divided by its largest entry, (batch, K, *shape); and that entry (batch, 1, *shape), 1 if M is 0."""
    flat = columns.squeeze(1)
    most = flat.abs().amax(1, keepdim=True)
    most = torch.where(most > 0, most, torch.ones_like(most))
    return flat / most, most


def _row_lengths(squares: Tensor, count: int) -> Tensor:
    """√ of the sum of M_ij² over j, for every i: packed squares (batch, K, ...) → (batch, n, ...)."""
    first, second = places(count, squares.device)
    total = squares.new_zeros(squares.shape[0], count, *squares.shape[2:])
    return total.index_add_(1, first, squares).index_add_(1, second, squares).sqrt_()


def _inverse_roots(u: Tensor) -> Tensor:
    """1/√u, and 0 where u = 0, because those unknowns are in no pair."""
    return torch.where(u > 0, torch.where(u > 0, u, torch.ones_like(u)).rsqrt(), torch.zeros_like(u))


def reach(columns: Tensor, count: int) -> Tensor:
    """A bound of |ξᵀMξ| for every number, by the Frobenius norm: (batch, 1, K, *shape) → (batch, *shape)."""
    relative, most = _relative(columns)
    squares = relative.square()
    u = _row_lengths(squares, count)
    inverse = _inverse_roots(u).square_()
    first, second = places(count, columns.device)
    weighted = squares.mul_(inverse[:, first]).mul_(inverse[:, second]).sum(1)
    return _grown((weighted / 2).sqrt() * u.sum(1) * most.squeeze(1), count)


def _grown(size: Tensor, count: int) -> Tensor:
    """Turn a bound in units of packed coefficients into one for the numbers, and raise it to cover rounding."""
    share = 4 * count * count * torch.finfo(size.dtype).eps
    return size * ((1 + share) / unit(count))


def tight_reach(columns: Tensor, count: int) -> Tensor:
    """A bound of |ξᵀMξ| by the spectral norm, for about n times the work: (batch, 1, K, *shape) → (batch, *shape)."""
    shape = columns.shape[3:]
    flat = columns.flatten(3) if shape else columns.unsqueeze(-1)
    step = max(1, MOST_NUMBERS // (count * count * columns.shape[0]))
    parts = [_spectral(flat[..., i : i + step], count) for i in range(0, flat.shape[-1], step)]
    return torch.cat(parts, -1).reshape(columns.shape[0], *shape)


def _spectral(columns: Tensor, count: int) -> Tensor:
    """(batch, 1, K, numbers) → (batch, numbers)."""
    relative, most = _relative(columns)
    first, second = places(count, columns.device)
    matrix = relative.new_zeros(relative.shape[0], relative.shape[2], count, count)
    halves = relative.movedim(1, -1) / 2
    matrix[..., first, second] = halves
    matrix[..., second, first] = halves
    u = matrix.square().sum(-1).sqrt()
    inverse = _inverse_roots(u)
    matrix.mul_(inverse.unsqueeze(-1)).mul_(inverse.unsqueeze(-2))
    size = matrix.square().sum((-2, -1)).sqrt()
    power = matrix / torch.where(size > 0, size, torch.ones_like(size))[..., None, None]
    for _ in range(SQUARINGS):
        power = power @ power
    norm = power.square().sum((-2, -1)).pow(0.5 ** (SQUARINGS + 1))
    return _grown(norm * size * u.sum(-1) * most.squeeze(1), count)


def ball_reach(columns: Tensor, count: int) -> Tensor:
    """A bound of |ξᵀMξ| over |ξ| ≤ 1, by the spectral norm: (batch, 1, n(n−1)/2 + n, *shape) → (batch, *shape).

    columns: M_ij √2 for i < j, then M_ii.
    """
    shape = columns.shape[3:]
    flat = columns.flatten(3) if shape else columns.unsqueeze(-1)
    step = max(1, MOST_NUMBERS // (count * count * columns.shape[0]))
    parts = [_ball_spectral(flat[..., i : i + step], count) for i in range(0, flat.shape[-1], step)]
    return torch.cat(parts, -1).reshape(columns.shape[0], *shape)


def _ball_spectral(columns: Tensor, count: int) -> Tensor:
    """(batch, 1, K + n, numbers) → (batch, numbers), with ‖M‖ ≤ ‖M^p‖^{1/p} in the Frobenius norm."""
    relative, most = _relative(columns)
    first, second = places(count, columns.device)
    matrix = relative.new_zeros(relative.shape[0], relative.shape[2], count, count)
    entries = relative.movedim(1, -1)  # (batch, numbers, K + n)
    matrix[..., first, second] = entries[..., : len(first)] / math.sqrt(2)
    matrix[..., second, first] = entries[..., : len(first)] / math.sqrt(2)
    matrix.diagonal(dim1=-2, dim2=-1).copy_(entries[..., len(first) :])
    size = matrix.square().sum((-2, -1)).sqrt()
    power = matrix / torch.where(size > 0, size, torch.ones_like(size))[..., None, None]
    for _ in range(SQUARINGS):
        power = power @ power
    norm = power.square().sum((-2, -1)).pow(0.5 ** (SQUARINGS + 1))
    share = 4 * count * count * torch.finfo(size.dtype).eps
    return norm * size * most.squeeze(1) * (1 + share)


def ellipse(columns: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """An ellipse around rows of d numbers q: |η·q|² ≤ scale² ηᵀ matrix η.

    matrix: (batch, rows..., d, d), scale: (batch, rows...).
    """
    most = columns.squeeze(1).abs().amax((1, -1))
    scale = torch.where(most > 0, most, torch.ones_like(most))
    relative = columns.squeeze(1) / scale[:, None, ..., None]
    u = _row_lengths(relative.square().sum(-1), count)  # (batch, n, rows...)
    inverse = _inverse_roots(u)
    first, second = places(count, columns.device)
    weighted = relative.mul_((inverse[:, first] * inverse[:, second]).unsqueeze(-1)).movedim(1, -1)
    return (weighted @ weighted.mT) / 2, _grown(u.sum(1) * scale, count)

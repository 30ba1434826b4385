"""Products of three unknowns of the input, stored in a basis of products that lie in [−1, 1].

Invariant: `tight_reach` is an upper bound of how far forms of third degree reach over the cube, rounding included.

Over the cube |ξ_i| ≤ 1 let ζ_i = 2ξ_i² − 1, which lies in [−1, 1] as every ξ_i ξ_j does. A quadratic form is stored as
a constant and the coefficients (batch, n(n−1)/2 + n, *shape) of ξ_i ξ_j, i < j, then of ζ_i. A form of third degree is
stored as a linear form and the coefficients (batch, `size(n)`, *shape) of ξ_i ξ_j ξ_k, i < j < k, then of ζ_i ξ_k for
all i and k (row i). Squares are replaced by
  ξ_i² ξ_k = (ξ_k + ζ_i ξ_k) / 2,
so half of such a product is linear.

A form of third degree is bounded by Σ |coefficients|. Another bound uses the matrix A whose entry A_km is the
coefficient of ξ_k times product m of two unknowns; a third of the coefficient of ξ_i ξ_j ξ_k stands at each of its
three places. Since all factors lie in [−1, 1], the form is at most √(Σ u Σ v) times the spectral norm of u^{−1/2} A
v^{−1/2}, for any weights u, v > 0; here u and v are the sums of |A| over rows and over columns.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops import pairs


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """For all i < j < k: the three indices, and the positions of (j, k), (i, k) and (i, j) among the packed pairs."""

    first: Tensor
    second: Tensor
    third: Tensor
    without_first: Tensor
    without_second: Tensor
    without_third: Tensor


class Cubic(NamedTuple):
    """A form of third degree."""

    line: Tensor
    """the linear part, (batch, n, *shape)"""
    products: Tensor
    """the coefficients of products of three, (batch, size(n), *shape)"""


def size(count: int) -> int:
    """How many different products of three of `count` unknowns there are in the basis."""
    return count * (count - 1) * (count - 2) // 6 + count * count


@functools.lru_cache(maxsize=8)
def places(count: int, device: torch.device) -> Places:
    """The positions of the products of three different unknowns (`Places`)."""
    every = torch.combinations(torch.arange(count, device=device), 3)
    first, second, third = every.unbind(1) if len(every) else (every.new_zeros(0),) * 3

    def pair(i: Tensor, j: Tensor) -> Tensor:
        return i * (2 * count - i - 1) // 2 + (j - i - 1)

    return Places(first, second, third, pair(second, third), pair(first, third), pair(first, second))


def squared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ x_i ξ_i)(Σ y_i ξ_i), for x, y (batch, n, *shape), as a constant (batch, *shape) and a quadratic form."""
    pair, square = pairs.outer(x, y)
    return square.sum(1) / 2, torch.cat([pair, square / 2], 1)


def quadratic(full: Tensor) -> tuple[Tensor, Tensor]:
    """From coefficients of ξ_i ξ_j, (batch, n, n, *shape), a constant and a quadratic form."""
    pair, square = pairs.packed(full)
    return square.sum(1) / 2, torch.cat([pair, square / 2], 1)


def matrix(form: Tensor, count: int) -> Tensor:
    """The coefficients of pairs as a symmetric matrix with diagonal 0: (batch, n, n, *shape)."""
    first, second = pairs.places(count, form.device)
    found = form.new_zeros(form.shape[0], count, count, *form.shape[2:])
    found[:, first, second] = form[:, : len(first)]
    found[:, second, first] = form[:, : len(first)]
    return found


def times(a: Tensor, form: Tensor) -> Cubic:
    """Σ a_k ξ_k times a quadratic form without its constant: (batch, n, *shape), (batch, n(n−1)/2 + n, *shape)."""
    count = a.shape[1]
    at = places(count, a.device)
    triple = a.index_select(1, at.first) * form.index_select(1, at.without_first)
    triple.addcmul_(a.index_select(1, at.second), form.index_select(1, at.without_second))
    triple.addcmul_(a.index_select(1, at.third), form.index_select(1, at.without_third))
    half = a.unsqueeze(2) * (matrix(form, count) / 2)
    line = half.sum(1)
    mixed = half.addcmul_(form[:, -count:].unsqueeze(2), a.unsqueeze(1))
    return Cubic(line, torch.cat([triple, mixed.flatten(1, 2)], 1))


def packed(full: Tensor) -> Cubic:
    """A form of third degree from coefficients of ξ_k times (pairs, then ζ_i): (batch, n, n(n−1)/2 + n, *shape)."""
    count, wide = full.shape[1], full.shape[2]
    at, flat = places(count, full.device), full.flatten(1, 2)
    triple = flat.index_select(1, at.first * wide + at.without_first)
    triple += flat.index_select(1, at.second * wide + at.without_second)
    triple += flat.index_select(1, at.third * wide + at.without_third)
    first, second = pairs.places(count, full.device)
    pair = torch.arange(len(first), device=full.device)
    half = full.new_zeros(full.shape[0], count, count, *full.shape[3:])
    half[:, first, second] = full[:, first, pair] / 2
    half[:, second, first] = full[:, second, pair] / 2
    line = half.sum(1)
    mixed = half + full[:, :, len(first) :].transpose(1, 2)
    return Cubic(line, torch.cat([triple, mixed.flatten(1, 2)], 1))


MOST_NUMBERS = 1 << 23
"""Matrices are made for at most this many numbers at a time (64 MiB in float64)."""
SQUARINGS = 3
"""The largest eigenvalue of a matrix is bounded by the p-norm of all, p = 2^(SQUARINGS + 1)."""


@functools.lru_cache(maxsize=8)
def _spots(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each entry of A, (n, n(n−1)/2 + n) flat: which coefficient stands there, and which share of it (0: none)."""
    at, few = places(count, device), count * (count - 1) // 2
    where = torch.zeros(count, few + count, dtype=torch.int64, device=device)
    share = torch.zeros(count, few + count, dtype=torch.float64, device=device)
    every = torch.arange(len(at.first), device=device)
    for row, pair in (
        (at.first, at.without_first),
        (at.second, at.without_second),
        (at.third, at.without_third),
    ):
        where[row, pair] = every
        share[row, pair] = 1 / 3
    where[:, few:] = len(every) + torch.arange(count * count, device=device).reshape(count, count).T
    share[:, few:] = 1
    return where.flatten(), share.flatten()


def tight_reach(columns: Tensor, count: int) -> Tensor:
    """How far forms reach, by the smaller of their two bounds: (batch, size, 1, *shape) → (batch, *shape)."""
    shape = columns.shape[3:]
    flat = columns.flatten(1, 2)
    flat = flat.flatten(2) if shape else flat.unsqueeze(-1)  # (batch, size, numbers)
    step = max(1, MOST_NUMBERS // (count * (count * (count + 1) // 2) * columns.shape[0]))
    parts = [_reach(flat[..., i : i + step], count) for i in range(0, flat.shape[-1], step)]
    return torch.cat(parts, -1).reshape(columns.shape[0], *shape)


def _reach(columns: Tensor, count: int) -> Tensor:
    """(batch, size, numbers) → (batch, numbers)."""
    where, share = _spots(count, columns.device)
    plain = columns.abs().sum(1)
    most = columns.abs().amax(1)
    most = torch.where(most > 0, most, torch.ones_like(most))
    packed_ = (columns / most.unsqueeze(1)).mT.contiguous()  # (batch, numbers, size)
    matrix_ = packed_.index_select(-1, where).mul_(share.to(columns.dtype)).unflatten(-1, (count, -1))
    sizes = matrix_.abs()
    u, v = sizes.sum(-1), sizes.sum(-2)
    matrix_.mul_(_inverse_roots(u).unsqueeze(-1)).mul_(_inverse_roots(v).unsqueeze(-2))
    gram = matrix_ @ matrix_.mT
    size_ = gram.square().sum((-2, -1)).sqrt()
    power = gram / torch.where(size_ > 0, size_, torch.ones_like(size_))[..., None, None]
    for _ in range(SQUARINGS):
        power = power @ power
    norm = power.square().sum((-2, -1)).pow(0.5 ** (SQUARINGS + 1)) * size_
    grown = 1 + 8 * where.numel() * torch.finfo(columns.dtype).eps
    found = (norm * u.sum(-1) * v.sum(-1)).sqrt() * most
    return torch.minimum(found, plain) * grown


def _inverse_roots(u: Tensor) -> Tensor:
    """1/√u, and 0 where u = 0, because those rows or columns of A are 0."""
    return torch.where(u > 0, torch.where(u > 0, u, torch.ones_like(u)).rsqrt(), torch.zeros_like(u))

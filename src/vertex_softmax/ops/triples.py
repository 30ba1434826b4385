"""Products of three unknowns of the input: Σ a_k ξ_k times a quadratic form, in a basis of numbers in [−1, 1].

Over the cube |ξ_i| ≤ 1 let ζ_i = 2ξ_i² − 1, which lies in [−1, 1] like every ξ_i ξ_j. A quadratic form is a constant and
coefficients (batch, n(n−1)/2 + n, *shape) of ξ_i ξ_j, i < j, and then of ζ_i. A form of third degree is a linear one and
coefficients (batch, `size(n)`, *shape) of ξ_i ξ_j ξ_k, i < j < k, and then of ζ_i ξ_k for all i and k, in rows i:
  ξ_i² ξ_k = (ξ_k + ζ_i ξ_k) / 2,
so that half of it is linear. Each of these products is taken as an unknown of its own: Σ |coefficients| is its reach.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops import pairs


class Places(NamedTuple):
    """Of all i < j < k: the three indices, and where the pairs (j, k), (i, k) and (i, j) are among packed pairs."""

    first: Tensor
    second: Tensor
    third: Tensor
    without_first: Tensor
    without_second: Tensor
    without_third: Tensor


class Cubic(NamedTuple):
    """A form of third degree."""

    line: Tensor
    """what of it is linear, (batch, n, *shape)"""
    products: Tensor
    """(batch, size(n), *shape)"""


def size(count: int) -> int:
    """How many products of three of `count` unknowns are told apart."""
    return count * (count - 1) * (count - 2) // 6 + count * count


@functools.lru_cache(maxsize=8)
def places(count: int, device: torch.device) -> Places:
    """Where the products of three different unknowns come from."""
    every = torch.combinations(torch.arange(count, device=device), 3)
    first, second, third = every.unbind(1) if len(every) else (every.new_zeros(0),) * 3

    def pair(i: Tensor, j: Tensor) -> Tensor:
        return i * (2 * count - i - 1) // 2 + (j - i - 1)

    return Places(first, second, third, pair(second, third), pair(first, third), pair(first, second))


def squared(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(Σ x_i ξ_i)(Σ y_i ξ_i), (batch, n, *shape) each: a constant (batch, *shape) and a quadratic form."""
    pair, square = pairs.outer(x, y)
    return square.sum(1) / 2, torch.cat([pair, square / 2], 1)


def quadratic(full: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of ξ_i ξ_j, (batch, n, n, *shape), as a constant and a quadratic form."""
    pair, square = pairs.packed(full)
    return square.sum(1) / 2, torch.cat([pair, square / 2], 1)


def matrix(form: Tensor, count: int) -> Tensor:
    """The coefficients of pairs at both places of a matrix whose diagonal is 0: (batch, n, n, *shape)."""
    first, second = pairs.places(count, form.device)
    found = form.new_zeros(form.shape[0], count, count, *form.shape[2:])
    found[:, first, second] = form[:, : len(first)]
    found[:, second, first] = form[:, : len(first)]
    return found


def times(a: Tensor, form: Tensor) -> Cubic:
    """Σ a_k ξ_k times a quadratic form without its constant: (batch, n, *shape), (batch, n(n−1)/2 + n, *shape)."""
    count = a.shape[1]
    at = places(count, a.device)
    triple = a[:, at.first] * form[:, at.without_first]
    triple.addcmul_(a[:, at.second], form[:, at.without_second])
    triple.addcmul_(a[:, at.third], form[:, at.without_third])
    half = a.unsqueeze(2) * (matrix(form, count) / 2)
    line = half.sum(1)
    mixed = half.addcmul_(form[:, -count:].unsqueeze(2), a.unsqueeze(1))
    return Cubic(line, torch.cat([triple, mixed.flatten(1, 2)], 1))


def packed(full: Tensor) -> Cubic:
    """Of coefficients of ξ_k times (pairs, then ζ_i): (batch, n, n(n−1)/2 + n, *shape)."""
    count = full.shape[1]
    at = places(count, full.device)
    triple = full[:, at.first, at.without_first]
    triple += full[:, at.second, at.without_second]
    triple += full[:, at.third, at.without_third]
    first, second = pairs.places(count, full.device)
    pair = torch.arange(len(first), device=full.device)
    half = full.new_zeros(full.shape[0], count, count, *full.shape[3:])
    half[:, first, second] = full[:, first, pair] / 2
    half[:, second, first] = full[:, second, pair] / 2
    line = half.sum(1)
    mixed = half + full[:, :, len(first) :].transpose(1, 2)
    return Cubic(line, torch.cat([triple, mixed.flatten(1, 2)], 1))

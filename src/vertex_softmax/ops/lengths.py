"""Euclidean lengths of the columns of blocks, computed in pieces that stay in the cache.

A block has shape (batch, balls, k, *shape): how each number moves with the k unknowns of each ball.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE = 1 << 17
"""On a CPU at most this many numbers are squared at a time (1 MiB in float64); a GPU takes all at once."""


def lengths(columns: Tensor, *, also_last: bool = False) -> Tensor:
    """How far each ball moves each number: (batch, balls, k, *shape) → (batch, balls, *shape).

    `also_last`: how far it moves each row, with the norm over the last dimension too.
    """
    if columns.shape[2] == 1 and not also_last:
        return columns.abs().squeeze(2)
    return norm(columns, (2, -1) if also_last else (2,))


def sum_of_lengths(columns: Tensor) -> Tensor:
    """How far a block moves each number: (batch, balls, k, *shape) → (batch, *shape)."""
    first, *others = pieces(columns, 1)
    found = lengths(first).sum(1)
    for piece in others:
        found += lengths(piece).sum(1)
    return found


def norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The Euclidean norm over some dimensions, scaled where squares underflow: it is 0 only if all numbers are 0.

    Callers divide by the norm and square the quotient, so a norm that were far too large would make results vanish.
    """
    dims = tuple(sorted(dim % x.dim() for dim in dims))
    free = [dim for dim in range(x.dim()) if dim not in dims and x.shape[dim] > 1]
    if not free:
        return _norm(x, dims)
    split = max(free, key=lambda dim: x.shape[dim])
    some = pieces(x, split)
    if len(some) == 1:
        return _norm(x, dims)
    return torch.cat([_norm(piece, dims) for piece in some], split - sum(dim < split for dim in dims))


def pieces(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    """Views of x along a dimension with at most PIECE numbers each, where that is possible; on a GPU x itself."""
    if x.device.type != "cpu" or x.numel() <= 2 * PIECE:
        return (x,)
    found: tuple[Tensor, ...] = x.split(max(1, PIECE * x.shape[dim] // x.numel()), dim)
    return found


def _norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """The norm of one piece."""
    limits = torch.finfo(x.dtype)
    found = x.square().sum(dims)
    # a computed sum of squares below the limit only tells that the true one is below twice the limit
    small = found < 2 * math.prod(x.shape[i] for i in dims) * limits.tiny / limits.eps
    found = found.sqrt_()
    if x.numel() == 0 or not bool(small.any()):
        return found
    most = x.abs().amax(dims, keepdim=True)
    if bool((small & (most > 0).squeeze(dims)).any()):
        scaled = (x / torch.where(most > 0, most, torch.ones_like(most))).square_().sum(dims).sqrt_()
        found = torch.where(small, scaled * most.squeeze(dims), found)
    return found

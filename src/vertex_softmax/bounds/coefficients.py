"""Coefficients of many objectives on one node, dense or diagonal along a dimension.

Objectives that differ only in which token they look at (every pre-activation of a layer, every row of scores) have
coefficients at that token alone until an attention mixes the tokens. Kept diagonal, they cost no more than one token's.

Invariant: `Part(A, t)` stands for the dense coefficients of the objectives (s, i), numbered s · n + i, whose entries at
index i of dimension t are A[:, s] there, and 0 elsewhere.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Coefficients (batch, S, *shape); `keep` is the diagonal dimension within the shape, None if dense."""

    A: Tensor
    keep: int | None = None


def dense(part: Part) -> Tensor:
    """(batch, S, *shape), or from a diagonal (batch, S · n, *shape)."""
    if part.keep is None:
        return part.A
    n = part.A.shape[2 + part.keep]
    spread = part.A.new_zeros(part.A.shape[0], part.A.shape[1], n, *part.A.shape[2:])
    _diagonal(spread, part.keep).copy_(part.A.movedim(2 + part.keep, -1))
    return spread.flatten(1, 2)


def merge(parts: list[Part]) -> Part:
    """The sum of parts on one node: diagonal if all are along the same dimension, else dense."""
    kinds = {part.keep for part in parts}
    if len(kinds) == 1:
        total = parts[0].A
        for part in parts[1:]:
            total = total + part.A
        return Part(total, parts[0].keep)
    full = [part for part in parts if part.keep is None]
    total = full[0].A.clone() if full else dense(parts[0])
    for part in full[1:] if full else []:
        total += part.A
    for part in parts[0 if full else 1 :]:
        if part.keep is not None:
            n = part.A.shape[2 + part.keep]
            shaped = total.view(total.shape[0], -1, n, *total.shape[2:])
            _diagonal(shaped, part.keep).add_(part.A.movedim(2 + part.keep, -1))
    return Part(total)


def diagonal_dimension(shape: tuple[int, ...]) -> int | None:
    """The dimension along which unit objectives are kept diagonal: the longest but the last."""
    sizes = shape[:-1]
    if not sizes or max(sizes) == 1:
        return None
    return max(range(len(sizes)), key=sizes.__getitem__)


def _diagonal(spread: Tensor, keep: int) -> Tensor:
    """The view (batch, S, rest..., n) of (batch, S, n, *shape) where the objective's index is the dimension's."""
    return torch.diagonal(spread, dim1=2, dim2=3 + keep)

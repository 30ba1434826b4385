"""Small operations on tensors of objectives, (batch, objectives, *shape)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def sum_to(term: Tensor, diagonal: int | None = None) -> Tensor:
    """Σ over a node's dimensions of (batch, objectives, *shape), except the diagonal one: the constant of a Step."""
    dims = [2 + d for d in range(term.dim() - 2) if d != diagonal]
    return term.sum(dims) if dims else term


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight: (..., in), (..., in, out) → (..., out), in one product of all rows if the weight has two dimensions.

    torch makes a product for each row of a tensor whose strides it cannot join, in three times the time of a copy.
    """
    if weight.dim() != 2 or x.dim() < 3:
        return x @ weight
    rows = x.reshape(-1, x.shape[-1]) if x.numel() else x.new_zeros(x.shape[:-1].numel(), x.shape[-1])
    return (rows @ weight).reshape(*x.shape[:-1], weight.shape[1])


def beside(box: Tensor) -> Tensor:
    """(batch, *shape) → (batch, 1, *shape): what all objectives share, beside the objectives."""
    return box.unsqueeze(1)


def spread(values: Iterable[Tensor]) -> Tensor:
    """The largest less the least of several tensors of one shape, number by number."""
    whole = torch.stack(list(values))
    return whole.amax(0) - whole.amin(0)

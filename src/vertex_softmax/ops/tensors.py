"""Small operations on tensors of objectives, (batch, objectives, *shape)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def sum_to(term: Tensor, diagonal: int | None = None) -> Tensor:
    """Σ over a node's dimensions of (batch, objectives, *shape), except the diagonal one: the constant of a Step."""
    dims = [2 + d for d in range(term.dim() - 2) if d != diagonal]
    return term.sum(dims) if dims else term


def beside(box: Tensor) -> Tensor:
    """(batch, *shape) → (batch, 1, *shape): what all objectives share, beside the objectives."""
    return box.unsqueeze(1)


def spread(values: Iterable[Tensor]) -> Tensor:
    """The largest less the least of several tensors of one shape, number by number."""
    whole = torch.stack(list(values))
    return whole.amax(0) - whole.amin(0)

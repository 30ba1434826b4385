"""Small regions of choices, and all of their combinations."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from vertex_softmax.sets.choice_region import ChoiceRegion


def choice_region(
    shape: tuple[int, int],
    counts: tuple[tuple[int, ...], ...],
    seed: int = 0,
    *,
    whole: bool = False,
    apart: float = 1.0,
) -> ChoiceRegion:
    """Of inputs (tokens, size): counts[i][t] choices of token t of input i; tokens with one choice each are fixed.

    Which choices are allowed is drawn, so that those that are not stand anywhere. `whole`: the numbers are integers, so
    that sums are exact. `apart`: how far choices are from each other.
    """
    g = torch.Generator().manual_seed(seed)
    tokens, size = shape
    batch, most = len(counts), max(max(row) for row in counts) + 1

    def drawn(*dims: int) -> Tensor:
        x = torch.randn(*dims, generator=g, dtype=torch.float64)
        return (8 * x).round() if whole else x

    moving = [t for t in range(tokens) if any(row[t] > 1 for row in counts)]
    fixed = drawn(batch, tokens, size)
    values = drawn(batch, len(moving), 1, size) + apart * drawn(batch, len(moving), most, size)
    allowed = torch.zeros(batch, len(moving), most, dtype=torch.bool)
    for i, row in enumerate(counts):
        for k, t in enumerate(moving):
            allowed[i, k, torch.randperm(most, generator=g)[: row[t]]] = True
    members = torch.arange(tokens * size).reshape(shape)[moving]
    fixed[:, moving] = 0.0
    return ChoiceRegion(fixed, values, allowed, members)


def every(region: ChoiceRegion, i: int = 0) -> Tensor:
    """All combinations of input i, (combinations, *shape)."""
    lists = [row.nonzero().flatten().tolist() for row in region.allowed[i]]
    fixed = region.fixed[i if region.fixed.shape[0] > 1 else 0]
    values = region.values[i if region.values.shape[0] > 1 else 0]
    found = []
    for which in itertools.product(*lists):
        x = fixed.flatten().clone()
        for k, c in enumerate(which):
            x[region.members[k]] = values[k, c]
        found.append(x.reshape(fixed.shape))
    return torch.stack(found)

"""Rows that are affine in the vector of one word: known, and so exact, at every choice of that word.

Invariant: row i of the node is one of values[i, c] with allowed[i, c]; rows of one group take the same choice c.
Functionals of a row and products of two rows then take finitely many values, so their ranges are exact, to rounding.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.interval import Interval


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceRows:
    """The rows of a matrix node (..., n, d)."""

    values: Tensor
    """(1 or batch, ..., n, choices, d)"""
    allowed: Tensor
    """(batch, ..., n, choices), bool; a row that is fixed has only its first choice"""
    group: Tensor
    """(..., n), int64: the word that each row depends on; −1 if it depends on none"""
    slack: Tensor
    """(1 or batch, ..., n, d): how much the values may be off by rounding"""

    @property
    def box(self) -> Interval:
        """The range of every number, (batch, ..., n, d), rounded outward."""
        out = ~self.allowed.unsqueeze(-1)
        lower = self.values.masked_fill(out, torch.inf).amin(-2) - self.slack
        return Interval(lower, self.values.masked_fill(out, -torch.inf).amax(-2) + self.slack)

    def functionals(self, eta: Tensor) -> Interval:
        """The ranges of η_i · v_j: η (batch, S, ..., m, d) → (batch, S, ..., m, n)."""
        first = eta @ self.values[..., 0, :].unsqueeze(1).mT
        there = self.allowed[..., 0].unsqueeze(1).unsqueeze(-2)
        lower, upper = first.masked_fill(~there, torch.inf), first.masked_fill(~there, -torch.inf)
        for c in range(1, self.values.shape[-2]):  # one choice at a time, for the memory's sake
            w = eta @ self.values[..., c, :].unsqueeze(1).mT
            there = self.allowed[..., c].unsqueeze(1).unsqueeze(-2)
            lower = torch.where(there, torch.minimum(lower, w), lower)
            upper = torch.where(there, torch.maximum(upper, w), upper)
        return Interval(lower, upper)

    def products(self, other: ChoiceRows, x: Tensor | None = None, y: Tensor | None = None) -> Interval:
        """The ranges of (row i − x_i) · (row j of `other` − y_j), (batch, ..., n, m), rounded outward.

        x (batch, ..., n, d) and y (batch, ..., m, d); None is 0. Rows of one word take the same choice of it.
        """
        left = self.values if x is None else self.values - x.unsqueeze(-2)
        right = other.values if y is None else other.values - y.unsqueeze(-2)
        n, m, choices, others = left.shape[-3], right.shape[-3], left.shape[-2], right.shape[-2]
        every = (left.flatten(-3, -2) @ right.flatten(-3, -2).mT).unflatten(-1, (m, others)).unflatten(-3, (n, choices))
        every = every.transpose(-3, -2)  # (1 or batch, ..., n, m, choices, others)
        there = self.allowed[..., :, None, :, None] & other.allowed[..., None, :, None, :]
        shared = (self.group.unsqueeze(-1) == other.group.unsqueeze(-2)) & (self.group >= 0).unsqueeze(-1)
        diagonal = torch.eye(choices, others, dtype=torch.bool, device=every.device)
        there = there & (diagonal | ~shared[..., None, None])
        lower = every.masked_fill(~there, torch.inf).amin((-2, -1))
        upper = every.masked_fill(~there, -torch.inf).amax((-2, -1))
        share = OUTWARD.get(every.dtype, 0.0)
        if share > 0:
            size = left.abs().amax(-2) @ right.abs().amax(-2).mT
            lower, upper = lower - share * size, upper + share * size
        return Interval(lower, upper)


@dataclasses.dataclass(frozen=True, eq=False)
class ChoiceForm:
    """A node that is affine in the vectors of words, over all choices of them."""

    box: Interval
    """the exact range of every number, to rounding, (batch, *shape)"""
    rows: ChoiceRows | None
    """its rows, if each of them depends on at most one word"""
    columns: ChoiceRows | None
    """its columns as rows of the transposed node, if each of them depends on at most one word"""

"""CROWN's row rule: McCormick's plane for p_j w_j, and the linear softmax bounds for what is then linear in p.

Invariant: the bound holds for all scores and values in their boxes, for any values of the parameters.

  p w ≥ w^L p + p^L w − p^L w^L, or any convex combination with the plane p w ≥ w^U p + p^U w − p^U w^U;
then Σ_j c_j p_j ≥ a·s + b by the bounds of ops/softmax.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops.attention.shared import Scores, Values, row_step
from vertex_softmax.ops.contract import Range, Relaxation, Step
from vertex_softmax.ops.softmax import LongRows, RowBounds, RowChoice, below_rows
from vertex_softmax.ops.tensors import beside


@dataclasses.dataclass(frozen=True, eq=False)
class LseRow(Relaxation):
    """A bound of each row that is linear in its scores and values."""

    scores: Scores
    values: Values
    rows: RowBounds | LongRows
    """the linear bounds of every component of softmax"""
    choice: RowChoice | None = None
    """the values of the free parameters of these bounds; None: the defaults"""
    mix: Tensor | None = None
    """(batch, S, ..., n, K): the share in [0, 1] of the plane at (p^L, w^L); None: 1"""

    ranges: ClassVar[Mapping[str, Range]] = {
        "ratio": Range(-10.0, 10.0, 0.25),
        "tangent": Range(-10.0, 10.0, 0.25),
        "pivot": Range(-10.0, 10.0, 0.1),
        "mix": Range(),
    }

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A step for the coefficients A = η, which make one functional of the values for each row and key."""
        w = self.values.functionals(A, diagonal)
        low, high = (beside(end) for end in self.rows.box)
        if self.choice is not None and self.mix is not None:
            mix = self.mix
            c, m = mix * w.lower + (1 - mix) * w.upper, mix * low + (1 - mix) * high
            a, b = below_rows(c, self.rows, self.choice)
            b = b - (mix * low * w.lower + (1 - mix) * high * w.upper).sum(-1)
        else:
            a, b = below_rows(w.lower, self.rows)
            a, b = self.improved(a, b, w.lower)
            m, b = low, b - (low * w.lower).sum(-1)
        return row_step(A, a, m, self.scores.marked(b), diagonal)

    def improved(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """A hook for subclasses: slopes and constants of Σ_j c_j p_j ≥ a·s + b that replace the linear ones."""
        return a, b

    def parameters(self) -> dict[str, Tensor]:
        """The parameters of the softmax bounds (RowChoice), and the mix of McCormick's two planes."""
        zero = beside(torch.zeros_like(self.rows.middle))
        return {"ratio": zero, "tangent": zero, "pivot": zero[..., :1], "mix": zero + 1}

    def with_parameters(self, values: Mapping[str, Tensor]) -> LseRow:
        """The same rule with other values of its parameters."""
        choice = RowChoice(ratio=values["ratio"], tangent=values["tangent"], pivot=values["pivot"])
        return dataclasses.replace(self, choice=choice, mix=values["mix"])

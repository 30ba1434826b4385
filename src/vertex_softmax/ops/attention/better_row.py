"""CROWN's row rule with, for each row, the better of two bounds of its part in p: linear in the scores, or constant.

Invariant: both bounds hold everywhere in the score box, so any choice between them is sound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops.attention.lse_row import LseRow
from vertex_softmax.ops.contract import Range
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import beside

NEAR = 0.25
"""The linear bound is compared with the constant at this share of the way from the centre of the score box to the
linear bound's lowest point. On the anchors' models ¼ was the best of 0, ¼, ½, ¾ and 1."""


@dataclasses.dataclass(frozen=True, eq=False)
class BetterRow(LseRow):
    """The linear bound a·s + b, or the exact constant where that is above the linear bound near the centre of the score
    box.
    """

    ranges: ClassVar[Mapping[str, Range]] = {}

    def improved(self, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """The linear bounds, replaced by the exact constant in the rows where it promises more."""
        scores = self.scores.box
        present = scores.upper > -torch.inf
        zero = torch.zeros_like(scores.lower)
        box = Interval(*(beside(torch.where(present, end, zero)) for end in scores))
        constant = self.scores.exact_minimum(c)
        linear = (a * box.centre).sum(-1) + b - NEAR * (a.abs() * box.radius).sum(-1)
        exact = constant > linear
        return torch.where(exact.unsqueeze(-1), torch.zeros_like(a), a), torch.where(exact, constant, b)

    def parameters(self) -> dict[str, Tensor]:
        """No parameters are free."""
        return {}

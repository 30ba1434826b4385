"""The affine vertex rule (docs/method.md, section 7): the exact minorant for given slopes, which are free parameters.

Invariant: for all scores and values in their boxes, Σ_j p_j w_j ≥ a·s + m·w + B, for any values of the parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.ops.attention.minorant import Minorant
from vertex_softmax.ops.attention.shared import Scores, Values, row_step
from vertex_softmax.ops.contract import Range, Relaxation, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import sum_to


@dataclasses.dataclass(frozen=True, eq=False)
class AffineRow(Relaxation):
    """Σ_j p_j w_j ≥ a·s + m·w + B; by default a is the gradient of the row at the centre of its score box."""

    scores: Scores
    values: Values
    minorant: Minorant
    coupled: bool
    """whether a share λ of each row may be bounded by the exact score-box optimum instead"""
    parallel: bool
    """whether to return one linear function for both sides, with its error"""

    ranges: ClassVar[Mapping[str, Range]] = {
        "place": Range(rate=0.5),
        "slope": Range(-10.0, 10.0, 0.2),
        "level": Range(-10.0, 10.0, 0.07),
        "weight": Range(rate=0.03),
    }

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A step for the coefficients A = η, which make one functional of the values for each row and key."""
        w = self.values.functionals(A, diagonal)
        a, m, b = self.minorant.bound(w)
        if self.minorant.weight is not None:
            a, m, b = self._coupled(a, m, b, w, self.minorant.weight)
        if self.parallel:
            _, _, above = self.minorant.bound(Interval(-w.upper, -w.lower))
            step = row_step(A, a, m, self.scores.marked((b - above) / 2), diagonal)
            return dataclasses.replace(step, error=sum_to((-above - b).unsqueeze(-1) / 2, diagonal))
        return row_step(A, a, m, self.scores.marked(b), diagonal)

    def _coupled(self, a: Tensor, m: Tensor, b: Tensor, w: Interval, share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bound a share 1 − λ of the row by the affine vertex rule, and λ by the exact optimum with the values coupled.

        The latter is p·w ≥ softmax_box_min(w^L) + p^L·(w − w^L) (docs/method.md, section 6).
        """
        least = self.minorant.log_low.exp()
        exact = self.scores.exact_minimum(w.lower) - (least * w.lower).sum(-1)
        rest = 1 - share
        return rest * a, rest * m + share * least, rest.squeeze(-1) * b + share.squeeze(-1) * exact

    def parameters(self) -> dict[str, Tensor]:
        """m, a and μ, each relative to its default (`Minorant`), and λ if the rule is coupled."""
        row = self.minorant
        varies = row.log_high > row.log_low
        width = torch.where(varies, row.log_high - row.log_low, torch.ones_like(row.middle))
        position = (torch.where(varies, row.middle, torch.ones_like(width)).log() - row.log_low) / width
        place = torch.where(varies, position.clamp(0.0, 1.0), torch.zeros_like(width))
        zero = torch.zeros_like(place)
        level = zero[..., :1].expand(*zero.shape[:-1], row.pieces.lower.shape[-2])
        values = {"place": place, "slope": zero, "level": level}
        return {**values, "weight": zero[..., :1]} if self.coupled else values

    def with_parameters(self, values: Mapping[str, Tensor]) -> AffineRow:
        """The same rule with other values of its parameters."""
        changed = dataclasses.replace(
            self.minorant,
            place=values["place"],
            slope=values["slope"],
            level=values["level"],
            weight=values.get("weight"),
        )
        return dataclasses.replace(self, minorant=changed)

    def chosen_values(self, A: Tensor) -> dict[str, Tensor]:
        """The values of a, m and μ for the objectives A."""
        a, m, mu = self.minorant.chosen(self.values.functionals(A))
        return {"a": a, "m": m.expand_as(a), "mu": mu.expand(*a.shape[:-1], self.minorant.pieces.lower.shape[-2])}

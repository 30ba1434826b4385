"""The paper's row rule: the exact minimum of Σ_j p_j w^L_j over the score box, a constant for each row.

Invariant: Σ_j p_j w_j is at least that constant for all scores and values in their boxes, because p ≥ 0.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from vertex_softmax.ops.attention.shared import Scores, Values
from vertex_softmax.ops.contract import Relaxation, Step
from vertex_softmax.ops.tensors import sum_to


@dataclasses.dataclass(frozen=True, eq=False)
class VertexRow(Relaxation):
    """Σ_j p_j w_j ≥ the minimum of Σ_j p_j w^L_j over the score box; the bound does not depend on scores or values."""

    scores: Scores
    values: Values

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A step with a constant for each row, and no coefficients."""
        w = self.values.functionals(A, diagonal)
        row = self.scores.exact_minimum(w.lower)
        return Step((None, None), sum_to(row.unsqueeze(-1), diagonal))

"""The attention op: its values, intervals, row rules and zonotopes, and its costs for branch and bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.attention.affine_row import AffineRow
from vertex_softmax.ops.attention.ball_row import ball_row
from vertex_softmax.ops.attention.better_row import BetterRow
from vertex_softmax.ops.attention.lse_row import LseRow
from vertex_softmax.ops.attention.minorant import minorant
from vertex_softmax.ops.attention.shared import Scores, Values, centre_of, finite_or_zero
from vertex_softmax.ops.attention.vertex_row import VertexRow
from vertex_softmax.ops.bilinear import product_interval
from vertex_softmax.ops.contract import (
    AffineForm,
    CentredRows,
    Centring,
    Context,
    Propagating,
    Relaxation,
    Shape,
    Splittable,
    Summarising,
)
from vertex_softmax.ops.forms import row_form
from vertex_softmax.ops.generators import Ellipsoid, Generators, ellipsoid
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.rows import attended, centred_scores
from vertex_softmax.ops.propagation.second_order import chosen
from vertex_softmax.ops.propagation.second_rows import attended_to_second_order
from vertex_softmax.ops.propagation.third_rows import attended_to_third_order
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.ops.softmax import MaskedSoftmax, linear_rows, probabilities
from vertex_softmax.ops.tensors import spread
from vertex_softmax.ops.unknowns import InputUnknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.softmax_box import softmax_box_max, softmax_box_min


@register
@dataclasses.dataclass(frozen=True)
class Attention(MaskedSoftmax, Summarising, Propagating, Centring, Splittable):
    """softmax(scores) @ values; some keys may be masked.

    Invariant: as of every op (ops/contract.py).
    """

    reads = (0, 1)
    form_inputs = (1,)
    generator_inputs = (1,)
    split_inputs = (0,)
    has_parallel_rule = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """scores (..., n, K), values (..., K, d) → (..., n, d)"""
        return self.masked(xs[0]).softmax(-1) @ xs[1]

    def interval(self, *boxes: Interval) -> Interval:
        """For each component the exact optimum over the score box, with the values at their ends.

        It is a mean of these, outward by what adding up its terms may round, however much of them cancels.
        """
        scores, values = self.score_box(boxes[0]), boxes[1]
        plain = product_interval(probabilities(scores), values)
        fine = ~plain.lower.isnan().any(-1) & values.lower.isfinite().flatten(-2).all(-1, keepdim=True)
        fine = fine & values.upper.isfinite().flatten(-2).all(-1, keepdim=True)
        fine = fine.unsqueeze(-1)  # (batch, ..., n, 1): rows the primitive can take
        ends = [torch.where(fine, x, torch.zeros_like(x)).unsqueeze(-2) for x in scores]
        low = torch.as_tensor(softmax_box_min(finite_or_zero(values.lower).mT.unsqueeze(-3), *ends))
        high = torch.as_tensor(softmax_box_max(finite_or_zero(values.upper).mT.unsqueeze(-3), *ends))
        largest = OUTWARD[values.lower.dtype] * finite_or_zero(values.magnitude).amax(-2, keepdim=True)
        return Interval(torch.where(fine, low - largest, plain.lower), torch.where(fine, high + largest, plain.upper))

    def relax(self, context: Context) -> Relaxation:
        """The row bounds under the rule that the context asks for."""
        score_box, form = self.score_box(context.boxes[0]), context.form(1)
        centred, rules = context.centred_rows(0), context.rules
        scores = Scores.of(score_box, centred, context.boxes[1].lower.dtype)
        of_scores = context.form(0)
        if isinstance(of_scores, AffineForm) and isinstance(form, AffineForm) and rules.balls and not rules.parallel:
            over_ball = ball_row(scores, of_scores, form)
            if over_ball is not None:
                return over_ball
        known = context.summary if form is None and isinstance(context.summary, Ellipsoid) else None
        values = Values(
            box=context.boxes[1],
            form=row_form(form) if isinstance(form, AffineForm) else None if form is None else form.rows,
            ellipsoid=known,
            exact=rules.exact,
            sums=rules.sums,
        )
        match rules.attention:
            case RowRule.LSE:
                return LseRow(scores=scores, values=values, rows=linear_rows(scores.box))
            case RowRule.BETTER:
                return BetterRow(scores=scores, values=values, rows=linear_rows(scores.box))
            case RowRule.VERTEX:
                return VertexRow(scores=scores, values=values)
            case RowRule.AFFINE:
                return AffineRow(
                    scores=scores,
                    values=values,
                    minorant=minorant(scores.box, None if scores.shifted is None else centred, rules.pieces),
                    coupled=rules.coupled,
                    parallel=rules.parallel,
                )

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The zonotope of the rows (ops/propagation), to the best order; masked keys are those of the score box."""
        scores, values = inputs
        centre, unknowns = self._centre(scores, boxes[0]), scores.inputs or values.inputs
        if unknowns is None:
            return attended(scores, centre, values, origin)
        if unknowns.triples is None:
            return self._to_second_order(scores, centre, values, unknowns, origin)
        third, useful = attended_to_third_order(scores, centre, values, unknowns, origin)
        if bool(useful.all()):
            return third
        second = self._to_second_order(scores, centre, values, unknowns, origin)
        better = useful | (third.radius.sum(-1) < second.radius.sum(-1))
        return chosen(better.unsqueeze(-1), third, second)

    @staticmethod
    def _to_second_order(
        scores: Zonotope, centre: Tensor, values: Zonotope, unknowns: InputUnknowns, origin: str
    ) -> Zonotope:
        """Each row to second order, or to first order where that is better."""
        second, useful = attended_to_second_order(scores, centre, values, unknowns, origin)
        if bool(useful.all()):
            return second
        first = attended(scores, centre, values, origin)
        better = useful | (second.radius.sum(-1) < first.radius.sum(-1))
        return chosen(better.unsqueeze(-1), second, first)

    def _centre(self, scores: Zonotope, box: Interval) -> Tensor:
        """The centre of the scores; −inf where a key is masked, NaN in a row of which nothing is known."""
        known = self.score_box(box)
        return torch.where(known.upper > -torch.inf, scores.centre, known.upper)

    def learnt(self, inputs: tuple[Zonotope, ...]) -> Ellipsoid:
        """The ellipsoids of the values' zonotopes."""
        values, shape = inputs[1], inputs[1].row_shape
        return Ellipsoid(centre=values.centre, shape=shape.matrix, size=shape.size, rows=None)

    def learnt_rows(self, i: int, inputs: tuple[Zonotope, ...], box: Interval) -> CentredRows | None:
        """The rows of the scores less their mean, with the weights of the softmax at their centre."""
        if i != 0:
            return None
        found = centred_scores(inputs[0], self._centre(inputs[0], box))
        weights = found.log_weights.exp()
        present = found.log_weights > -torch.inf
        centre = torch.where(present, inputs[0].centre, torch.zeros_like(weights))
        middle = torch.where(present, centre - (weights * centre).sum(-1, keepdim=True), torch.zeros_like(weights))
        return CentredRows(weights, Interval(middle - found.reach, middle + found.reach))

    def summarise(self, generators: Mapping[int, Generators]) -> Ellipsoid:
        """The ellipsoids of the values' generators."""
        return ellipsoid(generators[1])

    def centring_weights(self, i: int, box: Interval) -> Tensor | None:
        """For the scores, the softmax at the centre of their box."""
        return centre_of(self.score_box(box)).softmax(-1) if i == 0 else None

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The range of p·w − a·s in each row as one score moves; the other weights keep their proportions."""
        p, w = self.masked(xs[0]).softmax(-1), A @ xs[1].mT
        value = (p * w).sum(-1, keepdim=True)
        rest = (1 - p).clamp(min=0)
        others = torch.where(
            rest > 0, (value - p * w) / torch.where(rest > 0, rest, 1.0), w
        )  # the mean without the key
        odds = p.log() - rest.log() - xs[0]  # log p/(1 − p) less the score
        found = []
        for s in points:
            share = torch.where(odds.isnan(), p, torch.sigmoid(odds + s))
            found.append(share * w + (1 - share) * others - slope * s)
        return spread(found)

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Diagonal along the query rows stays so on the scores and becomes dense on the values."""
        return (dimension, None) if dimension == len(shape) - 2 else None

"""What all row rules share: the score boxes, the functionals of the values, and the step made from a row's bound."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from vertex_softmax.ops.choice_rows import ChoiceRows
from vertex_softmax.ops.contract import CentredRows, Step
from vertex_softmax.ops.forms import RowForm, functional_box
from vertex_softmax.ops.generators import Ellipsoid, functional_radius
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import beside, sum_to
from vertex_softmax.softmax_box import softmax_box_min


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """The score boxes of all rows, and which rows cannot be bounded."""

    box: Interval
    """(batch, ..., n, K), −inf where a key is masked; 0 in rows that cannot be bounded"""
    shifted: Interval | None
    """the boxes of the same rows less their weighted means, which have the same softmax; None if not known"""
    bad: Tensor | None
    """NaN where a row's scores are not finite, 0 elsewhere, (batch, ..., n); None if all are finite"""

    @staticmethod
    def of(box: Interval, centred: CentredRows | None, dtype: torch.dtype) -> Scores:
        """From the score box with masked keys at −inf, and the box of the rows less their means, if it is known."""
        broken = (box.lower.isnan() | box.upper.isnan() | (box.upper == torch.inf)).any(-1)
        if not bool(broken.any()):
            return Scores(box, None if centred is None else shifted_box(centred, box), None)
        bad = torch.where(broken, torch.nan, 0.0).to(dtype)
        zero = torch.zeros_like(box.lower)
        return Scores(Interval(*(torch.where(broken.unsqueeze(-1), zero, end) for end in box)), None, bad)

    def exact_minimum(self, c: Tensor) -> Tensor:
        """The larger of the exact minima of c·p over each row's boxes: c (batch, S, ..., n, K) → (batch, S, ..., n).

        NaN where coefficients or boxes are not finite.
        """
        fine = c.isfinite().all(-1)
        best = torch.full_like(c[..., 0], -torch.inf)
        for box in (self.box,) if self.shifted is None else (self.box, self.shifted):
            bound = softmax_box_min(finite_or_zero(c), beside(box.lower), beside(box.upper))
            best = torch.maximum(best, torch.as_tensor(bound))
        best = torch.where(fine, best, torch.full_like(best, torch.nan))
        return best if self.bad is None else best + beside(self.bad)

    def marked(self, constant: Tensor) -> Tensor:
        """The constants of the rows, with NaN in rows that cannot be bounded."""
        return constant if self.bad is None else constant + beside(self.bad)


@dataclasses.dataclass(frozen=True, eq=False)
class Values:
    """The values v_j of the keys, and what is known to bound their functionals η·v_j."""

    box: Interval
    """(batch, ..., K, d)"""
    form: RowForm | ChoiceRows | None
    """the exact affine form of the values in the input, if they are affine in it"""
    ellipsoid: Ellipsoid | None
    """ellipsoids around the values, if they are not affine in the input but have generators or a zonotope"""
    exact: bool
    """whether functionals of an affine form are bounded exactly even where that is expensive"""
    sums: bool
    """whether functionals of generators are bounded by exact sums over their columns"""

    def functionals(self, eta: Tensor, diagonal: int | None = None) -> Interval:
        """The interval of each w_ij = η_i·v_j, (batch, S, ..., n, K)."""
        w = functional_box(eta, self.box, self.form, self.exact or diagonal is not None)
        if self.ellipsoid is None:
            return w
        middle = eta @ self.ellipsoid.centre.unsqueeze(1).mT
        radius = functional_radius(eta, self.ellipsoid, self.sums)
        return w.meet(Interval(middle - radius, middle + radius))


def row_step(eta: Tensor, a: Tensor, m: Tensor, b: Tensor, diagonal: int | None) -> Step:
    """The bounds Σ_j p_ij w_ij ≥ a_i·s_i + m_i·w_i + b_i of all rows i as coefficients on scores and values.

    Coefficients that are diagonal along the rows stay so on the scores and become dense on the values.
    """
    m = m.expand_as(a)
    if diagonal is None:
        return Step((a, m.mT @ eta), sum_to(b.unsqueeze(-1)))
    each = m.unsqueeze(-1) * eta.unsqueeze(-2)  # (batch, S, ..., n, K, d)
    each = each.movedim(-3, 2).flatten(1, 2)
    return Step((a, each), sum_to(b.unsqueeze(-1), diagonal))


def shifted_box(centred: CentredRows, scores: Interval) -> Interval:
    """The box of the scores less their weighted mean, as a score box: −inf where a key is masked."""
    present = scores.upper > -torch.inf
    masked = torch.full_like(centred.weights, -torch.inf)
    return Interval(*(torch.where(present, end, masked) for end in centred.box))


def centre_of(scores: Interval) -> Tensor:
    """The centre of a score box, −inf where a key is masked."""
    present = scores.upper > -torch.inf
    return torch.where(present, scores.lower + scores.upper, scores.upper) / 2


def finite_or_zero(x: Tensor) -> Tensor:
    """x with every entry that is not finite replaced by 0."""
    return torch.where(x.isfinite(), x, torch.zeros_like(x))

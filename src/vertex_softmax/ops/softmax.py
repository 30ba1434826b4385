"""Softmax along the last dimension: exact ranges of its components, and linear bounds of their combinations.

Invariant of `row_below`: Σ_j c_j p_j ≥ a·s + b for every s in the score box, where p = softmax(s). It adds up one of
two bounds for each component, according to the sign of c_j (docs/method.md, section 4):
  p_j ≥ 2/R − (1 + Σ_{k≠j} chord of e^{s_k − s_j})/R², the tangent of 1/x at R, for any R > 0;
  p_j ≤ the chord of exp over [log p_j^L, log p_j^U], at the tangent of the concave s_j − lse(s).
Since Σ p_j = 1, any number may be subtracted from all c_j first and added to b.

A row of K keys has a table of K² chords (`RowBounds.rise`). For few keys all tables are stored. If those of one input
have more than MOST_TABLE_NUMBERS numbers, only the score box is (`LongRows`), with O(K) numbers for each row, and every
pass makes the tables again, some rows at a time: the same bounds for less memory and more time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from vertex_softmax.ops.contract import Context, Op, Relaxation, Shape, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lines import chord_slope
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.tensors import beside, sum_to
from vertex_softmax.softmax_box import softmax_box_probabilities

NEGLIGIBLE = 2000.0
"""Scores of masked keys have to lie at least this far below some other score of their row, or there is no bound.

Their weights are then below e⁻²⁰⁰⁰: multiplied by any double, that is less than the least positive double, and far less
than what boxes are rounded outward by."""
MOST_TABLE_NUMBERS = 1 << 25
"""The tables of an attention are stored if they have at most this many numbers for one input (a quarter GiB in
float64)."""
AT_ONCE = {"cpu": 1 << 19, "cuda": 1 << 26}
"""How many numbers of a table are made at a time; about 14 arrays of that size are alive then."""


@dataclasses.dataclass(frozen=True)
class MaskedSoftmax(Op):
    """Base of ops that take the softmax of scores (..., K), some of whose keys may be masked.

    A key where `mask` is True (it broadcasts to the scores; None: nowhere) has no weight: its score is −∞. But if its
    `penalty` is not 0, the score is finite: score + penalty, or the penalty alone where `replaced` is True. Bounds take
    the weight of such a key as 0 too, after `score_box` has found it to be negligible.
    """

    mask: Tensor | None = None
    penalty: Tensor | None = None
    replaced: Tensor | None = None

    def masked(self, scores: Tensor) -> Tensor:
        """The scores as the softmax takes them, with masks and penalties."""
        if self.mask is None:
            return scores
        if self.penalty is None:
            return scores.masked_fill(self.mask, -torch.inf)
        found = scores + self.penalty
        if self.replaced is not None:
            found = torch.where(self.replaced, self.penalty, found)
        return found.masked_fill(self.mask & (self.penalty == 0), -torch.inf)

    def score_box(self, box: Interval) -> Interval:
        """The box with masked keys at −∞, whose weight is then 0.

        A score that overflowed becomes NaN, and so do all scores of a row in which the weight of a masked key may not
        be negligible.
        """
        nan = torch.full_like(box.lower, torch.nan)
        over = box.lower.isinf() | box.upper.isinf()
        lower, upper = torch.where(over, nan, box.lower), torch.where(over, nan, box.upper)
        if self.mask is None:
            return Interval(lower, upper)
        found = Interval(lower.masked_fill(self.mask, -torch.inf), upper.masked_fill(self.mask, -torch.inf))
        if self.penalty is None:
            return found
        fine = self._negligible(Interval(lower, upper), self.mask, self.penalty)
        return Interval(*(torch.where(fine, end, nan) for end in found))

    def _negligible(self, box: Interval, mask: Tensor, penalty: Tensor) -> Tensor:
        """Whether every masked key of a row has a weight below e^−NEGLIGIBLE, (..., 1); False where anything is NaN."""
        rounding = 8 * torch.finfo(box.lower.dtype).eps
        highest = box.upper + penalty + rounding * (box.upper.abs() + penalty.abs())
        if self.replaced is not None:
            highest = torch.where(self.replaced, penalty + rounding * penalty.abs(), highest)
        highest = torch.where(box.lower.isnan(), torch.nan, highest)
        highest = highest.masked_fill(~(mask & (penalty != 0)), -torch.inf).amax(-1, keepdim=True)
        some = (box.lower - rounding * box.lower.abs()).masked_fill(mask, -torch.inf).amax(-1, keepdim=True)
        return highest <= some - NEGLIGIBLE * (1 + rounding)

    def also_masked(self: M, mask: Tensor, penalty: Tensor | None) -> M:
        """The op with more masked keys; penalties of a key add up, and −∞ remains −∞."""
        if self.mask is None:
            return dataclasses.replace(self, mask=mask, penalty=penalty)
        whole = mask | self.mask
        if penalty is None and self.penalty is None:
            return dataclasses.replace(self, mask=whole)
        zero = torch.zeros((), dtype=torch.float64)
        mine, new = (zero if x is None else x for x in (self.penalty, penalty))
        # a penalty on a score has no effect where the score is replaced
        reached = torch.ones_like(whole) if self.replaced is None else ~self.replaced
        hard = (mask & (new == 0) & reached) | (self.mask & (mine == 0))
        least = -torch.finfo(torch.float64).max
        total = torch.where(hard, 0.0, torch.where(reached, (mine + new).clamp(min=least), mine))
        return dataclasses.replace(self, mask=whole, penalty=total if bool(total.any()) else None)

    def with_replaced(self: M, where: Tensor) -> M:
        """The op in which the penalty replaces the scores of some keys."""
        if not bool(where.any()):
            return self
        return dataclasses.replace(self, replaced=where if self.replaced is None else where | self.replaced)

    def with_penalty(self: M, penalty: Tensor | None) -> M:
        """The op with other penalties."""
        return dataclasses.replace(self, penalty=penalty)


M = TypeVar("M", bound=MaskedSoftmax)


def probabilities(box: Interval) -> Interval:
    """The exact range of every component; NaN scores give NaN, and so no bound."""
    fine = ~(box.lower.isnan() | box.upper.isnan() | (box.upper == torch.inf)).any(-1, keepdim=True)
    zero = torch.zeros_like(box.lower)
    ends = (torch.where(fine, box.lower, zero), torch.where(fine, box.upper, zero))
    ends = _without_offset(*ends)
    low, high = (torch.as_tensor(x).to(zero) for x in softmax_box_probabilities(*ends))
    nan = torch.full_like(zero, torch.nan)
    return Interval(torch.where(fine, low, nan), torch.where(fine, high, nan))


def _without_offset(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Scores less the largest of their row, in double precision: what is added to all of them is no part of the answer.

    Of wide rows the primitive takes logarithms of sums, which it rounds relative to the scores as they are.
    """
    shift, least = upper.double().amax(-1, keepdim=True), -torch.finfo(torch.float64).max
    lower, upper = (
        torch.where(end == -torch.inf, end.double(), (end.double() - shift).clamp(min=least)) for end in (lower, upper)
    )
    return lower, upper


@dataclasses.dataclass(frozen=True, eq=False)
class RowBounds:
    """The linear bounds of every component p_j of a row in the scores s, (batch, ..., K) but for `rise`."""

    low: Tensor
    """p_j ≥ low_j − Σ_k rise_jk (s_k − s_j)"""
    rise: Tensor
    """(batch, ..., K, K), zero on the diagonal"""
    rises: Tensor
    """Σ_k rise_jk"""
    high: Tensor
    """p_j ≤ high_j + slope_j (s_j − middle·s)"""
    slope: Tensor
    middle: Tensor
    """softmax at the centre of the box"""
    box: Interval
    """the ranges of the components"""
    chords: Chords
    """the chords that the two bounds were made of, to make them with other parameters"""


@dataclasses.dataclass(frozen=True, eq=False)
class Chords:
    """Chords of e^{s_k − s_j} over the box, and of exp over the range of log p_j."""

    rise: Tensor
    """(batch, ..., K, K), zero on the diagonal"""
    offset: Tensor
    """(batch, ..., K): Σ_k e^{s_k − s_j} ≤ 1 + Σ_k rise_jk (s_k − s_j) + offset_j"""
    ratio: Tensor
    """R, where the tangent of 1/x touches; 0 where the constant p^L is the lower bound"""
    raised: Tensor
    """e^r ≤ slope_j r + raised_j; where slope_j is 0, this is p^U"""


class RowChoice(NamedTuple):
    """Values of the free parameters of the two bounds, (batch, S, ..., K) or 1 in place of K; every value is sound."""

    ratio: Tensor
    """the logarithm of a factor of R"""
    tangent: Tensor
    """an addition to the logarithm of the point q at which lse touches: lse(s) ≥ q·s + H(q) for every distribution q"""
    pivot: Tensor
    """what is subtracted from all c_j beyond their mean at the centre, relative to their spread"""


def row_bounds(scores: Interval) -> RowBounds:
    """Both linear bounds of all components over a score box (batch, ..., K); −inf ends are masked keys."""
    weights = probabilities(scores)
    there = scores.upper > -torch.inf
    zero = torch.zeros_like(scores.lower)
    lower, upper = torch.where(there, scores.lower, zero), torch.where(there, scores.upper, zero)
    centre = (lower + upper) / 2
    # below: chords of e^{s_k − s_j} over the box, then the tangent of 1/x where their sum is at the centre
    least = lower.unsqueeze(-2) - upper.unsqueeze(-1)
    most = upper.unsqueeze(-2) - lower.unsqueeze(-1)
    rise = chord_slope(torch.exp, torch.exp, least, most)
    offset = torch.maximum(most.exp() - rise * most, least.exp() - rise * least)
    apart = ~torch.eye(lower.shape[-1], dtype=torch.bool, device=lower.device)
    counted = apart & there.unsqueeze(-2) & there.unsqueeze(-1)
    none = torch.zeros_like(rise)
    rise, offset = torch.where(counted, rise, none), torch.where(counted, offset, none)
    differences = centre.unsqueeze(-2) - centre.unsqueeze(-1)
    R = 1 + (rise * differences + offset).sum(-1)
    # use the constant p^L where the chords are no better at the centre, or not finite
    linear = there & (R > 0) & (weights.lower < 1 / R) & R.isfinite()
    # R² overflows long before R does (R > 1e154, in float32 1e19): divide twice, each term before it is added up
    inverse = 1 / torch.where(linear, R, torch.ones_like(R))
    scaled = offset * inverse.unsqueeze(-1)
    # unused chords may be infinite, and 0 · inf is NaN
    chord_rise, chord_offset = torch.where(linear.unsqueeze(-1), rise, none), torch.where(linear, offset.sum(-1), zero)
    low = torch.where(linear, 2 * inverse - (inverse + scaled.sum(-1)) * inverse, weights.lower)
    rise = torch.where(linear.unsqueeze(-1), rise * inverse.unsqueeze(-1) * inverse.unsqueeze(-1), none)
    # above: the chord of exp over [log p^L, log p^U], at the tangent of s_j − lse(s) at the centre
    masked = torch.where(there, centre, torch.full_like(centre, -torch.inf))
    middle = middle_of(scores)
    # a subnormal p^L has few digits: its logarithm may be far too large, and the chord then below exp
    seen = there & (weights.lower >= torch.finfo(lower.dtype).tiny)
    one = torch.ones_like(zero)
    log_low = torch.where(seen, weights.lower, one).log()
    log_high = torch.where(seen, weights.upper, one).log()
    slope = torch.where(seen, chord_slope(torch.exp, torch.exp, log_low, log_high), zero)
    raised = torch.maximum(log_low.exp() - slope * log_low, log_high.exp() - slope * log_high)
    level = masked.amax(-1, keepdim=True)  # of lse, which is rounded relative to itself: an offset is no part of it
    tangent = (middle * (centre - level)).sum(-1, keepdim=True) - (masked - level).logsumexp(-1, keepdim=True)
    high = torch.where(seen, raised + slope * tangent, weights.upper)
    # use the constant p^U where the chord is worse at the centre
    worse = high + slope * (centre - (middle * centre).sum(-1, keepdim=True)) > weights.upper
    high, slope = torch.where(worse, weights.upper, high), torch.where(worse, zero, slope)
    chords = Chords(
        rise=chord_rise,
        offset=chord_offset,
        ratio=torch.where(linear, R, zero),
        raised=torch.where(slope > 0, raised, weights.upper),
    )
    return RowBounds(
        low=low, rise=rise, rises=rise.sum(-1), high=high, slope=slope, middle=middle, box=weights, chords=chords
    )


def middle_of(scores: Interval) -> Tensor:
    """The softmax at the centre of a score box; masked keys have no weight."""
    there = scores.upper > -torch.inf
    masked = torch.full_like(scores.lower, -torch.inf)
    return torch.where(there, (scores.lower + scores.upper) / 2, masked).softmax(-1)


def row_below(c: Tensor, rows: RowBounds, choice: RowChoice | None = None) -> tuple[Tensor, Tensor]:
    """Slopes a and constant b with Σ_j c_j p_j ≥ a·s + b: c (batch, S, ..., K) → like c, and (batch, S, ...)."""
    pivot = (c * beside(rows.middle)).sum(-1, keepdim=True)
    if choice is None:
        return _row_below(c - pivot, rows, pivot.squeeze(-1))
    pivot = pivot + choice.pivot * (c - pivot).abs().amax(-1, keepdim=True)
    return _row_below_at(c - pivot, rows, pivot.squeeze(-1), choice)


def _row_below_at(c: Tensor, rows: RowBounds, pivot: Tensor, choice: RowChoice) -> tuple[Tensor, Tensor]:
    """Slopes and constants with R and the tangent of lse as chosen."""
    up, down = c.clamp(min=0), c.clamp(max=0)
    chords = rows.chords
    linear = beside(chords.ratio > 0)
    one = torch.ones_like(chords.ratio)
    inverse = 1 / (beside(torch.where(chords.ratio > 0, chords.ratio, one)) * choice.ratio.exp())
    inverse = torch.where(linear, inverse, torch.zeros_like(inverse))
    low = torch.where(linear, 2 * inverse - (inverse + beside(chords.offset) * inverse) * inverse, beside(rows.low))
    weight = up * inverse * inverse
    pulled = (weight.movedim(1, -2) @ chords.rise).movedim(-2, 1)
    there = beside(rows.middle) > 0
    log = torch.where(there, beside(rows.middle), torch.ones_like(c)).log() + choice.tangent
    q = torch.where(there, log, torch.full_like(log, -torch.inf)).softmax(-1)
    log_q = torch.where(q > 0, q, torch.ones_like(q)).log()
    entropy = -(q * log_q).sum(-1, keepdim=True)
    slope = down * beside(rows.slope)
    high = beside(chords.raised) - beside(rows.slope) * entropy
    a = weight * beside(chords.rise.sum(-1)) - pulled + slope - slope.sum(-1, keepdim=True) * q
    return a, pivot + (up * low + down * high).sum(-1)


def _row_below(c: Tensor, rows: RowBounds, pivot: Tensor) -> tuple[Tensor, Tensor]:
    up, down = c.clamp(min=0), c.clamp(max=0)
    slope = down * beside(rows.slope)
    # −Σ_j up_j rise_jk, one product of matrices per row of scores
    pulled = (up.movedim(1, -2) @ rows.rise).movedim(-2, 1)
    a = up * beside(rows.rises) - pulled + slope - slope.sum(-1, keepdim=True) * beside(rows.middle)
    b = pivot + (up * beside(rows.low) + down * beside(rows.high)).sum(-1)
    return a, b


@dataclasses.dataclass(frozen=True, eq=False)
class LongRows:
    """The linear bounds of rows whose tables are not stored."""

    scores: Interval
    """(batch, ..., K); −inf ends are masked keys"""

    @functools.cached_property
    def box(self) -> Interval:
        """The ranges of the components."""
        return probabilities(self.scores)

    @functools.cached_property
    def middle(self) -> Tensor:
        """The softmax at the centre of the box."""
        return middle_of(self.scores)

    def below(self, c: Tensor, choice: RowChoice | None = None) -> tuple[Tensor, Tensor]:
        """The slopes and constants of `row_below`, computed for some rows at a time."""
        keys = c.shape[-1]
        lower, upper = (end.reshape(-1, keys) for end in self.scores)
        flat = [_by_rows(x, c) for x in ((c,) if choice is None else (c, *choice))]  # (rows, S, K or 1) each
        slopes, constants = [], []
        for first in range(0, len(lower), step := _rows_at_once(keys, c.device)):
            some = slice(first, first + step)
            values, *chosen = (x[some] for x in flat)
            bounds = row_bounds(Interval(lower[some], upper[some]))
            a, b = row_below(values, bounds, RowChoice(*chosen) if chosen else None)
            slopes.append(a)
            constants.append(b)
        a, b = torch.cat(slopes), torch.cat(constants)
        leading = (c.shape[0], *c.shape[2:-1])
        return a.reshape(*leading, -1, keys).movedim(-2, 1), b.reshape(*leading, -1).movedim(-1, 1)


def linear_rows(scores: Interval) -> RowBounds | LongRows:
    """The linear bounds of all components over a score box (batch, ..., K), with tables if these are small enough."""
    *shape, keys = scores.lower.shape
    rows = math.prod(shape)
    step = _rows_at_once(keys, scores.lower.device)
    if math.prod(shape[1:]) * keys * keys > MOST_TABLE_NUMBERS:
        return LongRows(scores)
    if rows <= step:
        return row_bounds(scores)
    lower, upper = (end.reshape(-1, keys) for end in scores)
    parts = [row_bounds(Interval(lower[i : i + step], upper[i : i + step])) for i in range(0, rows, step)]
    return RowBounds(**_joined(parts, shape), box=_joined_boxes(parts, shape), chords=_joined_chords(parts, shape))


def below_rows(c: Tensor, rows: RowBounds | LongRows, choice: RowChoice | None = None) -> tuple[Tensor, Tensor]:
    """Slopes a and constant b with Σ_j c_j p_j ≥ a·s + b: c (batch, S, ..., K) → like c, and (batch, S, ...)."""
    return rows.below(c, choice) if isinstance(rows, LongRows) else row_below(c, rows, choice)


def _rows_at_once(keys: int, device: torch.device) -> int:
    return max(1, AT_ONCE.get(device.type, AT_ONCE["cpu"]) // max(1, keys * keys))


def _by_rows(x: Tensor, c: Tensor) -> Tensor:
    """(batch, S, ..., K or 1), or 1 in place of S → (rows, S, K or 1); c has the full shape (batch, S, ..., K)."""
    whole = x.expand(*c.shape[:-1], x.shape[-1]).movedim(1, -2)
    return whole.reshape(-1, *whole.shape[-2:])


def _joined(parts: list[RowBounds], shape: list[int]) -> dict[str, Tensor]:
    names = ("low", "rise", "rises", "high", "slope", "middle")
    return {name: _together([getattr(part, name) for part in parts], shape) for name in names}


def _joined_boxes(parts: list[RowBounds], shape: list[int]) -> Interval:
    return Interval(*(_together([part.box[i] for part in parts], shape) for i in (0, 1)))


def _joined_chords(parts: list[RowBounds], shape: list[int]) -> Chords:
    names = ("rise", "offset", "ratio", "raised")
    return Chords(**{name: _together([getattr(part.chords, name) for part in parts], shape) for name in names})


def _together(parts: list[Tensor], shape: list[int]) -> Tensor:
    """Pieces of rows (rows, ...) as one tensor (batch, ..., ...)."""
    whole = torch.cat(parts)
    return whole.reshape(*shape, *whole.shape[1:])


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxRelaxation(Relaxation):
    """A combination of the components of each row, bounded by their linear bounds."""

    rows: RowBounds | LongRows

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A step with slopes on the scores of each row."""
        a, b = below_rows(A, self.rows)
        return Step((a,), sum_to(b.unsqueeze(-1), diagonal))


@register
@dataclasses.dataclass(frozen=True)
class Softmax(MaskedSoftmax):
    """softmax along the last dimension, of which some keys may be masked."""

    reads = (0,)

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., K) → (..., K)"""
        return self.masked(xs[0]).softmax(-1)

    def interval(self, *boxes: Interval) -> Interval:
        """The exact range of every component."""
        return probabilities(self.score_box(boxes[0]))

    def relax(self, context: Context) -> Relaxation:
        """The linear bounds of all components."""
        return SoftmaxRelaxation(linear_rows(self.score_box(context.boxes[0])))

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension but the keys."""
        return None if dimension == len(shape) - 1 else (dimension,)

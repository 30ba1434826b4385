"""Attention, softmax(scores) @ values, as one op: the objective is summed over components before anything is relaxed.

For an objective with coefficients η_i on output row i, Σ_d η_id out_id = Σ_j p_ij w_ij with w_ij = η_i · v_j, one
number per key, bounded as one functional. Then, per row:
- rule "lse" (CROWN): McCormick for p·w, and the linear softmax bounds of softmax.py for the part in p;
- rule "vertex" (the paper's): Σ_j p_ij w_ij ≥ softmax_box_min(w^L_i, score box of row i), exact over the score box;
- rule "affine" (METHOD.md section 7): the minorant of softmax_box/affine.py with the row's full gradient at the centre
  as slopes, Σ_j p_j w_j ≥ a·s + m·w + B;
- rule "rows": McCormick for p·w, and for the part in p whichever of the two bounds promises more in that row.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.bilinear import product_interval
from vertex_softmax.ops.forms import RowForm, functional_box, row_form
from vertex_softmax.ops.generators import Ellipsoid, ellipsoid, functional_radius
from vertex_softmax.ops.registry import (
    Centred,
    Interval,
    Place,
    Range,
    Shape,
    Step,
    beside,
    register,
    spread,
    sum_to,
)
from vertex_softmax.ops.softmax import MaskedSoftmax, RowBounds, RowChoice, probabilities, row_below, row_bounds
from vertex_softmax.softmax_box import softmax_box_max, softmax_box_min
from vertex_softmax.softmax_box.affine import log_probabilities, minorant_constant


class Minorant(NamedTuple):
    """What the affine vertex rule needs of a score box, (batch, 1, ..., n, K)."""

    log_low: Tensor
    log_high: Tensor
    middle: Tensor
    """softmax at the centre, within the range of every component"""
    most: Tensor
    """(batch, 1, ..., n): the largest |lse(s)|, for what rounding leaves of Σ a"""
    pieces: Interval
    """the ranges of log p in each piece of the range of lse, (batch, 1, ..., n, M, K)"""
    cut: Tensor | None = None
    """m, as the place of log m between log p^L (0) and log p^U (1); None: m = p"""
    slope: Tensor | None = None
    """what a has beyond the full gradient, relative to p and the row's scale; None: nothing"""
    level: Tensor | None = None
    """(..., n, M): what each μ has beyond the row's value, relative to the row's scale; None: nothing"""
    weight: Tensor | None = None
    """λ, (..., n, 1): how much of the row is left to the exact score-box optimum; None: nothing"""


class Heads(NamedTuple):
    """What the rules need of an attention's boxes."""

    scores: Interval
    """(batch, ..., n, K), −inf where masked"""
    shifted: Interval | None
    """another box of the same rows: the scores less their means"""
    values: Interval
    """(batch, ..., K, d)"""
    form: RowForm | None
    """of the values, if they are affine in the input"""
    rows: RowBounds | None
    """the linear softmax bounds; None under the rule `vertex`"""
    choose: bool
    """the rule `rows`"""
    affine: Minorant | None
    """for the rule `affine`"""
    coupled: bool
    """λ is free"""
    exact: bool
    """bound functionals of the values exactly"""
    sums: bool
    """or by the exact sums over their generators"""
    choice: dict[str, Tensor]
    """of the rule `lse`: values of its free parameters; none: the defaults"""
    ellipsoid: Ellipsoid | None
    """of the values, if they are not affine in the input but have generators"""
    parallel: bool
    """one linear function for both sides"""
    bad: Tensor | None
    """NaN where the boxes are not fit for any bound, (batch, ..., n); None if all are"""


@register
@dataclasses.dataclass(frozen=True)
class Attention(MaskedSoftmax):
    """softmax(scores) @ values; some keys may be masked."""

    stage = "softmax rows"
    ranges: ClassVar[dict[str, Range]] = {
        "cut": Range(rate=0.5),
        "slope": Range(-10.0, 10.0, 0.2),
        "level": Range(-10.0, 10.0, 0.07),
        "weight": Range(rate=0.03),
        "ratio": Range(-10.0, 10.0, 0.25),
        "tangent": Range(-10.0, 10.0, 0.25),
        "pivot": Range(-10.0, 10.0, 0.1),
        "mix": Range(),
    }

    def evaluate(self, *xs: Tensor) -> Tensor:
        """scores (..., n, K), values (..., K, d) → (..., n, d)"""
        return self.masked(xs[0]).softmax(-1) @ xs[1]

    def interval(self, *boxes: Interval) -> Interval:
        """Per component: the exact optimum over the score box with the values at their ends; never wider than IBP."""
        scores, values = self.score_box(boxes[0]), boxes[1]
        plain = product_interval(probabilities(scores), values)
        fine = ~plain.lower.isnan().any(-1) & values.lower.isfinite().flatten(-2).all(-1, keepdim=True)
        fine = fine & values.upper.isfinite().flatten(-2).all(-1, keepdim=True)
        fine = fine.unsqueeze(-1)  # (batch, ..., n, 1): rows the primitive can take
        ends = [torch.where(fine, x, torch.zeros_like(x)).unsqueeze(-2) for x in scores]
        low = torch.as_tensor(softmax_box_min(_finite(values.lower).mT.unsqueeze(-3), *ends))
        high = torch.as_tensor(softmax_box_max(_finite(values.upper).mT.unsqueeze(-3), *ends))
        return Interval(torch.where(fine, low, plain.lower), torch.where(fine, high, plain.upper))

    def needs(self) -> tuple[int, ...]:
        """Scores and values."""
        return (0, 1)

    def relax(self, place: Place) -> Heads:
        """Score box, values, and for "lse" the linear softmax bounds."""
        scores, values = self.score_box(place.boxes[0]), place.boxes[1]
        form = place.forms[1]()
        broken = (scores.lower.isnan() | scores.upper.isnan() | (scores.upper == torch.inf)).any(-1)
        bad = None
        if bool(broken.any()):
            bad = torch.where(broken, torch.nan, 0.0).to(values.lower.dtype)
            zero = torch.zeros_like(scores.lower)
            scores = Interval(*(torch.where(broken.unsqueeze(-1), zero, x) for x in scores))
        rule = place.rules.attention
        centred = place.centred[0] if place.centred else None
        rows = row_bounds(scores) if rule in {"lse", "rows"} else None
        rowwise = None if form is None else row_form(form)
        shifted = None if centred is None or bad is not None else shifted_box(centred, scores)
        return Heads(
            scores,
            shifted,
            values,
            rowwise,
            rows,
            rule == "rows",
            minorant(scores, None if shifted is None else centred, place.rules.pieces) if rule == "affine" else None,
            place.rules.coupled,
            place.rules.exact,
            place.rules.sums,
            {},
            place.table if form is None else None,
            place.rules.parallel,
            bad,
        )

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """A is η. Diagonal along the rows it stays so in the scores, and spreads over the values."""
        heads: Heads = relaxed
        w = _functionals(A, heads, keep)
        if heads.affine is not None:
            a, m, b = affine_row(w, heads.affine)
            if heads.affine.weight is not None:
                a, m, b = _mixed(a, m, b, w, heads)
            if heads.parallel:
                _, _, above = affine_row(Interval(-w.upper, -w.lower), heads.affine)
                step = self._step(A, a, m, (b - above) / 2, heads, keep)
                return step._replace(error=sum_to((-above - b).unsqueeze(-1) / 2, keep))
            return self._step(A, a, m, b, heads, keep)
        if heads.rows is None:
            row = _vertex(w.lower, heads)
            return Step((None, None), sum_to(row.unsqueeze(-1), keep))
        low, high = (beside(x) for x in heads.rows.box)
        if heads.choice:
            mix = heads.choice["mix"]
            c, m = mix * w.lower + (1 - mix) * w.upper, mix * low + (1 - mix) * high
            a, b = row_below(c, heads.rows, RowChoice(*(heads.choice[name] for name in RowChoice._fields)))
            return self._step(A, a, m, b - (mix * low * w.lower + (1 - mix) * high * w.upper).sum(-1), heads, keep)
        # p w ≥ w^L p + p^L w − p^L w^L
        a, b = row_below(w.lower, heads.rows)
        if heads.choose:
            a, b = _better_rows(a, b, w.lower, heads)
        return self._step(A, a, low, b - (low * w.lower).sum(-1), heads, keep)

    def settled(self, A: Tensor, relaxed: Any) -> dict[str, Tensor]:
        """a, m and μ of the affine vertex rule."""
        if relaxed.affine is None:
            return {}
        a, m, mu = row_choice(_functionals(A, relaxed), relaxed.affine)
        return {"a": a, "m": m.expand_as(a), "mu": mu.expand(*a.shape[:-1], relaxed.affine.pieces.lower.shape[-2])}

    def _step(self, A: Tensor, a: Tensor, m: Tensor, b: Tensor, heads: Heads, keep: int | None) -> Step:
        """Σ_j p_ij w_ij ≥ a·s_i + m·w_i + b_i for every row, handed on to scores and values."""
        if heads.bad is not None:
            b = b + beside(heads.bad)
        m = m.expand_as(a)
        if keep is None:
            return Step((a, m.mT @ A), sum_to(b.unsqueeze(-1)))
        each = m.unsqueeze(-1) * A.unsqueeze(-2)  # (batch, S, ..., n, K, d)
        each = each.movedim(-3, 2).flatten(1, 2)
        return Step((a, each), sum_to(b.unsqueeze(-1), keep))

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """Of the affine vertex rule m, a and μ (Minorant says how); of `lse` RowChoice and the mix of McCormick's."""
        row, rows = relaxed.affine, relaxed.rows
        if rows is not None and not relaxed.choose:
            zero = beside(torch.zeros_like(rows.middle))
            return {"ratio": zero, "tangent": zero, "pivot": zero[..., :1], "mix": zero + 1}
        if row is None:
            return {}
        there = row.log_high > row.log_low
        width = torch.where(there, row.log_high - row.log_low, torch.ones_like(row.middle))
        place = (torch.where(there, row.middle, torch.ones_like(width)).log() - row.log_low) / width
        cut = torch.where(there, place.clamp(0.0, 1.0), torch.zeros_like(width))
        zero = torch.zeros_like(cut)
        level = zero[..., :1].expand(*zero.shape[:-1], row.pieces.lower.shape[-2])
        found = {"cut": cut, "slope": zero, "level": level}
        return {**found, "weight": zero[..., :1]} if relaxed.coupled else found

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """The rule with other values."""
        if relaxed.affine is None:
            return relaxed._replace(choice=values)
        return relaxed._replace(affine=relaxed.affine._replace(**values))

    parallels = True
    uses_forms = True

    def generated(self) -> tuple[int, ...]:
        """The values."""
        return (1,)

    def table(self, generators: tuple[Any, ...]) -> Any:
        """The ellipsoids of the values."""
        return None if generators[1] is None else ellipsoid(generators[1])

    def reference(self, i: int, box: Interval) -> Tensor | None:
        """The scores, less their mean by the softmax at the centre."""
        return _centre(self.score_box(box)).softmax(-1) if i == 0 else None

    splits: ClassVar[tuple[int, ...]] = (0,)

    def bend(self, i: int, A: Tensor, slope: Tensor, xs: tuple[Tensor, ...], points: tuple[Tensor, ...]) -> Tensor:
        """The range of p·w − a·s in each row as one score moves: p_j of it is the key's, the rest keeps its shares."""
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

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """The rows."""
        return (keep, None) if keep == len(shape) - 2 else None


def minorant(scores: Interval, centred: Centred | None = None, pieces: int = 1) -> Minorant:
    """The ranges of log p, and the point of the rule's slopes."""
    low, high = log_probabilities(scores.lower, scores.upper)
    ends = [scores.lower.logsumexp(-1, keepdim=True), scores.upper.logsumexp(-1, keepdim=True)]
    box = scores
    most = torch.maximum(*(end.abs() for end in ends)).squeeze(-1)
    if centred is not None:
        box = shifted_box(centred, scores)
        lower, upper, ends = centred_log_probabilities(centred, box)
        low = torch.maximum(low, lower)
        high = torch.maximum(torch.minimum(high, upper), low)
    middle = _centre(scores).softmax(-1)
    middle = torch.minimum(torch.maximum(middle, low.exp()), high.exp())
    cut = _pieces(Interval(low, high), box, Interval(*ends), pieces)
    ranges = Interval(*map(beside, cut))
    return Minorant(beside(low), beside(high), beside(middle), beside(most), ranges)


def _pieces(log: Interval, scores: Interval, sums: Interval, count: int) -> Interval:
    """In each piece [D, D'] of the range of lse(s), log p_j = s_j − lse(s) lies in [l_j − D', u_j − D] too.

    Where rounding makes the ends cross they change places: no piece is ever dropped.
    """
    if count == 1:
        return Interval(log.lower.unsqueeze(-2), log.upper.unsqueeze(-2))
    steps = torch.arange(count + 1, dtype=log.lower.dtype, device=log.lower.device) / count
    cuts = sums.lower + (sums.upper - sums.lower) * steps  # (batch, ..., n, M + 1)
    cuts = torch.cat([sums.lower, cuts[..., 1:-1], sums.upper], -1).unsqueeze(-1)
    lower = torch.maximum(log.lower.unsqueeze(-2), scores.lower.unsqueeze(-2) - cuts[..., 1:, :])
    upper = torch.minimum(log.upper.unsqueeze(-2), scores.upper.unsqueeze(-2) - cuts[..., :-1, :])
    return Interval(torch.minimum(lower, upper), torch.maximum(lower, upper))


def shifted_box(centred: Centred, scores: Interval) -> Interval:
    """The scores less their mean as a score box: −inf where the key is masked."""
    there = scores.upper > -torch.inf
    masked = torch.full_like(centred.weights, -torch.inf)
    return Interval(*(torch.where(there, t, masked) for t in centred.box))


def centred_log_probabilities(centred: Centred, shifted: Interval) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The ranges of log p_j from those of t_j = s_j − ω·s, and the ends (…, 1) of lse(t).

    p = softmax(t). With H = −Σ ω log ω and d_j = t_j − log ω_j − H, ω·t = 0 and so ω·d = 0; lse(t) = H + log Σ ω e^d,
      0 ≤ log Σ ω e^d = log(1 + Σ ω (e^d − 1 − d)),
    of second order. So log p_j is t_j − H, less at most that, over the ends of d (e^d − 1 − d is convex).
    """
    weights = centred.weights
    counted = weights > 0
    log = torch.where(counted, weights, torch.ones_like(weights)).log()
    entropy = -(weights * log).sum(-1, keepdim=True)
    ends = [torch.where(counted, t - log - entropy, torch.zeros_like(t)) for t in centred.box]
    curved = torch.maximum(*(torch.expm1(d) - d for d in ends))
    low, high = log_probabilities(*shifted)
    least = torch.maximum(entropy, shifted.lower.logsumexp(-1, keepdim=True))
    # a key whose ω underflowed is not masked, but Σ ω e^d does not count it
    missed = ((shifted.upper > -torch.inf) & ~counted).any(-1, keepdim=True)
    most = entropy + torch.log1p((weights * curved).sum(-1, keepdim=True))
    whole = shifted.upper.logsumexp(-1, keepdim=True)
    most = torch.maximum(least, torch.where(missed, whole, torch.minimum(most, whole)))
    low = torch.maximum(low, shifted.lower - most)
    high = torch.minimum(high, shifted.upper - least)
    return low, torch.maximum(low, high), [least, most]


def _centre(scores: Interval) -> Tensor:
    """The centre, −inf where masked."""
    there = scores.upper > -torch.inf
    return torch.where(there, scores.lower + scores.upper, scores.upper) / 2


def _functionals(A: Tensor, heads: Heads, keep: int | None = None) -> Interval:
    """The box of w_ij = η_i·v_j, (batch, S, ..., n, K)."""
    w = functional_box(A, heads.values, heads.form, heads.exact or keep is not None)
    if heads.ellipsoid is None:
        return w
    middle, radius = A @ heads.ellipsoid.centre.unsqueeze(1).mT, functional_radius(A, heads.ellipsoid, heads.sums)
    return w.meet(Interval(middle - radius, middle + radius))


def row_choice(w: Interval, row: Minorant) -> tuple[Tensor, Tensor, Tensor]:
    """a, m, μ of the affine vertex rule: by default a is the full gradient at the centre, m = p, μ the value there."""
    p = row.middle / row.middle.sum(-1, keepdim=True)
    centre = w.centre
    value = (p * centre).sum(-1, keepdim=True)
    off = centre - value
    scale = off.abs().amax(-1, keepdim=True) + (p * (w.upper - w.lower)).sum(-1, keepdim=True)
    if row.slope is not None:
        off = off + row.slope * scale
        off = off - (p * off).sum(-1, keepdim=True)
    a = p * off
    mu = value if row.level is None else value + row.level * scale
    m = p
    if row.cut is not None:
        there = row.log_high > -torch.inf
        low = torch.where(there, row.log_low, torch.zeros_like(row.log_low))
        high = torch.where(there, row.log_high, torch.zeros_like(row.log_high))
        m = torch.where(there, (low + row.cut * (high - low)).exp(), torch.zeros_like(low))
    return a, m, mu


def affine_row(w: Interval, row: Minorant) -> tuple[Tensor, Tensor, Tensor]:
    """a, m, B of the affine vertex rule."""
    a, m, mu = row_choice(w, row)
    low, high, slope, cut = (x.unsqueeze(-2) for x in (w.lower, w.upper, a, m))
    B = minorant_constant(*row.pieces, low, high, slope, cut, mu.unsqueeze(-1)).amin(-1)
    return a, m, B - a.sum(-1).abs() * row.most


def _mixed(a: Tensor, m: Tensor, b: Tensor, w: Interval, heads: Heads) -> tuple[Tensor, Tensor, Tensor]:
    """(1 − λ) of the row by the affine vertex rule, λ by the exact optimum with the values coupled (METHOD section 6).

    p·w ≥ softmax_box_min(w^L) + p^L·(w − w^L).
    """
    row = heads.affine
    if row is None or row.weight is None:
        return a, m, b
    least, share = row.log_low.exp(), row.weight
    coupled = _vertex(w.lower, heads) - (least * w.lower).sum(-1)
    return (1 - share) * a, (1 - share) * m + share * least, (1 - share.squeeze(-1)) * b + share.squeeze(-1) * coupled


def _finite(x: Tensor) -> Tensor:
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


def _better_rows(a: Tensor, b: Tensor, c: Tensor, heads: Heads) -> tuple[Tensor, Tensor]:
    """a·s + b, or in its place the exact constant where that is above the linear bound near the middle of the box.

    "Near" is a quarter of the way to its lowest point: measured on the anchors' models to be best of 0, ¼, ½, ¾, 1.
    """
    there = heads.scores.upper > -torch.inf
    zero = torch.zeros_like(heads.scores.lower)
    box = Interval(*(beside(torch.where(there, x, zero)) for x in heads.scores))
    constant = _vertex(c, heads)
    linear = (a * box.centre).sum(-1) + b - 0.25 * (a.abs() * box.radius).sum(-1)
    exact = constant > linear
    return torch.where(exact.unsqueeze(-1), torch.zeros_like(a), a), torch.where(exact, constant, b)


def _vertex(c: Tensor, heads: Heads) -> Tensor:
    """softmax_box_min of each row over the better of its boxes; NaN where coefficients or boxes are not finite."""
    fine = c.isfinite().all(-1)
    found = torch.full_like(c[..., 0], -torch.inf)
    for box in (heads.scores,) if heads.shifted is None else (heads.scores, heads.shifted):
        bound = softmax_box_min(_finite(c), beside(box.lower), beside(box.upper))
        found = torch.maximum(found, torch.as_tensor(bound))
    found = torch.where(fine, found, torch.full_like(found, torch.nan))
    return found if heads.bad is None else found + beside(heads.bad)

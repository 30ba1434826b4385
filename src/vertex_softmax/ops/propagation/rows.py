"""Zonotopes through attention to first order: rows of softmax(scores) @ values.

Invariant: the zonotope returned contains the rows for all scores and values of the given zonotopes, rounding included.

For each row let ω be the softmax at the centre of the scores, v̄ = Σ ω v^c the row there, and t the deviation of the
scores from their centre, less its mean by ω. Then Σ ω t = 0 and p_j = ω_j e^{t_j − D} with D = log Σ ω e^t ≥ 0, of
second order. Since Σ p = 1,
  Σ_j p_j v_j = v̄ + Σ_j p_j (v_j^c − v̄) + Σ_j p_j v'_j.
For the first sum, p_j is written as an affine function of t_j with an error, α_j + β_j t_j ± δ_j. There are two ways,
and each row takes the one with less error:
- exponential: e^t − a t for |t| ≤ τ, with the slope a = sinh(τ)/τ of the chord, ranges from a − a log a to cosh τ. The
  common factor e^{−D} multiplies Σ ω_j (e^{t_j} − 1) (v_j^c − v̄), because Σ ω_j (v_j^c − v̄) = 0; so its error is of
  third order;
- logistic: p_j = σ(z_j), where by Jensen's inequality z_j = logit ω_j + t_j / (1 − ω_j) − D_j with D_j ≥ 0, of second
  order too; σ is bounded and nowhere steeper than ¼, unlike any exponential.

The second sum is Σ p_j^c v'_j and errors (p_j − p_j^c) v'_j in the shape of v'_j, with p_j in its range.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.generators import raised
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lengths import lengths, norm
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.reaches import Care
from vertex_softmax.ops.spans import written_out
from vertex_softmax.ops.unknowns import LocalUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Ellipse, Segments, Zonotope, error_blocks, times_left, times_rows


@dataclasses.dataclass(frozen=True, eq=False)
class CentredScores:
    """t: the scores' deviation from their centre, less its mean by ω, (batch, ..., n, K); 0 where a key is masked."""

    log_weights: Tensor
    """log ω, the log-softmax at the centre; −inf where a key is masked"""
    blocks: dict[Unknowns, Tensor]
    """(batch, balls, dimension, ..., n, K)"""
    loose: Tensor
    """the error that is not in the blocks"""
    reach: Tensor
    """τ, an upper bound of |t|"""

    @functools.cached_property
    def deviation(self) -> Zonotope:
        """t as a zonotope around 0."""
        return Zonotope(torch.zeros_like(self.loose), self.blocks, None, self.loose)


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """p_j = middle + slope·t_j ± error, up to a multiple of ω_j that is common to a row; (batch, ..., n, K)."""

    middle: Tensor
    slope: Tensor
    error: Tensor
    range: Interval
    """the range of p_j"""


_known: weakref.WeakKeyDictionary[Zonotope, tuple[Tensor, Care, CentredScores]] = weakref.WeakKeyDictionary()
"""For scores that are alive, the centre and the care they were centred with, and the result: boxes and rows both need
it."""


def centred_scores(scores: Zonotope, masked: Tensor, care: Care = Care.TIGHT) -> CentredScores:
    """The scores less their means (`CentredScores`). Cached.

    masked: the centre of the scores, with −inf where a key is masked.
    """
    known = _known.get(scores)
    if known is None or known[1] is not care or not torch.equal(known[0], masked):
        known = masked, care, _centred_scores(scores, masked, care)
        _known[scores] = known
    return known[2]


def _centred_scores(scores: Zonotope, masked: Tensor, care: Care) -> CentredScores:
    scores = scores.spread
    log_weights = masked.log_softmax(-1)
    present = masked > -torch.inf
    weights = log_weights.exp()

    def centred(x: Tensor) -> Tensor:
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        x = torch.where(present[:, None, None], x, zero)
        mean = (weights[:, None, None] * x).sum(-1, keepdim=True)
        return torch.where(present[:, None, None], x - mean, zero)

    blocks = {unknowns: centred(columns) for unknowns, columns in scores.blocks.items()}
    loose = torch.where(present, scores.loose, torch.zeros_like(weights))
    share = weights * loose
    rest = _others(share)
    own = torch.where(present, _others(weights) * loose + rest, torch.zeros_like(weights))
    # for a key with nearly all the weight, t is a small difference of large numbers
    rounding = OUTWARD.get(weights.dtype, 0.0) or 8 * torch.finfo(weights.dtype).eps
    own = own + torch.where(present, rounding * scores.rough_radius, torch.zeros_like(weights))
    reach = Zonotope(torch.zeros_like(weights), blocks, None, own).radius_by(care)
    return CentredScores(log_weights=log_weights, blocks=blocks, loose=own, reach=reach)


def _others(x: Tensor) -> Tensor:
    """For each key the sum over all other keys, computed without subtraction: (..., K) → (..., K)."""
    keys = x.shape[-1]
    return x @ (1 - torch.eye(keys, dtype=x.dtype, device=x.device))


def _log_others(x: Tensor) -> Tensor:
    """For each key log Σ e^x over all other keys: (..., K) → (..., K); −inf where there are none."""
    none = torch.full_like(x[..., :1], -torch.inf)
    before = torch.cat([none, x.logcumsumexp(-1)[..., :-1]], -1)
    behind = torch.cat([none, x.flip(-1).logcumsumexp(-1)[..., :-1]], -1).flip(-1)
    return torch.logaddexp(before, behind)


def logistic(scores: CentredScores) -> Weights:
    """p as the logistic function of z, with the slope of its chord or of its centre, whichever has less error."""
    log, tau = scores.log_weights, scores.reach
    present = log > -torch.inf
    log_rest = _log_others(log)
    # a key whose t is always 0 still moves through D, if another key's does
    moves = torch.where(present, tau, torch.zeros_like(tau)).amax(-1, keepdim=True) != 0  # also NaN
    varies = present & (log_rest > -torch.inf) & moves
    rest = torch.where(varies, log_rest, torch.zeros_like(log)).exp()
    odds = torch.where(varies, log - log_rest, torch.zeros_like(log))
    wide = tau / rest  # |t / (1 − ω)|
    weights = log.exp()
    # D_j = log Σ_{k≠j} ω_k/(1 − ω_j) e^{t_k + s_j} with |s_j| ≤ ω_j τ_j / (1 − ω_j), and the mean of the exponents is 0
    shift = weights * wide
    grown = _others(weights * torch.expm1(tau)) / rest
    curved = _others(weights * (torch.expm1(tau) - tau)) / rest
    most = torch.log1p(curved + torch.expm1(shift) * grown + (torch.expm1(shift) - shift))
    most = most.nan_to_num(torch.inf, torch.inf)
    safe = torch.where(present, log, torch.zeros_like(log))
    up = torch.where(varies, safe + tau - _log_others(log - tau), odds)
    down = torch.where(varies, safe - tau - _log_others(log + tau), odds)
    z = Interval(torch.maximum(down, odds - wide - most), torch.minimum(up, odds + wide))
    slopes = (_chord(odds, wide, z), torch.sigmoid(odds) * torch.sigmoid(-odds))
    bands = [(slope, *_logistic_band(slope, odds, wide, most, z)) for slope in slopes]
    less = bands[1][2] < bands[0][2]
    slope, middle, error = (torch.where(less, b, a) for a, b in zip(*bands, strict=True))
    zero = torch.zeros_like(tau)
    return Weights(
        middle=torch.where(varies, middle, weights),
        slope=torch.where(varies, slope / rest, zero),
        error=torch.where(varies, error, zero),
        range=Interval(*(torch.where(varies, torch.sigmoid(end), weights) for end in z)),
    )


def _chord(odds: Tensor, wide: Tensor, z: Interval) -> Tensor:
    """The slope of σ between the ends of z, clamped to at most ¼."""
    ends = torch.sigmoid(torch.minimum(odds + wide, z.upper)) - torch.sigmoid(torch.maximum(odds - wide, z.lower))
    width = torch.where(wide > 0, 2 * wide, torch.ones_like(wide))
    return (ends / width).clamp(0.0, 0.25)


def _logistic_band(slope: Tensor, odds: Tensor, wide: Tensor, most: Tensor, z: Interval) -> tuple[Tensor, Tensor]:
    """Middle and half-width of σ(z) − slope·x for |x| ≤ wide and odds + x − most ≤ z ≤ odds + x, with z in its range.

    If σ'(z₁) = slope for some z₁ ≥ 0, σ(z) − slope·z has its one inner maximum at z₁ and its one inner minimum at −z₁.
    """
    root = (1 - 4 * slope).clamp(min=0).sqrt()
    turn = (
        2 * torch.log1p(root) - (4 * slope).log()
    )  # log (1 + root)/(1 − root), also where 1 − root is 0; inf at slope 0
    highest = torch.minimum(odds + wide, z.upper)
    lowest = torch.maximum(odds - wide - most, z.lower)
    last = torch.maximum(odds + wide - most, lowest)
    first = torch.minimum(odds - wide, highest)

    def above(at: Tensor) -> Tensor:
        return torch.sigmoid(at) - slope * (at - odds)

    def below(at: Tensor) -> Tensor:
        return torch.sigmoid(at) - slope * (at - odds + torch.where(most.isfinite(), most, torch.zeros_like(most)))

    inside = torch.minimum(torch.maximum(turn, first), highest)
    top = torch.stack([above(first), above(inside), above(highest)]).amax(0)
    inside = torch.minimum(torch.maximum(-turn, lowest), last)
    bottom = torch.stack([below(lowest), below(inside), below(last)]).amin(0)
    # if D has no bound, the value is known only by its range
    free = ~most.isfinite()
    bottom = torch.where(free, torch.sigmoid(z.lower) - slope * wide, bottom)
    return (top + bottom) / 2, (top - bottom) / 2


def exponential(scores: CentredScores, range_: Interval) -> Weights:
    """p by the chord of e^t, and the common factor e^{−D}."""
    tau, weights = scores.reach, scores.log_weights.exp()
    moves = tau > 0
    slope = torch.where(moves, torch.sinh(tau) / torch.where(moves, tau, torch.ones_like(tau)), torch.ones_like(tau))
    high = torch.maximum(torch.cosh(tau), tau.exp() - slope * tau)  # the two ends, equal but for rounding
    low = torch.minimum(slope - slope * slope.log(), high)
    curved = torch.expm1(tau) - tau
    factor = torch.exp(-torch.log1p((weights * curved).sum(-1, keepdim=True)))  # the least value of e^{−D}
    middle, half = (1 + factor) / 2, (1 - factor) / 2
    return Weights(
        middle=weights * middle * (high + low) / 2,
        slope=weights * middle * slope,
        error=weights * (middle * (high - low) / 2 + half * torch.expm1(tau)),
        range=range_,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """The value v' of each key, and t_j v'_j, over a ball Σ u |ξ|² ≤ U of the unknowns with weights u for each key.

    |η·v'_j| ≤ √(U ηᵀCη), and η·t_j v'_j = η·shift ± size √(ηᵀCη), for the part of t_j v'_j that is in blocks.
    """

    shape: Tensor
    """C, (batch, ..., K, d, d)"""
    most: Tensor
    """U, (batch, ..., K)"""
    shift: Tensor
    """(batch, ..., n, K, d)"""
    size: Tensor
    """(batch, ..., n, K)"""


SHARE_OF_SCORES = 1.0
"""The share of the scores' unknowns in the weights u, relative to 1 for the values'; scores' unknowns need a weight
too."""


def products(t: CentredScores, values: Zonotope) -> Products:
    """The products t_j v'_j: (g·ξ)(h·ξ) lies in U (g·h ± |g||h|) / 2 over the ball, with the inner product of weights
    1/u.
    """
    none = torch.zeros_like(values.centre[..., 0])
    of_values = dict(values.written_out(unknowns) for unknowns in values.blocks)
    of_t = dict(written_out(*block) for block in t.blocks.items())
    by_values = {unknowns: lengths(columns, also_last=True) for unknowns, columns in of_values.items()}
    by_scores = {unknowns: norm(columns, (2, -2)) for unknowns, columns in of_t.items()}
    plain = sum((length.sum(1) for length in by_values.values()), none)  # (batch, ..., K)
    of_scores = sum((length.sum(1) for length in by_scores.values()), none)
    scale = torch.where(of_scores > 0, SHARE_OF_SCORES * plain / torch.where(of_scores > 0, of_scores, 1.0), 0.0)
    d = values.centre.shape[-1]
    shape = values.centre.new_zeros(*values.centre.shape, d)
    shift = values.centre.new_zeros(*t.reach.shape, d)
    square = torch.zeros_like(t.reach)
    dims = 0
    names = {_everywhere(unknowns): unknowns for unknowns in of_values}
    for whole in dict.fromkeys([*names, *of_t]):
        own = names.get(whole)
        local = own if isinstance(own, LocalUnknowns) else None
        u = none.unsqueeze(1) if own is None else by_values[own]
        if local is not None:
            u = local.spread(u[:, :, None, ..., None]).squeeze((2, -1))
        if whole in by_scores:
            u = u + scale.unsqueeze(1) * by_scores[whole]
        inverse = torch.where(u > 0, 1 / torch.where(u > 0, u, torch.ones_like(u)), torch.zeros_like(u))
        if whole in of_t:
            square = square + (of_t[whole] * inverse.sqrt()[:, :, None, ..., None, :]).square().sum((1, 2))
        if own is not None:
            columns, moved = of_values[own], of_t.get(whole)
            if local is not None:
                inverse = local.picked(inverse[:, :, None, ..., None]).squeeze((2, -1))
                moved = None if moved is None else local.picked(moved.movedim(-2, -1)).movedim(-1, -2)
            scaled = (columns * inverse[:, :, None, ..., None]).flatten(1, 2).movedim(1, -2)  # (batch, ..., K, P, d)
            shape = shape + scaled.mT @ columns.flatten(1, 2).movedim(1, -2)
            dims += scaled.shape[-2]
            if moved is not None:
                scores = moved.flatten(1, 2).movedim(1, -1)  # (batch, ..., n, K, P)
                shift = shift + (scores.transpose(-3, -2) @ scaled).transpose(-3, -2)
    most = (1 + SHARE_OF_SCORES) * plain
    half = most / 2
    return Products(
        shape=raised(shape, dims + d),
        most=most,
        shift=half[..., None, :, None] * shift,
        size=half.unsqueeze(-2) * square.sqrt(),
    )


def over_keys(times: Tensor, shape: Tensor) -> Ellipse:
    """The ellipse of a sum over keys of errors times_j √(ηᵀ C_j η).

    times: (batch, ..., n, K), C: (batch, ..., K, d, d).
    """
    d = shape.shape[-1]
    trace = shape.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)  # (batch, ..., K)
    unit = shape / torch.where(trace > 0, trace, torch.ones_like(trace))[..., None, None]
    spread = times * trace.sqrt().unsqueeze(-2)
    whole = spread.sum(-1)
    share = spread / torch.where(whole > 0, whole, torch.ones_like(whole)).unsqueeze(-1)
    return Ellipse((share @ unit.flatten(-2)).unflatten(-1, (d, d)), whole)


def _everywhere(unknowns: Unknowns) -> Unknowns:
    """The unknowns as the name of blocks that store all of them for every number."""
    return unknowns.everywhere if isinstance(unknowns, LocalUnknowns) else unknowns


def _mixed(left: Tensor, columns: Tensor, unknowns: LocalUnknowns) -> Tensor:
    """left (batch, ..., n, K) @ columns (batch, slots, k, ..., K, d) of local unknowns, as a block for all balls.

    There is no sum over keys: each key's slot is scattered to its ball.
    """
    parts = left.movedim(-1, 1)[:, None, :, None, ..., None] * columns.movedim(-2, 2).unsqueeze(-2)
    parts = parts.flatten(1, 2)  # (batch, slots · K, k, ..., n, d)
    ids = unknowns.ids.movedim(-2, 1).flatten(0, 1)[:, None, ..., None]  # (slots · K, 1, ..., 1, 1)
    found = parts.new_zeros(parts.shape[0], unknowns.count, *parts.shape[2:])
    return found.scatter_add_(1, ids.expand(parts.shape[1:]).expand_as(parts), parts)


def attended(scores: Zonotope, masked: Tensor, values: Zonotope, origin: str) -> Zonotope:
    """The zonotope of softmax(scores) @ values: scores (batch, ..., n, K), values (batch, ..., K, d) →
    (batch, ..., n, d).
    """
    values = values.by_rows
    t = centred_scores(scores, masked)
    weights = t.log_weights.exp()
    row = weights @ values.centre
    away = values.centre.unsqueeze(-3) - row.unsqueeze(-2)  # (batch, ..., n, K, d)
    p = logistic(t)
    other = exponential(t, p.range)
    length = norm(away, (-1,))
    costs = [(w.error + w.slope.abs() * t.loose) * length for w in (p, other)]
    less = (costs[1].sum(-1) < costs[0].sum(-1)).unsqueeze(-1)
    middle, slope, error = (
        torch.where(less, b, a) for a, b in ((p.middle, other.middle), (p.slope, other.slope), (p.error, other.error))
    )
    # errors: for each key one along w_j, and (p_j − at_j) v'_j in the shape of v'_j
    keys = Segments((error + slope.abs() * t.loose).unsqueeze(-1) * away)
    second = products(t, values)
    root_most = second.most.sqrt().unsqueeze(-2)
    plain, quadratic = p.range.radius * root_most, p.slope * second.size + (p.error + p.slope * t.loose) * root_most
    better = quadratic < plain
    at = torch.where(better, p.middle, p.range.centre)
    off = torch.maximum(p.range.upper - at, at - p.range.lower).clamp(min=0)
    shift = (torch.where(better, p.slope, torch.zeros_like(at)).unsqueeze(-1) * second.shift).sum(-2)
    times = torch.where(better, quadratic, plain)  # (batch, ..., n, K)
    moved = over_keys(times, second.shape)
    towards = slope.unsqueeze(-1) * away
    blocks = {unknowns: times_rows(columns, towards) for unknowns, columns in t.blocks.items()}
    errors: list[Ellipse | Segments] = [keys, moved]
    for unknowns, columns in values.blocks.items():
        name = _everywhere(unknowns)
        if unknowns.alone:
            continue
        more = _mixed(at, columns, unknowns) if isinstance(unknowns, LocalUnknowns) else times_left(at, columns)
        blocks[name] = blocks[name] + more if name in blocks else more
    if values.alone.blocks:
        shape = values.alone.row_shape
        errors.append(over_keys(at.abs() * shape.size.sqrt().unsqueeze(-2), shape.matrix))
    loose, none = (at.abs() + off) @ values.loose, torch.zeros_like(row)
    bare = values.own is None and values.inputs is None
    if bare:  # rounding: separate intervals would grow from layer to layer
        errors.append(Ellipse(torch.diag_embed(loose), loose.sum(-1).sqrt()))
    blocks.update(error_blocks(errors, origin))
    centre = row + (middle.unsqueeze(-1) * away).sum(-2) + shift
    found = Zonotope(centre, blocks, None if bare else loose, none)
    most = (values.centre.abs() + values.rough_radius).amax(-2, keepdim=True)
    return rounded(found, found.rough_radius + 2 * most.expand_as(centre))

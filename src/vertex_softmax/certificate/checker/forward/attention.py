"""Rows of attention: Σ_j p_j v_j = v̄ + N/Z with N = Σ_j q_j (w_j + v'_j), w_j = v_j^c − v̄, for any v̄.

Either q_j = ω_j e^{t_j} (exponentials.py), or q_j = p_j and Z = 1 (logistic.py): each row takes what is better.
With q = α + β t + γ t² ± δ, t = ℓ_t + r_t and v' = ℓ_v + r_v:
- Σ α w and, in t and v', Σ β t w + Σ (α + γτ²/2) v' are affine;
- to second order Σ γ ℓ_t² w + Σ β ℓ_t ℓ_v are kept as products of the input's unknowns. Errors: along w_j,
  δ + γ (2 |ℓ_t| |r_t| + r_t²) and β times what of t is not in its blocks; in the shape of r_v, β |ℓ_t|; in that of v',
  β |r_t| + γτ²/2 + δ, since |t² − τ²/2| ≤ τ²/2;
- to first order γ = 0, and t_j v'_j is bounded over one ball around the unknowns of both (first_products.py), or
  q_j v'_j by the range of q_j.
1/Z = z ± h: N/Z is z N, and h in the shape of N.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..rounding import MORE, Array, ProvedInterval, rounding
from . import pairs
from .choices import Pick
from .ellipsoids import ErrorEllipsoid, around, of_columns, over_keys, with_error
from .exponentials import KeyWeights, ProvedScores, centred, either, line, parabola
from .first_products import JointProducts, joint_products
from .forms import LOST, Blocks, Bools, Form, chosen, grown, joined, with_products
from .logistic import logistic


def attended(
    scores: Form, visible: NDArray[np.bool_], values: Form, count: int, key: int, pick: Pick
) -> tuple[Form, Bools]:
    """softmax(scores) @ values: (..., n, K), (..., K, d) → (..., n, d); and the rows (..., n) that were expanded."""
    c = centred(scores, visible)
    row = c.weights @ values.centre
    away = values.centre[..., None, :, :] - row[..., None, :]  # (..., n, K, d)
    both = joint_products(c.t, values)
    found, more = _to_first_order(c, line(c), both, values, away, key, pick)
    found, last = _divided(found, c, key + 1)
    errors = more + last
    other, more = _to_first_order(c, logistic(c), both, values, away, key + 2, lambda name, x: pick(f"{name} of p", x))
    finite = np.isfinite(other.rough).all(-1)
    bounded = pick("logistic", finite & ~(errors < more))
    found = chosen((bounded & finite)[..., None], other, found)
    errors = np.where(bounded, more, errors)
    if count and (scores.count or values.count):
        second, more = _to_second_order(c, values, away, count, key + 3, pick)
        moves = np.sqrt(np.square(second.lines(count)).sum(-1)).sum(0)
        found = chosen(pick("second", (more < moves) | (more < errors))[..., None], second, found)
    size = np.abs(away).max(-2) + np.abs(row) + np.abs(found.centre)
    slack = found.slack + rounding(4) * size + LOST
    return replace(found, centre=row + found.centre, slack=slack * MORE), c.useful


def times_rows(columns: Array, right: Array) -> Array:
    """Row by row: (..., n, K) with leading dimensions of unknowns, times (*lead, n, K, d) → (..., n, d)."""
    lead = columns.ndim - right.ndim + 1
    shape = columns.shape[:lead]
    flat = np.moveaxis(columns.reshape(-1, *columns.shape[lead:]), 0, -2)
    return np.moveaxis(flat @ right, -2, 0).reshape(*shape, *right.shape[:-2], right.shape[-1])


def _numerator(c: ProvedScores, values: Form, away: Array, q: KeyWeights, straight: Array) -> Form:
    """Σ α w + Σ β t w + Σ straight v', without what of t is not in its blocks."""
    keys = away.shape[-2]
    towards = q.beta[..., None] * away
    blocks: Blocks = joined(
        {k: times_rows(x, towards) for k, x in c.t.blocks.items()},
        {k: straight @ x for k, x in values.blocks.items()},
    )
    level, more = q.alpha[..., None], grown(keys)
    size = (np.abs(straight) @ values.rough + times_rows(c.t.rough, np.abs(towards))) * more
    size = size + (np.abs(level) * np.abs(away)).sum(-2) * more
    return Form(
        centre=(level * away).sum(-2),
        blocks=blocks,
        own=np.abs(straight) @ values.own * more,
        slack=(np.abs(straight) @ values.slack * more + rounding(keys + 10) * size + LOST) * MORE,
    )


def _to_second_order(
    c: ProvedScores, values: Form, away: Array, count: int, key: int, pick: Pick
) -> tuple[Form, Array]:
    """N/Z, and the length of its errors (..., n)."""
    line_t, other = c.t.linear.radius, c.t.rest.tight
    mixed = (2 * line_t * other + other * other) * MORE
    bowed, plain = parabola(c), line(c)
    q = either(pick("bowed", bowed.gamma * mixed + bowed.delta < plain.delta), bowed, plain)
    bent = q.gamma * c.reach * c.reach / 2 * MORE
    found = _numerator(c, values, away, q, q.alpha + bent)
    along = (q.delta + q.gamma * mixed + q.beta * c.t.loose) * MORE
    columns = along[..., None] * away
    of_rest, of_all = around(values.rest), around(values)
    errors = [
        of_columns(columns),
        over_keys(q.beta * line_t * MORE, of_rest),
        over_keys((q.beta * other + bent + q.delta) * MORE, of_all),
    ]
    lost = rounding(2) * np.abs(columns).sum(-2) * grown(columns.shape[-2])
    found = replace(found, slack=(found.slack + lost) * MORE)
    found = with_products(found, *_products(c, values, away, q, count))
    found = with_error(found, errors, key)
    divided, more = _divided(found, c, key + 1)
    return divided, np.asarray(sum(each.length for each in errors) + more)


def _products(
    c: ProvedScores, values: Form, away: Array, q: KeyWeights, count: int
) -> tuple[tuple[Array, Array], Array]:
    """Σ_j γ ℓ_t² w + β ℓ_t ℓ_v, packed, and its error."""
    of_t, of_v = c.t.lines(count), values.lines(count)
    keys = away.shape[-2]
    right = of_t[..., None] * (q.gamma[..., None] * away) + q.beta[..., None] * of_v[..., None, :, :]
    flat = np.moveaxis(right, 0, -2)  # (..., n, K, N, d)
    flat = flat.reshape(*flat.shape[:-2], -1)
    full = np.moveaxis(of_t, 0, -2) @ flat  # (..., n, N, N · d)
    full = full.reshape(*full.shape[:-1], count, -1)
    one, all_ = np.abs(of_t).sum(0), np.abs(of_v).sum(0)
    sizes = one[..., None] * q.gamma[..., None] * np.abs(away) + q.beta[..., None] * all_[..., None, :, :]
    error = rounding(keys + 12) * times_rows(one, sizes) * grown(keys + 2 * count) + LOST
    return pairs.packed(np.moveaxis(full, (-3, -2), (0, 1))), error


# Seven: what both rules share (c, both, values, away) is made once, and the rest says which of them it is.
def _to_first_order(
    c: ProvedScores, q: KeyWeights, both: JointProducts, values: Form, away: Array, key: int, pick: Pick
) -> tuple[Form, Array]:
    """N without products of the input's unknowns, and the length of its errors (..., n)."""
    of_all, keys = around(values), away.shape[-2]
    middle = q.low / 2 + q.high / 2
    plain = q.reach(middle) * of_all.scale[..., None, :]
    quadratic = q.beta * both.size + (q.beta * c.t.loose + q.delta) * of_all.scale[..., None, :]
    better = pick("quadratic", quadratic < plain)
    straight = np.where(better, q.alpha, middle)
    found = _numerator(c, values, away, q, straight)
    columns = ((q.delta + q.beta * c.t.loose) * MORE)[..., None] * away
    share = np.where(better, q.beta, 0.0)
    shift = (share[..., None] * both.shift).sum(-2)
    lost = (share[..., None] * (both.error + rounding(keys + 6) * np.abs(both.shift))).sum(-2)
    lost = (lost + rounding(2) * np.abs(columns).sum(-2)) * grown(keys)
    loose = (share * c.reach) @ values.loose * grown(keys)
    found = replace(
        found,
        centre=found.centre + shift,
        own=(found.own + loose) * MORE,
        slack=(found.slack + lost + rounding(2) * (np.abs(found.centre) + np.abs(shift))) * MORE,
    )
    errors = [
        of_columns(columns),
        over_keys(share * both.size * MORE, ErrorEllipsoid(both.matrix, both.one)),
        over_keys(np.where(better, q.beta * c.t.loose + q.delta, q.reach(middle)) * MORE, of_all),
    ]
    return with_error(found, errors, key), np.asarray(sum(each.length for each in errors))


def _divided(found: Form, c: ProvedScores, key: int) -> tuple[Form, Array]:
    """N/Z, and the length of the error that the division adds."""
    inverse = ProvedInterval(1.0) / c.z
    middle = inverse.middle()
    half = inverse.reach(middle) * MORE
    shape = around(found)
    column = half[..., None] * found.centre
    errors = [shape.times(half), of_columns(column[..., None, :])]
    factor = middle[..., None]
    slack = factor * found.slack + rounding(3) * factor * found.size + rounding(2) * np.abs(column) + LOST
    scaled = Form(
        centre=factor * found.centre,
        blocks={k: factor * x for k, x in found.blocks.items()},
        own=factor * found.own * MORE,
        slack=slack * MORE,
    )
    return with_error(scaled, errors, key), np.asarray(errors[0].length + errors[1].length)

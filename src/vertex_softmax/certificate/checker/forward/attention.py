"""Rows of attention: Σ_j p_j v_j = v̄ + N/Z with N = Σ_j ω_j e^{t_j} (w_j + v'_j), w_j = v_j^c − v̄, for any v̄.

(t, ω and Z are those of exponentials.py.) With e^t = α + β t + γ t² ± δ, t = ℓ_t + r_t and v' = ℓ_v + r_v:
- Σ ω α w and, in t and v', Σ ω β t w + Σ ω (α + γτ²/2) v' are affine;
- to second order Σ ω γ ℓ_t² w + Σ ω β ℓ_t ℓ_v are kept as products of the input's unknowns. Errors: along w_j,
  ω (δ + γ (2 |ℓ_t| |r_t| + r_t²)) and ω β times what of t is not in its blocks; in the shape of r_v, ω β |ℓ_t|; in that
  of v', ω (β |r_t| + γτ²/2 + δ), since |t² − τ²/2| ≤ τ²/2;
- to first order γ = 0, and t_j v'_j is bounded over one ball around the unknowns of both (first_products.py).
1/Z = z ± h: N/Z is z N, and h in the shape of N.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from flint import arb
from numpy.typing import NDArray

from ..rounding import MORE, Array, ProvedInterval, enclose, rounding
from . import pairs
from .choices import Pick
from .ellipsoids import Ellipsoid, around, of_columns, over_keys, with_error
from .exponentials import CentredScores, Curves, centred, either, line, parabola
from .first_products import joint_products
from .forms import LOST, Blocks, Form, chosen, grown, joined, with_products


def attended(
    scores: Form, visible: NDArray[np.bool_], values: Form, count: int, key: int, pick: Pick
) -> tuple[Form, Array]:
    """softmax(scores) @ values: (..., n, K), (..., K, d) → (..., n, d); and the rows (..., n) that were expanded."""
    c = centred(scores, visible)
    row = c.weights @ values.centre
    away = values.centre[..., None, :, :] - row[..., None, :]  # (..., n, K, d)
    found, first_errors = _to_first_order(c, values, away, key, pick)
    if count and (scores.count or values.count):
        second, errors = _to_second_order(c, values, away, count, key + 2, pick)
        linear = second.lines(count)
        moves = np.sqrt(np.square(linear).sum(-1)).sum(0)
        better = pick("second", (errors < moves) | (errors < first_errors))
        found = chosen(better[..., None], second, found)
    size = np.abs(away).max(-2) + np.abs(row) + np.abs(found.centre)
    slack = found.slack + rounding(4) * size + LOST
    return replace(found, centre=row + found.centre, slack=slack * MORE), c.useful


def times_rows(columns: Array, right: Array) -> Array:
    """Row by row: (..., n, K) with leading dimensions of unknowns, times (*lead, n, K, d) → (..., n, d)."""
    lead = columns.ndim - right.ndim + 1
    shape = columns.shape[:lead]
    flat = np.moveaxis(columns.reshape(-1, *columns.shape[lead:]), 0, -2)
    return np.moveaxis(flat @ right, -2, 0).reshape(*shape, *right.shape[:-2], right.shape[-1])


def _numerator(
    c: CentredScores, values: Form, away: Array, e: Curves, straight: Array
) -> tuple[Form, Array]:
    """Σ ω α w + Σ ω β t w + Σ straight v', without what of t is not in its blocks; and ω β."""
    keys = away.shape[-2]
    sloped = c.weights * e.beta
    towards = sloped[..., None] * away
    blocks: Blocks = joined(
        {k: times_rows(x, towards) for k, x in c.t.blocks.items()},
        {k: straight @ x for k, x in values.blocks.items()},
    )
    level = (c.weights * e.alpha)[..., None]
    more = grown(keys)
    size = (np.abs(straight) @ values.rough + times_rows(c.t.rough, np.abs(towards))) * more
    size = size + (np.abs(level) * np.abs(away)).sum(-2) * more
    found = Form(
        centre=(level * away).sum(-2),
        blocks=blocks,
        own=np.abs(straight) @ values.own * more,
        slack=(np.abs(straight) @ values.slack * more + rounding(keys + 10) * size + LOST) * MORE,
    )
    return found, sloped


def _to_second_order(
    c: CentredScores, values: Form, away: Array, count: int, key: int, pick: Pick
) -> tuple[Form, Array]:
    """N/Z, and the length of its errors (..., n)."""
    line_t, other = c.t.linear.radius, c.t.rest.tight
    mixed = (2 * line_t * other + other * other) * MORE
    bowed, straight_line = parabola(c.reach), line(c.reach)
    e = either(pick("bowed", bowed.gamma * mixed + bowed.delta < straight_line.delta), bowed, straight_line)
    bent = c.weights * e.gamma * c.reach * c.reach / 2
    found, sloped = _numerator(c, values, away, e, c.weights * e.alpha + bent)
    along = (c.weights * (e.delta + e.gamma * mixed) + sloped * c.t.loose) * MORE
    columns = along[..., None] * away
    of_rest, of_all = around(values.rest), around(values)
    errors = [
        of_columns(columns),
        over_keys(sloped * line_t * MORE, of_rest),
        over_keys((sloped * other + bent + c.weights * e.delta) * MORE, of_all),
    ]
    lost = rounding(2) * np.abs(columns).sum(-2) * grown(columns.shape[-2])
    found = replace(found, slack=(found.slack + lost) * MORE)
    found = with_products(found, *_products(c, values, away, e, count))
    found = with_error(found, errors, key)
    divided, more = _divided(found, c, key + 1)
    return divided, np.asarray(sum(each.length for each in errors) + more)


def _products(
    c: CentredScores, values: Form, away: Array, e: Curves, count: int
) -> tuple[tuple[Array, Array], Array]:
    """Σ_j ω γ ℓ_t² w + ω β ℓ_t ℓ_v, packed, and its error."""
    of_t, of_v = c.t.lines(count), values.lines(count)
    keys = away.shape[-2]
    bent, sloped = c.weights * e.gamma, c.weights * e.beta
    right = of_t[..., None] * (bent[..., None] * away) + sloped[..., None] * of_v[..., None, :, :]
    flat = np.moveaxis(right, 0, -2)  # (..., n, K, N, d)
    flat = flat.reshape(*flat.shape[:-2], -1)
    full = np.moveaxis(of_t, 0, -2) @ flat  # (..., n, N, N · d)
    full = full.reshape(*full.shape[:-1], count, -1)
    one, all_ = np.abs(of_t).sum(0), np.abs(of_v).sum(0)
    sizes = one[..., None] * bent[..., None] * np.abs(away) + sloped[..., None] * all_[..., None, :, :]
    error = rounding(keys + 12) * times_rows(one, sizes) * grown(keys + 2 * count) + LOST
    return pairs.packed(np.moveaxis(full, (-3, -2), (0, 1))), error


def _to_first_order(
    c: CentredScores, values: Form, away: Array, key: int, pick: Pick
) -> tuple[Form, Array]:
    """N/Z without products of the input's unknowns, and the length of its errors (..., n)."""
    e = line(c.reach)
    both = joint_products(c.t, values)
    of_all = around(values)
    # t_j v'_j as one quadratic form, or e^t by its range
    ends = (enclose(arb.exp, end) for end in (c.reach, -c.reach))
    wide = np.maximum(*(end.reach(e.alpha) for end in ends))
    plain = c.weights * wide * of_all.scale[..., None, :]
    quadratic = c.weights * (e.beta * both.size + (e.beta * c.t.loose + e.delta) * of_all.scale[..., None, :])
    better = pick("quadratic", quadratic < plain)
    found, sloped = _numerator(c, values, away, e, c.weights * e.alpha)
    columns = ((c.weights * e.delta + sloped * c.t.loose) * MORE)[..., None] * away
    share = np.where(better, sloped, 0.0)
    keys = away.shape[-2]
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
    zero = np.zeros_like(plain)
    errors = [
        of_columns(columns),
        over_keys(np.where(better, sloped * both.size, zero) * MORE, Ellipsoid(both.matrix, both.one)),
        over_keys(np.where(better, sloped * c.t.loose + c.weights * e.delta, c.weights * wide) * MORE, of_all),
    ]
    found = with_error(found, errors, key)
    divided, more = _divided(found, c, key + 1)
    return divided, np.asarray(sum(each.length for each in errors) + more)


def _divided(found: Form, c: CentredScores, key: int) -> tuple[Form, Array]:
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

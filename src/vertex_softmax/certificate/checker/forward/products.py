"""Products of two forms: x y = x_c y_c + x_c y' + x' y_c + x' y', the last bounded as a whole.

With x' = ℓ_x + r_x, linear and rest, x' y' = ℓ_x ℓ_y + ℓ_x r_y + r_x y'. The first is a quadratic form of the input's
unknowns and may be kept; the others, or all of x' y', are bounded.
- Rows times columns: |x'·y'| ≤ s s' ‖Lᵀ L'‖ for ellipsoids x' = s L ν, y' = s' L' ν', or by the ranges of all numbers.
- Elementwise: Σ_k η_k x'_k y'_k = s s' νᵀ (Σ_k η_k l_k l'_kᵀ) ν' with the rows l_k of L, at most s s' times the
  Frobenius norm, whose square is ηᵀ (matrix ∘ matrix') η: an ellipsoid again. With weights w_k, that of w_k e_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..rounding import MORE, TINY, Array, rounding
from . import pairs
from .affine import MEAN
from .choices import Pick
from .ellipsoids import MOST_SHAPES, ErrorEllipsoid, around, factor, raised, with_error
from .forms import LOST, PAIRS, Form, grown, joined, with_products


def matrix_product(x: Form, y: Form, count: int, pick: Pick) -> Form:
    """x @ y, (..., n, k) and (..., k, m). `count`: of the input's unknowns, 0 if products are not kept."""
    inner = x.centre.shape[-1]
    blocks = joined(
        {key: columns @ y.centre for key, columns in x.blocks.items()},
        {key: x.centre @ columns for key, columns in y.blocks.items()},
    )
    second = product_reach(x, y)
    kept = None
    if count and x.count and y.count:
        third = (product_reach(x.linear, y.rest) + product_reach(x.rest, y)) * MORE
        kept = pick("kept", third < second)
        second = np.where(kept, third, second)
    more = grown(inner)
    own = (second + (x.own @ np.abs(y.centre) + np.abs(x.centre) @ y.own) * more) * MORE
    slack = (x.slack @ np.abs(y.centre) + np.abs(x.centre) @ y.slack) * more
    slack = (slack + rounding(inner + 6) * (x.size @ y.size) * more + LOST) * MORE
    found = Form(centre=x.centre @ y.centre, blocks=blocks, own=own, slack=slack)
    if kept is None or not kept.any():
        return found
    coefficients = _matrix_pairs(x.lines(count), y.lines(count))
    size = np.abs(x.lines(count)).sum(0) @ np.abs(y.lines(count)).sum(0) * grown(inner + count)
    error = np.where(kept, rounding(inner + 4) * size * MORE + LOST, 0.0)
    return with_products(found, (coefficients[0] * kept, coefficients[1] * kept), error)


def _matrix_pairs(x: Array, y: Array) -> tuple[Array, Array]:
    """The product of Σ x_i ξ_i and Σ y_j ξ_j, (N, ..., n, k) and (N, ..., k, m), packed: (K, ..., n, m), (N, ...)."""
    count, square = len(x), x @ y
    begin = pairs.starts(count)
    found = np.empty((count * (count - 1) // 2, *square.shape[1:]))
    for i in range(count - 1):
        found[begin[i] : begin[i + 1]] = x[i] @ y[i + 1 :] + x[i + 1 :] @ y[i]
    return found, square


def product_reach(x: Form, y: Form) -> Array:
    """|Σ_k x'_ik y'_kj| at most, (..., n, m)."""
    inner, (n, m) = x.centre.shape[-1], (x.centre.shape[-2], y.centre.shape[-1])
    plain = (x.radius @ y.radius) * grown(inner) + inner * TINY
    numbers = x.centre.size // (inner * n) * n * m * inner * inner
    if not x.radius.any() or not y.radius.any() or numbers > MOST_SHAPES:
        return np.asarray(plain)
    return np.asarray(np.fmin(plain, inner_reach(around(x), around(transposed(y)))))


def transposed(y: Form) -> Form:
    """With the last two dimensions exchanged; computed once for each form."""
    if "transposed" not in y.__dict__:
        y.__dict__["transposed"] = y.moved(lambda x: np.swapaxes(x, -1, -2))
    found: Form = y.__dict__["transposed"]
    return found


def inner_reach(a: ErrorEllipsoid, b: ErrorEllipsoid) -> Array:
    """|x_i·y_j| at most for x, y in ellipsoids of (..., n) and (..., m) rows: (..., n, m)."""
    left, right = factor(a.matrix)[..., :, None, :, :], factor(b.matrix)[..., None, :, :, :]
    norm = product_norm(left, right)
    return np.asarray(norm * a.scale[..., :, None] * b.scale[..., None, :] * MORE + TINY)


def product_norm(left: Array, right: Array) -> Array:
    """‖leftᵀ right‖ at most: (..., d, d) each → (...). ‖N‖² = ‖NᵀN‖."""
    d = left.shape[-1]
    N = np.swapaxes(left, -1, -2) @ right
    sizes = [np.sqrt(np.square(x).sum((-2, -1))) * grown(d * d) + d * math.sqrt(TINY) for x in (left, right, N)]
    S = np.swapaxes(N, -1, -2) @ N
    S = (S + np.swapaxes(S, -1, -2)) / 2
    norm = np.sqrt((pairs.symmetric_norm(S) + rounding(d + 4) * sizes[2] * sizes[2] + d * d * TINY) * MORE)
    return np.asarray(np.minimum(norm, sizes[2]) + rounding(d + 4) * sizes[0] * sizes[1] * MORE)


def element_product(x: Form, y: Form, count: int, key: int, pick: Pick) -> Form:
    """x · y elementwise, (*rows, d)."""
    blocks = joined(
        {k: columns * y.centre for k, columns in x.blocks.items()},
        {k: x.centre * columns for k, columns in y.blocks.items()},
    )
    size = x.size * y.size * MORE
    found = Form(
        centre=x.centre * y.centre,
        blocks=blocks,
        own=(x.own * np.abs(y.centre) + np.abs(x.centre) * y.own) * MORE,
        slack=(x.slack * np.abs(y.centre) + np.abs(x.centre) * y.slack + rounding(6) * size + LOST) * MORE,
    )
    parts = [(x, y)]
    if count and x.count and y.count:
        parts = [(x.linear, y.rest), (x.rest, y)]
        lines = x.lines(count), y.lines(count)
        error = rounding(6) * np.abs(lines[0]).sum(0) * np.abs(lines[1]).sum(0) * grown(2 * count) + LOST
        found = with_products(found, pairs.outer(*lines), error)
    return with_product_errors(found, parts, None, key, pick)


def with_product_errors(
    form: Form, parts: Sequence[tuple[Form, Form]], weight: Array | None, key: int, pick: Pick
) -> Form:
    """form + weight · Σ x' y' elementwise over some pairs of factors, (*rows, d): as a ball for each row, or a box."""
    one = np.ones_like(form.centre) if weight is None else weight
    box = np.abs(one) * sum(x.radius * y.radius for x, y in parts) * MORE + TINY
    if form.centre.ndim < 2 or form.centre.size * form.centre.shape[-1] > MOST_SHAPES:
        return replace(form, own=(form.own + box) * MORE)
    errors = []
    for x, y in parts:
        a, b = around(x), around(y)
        matrix = raised(a.matrix * b.matrix * (one[..., :, None] * one[..., None, :]), 4)
        errors.append(ErrorEllipsoid(matrix, a.scale).times(b.scale))
    length = sum(each.length for each in errors)
    better = pick("round", (length > 0) & (length < MEAN * box.sum(-1)))
    form = replace(form, own=(form.own + np.where(better[..., None], 0.0, box)) * MORE)
    if not better.any():
        return form
    return with_error(form, [ErrorEllipsoid(e.matrix, np.where(better, e.scale, 0.0)) for e in errors], key)


__all__ = [
    "PAIRS",
    "element_product",
    "inner_reach",
    "matrix_product",
    "product_norm",
    "product_reach",
    "with_product_errors",
]

"""Ellipsoids of errors: |η·e| ≤ scale · √(ηᵀ matrix η) for every η, for each row of d numbers.

By Cauchy and Schwarz Σ_m |η·G_m ν_m| ≤ √(Σ u_m) √(ηᵀ (Σ_m G_m G_mᵀ/u_m) η) for any floats u_m > 0 and |ν_m| ≤ 1; the
length of G_m is a good u_m. So e = scale · L ν with |ν| ≤ 1 for every L with L Lᵀ ⪰ matrix, and therefore, for any two
functionals of the same e, (c·e)(η·e) lies in scale²/2 · (cᵀ matrix η ± √(cᵀ matrix c) √(ηᵀ matrix η)).

A matrix is a float matrix, symmetric to the last bit. Where it stands for an exact one, C, whose entries were summed
with rounding, |error_ab| ≤ rounding · √(C_aa C_bb), which as a form is at most rounding · tr C: `raised` adds more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..rounding import MORE, TINY, Array, ProvedInterval, product, rounding
from . import pairs
from .forms import LINES, LOST, PAIRS, Blocks, Form, grown, lengths

LEAST = 1e-140
"""Added to every weight u, so that none is 0."""
MOST_SHAPES = 1 << 25
"""The most numbers in the matrices of one node's ellipsoids."""
MOST_APART = 1 << 23
"""Errors that are sums of columns stay apart, one unknown for each, if that is no more coefficients than this."""
APART = 8
"""Where the keys of such blocks begin, among those of a node."""


class ErrorEllipsoid(NamedTuple):
    """See the module's invariant."""

    matrix: Array
    """(*rows, d, d)"""
    scale: Array
    """(*rows)"""
    columns: Array | None = None
    """(*rows, n, d), where the error is Σ_j columns_j ν_j with |ν_j| ≤ 1"""

    @property
    def length(self) -> Array:
        """√tr of scale² · matrix, roughly: for choices."""
        return np.asarray(self.scale * np.sqrt(np.maximum(np.trace(self.matrix, axis1=-2, axis2=-1), 0)))

    def times(self, factor: Array) -> ErrorEllipsoid:
        """Of e times numbers of at most this size, (*rows)."""
        none = (self.scale == 0) | (factor == 0)
        return ErrorEllipsoid(self.matrix, np.where(none, 0.0, self.scale * factor * MORE + TINY))

    def farthest(self) -> Array:
        """|e| at most, (*rows)."""
        return np.asarray(self.scale * np.sqrt(pairs.symmetric_norm(self.matrix)) * MORE)


def raised(matrix: Array, n: int) -> Array:
    """A matrix that is at least C as a form and symmetric, from a sum C whose entries passed n roundings."""
    d = matrix.shape[-1]
    found = (matrix + np.swapaxes(matrix, -1, -2)) / 2
    lift = 2 * rounding(n + 8) * np.trace(found, axis1=-2, axis2=-1) + 16 * (n + d) * d * TINY
    index = np.arange(d)
    found[..., index, index] += np.abs(lift)[..., None]
    return found


def of_blocks(blocks: Blocks, loose: Array, count: int) -> ErrorEllipsoid:
    """Around Σ blocks·ν + e, |e| ≤ loose (*rows, d); `count` is the number of the input's unknowns."""
    rows, d = loose.shape[:-1], loose.shape[-1]
    matrix, size = np.zeros((*loose.shape, d)), loose.sum(-1) * grown(d)
    index, n = np.arange(d), d
    matrix[..., index, index] = loose
    for key, columns in blocks.items():
        if key == PAIRS:
            flat, scale = pairs.ellipse(columns[0], count)
            trace = np.square(flat).sum((-2, -1))
            u = scale * np.sqrt(trace) + LEAST  # the share of this part, as if it were one ball of that length
            flat = flat * (scale / np.sqrt(u))[..., None, None]
            size = size + u
            n += flat.shape[-1]
        else:
            balls, k = columns.shape[:2]
            u = np.sqrt(np.einsum("mk...d,mk...d->m...", columns, columns)) + LEAST
            flat = columns / np.sqrt(u)[:, None, ..., None]
            flat = np.moveaxis(flat.reshape(balls * k, *rows, d), 0, -1)
            size = size + u.sum(0) * grown(balls)
            n += flat.shape[-1]
        matrix = matrix + flat @ np.swapaxes(flat, -1, -2)
    return ErrorEllipsoid(raised(matrix, n + 2 * len(blocks) + 40), np.sqrt(size * MORE) * MORE)


def around(form: Form) -> ErrorEllipsoid:
    """Around the deviation of each row of a form (*rows, d) from its centre; computed once for each form."""
    if "ellipsoid" not in form.__dict__:
        if LINES in form.blocks and len(form.blocks) > 1:
            line, rest = around(form.linear), around(form.rest)
            # √(U C) + √(U' C') ≤ √((U + U')(C + C')): both scales are roots of sums of weights
            found = raised(line.matrix + rest.matrix, 2)
            both = ErrorEllipsoid(found, np.sqrt((np.square(line.scale) + np.square(rest.scale)) * MORE) * MORE)
        else:
            both = of_blocks(form.blocks, form.loose, form.count)
        form.__dict__["ellipsoid"] = both
    found_: ErrorEllipsoid = form.__dict__["ellipsoid"]
    return found_


def of_columns(x: Array) -> ErrorEllipsoid:
    """Of Σ_j x_j ν_j with |ν_j| ≤ 1: x (*rows, n, d)."""
    u = np.sqrt(np.square(x).sum(-1)) + LEAST
    flat = x / np.sqrt(u)[..., None]
    matrix = raised(np.swapaxes(flat, -1, -2) @ flat, x.shape[-2] + 8)
    return ErrorEllipsoid(matrix, np.sqrt(u.sum(-1) * grown(x.shape[-2])) * MORE, x)


def over_keys(times: Array, each: ErrorEllipsoid) -> ErrorEllipsoid:
    """Of Σ_j e_j for |η·e_j| ≤ times_ij · each_j: times (..., n, K), each of (..., K) rows of d → (..., n) rows.

    Σ_j s_j √(ηᵀC_jη) ≤ √(Σ s_j²/g_j) √(ηᵀ (Σ g_j C_j) η) for any floats g_j > 0.
    """
    d = each.matrix.shape[-1]
    trace = np.sqrt(np.maximum(np.trace(each.matrix, axis1=-2, axis2=-1), 0))[..., None, :] + LEAST
    scale = each.scale[..., None, :]
    s = np.where((times == 0) | (scale == 0), 0.0, times * scale * MORE + TINY)  # NaN stays NaN
    spread = s * trace
    whole = spread.sum(-1, keepdims=True) + LEAST
    g = np.where(s == 0, 0.0, s / trace / whole)
    keys = times.shape[-1]
    matrix = (g @ each.matrix.reshape(*each.matrix.shape[:-2], d * d)).reshape(*g.shape[:-1], d, d)
    each_square = np.where(s == 0, 0.0, s * (s / g) + 4 * TINY)  # infinite if g underflows
    square = each_square.sum(-1) * grown(keys)
    return ErrorEllipsoid(raised(matrix, keys), np.sqrt(square) * MORE)


def summed(parts: list[ErrorEllipsoid]) -> ErrorEllipsoid:
    """Of a sum of errors that are each in one of these."""
    matrix = np.stack([part.matrix for part in parts], -3)  # (*rows, parts, d, d)
    scale = np.stack([part.scale for part in parts], -1)
    each = ErrorEllipsoid(matrix, scale)
    found = over_keys(np.ones((*scale.shape[:-1], 1, len(parts))), each)
    return ErrorEllipsoid(found.matrix[..., 0, :, :], found.scale[..., 0])


def factor(matrix: Array) -> Array:
    """L with L Lᵀ ⪰ matrix, proved by Gershgorin's circles, or a multiple of the identity: (..., d, d)."""
    d = matrix.shape[-1]
    eye, index = np.eye(d), np.arange(d)
    trace = np.abs(np.trace(matrix, axis1=-2, axis2=-1))
    lift = 8 * d * rounding(d + 4) * trace
    given = matrix + lift[..., None, None] * eye
    none = (matrix == 0).all((-2, -1))
    given = np.where((none | ~np.isfinite(given).all((-2, -1)))[..., None, None], eye, given)
    try:
        L = np.linalg.cholesky(given)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(given)
        L = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    residual = product(ProvedInterval(L), ProvedInterval(np.swapaxes(L, -1, -2))) - matrix
    spare = residual.lo[..., index, index] - (residual.size * (1 - eye)).sum(-1) * (1 + rounding(d))
    valid = (spare >= 0).all(-1)
    most = np.sqrt(np.square(matrix).sum((-2, -1))) * grown(d * d) + d * math.sqrt(TINY)  # Frobenius
    plain = (np.sqrt(most) * MORE)[..., None, None] * eye
    return np.where(none[..., None, None], 0.0, np.where(valid[..., None, None], L, plain))


def balls(found: ErrorEllipsoid) -> Array:
    """A block with one ball for each row that has an error, (balls, d, *rows, d); every entry is rounded once."""
    rows, d = found.scale.shape, found.matrix.shape[-1]
    L = (found.scale * MORE)[..., None, None] * factor(found.matrix)
    flat = L.reshape(-1, d, d)
    live = np.flatnonzero((flat != 0).any((-2, -1)))
    columns = np.zeros((len(live), d, len(flat), d))
    columns[np.arange(len(live)), :, live] = np.swapaxes(flat[live], -1, -2)
    return columns.reshape(len(live), d, *rows, d)


def with_error(form: Form, errors: list[ErrorEllipsoid], key: int) -> Form:
    """form + e, e the sum of errors that are each in one of the ellipsoids: a new block under `key`.

    Errors that are sums of few columns stay apart, one unknown for each column, under `key` + APART.
    Where that would be too large, each number has its own error: |e_a| ≤ scale · √matrix_aa.
    """
    rows = form.centre.size // max(form.centre.shape[-1], 1)
    apart = [x.columns for x in errors if x.columns is not None and x.columns.size * rows <= MOST_APART]
    if apart:
        form = with_columns(form, np.concatenate(apart, -2), key + APART)
        errors = [x for x in errors if x.columns is None or x.columns.size * rows > MOST_APART]
        if not errors:
            return form
    found = summed(errors) if len(errors) > 1 else errors[0]
    if form.centre.size * form.centre.size > MOST_SHAPES:
        own = found.scale[..., None] * np.sqrt(np.diagonal(found.matrix, axis1=-2, axis2=-1)) * MORE
        return replace(form, own=(form.own + own) * MORE)
    columns = balls(found)
    if not len(columns):
        return replace(form)
    slack = rounding(2) * lengths(columns) + LOST
    return replace(form, blocks={**form.blocks, key: columns}, slack=(form.slack + slack) * MORE)


def with_columns(form: Form, x: Array, key: int) -> Form:
    """form + Σ_j x_j ν_j with |ν_j| ≤ 1, each ν_j of each row an unknown: x (*rows, n, d), which counts as exact."""
    flat = x.reshape(-1, *x.shape[-2:])
    row, j = np.nonzero((flat != 0).any(-1))
    if not len(row):
        return form
    columns = np.zeros((len(row), 1, len(flat), x.shape[-1]))
    columns[np.arange(len(row)), 0, row] = flat[row, j]
    return replace(form, blocks={**form.blocks, key: columns.reshape(len(row), 1, *form.centre.shape)})

"""t_j v'_j of a row of attention, of what is in blocks of both, over one ball around their unknowns.

For any weights u_b > 0 of the balls b of unknowns ν_b, |ν_b|² ≤ m_b, they lie in Σ u_b |ν_b|² ≤ U = Σ u_b m_b. With
t = Σ g_b·ν_b and η·v' = Σ h_b·ν_b, h_b = G_bᵀ η, the product is a form of rank one, which over that ball lies in
  U/2 · (Σ g_b·h_b/u_b ± √(Σ |g_b|²/u_b) √(Σ |h_b|²/u_b)) = shift·η ± size √(ηᵀ matrix η).
The weights are shared between the lengths of the value's columns and those of the scores'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..rounding import MORE, Array, rounding
from .ellipsoids import LEAST, raised
from .forms import LOST, PAIRS, Form, grown


@dataclass(frozen=True, kw_only=True, eq=False)
class JointProducts:
    """See the module's docstring; U/2 is in `shift` and `size`."""

    matrix: Array
    """(..., K, d, d)"""
    one: Array
    """(..., K): 1"""
    shift: Array
    """(..., n, K, d)"""
    error: Array
    """(..., n, K, d): of the shift, by rounding"""
    size: Array
    """(..., n, K)"""


def joint_products(t: Form, values: Form) -> JointProducts:
    """Of t (..., n, K) and v' (..., K, d)."""
    (keys, d), lead = values.centre.shape[-2:], t.centre.shape[:-1]
    by_values = {k: np.sqrt(np.square(x).sum((1, -1))) for k, x in values.blocks.items()}  # (balls, ..., K)
    by_scores = {k: np.sqrt(np.square(x).sum((1, -2))) for k, x in t.blocks.items()}
    none = np.zeros(values.centre.shape[:-1])
    plain, of_scores = (
        sum((x.sum(0) * (form.blocks[k].shape[1] ** 0.5 if k == PAIRS else 1.0) for k, x in by.items()), none)
        for form, by in ((values, by_values), (t, by_scores))
    )
    ratio = np.where(of_scores > 0, plain / np.where(of_scores > 0, of_scores, 1.0), 0.0)
    matrix, U = np.zeros((*values.centre.shape, d)), none
    shift, sizes, square = (np.zeros((*lead, keys, *more)) for more in ((d,), (d,), ()))
    n = d
    for k in dict.fromkeys([*values.blocks, *t.blocks]):
        u = LEAST + np.asarray(by_values.get(k, 0.0)) + (ratio * by_scores[k] if k in by_scores else 0.0)
        count, dims = (values.blocks[k] if k in by_values else t.blocks[k]).shape[:2]
        most = 1.0
        if k == PAIRS:  # the vector of all products of two unknowns has a length of at most √dims
            u, most = u / dims**0.5, float(dims)
        U = U + u.sum(0) * most * grown(count)
        n += count * dims
        root = np.sqrt(u)
        if k in by_scores:
            of_t = t.blocks[k] / root[:, None, ..., None, :]
            square = square + np.square(of_t).sum((0, 1)) * grown(count * dims)
        if k in by_values:
            of_v = np.moveaxis(
                (values.blocks[k] / root[:, None, ..., None]).reshape(count * dims, *none.shape, d), 0, -2
            )
            matrix = matrix + np.swapaxes(of_v, -1, -2) @ of_v  # (..., K, d, P) (..., K, P, d)
        if k in by_values and k in by_scores:
            flat = np.swapaxes(np.moveaxis(of_t.reshape(count * dims, *lead, keys), 0, -1), -3, -2)  # (..., K, n, P)
            shift = shift + np.swapaxes(flat @ of_v, -3, -2)
            sizes = sizes + np.swapaxes(np.abs(flat) @ np.abs(of_v), -3, -2)
    half = (U / 2 * MORE)[..., None, :]
    return JointProducts(
        matrix=raised(matrix, n + 40),
        one=np.ones(none.shape),
        shift=half[..., None] * shift,
        error=half[..., None] * sizes * rounding(n + 40) * MORE + LOST,
        size=half * np.sqrt(square * MORE) * MORE + LOST,
    )

"""Products of rows and columns to third order in the input's unknowns (third_order.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.ops import triples
from vertex_softmax.ops.propagation.second_order import linear_columns
from vertex_softmax.ops.propagation.third_order import quadratic_columns
from vertex_softmax.ops.unknowns import InputUnknowns
from vertex_softmax.ops.zonotope import Zonotope


def cubic_product(x: Zonotope, y: Zonotope, inputs: InputUnknowns) -> triples.Cubic:
    """ℓ_x q_y + q_x ℓ_y of x @ y over the last two dimensions, (batch, ..., n, k), (batch, ..., k, m)."""
    x_line, x_form = linear_columns(x, inputs), quadratic_columns(x, inputs)
    y_line, y_form = linear_columns(y, inputs), quadratic_columns(y, inputs)
    parts = []
    for row in range(x.centre.shape[-2]):  # a row at a time, for memory's sake
        one = slice(row, row + 1)
        full = x_line[..., one, :][:, :, None] @ y_form[:, None]
        full += (x_form[..., one, :][:, None] @ y_line[:, :, None])
        parts.append(triples.packed(full))
    return triples.Cubic(*(torch.cat(each, -2) for each in zip(*parts, strict=True)))

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
        full = torch.einsum("bp...k,bq...km->bpq...m", x_line[..., row, :], y_form)
        full = full + torch.einsum("bq...k,bp...km->bpq...m", x_form[..., row, :], y_line)
        parts.append(triples.packed(full))
    return triples.Cubic(*(torch.stack(each, -2) for each in zip(*parts, strict=True)))

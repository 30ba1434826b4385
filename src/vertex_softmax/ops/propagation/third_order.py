"""Products of three of the input's unknowns as unknowns of their own: one order more than second_order.py.

A node's deviation from its centre is y' = ℓ + q + s (`Zonotope.linear`, `quadratic`, `third`). Of a product of two
deviations, ℓ_x ℓ_y and ℓ_x q_y + q_x ℓ_y are known exactly; what is left, ℓ_x s_y + q_x (q_y + s_y) + s_x y', is of
fourth order. For an input of 64 numbers these are 45,760 coefficients for each number of a node (ops/triples.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.ops import pairs, triples
from vertex_softmax.ops.propagation.second_order import linear_columns
from vertex_softmax.ops.triples import Cubic
from vertex_softmax.ops.unknowns import InputUnknowns, Triples, Unknowns
from vertex_softmax.ops.zonotope import Zonotope


def quadratic_columns(y: Zonotope, inputs: InputUnknowns) -> Tensor:
    """The columns of q as a quadratic form (ops/triples.py), (batch, n(n−1)/2 + n, *shape)."""
    batch, shape, n = y.centre.shape[0], y.centre.shape[1:], inputs.count
    zero = y.centre.new_zeros(())
    pair, square = y.blocks.get(inputs.pairs), y.blocks.get(inputs.squares)
    return torch.cat(
        [
            zero.expand(batch, n * (n - 1) // 2, *shape) if pair is None else pair.squeeze(1) / pairs.unit(n),
            zero.expand(batch, n, *shape) if square is None else square.squeeze(2),
        ],
        1,
    )


def with_quadratic(y: Zonotope, inputs: InputUnknowns, constant: Tensor, form: Tensor) -> Zonotope:
    """y plus a constant (batch, *shape) and a quadratic form (batch, n(n−1)/2 + n, *shape)."""
    n = inputs.count
    more = {inputs.pairs: (form[:, :-n] * pairs.unit(n)).unsqueeze(1), inputs.squares: form[:, -n:].unsqueeze(2)}
    return _with(y, constant, more)


def with_cubic(y: Zonotope, inputs: InputUnknowns, cubic: Cubic) -> Zonotope:
    """y plus a form of third degree."""
    more: dict[Unknowns, Tensor] = {inputs: cubic.line.unsqueeze(2)}
    if inputs.triples is not None:
        more[inputs.triples] = cubic.products.unsqueeze(2)
    return _with(y, torch.zeros_like(y.centre), more)


def _with(y: Zonotope, constant: Tensor, more: Mapping[Unknowns, Tensor]) -> Zonotope:
    blocks: dict[Unknowns, Tensor] = dict(y.blocks)
    for unknowns, columns in more.items():
        blocks[unknowns] = blocks[unknowns] + columns if unknowns in blocks else columns
    return Zonotope(y.centre + constant, blocks, y.own, y.slack)


def errors_of_rows(y: Zonotope) -> Tensor:
    """The errors of each row: how far all but products of the input's unknowns moves its numbers, added up,
    (batch, rows...).
    """
    blocks = {unknowns: columns for unknowns, columns in y.third.blocks.items() if not isinstance(unknowns, Triples)}
    return Zonotope(y.centre, blocks, y.own, y.slack, y.reaches).radius.sum(-1)


def cubic_product(x: Zonotope, y: Zonotope, inputs: InputUnknowns) -> Cubic:
    """The terms ℓ_x q_y + q_x ℓ_y of x @ y over the last two dimensions, (batch, ..., n, k), (batch, ..., k, m)."""
    x_line, x_form = linear_columns(x, inputs), quadratic_columns(x, inputs)
    y_line, y_form = linear_columns(y, inputs), quadratic_columns(y, inputs)
    parts = []
    for row in range(x.centre.shape[-2]):  # one row at a time, to save memory
        full = torch.einsum("bp...k,bq...km->bpq...m", x_line[..., row, :], y_form)
        full = full + torch.einsum("bq...k,bp...km->bpq...m", x_form[..., row, :], y_line)
        parts.append(triples.packed(full))
    return Cubic(*(torch.stack(each, -2) for each in zip(*parts, strict=True)))

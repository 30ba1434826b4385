"""Zonotopes through products of two variables: affine to first order, the second-order part bounded as a whole.

Invariant: the zonotope returned contains the product for all values of the factors, rounding included.

x y = x_c y_c + x_c y' + x' y_c + x' y'. For a product of rows and columns, Σ_k x'_ik y'_kj is bounded by the ellipsoids
of both (ops/generators.py). For elementwise products x'_k y'_k, every functional Σ_k η_k x'_k y'_k is needed. It is a
quadratic form in the unknowns whose matrix is Σ_k η_k g_k h_kᵀ; the spectral norm of that is at most its Frobenius
norm, so
  |Σ_k η_k x'_k y'_k|² ≤ U U' ηᵀ (C ∘ C') η,
an ellipsoid whose matrix is the elementwise product of the two matrices. With few unknowns it is far smaller than the
box of the products; where every number has its own unknown, the box is smaller. Each row takes the smaller one.

Where products of the input's unknowns are kept (second_order.py), x' = ℓ_x + r_x and y' = ℓ_y + r_y, and ℓ_x ℓ_y is
exact. Only ℓ_x r_y + r_x y' has to be bounded, in the same ways. Where r is as large as ℓ, that gains nothing.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.ops import pairs, triples
from vertex_softmax.ops.generators import Ellipsoid, product_radius
from vertex_softmax.ops.propagation.rounding import rounded
from vertex_softmax.ops.propagation.second_order import linear_columns, with_products
from vertex_softmax.ops.propagation.third_order import cubic_product, with_cubic
from vertex_softmax.ops.reaches import reach_of
from vertex_softmax.ops.unknowns import LocalUnknowns, Unknowns, spread_numbers
from vertex_softmax.ops.zonotope import Ellipse, RowShape, Zonotope, aligned, ellipsoid_balls, times_right

MOST_SPREAD_NUMBERS = {"cpu": 1 << 26, "cuda": 1 << 31}
"""In a matrix product, a block of local unknowns is spread only if it then has at most this many numbers for each
input; beyond that, only its reach is used. (With many tokens there are many more scores than queries and keys.)"""


def matrix_product(x: Zonotope, y: Zonotope) -> Zonotope:
    """The zonotope of x @ y over the last two dimensions, (batch, ..., n, k), (batch, ..., k, m)."""
    blocks, own = _by_rows(x, y.centre)
    others, of_columns = _by_rows(y.transposed, x.centre.mT)
    for unknowns, turned in others.items():
        more = turned.mT
        blocks[unknowns] = blocks[unknowns] + more if unknowns in blocks else more
    second, inputs = second_order(x, y), x.inputs or y.inputs
    kept: Tensor | None = None
    cubic: triples.Cubic | None = None
    if inputs is not None:
        third = second_order(x.linear, y.rest) + second_order(x.rest, y)
        if inputs.triples is not None:
            fourth = second_order(x.linear, y.third) + second_order(x.quadratic, y.rest) + second_order(x.third, y)
            known = (fourth < third) & (fourth < second)
            cubic = cubic_product(x, y, inputs)
            third = torch.where(known, fourth, third)
        kept = third < second
        second = torch.where(kept, third, second)
    own = own + of_columns.mT + second + x.loose @ y.centre.abs() + x.centre.abs() @ y.loose
    found = Zonotope(x.centre @ y.centre, blocks, own, torch.zeros_like(own))
    if inputs is not None and kept is not None:
        full = linear_columns(x, inputs)[:, :, None] @ linear_columns(y, inputs)[:, None]
        pair, square = pairs.packed(full)
        found = with_products(found, inputs, (pair * kept[:, None], square * kept[:, None]))
    if inputs is not None and cubic is not None:
        found = with_cubic(found, inputs, triples.Cubic(*(part * known[:, None] for part in cubic)))
    return rounded(found, (x.centre.abs() + x.rough_radius) @ (y.centre.abs() + y.rough_radius))


def _by_rows(x: Zonotope, right: Tensor) -> tuple[dict[Unknowns, Tensor], Tensor]:
    """x' @ right in unknowns that are not local, and the reach of local unknowns that are not kept.

    Local unknowns are spread only after the product, because they take less memory before.
    """
    blocks: dict[Unknowns, Tensor] = {}
    own = torch.zeros_like(x.centre @ right)
    most = MOST_SPREAD_NUMBERS.get(own.device.type, MOST_SPREAD_NUMBERS["cpu"]) * own.shape[0]
    for unknowns, columns in x.by_rows.blocks.items():
        found, name = times_right(columns, right), unknowns
        if isinstance(unknowns, LocalUnknowns):
            if unknowns.alone or spread_numbers(unknowns, found) > most:
                own = own + reach_of(unknowns, found)
                continue
            found, name = unknowns.spread(found), unknowns.everywhere
        blocks[name] = blocks[name] + found if name in blocks else found
    return blocks, own


_known: weakref.WeakKeyDictionary[Zonotope, tuple[weakref.ref[Zonotope], Tensor]] = weakref.WeakKeyDictionary()
"""For factors that are alive, the other factor and the bound: boxes and zonotopes both need it."""


def second_order(x: Zonotope, y: Zonotope) -> Tensor:
    """An upper bound of |Σ_k x'_ik y'_kj|, (batch, ..., n, m). Cached."""
    known = _known.get(x)
    if known is None or known[0]() is not y:
        known = weakref.ref(y), _second_order(x, y)
        _known[x] = known
    return known[1]


def _second_order(x: Zonotope, y: Zonotope) -> Tensor:
    plain = x.radius @ y.radius
    round_ = product_radius(_ellipsoid(x.row_shape), _ellipsoid(y.transposed.row_shape))
    return torch.where(round_ < plain, round_, plain)


def _ellipsoid(shape: RowShape) -> Ellipsoid:
    return Ellipsoid(centre=shape.matrix[..., 0], shape=shape.matrix, size=shape.size, rows=None)


def _elementwise(a: RowShape, b: RowShape) -> Ellipse:
    """U U' (C ∘ C'), with both matrices divided by their traces."""
    units, scale = [], torch.ones_like(a.size)
    for shape in (a, b):
        trace = shape.matrix.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=0)
        units.append(shape.matrix / torch.where(trace > 0, trace, torch.ones_like(trace))[..., None, None])
        scale = scale * (shape.size.sqrt() * trace.sqrt())
    return Ellipse(units[0] * units[1], scale)


def element_product(x: Zonotope, y: Zonotope, origin: str) -> Zonotope:
    """The zonotope of x · y elementwise, (batch, rows..., d)."""
    x, y = aligned(x, y)
    blocks: dict[Unknowns, Tensor] = {
        unknowns: columns * y.centre[:, None, None] for unknowns, columns in x.blocks.items()
    }
    for unknowns, columns in y.blocks.items():
        more = columns * x.centre[:, None, None]
        blocks[unknowns] = blocks[unknowns] + more if unknowns in blocks else more
    errors, inputs = [(x, y)], x.inputs or y.inputs
    products: tuple[Tensor, Tensor] | None = None
    if inputs is not None:
        errors = [(x.linear, y.rest), (x.rest, y)]
        products = pairs.outer(linear_columns(x, inputs), linear_columns(y, inputs))
    box, balls = product_errors(errors, origin)
    if balls is not None:
        blocks[balls[0]] = balls[1]
    own = box + x.loose * y.centre.abs() + x.centre.abs() * y.loose
    found = Zonotope(x.centre * y.centre, blocks, own, torch.zeros_like(own))
    if inputs is not None and products is not None:
        found = with_products(found, inputs, products)
    return rounded(found, (x.centre.abs() + x.rough_radius) * (y.centre.abs() + y.rough_radius))


def product_errors(
    factors: Sequence[tuple[Zonotope, Zonotope]], origin: str, weight: Tensor | None = None
) -> tuple[Tensor, tuple[Unknowns, Tensor] | None]:
    """A bound of Σ x' y', elementwise products added over some pairs of factors (batch, rows..., d), times `weight`.

    Returns the error of each number by itself, and balls for the rows in which one ellipsoid is smaller than that box.
    """
    one = torch.ones_like(factors[0][0].centre) if weight is None else weight
    box = one.abs() * torch.stack([x.radius * y.radius for x, y in factors]).sum(0)
    ellipses = []
    for x, y in factors:
        found = _elementwise(x.row_shape, y.row_shape)
        ellipses.append(Ellipse(found.matrix * one.unsqueeze(-1) * one.unsqueeze(-2), found.scale))
    length = torch.stack([each.length for each in ellipses]).sum(0)
    # means over directions η: √(tr M) for the ellipsoid, √(2/π) Σ for the box
    better = (length > 0) & (length < math.sqrt(2 / math.pi) * box.sum(-1))
    if not bool(better.any()):
        return box, None
    zero = torch.zeros_like(length)
    chosen = [Ellipse(each.matrix, torch.where(better, each.scale, zero)) for each in ellipses]
    return torch.where(better.unsqueeze(-1), torch.zeros_like(box), box), ellipsoid_balls(chosen, origin)

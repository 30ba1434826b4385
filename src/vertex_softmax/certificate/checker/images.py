"""Zonotopes from zonotopes, without passes: affine images, products of two with the same unknowns, and scores centred.

Invariant: for every input of the set the node is centre + columns · ξ + e with |e| ≤ error and the ξ of what it is made
from: an image has the unknowns of its source, and a product those of both factors, which must be the same.

What floating point loses, and what stored numbers may be off, goes into the error. With sizes t_d ≥ |c_d| + Σ_p |g_dp|,
a product c' = c W, G' = G W of an inner dimension n loses at most rounding(n) · (t |W|) for all ξ together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .file import Rejected, checked_index
from .network import STORED, CheckerNode, Known
from .passes import MOST_COLUMNS
from .rounding import MORE, TINY, Array, ProvedInterval, rounding
from .unknowns import more_roundings, reach
from .zonotopes import ProvedZonotope

Indices = NDArray[np.int64]
MANY_USED = 0.8
"""Where less than this share of the unknowns reach a row, the others are left out of its product."""


def image(known: Known, number: int, source: int) -> ProvedZonotope:
    """The zonotope of a node that is an affine function of another one, which has a zonotope."""
    if checked_index(source, number) not in known.zonotopes:
        raise Rejected(f"node {number}: the image of a zonotope that was not proved")
    found = AffineImage.of(known.zonotopes[source])
    for k in affine_path(known, number, source):
        node, size = known.nodes[k], known.boxes[known.nodes[k].inputs[0]].size
        known.charge(found.base.columns.size * (node.shape[-1] if node.op == "Linear" else 1))
        if math.prod(node.shape) * found.base.columns.shape[-1] > MOST_COLUMNS:
            raise Rejected(f"node {k}: its zonotope is too large")
        if node.op == "Linear":
            found = found.linear(node.arrays["weight"], size)
        elif node.op == "Scale":
            found = found.scaled(node.arrays["factor"], size)
        elif node.op == "Move":
            found = found.moved(node.arrays["index"])
        else:
            constant = next(i for i in node.inputs if known.nodes[i].op == "Constant")
            found = found.shifted(known.nodes[constant].arrays["value"])
    return found.zonotope()


def affine_path(known: Known, number: int, source: int) -> list[int]:
    """The nodes after `source` up to a node that is an affine function of it alone, in their order."""
    path: list[int] = []
    at: int | None = number
    while at is not None and at > source:
        path.append(at)
        at = affine_input(known.nodes, at)
    if at != source:
        raise Rejected(f"node {number} is no affine function of node {source} alone")
    return path[::-1]


def affine_input(nodes: Sequence[CheckerNode], number: int) -> int | None:
    """The input of which a node is an affine function, all else that it reads being constant; None if there is none."""
    node = nodes[number]
    varying = [i for i in node.inputs if nodes[i].op != "Constant"]
    affine = (node.op in ("Linear", "Scale", "Move") and len(node.inputs) == 1) or node.op == "Add"
    return varying[0] if affine and len(varying) == 1 else None


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineImage:
    """An affine image of a zonotope; its columns, which are large, are made in the end.

    Invariant: every entry is centre + columns · ξ + e with |e| ≤ error, with the columns that `columns` makes.
    """

    base: ProvedZonotope
    centre: Array
    """(*shape)"""
    error: Array
    """(*shape)"""
    size: Array
    """(*shape): at least |centre| + the sum of the sizes of the columns"""
    order: Indices
    """(*shape): which entries of the base, or, after a product, of that"""
    factors: tuple[Array, ...] = ()
    """(*shape) each: by which these are then multiplied, one after the other"""
    before: AffineImage | None = None
    """what is multiplied by the matrix `weight`, if there is a product: an image without one"""
    weight: Array | None = None

    @classmethod
    def of(cls, z: ProvedZonotope) -> AffineImage:
        """A zonotope as the image of itself."""
        order = np.arange(z.centre.size).reshape(z.centre.shape)
        return cls(base=z, centre=z.centre, error=z.error, size=z.sizes, order=order)

    def linear(self, weight: Array, size: Array) -> AffineImage:
        """The image, which is at most `size`, times a stored matrix: each of its numbers stands for all near it."""
        if self.before is not None:
            return AffineImage.of(self.zonotope()).linear(weight, size)
        n, far = len(weight), np.abs(weight)
        error = self.error @ far + STORED * (size @ far) + rounding(n) * (self.size @ far)
        centre = self.centre @ weight
        return AffineImage(
            base=self.base,
            centre=centre,
            error=error * (1 + rounding(n + 8)) + self._lost(n),
            size=self.size @ far * (1 + rounding(2 * n + 8)) + self._lost(n),
            order=np.arange(centre.size).reshape(centre.shape),
            before=self,
            weight=weight,
        )

    def scaled(self, factor: Array, size: Array) -> AffineImage:
        """The image, which is at most `size`, times stored numbers, entry by entry."""
        far = np.abs(factor)
        # the small shares are taken last: a share of a subnormal number would be 0, whatever it is multiplied by then
        error = self.error * far + STORED * (size * far) + rounding(1) * (self.size * far)
        error = error * (1 + rounding(8)) + self._lost(1)
        largest = self.size * far * (1 + rounding(8)) + self._lost(1)
        factors = (*self.factors, factor)
        return replace(self, centre=self.centre * factor, error=error, size=largest, factors=factors)

    def shifted(self, value: Array) -> AffineImage:
        """The image plus stored numbers."""
        sizes = np.abs(self.centre) + np.abs(value)
        error = (self.error + STORED * np.abs(value) + rounding(1) * sizes) * MORE + TINY
        return replace(self, centre=self.centre + value, error=error, size=(self.size + np.abs(value)) * MORE)

    def moved(self, index: Indices) -> AffineImage:
        """The entries of the image that a gather takes."""
        arrays = {name: getattr(self, name).ravel()[index] for name in ("centre", "error", "size", "order")}
        return replace(self, **arrays, factors=tuple(factor.ravel()[index] for factor in self.factors))

    def _lost(self, products: int) -> float:
        """More than underflow takes from an entry's numbers, each a sum of so many products."""
        return float(8 * TINY * products * (self.base.columns.shape[-1] + 1))

    def rows(self, which: slice, out: Array) -> Array:
        """The columns of some entries of an image without a product, (K, P), written to `out`."""
        flat = self.base.columns.reshape(self.base.centre.size, -1)
        np.take(flat, self.order.ravel()[which], axis=0, out=out, mode="clip")
        for factor in self.factors:
            out *= factor.ravel()[which, None]
        return out

    def columns(self) -> Array:
        """The columns of all entries, (entries, P): after a product row by row, so that little is known at a time."""
        count = self.base.columns.shape[-1]
        found = np.zeros((self.order.size, count))
        if self.before is None or self.weight is None:
            return self.rows(slice(None), found)
        (n, m), order = self.weight.shape, self.order.ravel()
        block = np.empty((n, count))
        by_row = np.split(np.argsort(order, kind="stable"), np.cumsum(np.bincount(order // m))[:-1])
        for row, mine in enumerate(by_row):
            if not len(mine):
                continue
            self.before.rows(slice(row * n, (row + 1) * n), block)
            used, turned = np.flatnonzero(block.any(0)), self.weight.T[order[mine] % m]
            if len(used) < MANY_USED * count:  # a row that many unknowns do not reach: the other numbers stay 0
                found[mine[:, None], used] = turned @ block[:, used]
            else:
                found[mine] = turned @ block
        for factor in self.factors:
            found *= factor.reshape(-1, 1)
        return found

    def zonotope(self) -> ProvedZonotope:
        """The image as a zonotope of the same unknowns."""
        return ProvedZonotope(
            centre=self.centre,
            columns=self.columns().reshape(*self.order.shape, -1),
            error=self.error,
            exact=self.base.exact,
            balls=self.base.balls,
            unknowns=self.base.unknowns,
        )


def has_factors(known: Known, number: int) -> bool:
    """Whether a node is a matrix product of two nodes that have zonotopes with the same unknowns."""
    node = known.nodes[number]
    if node.op != "MatMul" or any(i not in known.zonotopes for i in node.inputs):
        return False
    x, y = (known.zonotopes[i] for i in node.inputs)
    return x.unknowns is y.unknowns


def centred_product(known: Known, number: int, weights: Array) -> ProvedInterval:
    """The box of s − ω·s for the rows s of a matrix product of two zonotopes and weights ω, as they are; (..., n, K).

    s = x_c y_c + (x − x_c) y_c + x_c (y − y_c) + (x − x_c)(y − y_c): the terms in the middle have the unknowns of both
    factors, which are the same; the last, and what the errors of the factors come to, is error.
    """
    if not has_factors(known, number):
        raise Rejected(f"node {number} is no product of two zonotopes with the same unknowns")
    x, y = (known.zonotopes[i] for i in known.nodes[number].inputs)
    d, (keys, count) = x.centre.shape[-1], y.columns.shape[-2:]
    known.charge(4 * d * weights.size * count)
    far_x, far_y, far = np.abs(x.centre), np.abs(y.centre), np.abs(weights)
    sizes = x.sizes @ far_y + far_x @ y.sizes
    centre = x.centre @ y.centre
    error = known.planes(number).error + x.error @ far_y + far_x @ y.error
    radius = np.empty(weights.shape)
    for index in np.ndindex(*weights.shape[:-1]):  # one row at a time, for the sake of the memory
        lead = index[:-1]
        columns = y.centre[lead].T @ x.columns[index]
        columns += (x.centre[index] @ y.columns[lead].reshape(d, -1)).reshape(keys, count)
        columns -= weights[index] @ columns
        radius[index] = reach(columns, x.balls)
    lost = rounding(2 * d + keys + 6) * (sizes + (far * sizes).sum(-1, keepdims=True))
    radius = radius + error + (far * error).sum(-1, keepdims=True) + lost
    radius = radius * (more_roundings(count) + rounding(2 * d + keys + 16)) + 64 * TINY * d * keys * (count + 1)
    middle = centre - (weights * centre).sum(-1, keepdims=True)
    return ProvedInterval(middle) + ProvedInterval(-radius, radius)


__all__ = ["affine_input", "affine_path", "centred_product", "has_factors", "image"]

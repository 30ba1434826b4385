"""Zonotopes from zonotopes, without passes: affine images, products of two with the same unknowns, and scores centred.

Invariant: for every input of the set the node is centre + columns · ξ + e with |e| ≤ error and the ξ of what it is made
from: an image has the unknowns of its source, and a product those of both factors, which must be the same.

What floating point loses, and what stored numbers may be off, goes into the error. With sizes t_d = |c_d| + Σ_p |g_dp|,
a product c' = c W, G' = G W of an inner dimension n loses at most rounding(n) · (t |W|) for all ξ together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .file import Rejected, checked_index
from .network import STORED, CheckerNode, Known
from .passes import MOST_COLUMNS
from .rounding import MORE, TINY, Array, ProvedInterval, rounding
from .unknowns import more_roundings, reach
from .zonotopes import ProvedZonotope


def image(known: Known, number: int, source: int) -> ProvedZonotope:
    """The zonotope of a node that is an affine function of another one, which has a zonotope."""
    if checked_index(source, number) not in known.zonotopes:
        raise Rejected(f"node {number}: the image of a zonotope that was not proved")
    found = known.zonotopes[source]
    for k in affine_path(known, number, source):
        node = known.nodes[k]
        known.charge(found.columns.size + found.columns.size * (node.shape[-1] if node.op == "Linear" else 1))
        _require_room(k, node.shape, found.columns.shape[-1])
        if node.op == "Linear":
            found = _linear(found, node.arrays["weight"], known.boxes[node.inputs[0]].size)
        elif node.op == "Scale":
            found = _scaled(found, node.arrays["factor"], known.boxes[node.inputs[0]].size)
        elif node.op == "Move":
            found = _moved(found, node.arrays["index"])
        else:
            constant = next(i for i in node.inputs if known.nodes[i].op == "Constant")
            found = _shifted(found, known.nodes[constant].arrays["value"])
    return found


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


def _require_room(number: int, shape: tuple[int, ...], columns: int) -> None:
    if int(np.prod(shape)) * columns > MOST_COLUMNS:
        raise Rejected(f"node {number}: its zonotope is too large")


def _sizes(z: ProvedZonotope) -> Array:
    """|c| + Σ_p |g_p| of every entry, up to `more_roundings` of the number of columns."""
    return np.asarray(np.abs(z.centre) + np.abs(z.columns).sum(-1))


def _made(z: ProvedZonotope, centre: Array, columns: Array, error: Array) -> ProvedZonotope:
    """A zonotope of the unknowns of another one."""
    return ProvedZonotope(
        centre=centre, columns=columns, error=error, exact=z.exact, balls=z.balls, unknowns=z.unknowns
    )


def _linear(z: ProvedZonotope, weight: Array, size: Array) -> ProvedZonotope:
    """z W, whose factor is at most `size`: each stored number stands for all that are near it."""
    n, count = len(weight), z.columns.shape[-1]
    far = np.abs(weight)
    error = z.error @ far + STORED * (size @ far) + rounding(n) * (_sizes(z) @ far)
    error = error * (more_roundings(count) + rounding(n + 8)) + 8 * TINY * n * (count + 1)
    return _made(z, z.centre @ weight, weight.T @ z.columns, error)


def _scaled(z: ProvedZonotope, factor: Array, size: Array) -> ProvedZonotope:
    """z times stored numbers, entry by entry."""
    count, far = z.columns.shape[-1], np.abs(factor)
    error = (z.error + STORED * size + rounding(1) * _sizes(z)) * far
    error = error * (more_roundings(count) + rounding(8)) + 8 * TINY * (count + 1)
    return _made(z, z.centre * factor, z.columns * factor[..., None], error)


def _shifted(z: ProvedZonotope, value: Array) -> ProvedZonotope:
    """z plus stored numbers."""
    error = (z.error + STORED * np.abs(value) + rounding(1) * (np.abs(z.centre) + np.abs(value))) * MORE + TINY
    return _made(z, z.centre + value, z.columns, error)


def _moved(z: ProvedZonotope, index: Array) -> ProvedZonotope:
    """The entries of z that a gather takes."""
    count, total = z.columns.shape[-1], z.centre.size
    flat = z.columns.reshape(total, count)
    if index.size != total or not np.array_equal(index.ravel(), np.arange(total)):
        flat = flat[index.ravel()]
    columns = flat.reshape(*index.shape, count)
    return _made(z, z.centre.ravel()[index], columns, z.error.ravel()[index])


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
    (n, d), (keys, count) = x.centre.shape[-2:], y.columns.shape[-2:]
    known.charge(4 * d * weights.size * count)
    far_x, far_y, far = np.abs(x.centre), np.abs(y.centre), np.abs(weights)
    sizes = _sizes(x) @ far_y + far_x @ _sizes(y)
    centre = x.centre @ y.centre
    error = known.planes(number).error + x.error @ far_y + far_x @ y.error
    radius = np.empty(weights.shape)
    for index in np.ndindex(*weights.shape[:-1]):  # one row at a time, for the sake of the memory
        lead, i = index[:-1], index[-1]
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

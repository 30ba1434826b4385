"""Rules that recognise what a model wrote out: GELU, SiLU, softmax, normalisation, masks, attention.

Each rule's invariant is its equation: what it returns equals what it was given, in real arithmetic, at every input.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vertex_softmax.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.rewrite import View, broadcasts, moved, moves, peel, rewrite, uniform
from vertex_softmax.ops import attention as attention_op
from vertex_softmax.ops import bilinear, elementwise, linear, shape
from vertex_softmax.ops.softmax import Softmax

MASKED = -1e30
"""Scores with this or less added have weight 0."""
LEAST_FACTOR = 1e-6
"""A masked score that is scaled by less than this, or turned round, may count again: then it is not a mask."""

# Masks ---------------------------------------------------------------------------------------------------------------


def split_mask(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """(what to add, where the weight is 0 or None) of a boolean mask (True: attend) or of an additive one."""
    masked = ~mask if mask.dtype == torch.bool else mask <= MASKED
    added = torch.zeros_like(mask, dtype=torch.float64) if mask.dtype == torch.bool else mask.double()
    return added.masked_fill(masked, 0.0), masked if bool(masked.any()) else None


def mask_scores(node: Node, view: View) -> Node | None:
    """softmax(… scores + mask …) = softmax with weight 0 where the mask is −1e30 or less."""
    if not isinstance(node.op, Softmax | attention_op.Attention):
        return None
    between: list[Node] = []
    for link in moves(node.inputs[0], also=(linear.Shift, linear.Scale))[0]:
        if isinstance(link.op, linear.Shift) and bool((link.op.offset <= MASKED).any()):
            break
        if isinstance(link.op, linear.Scale) and not bool((link.op.factor >= LEAST_FACTOR).all()):
            return None
        between.append(link)
    else:
        return None
    added, masked = split_mask(link.op.offset)
    if masked is None:
        return None
    scores = link.inputs[0]
    if bool(added.any()):
        scores = build.add(scores, build.constant(added), link.name)
    for c in reversed(between):
        scores = build.apply(c.op, scores, name=c.name)
    below = [c for c in between if not isinstance(c.op, linear.Shift | linear.Scale)]
    mask = moved(masked.expand(link.shape), below)
    if node.op.mask is not None:
        mask = mask | node.op.mask
    return build.apply(type(node.op)(mask), scores, *node.inputs[1:], name=node.name)


def ignore_masked(node: Node, view: View) -> Node | None:
    """What is done to a masked score does not matter: a Scale or Shift of masked scores alone goes away."""
    if not isinstance(node.op, Softmax | attention_op.Attention) or node.op.mask is None:
        return None
    scores = node.inputs[0]
    mask = node.op.mask.expand(scores.shape)
    if isinstance(scores.op, linear.Scale):
        same = scores.op.factor.expand(scores.shape)[~mask] == 1
    elif isinstance(scores.op, linear.Shift):
        same = scores.op.offset.expand(scores.shape)[~mask] == 0
    else:
        return None
    return build.apply(node.op, scores.inputs[0], *node.inputs[1:], name=node.name) if bool(same.all()) else None


def move_masks(graph: Graph) -> Graph:
    """The graph with masks in Softmax and Attention instead of −∞ in a Shift."""
    while (new := rewrite(graph, mask_scores)) is not graph:
        graph = new
    return graph


def check_masks(graph: Graph) -> None:
    """Every row of scores has a key, and no infinite number (nor one meant as such) is left in a constant."""
    for node in graph.nodes():
        if isinstance(node.op, Softmax | attention_op.Attention) and node.op.mask is not None:
            dead = node.op.mask.expand(node.inputs[0].shape).all(-1)
            if bool(dead.any()):
                row = tuple(dead.nonzero()[0].tolist())
                raise UnsupportedModelError(
                    f"{node.name}: every key of row {row} is masked, so its softmax is undefined; "
                    "leave each query at least one key, or drop such queries from the input"
                )
        for value in vars(node.op).values():
            if isinstance(value, Tensor) and value.is_floating_point() and not bool((value.abs() < -MASKED).all()):
                raise UnsupportedModelError(
                    f"{node.name}: {type(node.op).__name__} holds infinity, NaN or a number beyond {-MASKED:g}; "
                    "masks are understood where they are added to scores before a softmax"
                )


# Functions of one number --------------------------------------------------------------------------------------------


def polynomial(node: Node, x: Node, degree: int = 3) -> dict[int, float] | None:
    """The coefficients of node as a polynomial in x, by power; None if it is not one of at most this degree."""
    op = node.op
    if node is x:
        return {1: 1.0}
    if isinstance(op, linear.Scale) and (factor := uniform(op.factor)) is not None:
        inner = polynomial(node.inputs[0], x, degree)
        return None if inner is None else {p: factor * c for p, c in inner.items()}
    if isinstance(op, linear.Shift) and (offset := uniform(op.offset)) is not None:
        inner = polynomial(node.inputs[0], x, degree)
        return None if inner is None else {**inner, 0: inner.get(0, 0.0) + offset}
    if not isinstance(op, linear.Add | linear.Subtract | bilinear.Multiply | elementwise.Square):
        return None
    a, b = (polynomial(i, x, degree) for i in (node.inputs[0], node.inputs[-1]))
    if a is None or b is None:
        return None
    result: dict[int, float] = {}
    if isinstance(op, linear.Add | linear.Subtract):
        sign = 1.0 if isinstance(op, linear.Add) else -1.0
        for part, s in ((a, 1.0), (b, sign)):
            for p, c in part.items():
                result[p] = result.get(p, 0.0) + s * c
    else:
        for p, c in a.items():
            for q, d in b.items():
                result[p + q] = result.get(p + q, 0.0) + c * d
    return result if max(result) <= degree else None


def _scaled(x: Node, factor: float, name: str) -> Node:
    return (
        x
        if abs(factor - 1) < 1e-14
        else build.multiply(x, build.constant(torch.tensor(factor, dtype=torch.float64)), name)
    )


def sigmoid(node: Node, view: View) -> Node | None:
    """1 / (1 + e⁻ˣ)"""
    if not isinstance(node.op, elementwise.Reciprocal):
        return None
    e, scale, shift = peel(node.inputs[0])
    if not isinstance(e.op, elementwise.Exp) or scale != shift or scale <= 0:
        return None
    y = build.apply(elementwise.Sigmoid(), build.negate(e.inputs[0], node.name), name=node.name)
    return _scaled(y, 1 / scale, node.name)


def gated(node: Node, view: View) -> Node | None:
    """p x σ(k x) = (p/k) silu(k x);  p x (1 + erf(c x)) = (2p/k) gelu(k x), k = c√2;  the same of GELU's tanh form."""
    if not isinstance(node.op, bilinear.Multiply):
        return None
    for factor, gate in (node.inputs, node.inputs[::-1]):
        x, p, zero = peel(factor)
        g, a, b = peel(gate)
        if zero != 0 or a == 0:
            continue
        inner = None if not g.inputs else polynomial(g.inputs[0], x)
        if inner is None or inner.get(0, 0.0) != 0 or inner.get(2, 0.0) != 0 or inner.get(1, 0.0) == 0:
            continue
        c, cubic = inner[1], inner.get(3, 0.0)
        if isinstance(g.op, elementwise.Sigmoid) and b == 0 and cubic == 0:
            return _gate(elementwise.Silu(), x, c, p * a / c, node.name)
        if a != b:
            continue
        if isinstance(g.op, elementwise.Erf) and cubic == 0:
            k = c * math.sqrt(2)
            return _gate(elementwise.Gelu(), x, k, 2 * p * a / k, node.name)
        single = _gelu_tanh(c, cubic) if isinstance(g.op, elementwise.Tanh) else None
        if single is not None:
            return _gate(elementwise.Gelu(tanh=True, single=single), x, 1.0, 2 * p * a, node.name)
    return None


def _gate(op: elementwise.Gelu | elementwise.Silu, x: Node, k: float, outer: float, name: str) -> Node:
    return _scaled(build.apply(op, _scaled(x, k, name), name=name), outer, name)


def _gelu_tanh(c: float, cubic: float) -> bool | None:
    """Are c, cubic = √(2/π), √(2/π) · 0.044715 to 1e-12: False; as float32 rounds them: True; else None."""
    root = math.sqrt(2 / math.pi)
    exact = abs(c / root - 1) < 1e-12 and abs(cubic / (root * 0.044715) - 1) < 1e-12
    single = torch.tensor([root, 0.044715]).double()  # rounded to float32
    near = abs(c / float(single[0]) - 1) < 1e-12 and abs(cubic / float(single[0] * single[1]) - 1) < 1e-12
    return False if exact else (True if near else None)


# Softmax and normalisation ------------------------------------------------------------------------------------------


def written_softmax(node: Node, view: View) -> Node | None:
    """eˣ / Σ eˣ = softmax(x), also of x − m with m the same along the row."""
    if not isinstance(node.op, bilinear.Multiply):
        return None
    for e, divisor in (node.inputs, node.inputs[::-1]):
        outer, reciprocal = moves(divisor)
        if not isinstance(e.op, elementwise.Exp) or not isinstance(reciprocal.op, elementwise.Reciprocal):
            continue
        inner, total = moves(reciprocal.inputs[0])
        if not isinstance(total.op, linear.Sum) or total.inputs[0] is not e or len(total.op.dims) != 1:
            continue
        if broadcasts(node, total, [*outer, *inner]):
            (dim,) = total.op.dims
            return build.softmax(_without_row_shift(e.inputs[0], dim), dim, node.name)
    return None


def _without_row_shift(x: Node, dim: int) -> Node:
    """x where x − m was given, m the same along `dim`."""
    if not isinstance(x.op, linear.Subtract):
        return x
    chain, base = moves(x.inputs[1])
    places = moved(torch.arange(math.prod(base.shape)).reshape(base.shape), chain)
    return x.inputs[0] if bool((places == places.narrow(dim, 0, 1)).all()) else x


def centring(node: Node, view: View) -> Node | None:
    """x − mean(x) = x (I − 11ᵀ/d)"""
    if not isinstance(node.op, linear.Subtract):
        return None
    x, mean = node.inputs
    total = _mean_of(mean, node)
    if total is None or total.inputs[0] is not x or not isinstance(total.op, linear.Sum):
        return None
    if math.prod(total.op.sizes) > build.WIDEST_CENTRING:
        return None
    return build.centre(x, total.op.dims, node.name)


def _mean_of(mean: Node, at: Node) -> Node | None:
    """The Sum whose mean is broadcast to the shape of `at`."""
    outer, scaled = moves(mean)
    total, scale, shift = peel(scaled)
    if not isinstance(total.op, linear.Sum):
        inner, total = moves(total)
        outer = [*outer, *inner]
    if not isinstance(total.op, linear.Sum) or shift != 0 or abs(scale * math.prod(total.op.sizes) - 1) > 1e-14:
        return None
    return total if broadcasts(at, total, outer) else None


def variance(node: Node, view: View) -> Node | None:
    """mean(x²) − mean(x)² = mean((x − mean(x))²)"""
    if not isinstance(node.op, linear.Subtract) or not isinstance(node.inputs[1].op, elementwise.Square):
        return None
    square, plain = (_mean_of(n, n) for n in (node.inputs[0], node.inputs[1].inputs[0]))
    if square is None or plain is None or not isinstance(plain.op, linear.Sum) or plain.op != square.op:
        return None
    if not isinstance(square.inputs[0].op, elementwise.Square) or square.inputs[0].inputs[0] is not plain.inputs[0]:
        return None
    centred = build.centre(plain.inputs[0], plain.op.dims, node.name)
    return build.mean(build.apply(elementwise.Square(), centred, name=node.name), plain.op.dims, True, node.name)


def normalisation(node: Node, view: View) -> Node | None:
    """s y / √(α Σ y² + ε) = s/√(α d) · Normalize(y), d the count and ε/(α d) its eps."""
    if not isinstance(node.op, bilinear.Multiply):
        return None
    for numerator, divisor in (node.inputs, node.inputs[::-1]):
        found = _square_sum(divisor)
        if found is None:
            continue
        total, alpha, eps, chain = found
        y, s, zero = peel(numerator)
        w, r, nought = peel(total.inputs[0].inputs[0])
        if y is not w or zero != 0 or nought != 0 or not broadcasts(node, total, chain):
            continue
        dims = total.op.dims  # type: ignore[attr-defined]
        weight = alpha * r * r * math.prod(y.shape[d] for d in dims)  # α Σ (r y)² = weight · mean y²
        if weight > 0 and eps >= 0 and math.isfinite(eps / weight):
            return _scaled(build.normalize(y, dims, eps / weight, node.name), s / math.sqrt(weight), node.name)
    return None


def _square_sum(divisor: Node) -> tuple[Node, float, float, list[Node]] | None:
    """(Σ w², α, ε, moves) of 1/√(α Σ w² + ε) broadcast, however the root and its reciprocal are written."""
    chain, node = moves(divisor)
    if isinstance(node.op, elementwise.Reciprocal):
        more, node = moves(node.inputs[0])
        chain += more
        if not isinstance(node.op, elementwise.Sqrt):
            return None
    elif isinstance(node.op, elementwise.Sqrt):
        more, node = moves(node.inputs[0])
        chain += more
        if not isinstance(node.op, elementwise.Reciprocal):
            return None
    elif not isinstance(node.op, elementwise.Rsqrt):
        return None
    alpha, eps, total = 1.0, 0.0, node.inputs[0]
    while True:
        more, total = moves(total)
        chain += more
        base, scale, shift = peel(total)
        alpha, eps = alpha * scale, eps + alpha * shift
        if base is total:
            break
        total = base
    squared = total.inputs and isinstance(total.inputs[0].op, elementwise.Square)
    return (total, alpha, eps, chain) if isinstance(total.op, linear.Sum) and squared else None


# Attention -----------------------------------------------------------------------------------------------------------


def attention(node: Node, view: View) -> Node | None:
    """softmax(S) V = Attention(S, V), also with moves between, a uniform scale, or as (Vᵀ softmax(S)ᵀ)ᵀ."""
    if not isinstance(node.op, bilinear.MatMul):
        return None
    for side in (0, 1):
        weights, values = node.inputs[side], node.inputs[1 - side]
        chain, base = moves(weights, also=(shape.Slice, shape.Take, linear.Scale))
        if not isinstance(base.op, Softmax):
            continue
        dim: int | None = len(base.shape) - 1
        factor: float | None = 1.0
        for link in reversed(chain):
            if isinstance(link.op, linear.Scale):
                u = uniform(link.op.factor)
                factor = None if u is None or factor is None else factor * u
            elif dim is not None:
                dim = follow(link, dim)
        if dim != len(weights.shape) - 1 - side or factor is None:
            continue
        below = [c for c in chain if not isinstance(c.op, linear.Scale)]
        scores, mask = base.inputs[0], base.op.mask
        for link in reversed(below):
            scores = build.apply(link.op, scores, name=link.name)
        if mask is not None:
            mask = moved(mask.expand(base.shape), below)
        if side == 0:
            out = build.apply(attention_op.Attention(mask), scores, values, name=node.name)
        else:
            scores, values = (build.transpose(n, -1, -2, node.name) for n in (scores, values))
            mask = None if mask is None else mask.mT
            out = build.apply(attention_op.Attention(mask), scores, values, name=node.name)
            out = build.transpose(out, -1, -2, node.name)
        return _scaled(out, factor, node.name)
    return None


def follow(link: Node, dim: int) -> int | None:
    """Where a dimension of the input lies in the output of a moving op; None if it is cut, joined or repeated."""
    op, before = link.op, link.inputs[0].shape
    if isinstance(op, shape.Permute):
        return op.dims.index(dim)
    if isinstance(op, shape.Expand):
        return dim if op.before[dim] == op.after[dim] else None
    if isinstance(op, shape.Slice | shape.Take):
        return None if op.dim == dim else dim
    left, behind = math.prod(before[:dim]), math.prod(before[dim + 1 :])
    places = [
        d
        for d, n in enumerate(link.shape)
        if n == before[dim] and math.prod(link.shape[:d]) == left and math.prod(link.shape[d + 1 :]) == behind
    ]
    if len(places) > 1:  # a dimension of size 1 among others of size 1: any of them is it; take the rearmost
        return places[-1]
    return places[0] if places else None


def pooled(node: Node, view: View) -> Node | None:
    """Σ_k softmax(S)_k v_k, written as a product and a sum, is a MatMul of the weights with the values."""
    if not isinstance(node.op, linear.Sum) or len(node.op.dims) != 1:
        return None
    product, (dim,) = node.inputs[0], node.op.dims
    rank = len(node.shape)
    if not isinstance(product.op, bilinear.Multiply) or dim == rank - 1:
        return None
    for p, v in (product.inputs, product.inputs[::-1]):
        _, base = moves(p)
        if not isinstance(base.op, Softmax) or not isinstance(p.op, shape.Expand):
            continue
        if p.op.before[-1] != 1 or any(p.op.before[d] != p.op.after[d] for d in range(rank - 1)):
            continue
        order = (*(d for d in range(rank) if d not in (dim, rank - 1)), rank - 1, dim)  # (…, 1, K)
        weights = build.permute(p.inputs[0], order, node.name)
        values = build.permute(v, (*order[:-2], dim, rank - 1), node.name)  # (…, K, m)
        out = build.matmul(weights, values, node.name)  # (…, 1, m)
        inverse = sorted(range(rank), key=(*order[:-2], dim, rank - 1).__getitem__)
        return build.permute(out, inverse, node.name)
    return None


RULES = (
    mask_scores,
    ignore_masked,
    sigmoid,
    gated,
    written_softmax,
    centring,
    variance,
    normalisation,
    pooled,
    attention,
)

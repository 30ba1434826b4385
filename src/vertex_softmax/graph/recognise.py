"""Rules that recognise what a model wrote out: GELU, SiLU, softmax, normalisation, attention.

Each rule's invariant is its equation: what it returns equals what it was given, in real arithmetic, at every input.
Numbers are compared as exact fractions; a function is recognised exactly or not at all. Numbers that a rule makes are
rounded once, and one that is not 1 never becomes 1 (`stored`).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.masks import ignore_masked, mask_scores
from vertex_softmax.graph.rewrite import (
    ONE_UP,
    View,
    broadcasts,
    factor_of,
    moved,
    moves,
    offset_of,
    peel,
    stored,
)
from vertex_softmax.ops import attention as attention_op
from vertex_softmax.ops import bilinear, elementwise, linear, shape
from vertex_softmax.ops.contract import Op
from vertex_softmax.ops.softmax import Softmax

# Functions of one number --------------------------------------------------------------------------------------------


MOST_TERMS = 64
"""Nodes of a written-out polynomial; real ones have ten."""


def polynomial(node: Node, x: Node, degree: int = 3) -> dict[int, Fraction] | None:
    """The coefficients of node as a polynomial in x, by power; None if it is not one of at most this degree."""
    known: dict[Node, dict[int, Fraction]] = {x: {1: Fraction(1)}}
    stack = [node]
    while stack:
        at = stack[-1]
        missing = [i for i in at.inputs if i not in known]
        if at in known:
            stack.pop()
        elif not _is_term(at) or len(known) + len(stack) > MOST_TERMS:
            return None
        elif missing:
            stack.extend(missing)
        else:
            stack.pop()
            known[at] = _term(at, [known[i] for i in at.inputs])
            if max(known[at], default=0) > degree:
                return None
    return known[node]


def _is_term(node: Node) -> bool:
    """Is it a sum, a difference, a product, or a product or sum with one number?"""
    plain = isinstance(node.op, linear.Add | linear.Subtract | bilinear.Multiply | elementwise.Square)
    return plain or factor_of(node.op) is not None or offset_of(node.op) is not None


def _term(node: Node, inputs: list[dict[int, Fraction]]) -> dict[int, Fraction]:
    """The polynomial of a node from those of its inputs."""
    factor, offset = factor_of(node.op), offset_of(node.op)
    a, b = inputs[0], inputs[-1]
    if factor is not None:
        return {p: factor * c for p, c in a.items()}
    if offset is not None:
        return {**a, 0: a.get(0, Fraction(0)) + offset}
    found: dict[int, Fraction] = {}
    if isinstance(node.op, linear.Add | linear.Subtract):
        sign = 1 if isinstance(node.op, linear.Add) else -1
        for part, s in ((a, 1), (b, sign)):
            for p, c in part.items():
                found[p] = found.get(p, Fraction(0)) + s * c
    else:
        for p, c in a.items():
            for q, d in b.items():
                found[p + q] = found.get(p + q, Fraction(0)) + c * d
    return {p: c for p, c in found.items() if c}


def _scaled(x: Node, factor: Fraction | float | None, name: str) -> Node | None:
    """x times a number: an exact one, or a float that is near one that is meant; None if there is no number."""
    if isinstance(factor, Fraction):
        if factor == 1:
            return x
        factor = stored(factor)
    elif factor == 1:  # near 1, which is not the same
        factor = ONE_UP
    if factor is None or not 0 < abs(factor) < math.inf:
        return None
    return build.multiply(x, build.constant(torch.tensor(factor, dtype=torch.float64)), name)


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
        if zero != 0 or a == 0 or p == 0:
            continue
        inner = None if not g.inputs else polynomial(g.inputs[0], x)
        if inner is None or not set(inner) <= {1, 3} or 1 not in inner:
            continue
        c, cubic = inner[1], inner.get(3, Fraction(0))
        if isinstance(g.op, elementwise.Sigmoid) and b == 0 and cubic == 0:
            return _gate(elementwise.Silu(), x, c, p * a / c, node.name)
        if a != b:
            continue
        if isinstance(g.op, elementwise.Erf) and cubic == 0 and (near := stored(c)) is not None:
            k = near * math.sqrt(2)
            return _gate(elementwise.Gelu(), x, k, float(2 * p * a) / k, node.name)
        form = _tanh_form(c, cubic) if isinstance(g.op, elementwise.Tanh) else None
        if form is not None:
            return _gate(form, x, Fraction(1), 2 * p * a, node.name)
    return None


def _gate(
    op: elementwise.Gelu | elementwise.Silu, x: Node, k: Fraction | float, outer: Fraction | float, name: str
) -> Node | None:
    """outer · op(k x)"""
    inner = _scaled(x, k, name)
    return None if inner is None else _scaled(build.apply(op, inner, name=name), outer, name)


def _tanh_form(c: Fraction, cubic: Fraction) -> elementwise.Gelu | None:
    """The GELU whose constants c = k and cubic = k · 0.044715 are, exactly, as double or single precision has them."""
    for op in (elementwise.Gelu(tanh=True, double=True), elementwise.Gelu(tanh=True, single=True)):
        k, third = (Fraction(constant) for constant in op.constants())
        if c == k and cubic == k * third:
            return op
    return None


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
    found = _mean_of(mean, node)
    if found is None or found[0].inputs[0] is not x or not isinstance(found[0].op, linear.Sum):
        return None
    share, count = found[1], math.prod(found[0].op.sizes)
    if count > build.WIDEST_CENTRING or stored(share) is None or (share != 1 and stored(1 - share) is None):
        return None
    return build.centre(x, found[0].op.dims, node.name, share)


def _mean_of(mean: Node, at: Node) -> tuple[Node, Fraction] | None:
    """The Sum whose mean is broadcast to the shape of `at`, and what it is multiplied by: nearly one over the count."""
    outer, scaled = moves(mean)
    total, scale, shift = peel(scaled)
    if not isinstance(total.op, linear.Sum):
        inner, total = moves(total)
        outer = [*outer, *inner]
    if not isinstance(total.op, linear.Sum) or shift != 0 or abs(scale * math.prod(total.op.sizes) - 1) > NEARLY:
        return None
    return (total, scale) if broadcasts(at, total, outer) else None


NEARLY = Fraction(1, 10**6)
"""How far a factor may be from the inverse of a count for a sum to be worth treating as a mean."""


def variance(node: Node, view: View) -> Node | None:
    """mean(x²) − mean(x)² = mean((x − mean(x))²)"""
    if not isinstance(node.op, linear.Subtract) or not isinstance(node.inputs[1].op, elementwise.Square):
        return None
    means = [_mean_of(n, n) for n in (node.inputs[0], node.inputs[1].inputs[0])]
    if any(found is None or found[1] * math.prod(found[0].op.sizes) != 1 for found in means):  # type: ignore[attr-defined]
        return None
    square, plain = (found[0] for found in means if found is not None)
    if not isinstance(plain.op, linear.Sum) or plain.op != square.op:
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
        if weight <= 0 or eps < 0 or stored(weight) is None or (inner := stored(eps / weight)) is None:
            continue
        if inner == ONE_UP:  # there is no product with an eps to leave out
            inner = float(eps / weight)
        factor: Fraction | float = s if weight == 1 else float(s) / math.sqrt(weight)
        return _scaled(build.normalize(y, dims, inner, node.name), factor, node.name)
    return None


def _square_sum(divisor: Node) -> tuple[Node, Fraction, Fraction, list[Node]] | None:
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
    alpha, eps, total = Fraction(1), Fraction(0), node.inputs[0]
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
        scales = [link for link in chain if isinstance(link.op, linear.Scale)]
        below = [link for link in chain if not isinstance(link.op, linear.Scale)]
        for link in reversed(below):
            if dim is not None:
                dim = follow(link, dim)
        if dim != len(weights.shape) - 1 - side or any(factor_of(link.op) is None for link in scales):
            continue
        scores, op = base.inputs[0], base.op
        for link in reversed(below):
            scores = build.apply(link.op, scores, name=link.name)
        masks = [None if t is None else moved(t.expand(base.shape), below) for t in (op.mask, op.penalty, op.replaced)]
        if side == 0:
            out = build.apply(attention_op.Attention(*masks), scores, values, name=node.name)
        else:
            scores, values = (build.transpose(n, -1, -2, node.name) for n in (scores, values))
            masks = [None if t is None else t.mT for t in masks]
            out = build.apply(attention_op.Attention(*masks), scores, values, name=node.name)
            out = build.transpose(out, -1, -2, node.name)
        for link in reversed(scales):
            out = build.apply(single(link.op), out, name=link.name)
        return out
    return None


def single(op: Op) -> Op:
    """A Scale by one number, as an op that fits any shape."""
    if isinstance(op, linear.Divide):
        return linear.Divide.by(op.divisor.reshape(-1)[0])
    return linear.Scale(op.factor.reshape(-1)[0].clone()) if isinstance(op, linear.Scale) else op


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


EXACT_RULES = (sigmoid, gated, variance, normalisation)
"""Rules that compare numbers: they are right of the numbers that the model has, not of products that were rounded."""
RULES = (mask_scores, ignore_masked, written_softmax, centring, pooled, attention)

"""Rules that recognise functions written in elementary ops: GELU, SiLU, softmax, normalisation, attention.

Each rule's docstring is its equation and its invariant: both sides are equal in real arithmetic at every input. Numbers
are compared as exact fractions; a function is recognised exactly or not at all. Numbers that a rule creates are rounded
once, and a number other than 1 never becomes 1 (`stored`).
"""

from __future__ import annotations

import dataclasses
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
"""The most nodes of a polynomial; in real models about ten."""


def polynomial(node: Node, x: Node, degree: int = 3) -> dict[int, Fraction] | None:
    """Exponent → coefficient of node as a polynomial in x; None if it is not a polynomial of at most this degree."""
    known: dict[Node, dict[int, Fraction]] = {x: {1: Fraction(1)}}
    stack = [node]
    while stack:
        current = stack[-1]
        missing = [i for i in current.inputs if i not in known]
        if current in known:
            stack.pop()
        elif not _is_term(current) or len(known) + len(stack) > MOST_TERMS:
            return None
        elif missing:
            stack.extend(missing)
        else:
            stack.pop()
            known[current] = _term(current, [known[i] for i in current.inputs])
            if max(known[current], default=0) > degree:
                return None
    return known[node]


def _is_term(node: Node) -> bool:
    """Whether the op is a sum, a difference or a product of nodes, or of a node with one number."""
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
    result: dict[int, Fraction] = {}
    if isinstance(node.op, linear.Add | linear.Subtract):
        sign = 1 if isinstance(node.op, linear.Add) else -1
        for part, s in ((a, 1), (b, sign)):
            for p, c in part.items():
                result[p] = result.get(p, Fraction(0)) + s * c
    else:
        for p, c in a.items():
            for q, d in b.items():
                result[p + q] = result.get(p + q, Fraction(0)) + c * d
    return {p: c for p, c in result.items() if c}


def _scaled(x: Node, factor: Fraction | float | None, name: str) -> Node | None:
    """x times a factor, which is exact (Fraction) or the rounded value of an exact one (float).

    None if the factor is None, zero or not finite, or cannot be stored. Only an exact factor 1 is left out.
    """
    if isinstance(factor, Fraction):
        if factor == 1:
            return x
        factor = stored(factor)
    elif factor == 1:  # rounded to 1, but the exact factor is not 1
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
    """p x σ(k x) = (p/k) silu(k x);  p x (1 + erf(c x)) = (2p/k) gelu(k x), k = c√2;  likewise for GELU's tanh form."""
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
    """The node outer · op(k x); None if a factor cannot be stored."""
    inner = _scaled(x, k, name)
    return None if inner is None else _scaled(build.apply(op, inner, name=name), outer, name)


def _tanh_form(c: Fraction, cubic: Fraction) -> elementwise.Gelu | None:
    """The tanh form of GELU with exactly the coefficients c = k and k · 0.044715, in double or single precision."""
    for op in (elementwise.Gelu(tanh=True, double=True), elementwise.Gelu(tanh=True, single=True)):
        k, third = (Fraction(constant) for constant in op.constants())
        if c == k and cubic == k * third:
            return op
    return None


# Softmax and normalisation ------------------------------------------------------------------------------------------


def written_softmax(node: Node, view: View) -> Node | None:
    """eˣ / Σ eˣ = softmax(x); also with x − m in place of x, where m is constant along the row."""
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
    """x if the given node is x − m with m constant along `dim`, else the given node."""
    if not isinstance(x.op, linear.Subtract):
        return x
    chain, base = moves(x.inputs[1])
    sources = moved(torch.arange(math.prod(base.shape)).reshape(base.shape), chain)  # the entry of m used at each place
    return x.inputs[0] if bool((sources == sources.narrow(dim, 0, 1)).all()) else x


def centring(node: Node, view: View) -> Node | None:
    """x − mean(x) = x (I − 11ᵀ/d)"""
    if not isinstance(node.op, linear.Subtract):
        return None
    x, mean = node.inputs
    sum_and_share = _mean_of(mean, node)
    if sum_and_share is None:
        return None
    total, share = sum_and_share
    if total.inputs[0] is not x or not isinstance(total.op, linear.Sum):
        return None
    count = math.prod(total.op.sizes)
    if count > build.WIDEST_CENTRING or stored(share) is None or (share != 1 and stored(1 - share) is None):
        return None
    return build.centre(x, total.op.dims, node.name, share)


def _mean_of(mean: Node, target: Node) -> tuple[Node, Fraction] | None:
    """(Sum, factor) if `mean` is factor · Sum, broadcast to the shape of `target`, with factor ≈ 1/count; else None."""
    outer, scaled = moves(mean)
    total, scale, shift = peel(scaled)
    if not isinstance(total.op, linear.Sum):
        inner, total = moves(total)
        outer = [*outer, *inner]
    if not isinstance(total.op, linear.Sum) or shift != 0 or abs(scale * math.prod(total.op.sizes) - 1) > NEARLY:
        return None
    return (total, scale) if broadcasts(target, total, outer) else None


NEARLY = Fraction(1, 10**6)
"""How far factor · count may be from 1 for a sum to be treated as a mean (with its exact factor)."""


def variance(node: Node, view: View) -> Node | None:
    """mean(x²) − mean(x)² = mean((x − mean(x))²)"""
    if not isinstance(node.op, linear.Subtract) or not isinstance(node.inputs[1].op, elementwise.Square):
        return None
    means = [_mean_of(n, n) for n in (node.inputs[0], node.inputs[1].inputs[0])]
    if any(mean is None or mean[1] * math.prod(mean[0].op.sizes) != 1 for mean in means):  # type: ignore[attr-defined]
        return None
    square, plain = (mean[0] for mean in means if mean is not None)
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
        root = _inverse_root(divisor)
        if root is None:
            continue
        total, eps = root.total, root.eps
        y, s, numerator_shift = peel(numerator)
        w, r, shift = peel(total.inputs[0].inputs[0])
        if y is not w or numerator_shift != 0 or shift != 0 or not broadcasts(node, total, root.chain):
            continue
        dims = total.op.dims  # type: ignore[attr-defined]
        weight = root.alpha * r * r * math.prod(y.shape[d] for d in dims)  # α Σ (r y)² = weight · mean y²
        if weight <= 0 or eps < 0 or stored(weight) is None or (inner := stored(eps / weight)) is None:
            continue
        if inner == ONE_UP:  # eps is added, so unlike a factor it may become 1
            inner = float(eps / weight)
        factor: Fraction | float = s if weight == 1 else float(s) / math.sqrt(weight)
        return _scaled(build.normalize(y, dims, inner, node.name), factor, node.name)
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _InverseRoot:
    """1/√(α Σ w² + ε), broadcast by the moving ops of `chain`; `total` is the node Σ w²."""

    total: Node
    alpha: Fraction
    eps: Fraction
    chain: list[Node]


def _inverse_root(divisor: Node) -> _InverseRoot | None:
    """The node as 1/√(α Σ w² + ε), whether it is written with Rsqrt or with Sqrt and Reciprocal; None if it is not."""
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
    if not isinstance(total.op, linear.Sum) or not squared:
        return None
    return _InverseRoot(total=total, alpha=alpha, eps=eps, chain=chain)


# Attention -----------------------------------------------------------------------------------------------------------


def attention(node: Node, view: View) -> Node | None:
    """softmax(S) V = Attention(S, V); also with moving ops or a factor between, and in the form (Vᵀ softmax(S)ᵀ)ᵀ."""
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
    """A Scale by one number as an op for tensors of any shape; other ops unchanged."""
    if isinstance(op, linear.Divide):
        return linear.Divide.by(op.divisor.reshape(-1)[0])
    return linear.Scale(op.factor.reshape(-1)[0].clone()) if isinstance(op, linear.Scale) else op


def follow(link: Node, dim: int) -> int | None:
    """The dimension of a moving op's output that an input dimension becomes; None if it is cut, merged or repeated."""
    op, before = link.op, link.inputs[0].shape
    if isinstance(op, shape.Permute):
        return op.dims.index(dim)
    if isinstance(op, shape.Expand):
        return dim if op.before[dim] == op.after[dim] else None
    if isinstance(op, shape.Slice | shape.Take):
        return None if op.dim == dim else dim
    left, behind = math.prod(before[:dim]), math.prod(before[dim + 1 :])
    candidates = [
        d
        for d, n in enumerate(link.shape)
        if n == before[dim] and math.prod(link.shape[:d]) == left and math.prod(link.shape[d + 1 :]) == behind
    ]
    return candidates[-1] if candidates else None  # several only among dimensions of size 1: then any of them will do


def pooled(node: Node, view: View) -> Node | None:
    """Σ_k softmax(S)_k v_k, written as a product and a sum, is a MatMul of the weights and the values v."""
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
"""Rules that compare numbers; they are correct for the model's own numbers, not for rounded products of them."""
RULES = (mask_scores, ignore_masked, written_softmax, centring, pooled, attention)

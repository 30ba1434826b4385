"""Simplification: a smaller graph of the same function, by named rules that are applied until none applies.

Invariant: `simplify(graph).evaluate(x)` equals `graph.evaluate(x)` in real arithmetic for every x, if each constant of
the simplified graph is allowed a relative change of 2⁻⁴⁷. Each rule replaces a node by one of the same value;
rewrite.py applies them, masks.py and recognise.py have those for masks, attention, norms and activations, and
liveness.py those for rows that nobody reads. A rule makes the graph smaller, or moves an affine map to a position where
it merges with another.

No rule adds numbers if the sum is rounded: cancellation could make the relative error arbitrarily large, as in
2⁶⁰ + 1 − 2⁶⁰. A product has a relative error of at most 2⁻⁵³, so a few may be rounded in a row (MOST_FACTORS). The
rules that compare numbers come first, while all numbers are still those of the model.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InternalError, OutOfTimeError
from vertex_softmax.graph import build, recognise
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.graph.liveness import selected_first
from vertex_softmax.graph.rewrite import (
    Rule,
    View,
    exact_sum,
    factor_of,
    moved,
    moves,
    product,
    rewrite,
    share,
    uniform,
    unmoved,
)
from vertex_softmax.ops import bilinear, linear, shape
from vertex_softmax.ops.contract import Op

ROUNDS = 1000
PARTS = (shape.Slice, shape.Take)
MOST_FACTORS = 24
"""The most factors in a row whose products may be rounded: each adds at most 3 · 2⁻⁵³, and 2⁻⁴⁷ is 64 · 2⁻⁵³."""
MOST_SELECTED = 40
"""The most moving ops between a selection and the Linear that it selects from."""


def simplify(graph: Graph, *, deadline: float | None = None) -> Graph:
    """The graph after all rules, applied repeatedly until nothing changes.

    `deadline`: a time of time.perf_counter after which OutOfTimeError is raised.
    """
    graph = _until_nothing_changes(graph, (*BEFORE, *recognise.RULES, *recognise.EXACT_RULES, *AFTER), False, deadline)
    if _factors_in_a_row(graph) <= MOST_FACTORS:
        graph = _until_nothing_changes(graph, (*BEFORE, *recognise.RULES, *AFTER), True, deadline)
    return _until_nothing_changes(graph, (*BEFORE, selected_first), False, deadline)


def _until_nothing_changes(graph: Graph, rules: Sequence[Rule], rounding: bool, deadline: float | None) -> Graph:
    """The graph after these rules, applied in turn until none changes it; `rounding` as in `rewrite`."""
    for _ in range(ROUNDS):
        before = graph
        graph = share(graph)
        for rule in rules:
            if deadline is not None and time.perf_counter() > deadline:
                raise OutOfTimeError("the time for reading the model was over before its graph was simplified")
            graph = rewrite(graph, rule, rounding=rounding)
        if graph is before:
            return graph
    raise InternalError(f"simplify did not come to an end in {ROUNDS} rounds; please report the model")


def _factors_in_a_row(graph: Graph) -> int:
    """The largest number of Scales on a path through affine ops and products, which rules might multiply together."""
    count: dict[Node, int] = {}
    for node in graph.nodes():
        passes = node.op.affine or isinstance(node.op, bilinear.MatMul | bilinear.Multiply)
        before = max((count[i] for i in node.inputs), default=0) if passes else 0
        count[node] = before + isinstance(node.op, linear.Scale)
    return max(count.values())


# Ops without effect, and pairs of ops of one kind ---------------------------------------------------------------------


def fold(node: Node, view: View) -> Node | None:
    """A moved constant, and a product of constants, is a constant."""
    values = [i.op.value for i in node.inputs if isinstance(i.op, Constant)]
    if not node.inputs or len(values) < len(node.inputs):
        return None
    if isinstance(node.op, shape.Moving):
        return build.apply(node.op, *node.inputs, name=node.name)
    if isinstance(node.op, linear.Scale | bilinear.Multiply):
        other = node.op.factor if isinstance(node.op, linear.Scale) else values[1]
        value = product(values[0], other, rounding=view.rounding)
        return None if value is None else build.constant(value, node.name)
    return None


def identity(node: Node, view: View) -> Node | None:
    """x · 1 = x + 0 = x; a moving op that changes neither shape nor order is removed."""
    op = node.op
    without_effect = (
        (isinstance(op, linear.Scale) and factor_of(op) == 1)
        or (isinstance(op, linear.Shift) and uniform(op.offset) == 0)
        or (isinstance(op, shape.Reshape | shape.Expand) and op.before == op.after)
        or (isinstance(op, shape.Permute) and op.dims == tuple(range(len(op.dims))))
        or (isinstance(op, shape.Slice) and (op.start, op.stop, op.step) == (0, op.size, 1))
        or (isinstance(op, shape.Take) and torch.equal(op.index.cpu(), torch.arange(op.size)))
    )
    return node.inputs[0] if without_effect else None


def same_twice(node: Node, view: View) -> Node | None:
    """Reshape of Reshape, Permute of Permute, Expand of Expand, Scale of Scale, Shift of Shift become one op."""
    if len(node.inputs) != 1 or len(node.inputs[0].inputs) != 1:
        return None
    op, first, x = node.op, node.inputs[0].op, node.inputs[0].inputs[0]
    if isinstance(op, linear.Scale) and isinstance(first, linear.Scale):
        both = product(op.factor, first.factor, rounding=view.rounding)
        if both is None or (not view.rounding and isinstance(op, linear.Divide) | isinstance(first, linear.Divide)):
            return None
        return build.multiply(x, build.constant(both), node.name)
    if type(op) is not type(first):
        return None
    if isinstance(op, shape.Reshape):
        return build.reshape(x, op.after, node.name)
    if isinstance(op, shape.Permute) and isinstance(first, shape.Permute):
        return build.permute(x, [first.dims[d] for d in op.dims], node.name)
    if isinstance(op, shape.Expand):
        return build.expand(x, op.after, node.name)
    if isinstance(op, linear.Shift) and isinstance(first, linear.Shift):
        total = exact_sum(op.offset, first.offset)
        return None if total is None else build.add(x, build.constant(total), node.name)
    return None


def permute_of_ones(node: Node, view: View) -> Node | None:
    """A Permute that keeps the order of all dimensions other than those of size 1 is a Reshape."""
    if not isinstance(node.op, shape.Permute):
        return None
    long = [d for d in node.op.dims if node.inputs[0].shape[d] != 1]
    return build.reshape(node.inputs[0], node.shape, node.name) if long == sorted(long) else None


def permutes_around_ones(node: Node, view: View) -> Node | None:
    """Permute, Reshape that only adds or drops dimensions of size 1, Permute become one Permute, then a Reshape."""
    middle = node.inputs[0] if node.inputs else node
    if not isinstance(node.op, shape.Permute) or not isinstance(middle.op, shape.Reshape):
        return None
    first = middle.inputs[0]
    ones = [n for n in middle.op.before if n != 1] == [n for n in middle.op.after if n != 1]
    if not ones or not isinstance(first.op, shape.Permute):
        return None
    long = [d for d, n in enumerate(middle.op.before) if n != 1]
    number = {d: i for i, d in enumerate(d for d, n in enumerate(middle.op.after) if n != 1)}
    dims = [d for d, n in enumerate(middle.op.before) if n == 1]
    dims += [long[number[d]] for d in node.op.dims if d in number]
    return build.reshape(build.permute(first, dims, node.name), node.shape, node.name)


# Affine maps that merge -----------------------------------------------------------------------------------------------


def _per_last(t: Tensor, dims: Sequence[int]) -> Tensor | None:
    """The vector (dims[-1]) that t, expanded to shape dims, repeats along the last dimension; None if there is none."""
    wide = t.expand(*dims)
    vector = wide.reshape(-1, dims[-1])[0]
    return vector.clone() if bool((wide == vector).all()) else None


def _plain(node: Node) -> linear.Linear | None:
    """The op of a node that is a Linear with one weight matrix, else None."""
    return node.op if isinstance(node.op, linear.Linear) and node.op.weight.dim() == 2 else None


def into_linear_above(node: Node, view: View) -> Node | None:
    """A Scale or Shift per output channel of a Linear or Convolution becomes part of its weight and bias.

    There may be moving ops between the two.
    """
    if not isinstance(node.op, linear.Scale | linear.Shift):
        return None
    chain, base = moves(node.inputs[0])
    if not all(view.sole(n) for n in (*chain, base)) or not isinstance(base.op, linear.Linear | linear.Convolution):
        return None
    term = node.op.factor if isinstance(node.op, linear.Scale) else node.op.offset
    same = uniform(term) if isinstance(node.op, linear.Scale) else None
    if same is not None:
        back: Tensor | None = torch.full(base.shape, same, dtype=term.dtype)
    else:
        back = unmoved(term.expand(node.shape), chain)
    if back is None:
        return None
    new = _absorb(base, node.op, back, view)
    for link in reversed(chain if new is not None else []):
        new = build.apply(link.op, new, name=link.name)  # type: ignore[arg-type]
    return new


def _absorb(base: Node, after: linear.Scale | linear.Shift, term: Tensor, view: View) -> Node | None:
    """base (a Linear or Convolution) merged with a Scale or Shift `after` it by `term`, which has its shape.

    None if `term` is not constant per output channel, or if the result would not be exact enough.
    """
    op = base.op
    if isinstance(op, linear.Convolution):
        channel = len(base.shape) - 1 - len(op.size)
        vector = _per_last(term.movedim(channel, -1), term.movedim(channel, -1).shape)
        column = None if vector is None else vector.reshape(-1, *[1] * (op.weight.dim() - 1))
    elif isinstance(op, linear.Linear):
        vector = column = _per_last(term, base.shape)
    else:
        return None
    if vector is None or column is None:
        return None
    weight, bias = op.weight, op.bias
    if isinstance(after, linear.Scale):
        scaled = _scaled(weight, column, after, view)
        if scaled is None:
            return None
        weight = scaled
    if bias is not None:
        new_bias = _scaled(bias, vector, after, view) if isinstance(after, linear.Scale) else exact_sum(bias, vector)
        if new_bias is None:
            return None
        bias = new_bias
    elif isinstance(after, linear.Shift):
        bias = vector
    return build.apply(dataclasses.replace(op, weight=weight, bias=bias), base.inputs[0], name=base.name)


def _scaled(value: Tensor, factor: Tensor, by: linear.Scale, view: View) -> Tensor | None:
    """value · factor, where `factor` is taken from the op `by`; None if that is not allowed to be rounded.

    The factor of a Divide is the inverse of its divisor, and is rounded already.
    """
    if isinstance(by, linear.Divide) and not view.rounding:
        return None
    return product(value, factor, rounding=view.rounding)


def into_linear_below(node: Node, view: View) -> Node | None:
    """A Scale per input channel of a Linear becomes part of its weight; there may be moving ops between the two.

    Only if every use of the Scale ends in a Linear, so that the Scale is removed.
    """
    op = _plain(node)
    if op is None:
        return None
    chain, source = moves(node.inputs[0], also=PARTS)
    if not isinstance(source.op, linear.Scale) or not _all_end(source, (linear.Linear,), PARTS, view):
        return None
    vector = _per_last(moved(source.op.factor.expand(source.shape), chain), node.inputs[0].shape)
    if vector is None:
        return None
    weight = _scaled(vector[:, None], op.weight, source.op, view)
    if weight is None:
        return None
    x = source.inputs[0]
    for link in reversed(chain):
        x = build.apply(link.op, x, name=link.name)
    return build.apply(linear.Linear(weight, op.bias), x, name=node.name)


def _all_end(node: Node, ends: tuple[type[Op], ...], also: tuple[type[Op], ...], view: View) -> bool:
    """Whether every use of a node, through moving ops and ops of the types `also`, ends in one of `ends`."""
    between: tuple[type[Op], ...] = (shape.Reshape, shape.Permute, shape.Expand, *also)
    waiting, seen = [node], {node}
    while waiting:
        current = waiting.pop()
        if current is view.graph.output:
            return False
        for user in view.users(current):
            if isinstance(user.op, ends) or user in seen:
                continue
            if not isinstance(user.op, between):
                return False
            seen.add(user)
            waiting.append(user)
    return True


def scale_before_shift(node: Node, view: View) -> Node | None:
    """(x + b) · a = x · a + a b"""
    shift = node.inputs[0] if node.inputs else node
    if not isinstance(node.op, linear.Scale) or not isinstance(shift.op, linear.Shift) or not view.sole(shift):
        return None
    offset = _scaled(shift.op.offset, node.op.factor, node.op, view)
    if offset is None:
        return None
    return build.add(build.apply(node.op, shift.inputs[0], name=node.name), build.constant(offset), shift.name)


def scale_of_scores(node: Node, view: View) -> Node | None:
    """s · (Q K) = (s Q) K, where s then merges into the Linear that computes Q, or else into the one of K."""
    scores = node.inputs[0] if node.inputs else node
    if factor_of(node.op) is None or not isinstance(scores.op, bilinear.MatMul) or not view.sole(scores):
        return None
    for side in (0, 1):
        chain, base = moves(scores.inputs[side])
        if isinstance(base.op, linear.Linear) and all(view.sole(n) for n in (*chain, base)):
            sides = list(scores.inputs)
            sides[side] = build.apply(recognise.single(node.op), sides[side], name=node.name)
            return build.apply(scores.op, *sides, name=scores.name)
    return None


def part_of_linear(node: Node, view: View) -> Node | None:
    """Some output channels of a Linear (q of a packed q, k, v) are a Linear with those channels alone.

    There may be moving ops between. Only if all uses select channels, so that the whole Linear is removed.
    """
    op = node.op
    if not isinstance(op, PARTS) or not _all_end(moves(node.inputs[0])[1], PARTS, (), view):
        return None
    index = torch.arange(op.size)[op.start : op.stop : op.step] if isinstance(op, shape.Slice) else op.index
    return _select(node.inputs[0], op.dim, index) if len(index) < op.size else None


def _select(node: Node, dim: int, index: Tensor, depth: int = 0) -> Node | None:
    """node restricted to some indices of one dimension, by columns of a Linear's weight; None if that is impossible."""
    op = node.op
    if depth > MOST_SELECTED:
        return None
    if isinstance(op, linear.Linear) and dim == len(node.shape) - 1:
        bias = None if op.bias is None else op.bias[index]
        return build.apply(linear.Linear(op.weight[..., index], bias), node.inputs[0], name=node.name)
    if isinstance(op, shape.Permute):
        part = _select(node.inputs[0], op.dims[dim], index, depth + 1)
        return None if part is None else build.permute(part, op.dims, node.name)
    if isinstance(op, shape.Reshape):
        return _select_reshaped(node, op, dim, index, depth)
    return None


def _select_reshaped(node: Node, op: shape.Reshape, dim: int, index: Tensor, depth: int) -> Node | None:
    """`_select` for a Reshape that splits one dimension d into several, `dim` among them: by the same indices of d."""
    for d, size in enumerate(op.before):
        left = math.prod(op.before[:d])
        for first in range(len(op.after)):
            for last in range(first, len(op.after)):
                group = op.after[first : last + 1]
                if math.prod(op.after[:first]) != left or math.prod(group) != size or not first <= dim <= last:
                    continue
                indices = torch.arange(size).reshape(group).index_select(dim - first, index).reshape(-1)
                part = _select(node.inputs[0], d, indices, depth + 1)
                if part is not None:
                    return build.reshape(part, (*op.after[:dim], len(index), *op.after[dim + 1 :]), node.name)
    return None


BEFORE: tuple[Rule, ...] = (fold, identity, same_twice, permute_of_ones, permutes_around_ones)
AFTER: tuple[Rule, ...] = (part_of_linear, into_linear_above, into_linear_below, scale_before_shift, scale_of_scores)
RULES: tuple[Rule, ...] = (*BEFORE, *recognise.RULES, *recognise.EXACT_RULES, *AFTER)

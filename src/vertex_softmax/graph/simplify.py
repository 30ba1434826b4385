"""A smaller graph of the same function: named rules, applied until none has anything to say.

Invariant: `simplify(graph).evaluate(x)` equals `graph.evaluate(x)` in real arithmetic for every x. Each rule replaces a
node by one of the same value (rewrite.py has the machinery, recognise.py the rules for attention, norms, activations).
A rule makes the graph smaller, or moves an affine map to where it disappears into another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.errors import InternalError
from vertex_softmax.graph import build, recognise
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.graph.rewrite import Rule, View, moved, moves, rewrite, share, uniform, unmoved
from vertex_softmax.ops import bilinear, linear, shape
from vertex_softmax.ops.registry import Op

ROUNDS = 1000
PARTS = (shape.Slice, shape.Take)


def simplify(graph: Graph, *, exact: bool = False) -> Graph:
    """The graph after every rule, again and again, until nothing changes.

    `exact`: numbers are only moved, or multiplied with each other, which rounds each by a few units in its last place;
    no rule that adds numbers up is applied. What a certificate says of the graph then holds of the model.
    """
    for _ in range(ROUNDS):
        before = graph
        graph = share(graph)
        for rule in RULES:
            graph = rewrite(graph, _adding_nothing(rule) if exact else rule)
        if graph is before:
            return graph
    raise InternalError(f"simplify did not come to an end in {ROUNDS} rounds; please report the model")


def _adding_nothing(rule: Rule) -> Rule:
    """The rule, but where it would add numbers up."""

    def alone(node: Node, view: View) -> Node | None:
        return None if _adds(rule, node) else rule(node, view)

    return alone


def _adds(rule: Rule, node: Node) -> bool:
    op = node.op
    if rule is fold:
        return not isinstance(op, shape.Moving | linear.Scale | bilinear.Multiply)
    if rule is same_twice:
        return isinstance(op, linear.Shift)
    if rule is into_linear_above and isinstance(op, linear.Shift):
        return getattr(moves(node.inputs[0])[1].op, "bias", None) is not None
    if rule is into_linear_below and node.inputs:
        return isinstance(moves(node.inputs[0], also=PARTS)[1].op, linear.Shift)
    return rule is linear_of_linear


# Nothing to do, or the same twice -------------------------------------------------------------------------------------


def fold(node: Node, view: View) -> Node | None:
    """op(constants) is a constant."""
    if node.inputs and all(isinstance(i.op, Constant) for i in node.inputs):
        return build.apply(node.op, *node.inputs, name=node.name)
    return None


def identity(node: Node, view: View) -> Node | None:
    """x · 1 = x + 0 = x; a move that moves nothing."""
    op = node.op
    nothing = (
        (isinstance(op, linear.Scale) and uniform(op.factor) == 1)
        or (isinstance(op, linear.Shift) and uniform(op.offset) == 0)
        or (isinstance(op, shape.Reshape | shape.Expand) and op.before == op.after)
        or (isinstance(op, shape.Permute) and op.dims == tuple(range(len(op.dims))))
        or (isinstance(op, shape.Slice) and (op.start, op.stop, op.step) == (0, op.size, 1))
        or (isinstance(op, shape.Take) and torch.equal(op.index.cpu(), torch.arange(op.size)))
    )
    return node.inputs[0] if nothing else None


def same_twice(node: Node, view: View) -> Node | None:
    """Reshape of Reshape, Permute of Permute, Expand of Expand, Scale of Scale, Shift of Shift: one of them."""
    if len(node.inputs) != 1 or type(node.op) is not type(node.inputs[0].op):
        return None
    op, first, x = node.op, node.inputs[0].op, node.inputs[0].inputs[0]
    if isinstance(op, shape.Reshape):
        return build.reshape(x, op.after, node.name)
    if isinstance(op, shape.Permute) and isinstance(first, shape.Permute):
        return build.permute(x, [first.dims[d] for d in op.dims], node.name)
    if isinstance(op, shape.Expand):
        return build.expand(x, op.after, node.name)
    if isinstance(op, linear.Scale) and isinstance(first, linear.Scale):
        return build.multiply(x, build.constant(op.factor * first.factor), node.name)
    if isinstance(op, linear.Shift) and isinstance(first, linear.Shift):
        return build.add(x, build.constant(op.offset + first.offset), node.name)
    return None


def permute_of_ones(node: Node, view: View) -> Node | None:
    """A Permute that keeps the order of all dimensions but those of size 1 is a Reshape."""
    if not isinstance(node.op, shape.Permute):
        return None
    long = [d for d in node.op.dims if node.inputs[0].shape[d] != 1]
    return build.reshape(node.inputs[0], node.shape, node.name) if long == sorted(long) else None


def permutes_around_ones(node: Node, view: View) -> Node | None:
    """Permute, a Reshape that only adds or drops dimensions of size 1, Permute: one Permute, then the Reshape."""
    middle = node.inputs[0] if node.inputs else node
    if not isinstance(node.op, shape.Permute) or not isinstance(middle.op, shape.Reshape):
        return None
    first = middle.inputs[0]
    ones = [n for n in middle.op.before if n != 1] == [n for n in middle.op.after if n != 1]
    if not ones or not isinstance(first.op, shape.Permute):
        return None
    kept = [d for d, n in enumerate(middle.op.before) if n != 1]
    number = {d: i for i, d in enumerate(d for d, n in enumerate(middle.op.after) if n != 1)}
    dims = [d for d, n in enumerate(middle.op.before) if n == 1]
    dims += [kept[number[d]] for d in node.op.dims if d in number]
    return build.reshape(build.permute(first, dims, node.name), node.shape, node.name)


# Affine maps that become one ------------------------------------------------------------------------------------------


def _per_last(t: Tensor, dims: Sequence[int]) -> Tensor | None:
    """The vector (last dimension) that a tensor of a node's shape repeats everywhere; None if it is not one."""
    wide = t.expand(*dims)
    vector = wide.reshape(-1, dims[-1])[0]
    return vector.clone() if bool((wide == vector).all()) else None


def _plain(node: Node) -> linear.Linear | None:
    return node.op if isinstance(node.op, linear.Linear) and node.op.weight.dim() == 2 else None


def into_linear_above(node: Node, view: View) -> Node | None:
    """Scale or Shift of a Linear or Convolution, per output channel, moves between or not: in its weight and bias."""
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
    new = _absorb(base, node.op, back)
    for link in reversed(chain if new is not None else []):
        new = build.apply(link.op, new, name=link.name)  # type: ignore[arg-type]
    return new


def _absorb(base: Node, after: linear.Scale | linear.Shift, term: Tensor) -> Node | None:
    """base (a Linear or Convolution) with a Scale or Shift by `term`, of its shape, taken in; None if unfit."""
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
    if isinstance(after, linear.Scale):
        new = dataclasses.replace(op, weight=op.weight * column, bias=None if op.bias is None else op.bias * vector)
    else:
        new = dataclasses.replace(op, bias=vector if op.bias is None else op.bias + vector)
    return build.apply(new, base.inputs[0], name=base.name)


def into_linear_below(node: Node, view: View) -> Node | None:
    """Linear of a Scale or Shift per input channel, moves between or not: in its weight and bias.

    Only where every use of the Scale or Shift ends in a Linear, so that it goes away.
    """
    op = _plain(node)
    if op is None:
        return None
    chain, source = moves(node.inputs[0], also=PARTS)
    if not isinstance(source.op, linear.Scale | linear.Shift) or not _all_end(source, (linear.Linear,), PARTS, view):
        return None
    term = source.op.factor if isinstance(source.op, linear.Scale) else source.op.offset
    vector = _per_last(moved(term.expand(source.shape), chain), node.inputs[0].shape)
    if vector is None:
        return None
    if isinstance(source.op, linear.Scale):
        new = linear.Linear(vector[:, None] * op.weight, op.bias)
    else:
        added = vector @ op.weight
        new = linear.Linear(op.weight, added if op.bias is None else op.bias + added)
    x = source.inputs[0]
    for link in reversed(chain):
        x = build.apply(link.op, x, name=link.name)
    return build.apply(new, x, name=node.name)


def _all_end(node: Node, ends: tuple[type[Op], ...], also: tuple[type[Op], ...], view: View) -> bool:
    """Does every use of a node, over moves (and what is also one here), end in one of these ops?"""
    if node is view.graph.output:
        return False
    return all(
        isinstance(user.op, ends)
        or (
            isinstance(user.op, (shape.Reshape, shape.Permute, shape.Expand, *also))
            and _all_end(user, ends, also, view)
        )
        for user in view.users(node)
    )


def scale_before_shift(node: Node, view: View) -> Node | None:
    """(x + b) · a = x · a + a b"""
    shift = node.inputs[0] if node.inputs else node
    if not isinstance(node.op, linear.Scale) or not isinstance(shift.op, linear.Shift) or not view.sole(shift):
        return None
    scaled = build.multiply(shift.inputs[0], build.constant(node.op.factor), node.name)
    return build.add(scaled, build.constant(shift.op.offset * node.op.factor), shift.name)


def linear_of_linear(node: Node, view: View) -> Node | None:
    """(x W + b) V + c = x (W V) + (b V + c), where W V holds no more numbers than W and V and W has no other use."""
    second = _plain(node)
    first = _plain(node.inputs[0]) if second is not None and view.sole(node.inputs[0]) else None
    if first is None or second is None:
        return None
    if first.weight.shape[0] * second.weight.shape[1] > first.weight.numel() + second.weight.numel():
        return None
    bias = second.bias
    if first.bias is not None:
        bias = first.bias @ second.weight if bias is None else first.bias @ second.weight + bias
    return build.apply(
        linear.Linear(first.weight @ second.weight, bias), node.inputs[0].inputs[0], name=node.inputs[0].name
    )


def scale_of_scores(node: Node, view: View) -> Node | None:
    """s · (Q K) = (s Q) K, where s disappears into the Linear that makes Q, or else the one that makes K."""
    scale = uniform(node.op.factor) if isinstance(node.op, linear.Scale) else None
    product = node.inputs[0] if node.inputs else node
    if scale is None or not isinstance(product.op, bilinear.MatMul) or not view.sole(product):
        return None
    for side in (0, 1):
        chain, base = moves(product.inputs[side])
        if isinstance(base.op, linear.Linear) and all(view.sole(n) for n in (*chain, base)):
            sides = list(product.inputs)
            sides[side] = build.multiply(
                sides[side], build.constant(torch.tensor(scale, dtype=torch.float64)), node.name
            )
            return build.apply(product.op, *sides, name=product.name)
    return None


def part_of_linear(node: Node, view: View) -> Node | None:
    """Some channels of a Linear, moves between or not: the Linear with those channels alone (a packed q, k, v).

    Only where nothing takes the Linear whole, so that it goes away.
    """
    op = node.op
    if not isinstance(op, PARTS) or not _all_end(moves(node.inputs[0])[1], PARTS, (), view):
        return None
    index = torch.arange(op.size)[op.start : op.stop : op.step] if isinstance(op, shape.Slice) else op.index
    return _select(node.inputs[0], op.dim, index) if len(index) < op.size else None


def _select(node: Node, dim: int, index: Tensor) -> Node | None:
    """node with the given indices of one dimension, if they can be picked from the columns of a Linear's weight."""
    op = node.op
    if isinstance(op, linear.Linear) and dim == len(node.shape) - 1:
        bias = None if op.bias is None else op.bias[index]
        return build.apply(linear.Linear(op.weight[..., index], bias), node.inputs[0], name=node.name)
    if isinstance(op, shape.Permute):
        part = _select(node.inputs[0], op.dims[dim], index)
        return None if part is None else build.permute(part, op.dims, node.name)
    if isinstance(op, shape.Reshape):
        return _select_reshaped(node, op, dim, index)
    return None


def _select_reshaped(node: Node, op: shape.Reshape, dim: int, index: Tensor) -> Node | None:
    """Where one dimension before became several (or stayed), `dim` among them: the same indices of that one."""
    for d, size in enumerate(op.before):
        left = math.prod(op.before[:d])
        for first in range(len(op.after)):
            for last in range(first, len(op.after)):
                group = op.after[first : last + 1]
                if math.prod(op.after[:first]) != left or math.prod(group) != size or not first <= dim <= last:
                    continue
                places = torch.arange(size).reshape(group).index_select(dim - first, index).reshape(-1)
                part = _select(node.inputs[0], d, places)
                if part is not None:
                    return build.reshape(part, (*op.after[:dim], len(index), *op.after[dim + 1 :]), node.name)
    return None


RULES = (
    fold,
    identity,
    same_twice,
    permute_of_ones,
    permutes_around_ones,
    *recognise.RULES,
    part_of_linear,
    scale_before_shift,
    into_linear_above,
    into_linear_below,
    scale_of_scores,
    linear_of_linear,
)

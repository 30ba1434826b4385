"""Rows that nobody reads are not computed: a selection moves up through the ops that handle each row for itself.

Invariant: every rule replaces a selection of a node by a node of the same value, in exact arithmetic, with no number
changed. A classifier that reads its class token alone needs one row of the last block's queries, scores and MLP; a
language model that is asked about its last position likewise.

A selection (Slice or Take, along one dimension) moves only if it is the one use of the node, which then disappears.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Node
from vertex_softmax.graph.rewrite import View
from vertex_softmax.ops import bilinear, linear, shape
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import Op, Shape
from vertex_softmax.ops.elementwise import Elementwise
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rounding import Round
from vertex_softmax.ops.softmax import MaskedSoftmax, Softmax

BY_NUMBER = (Elementwise, linear.Scale, linear.Shift, linear.Add, linear.Subtract, bilinear.Multiply)
"""Ops of which each number of the output is made of one number of each input, all of one shape."""


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """Some indices of one dimension."""

    dim: int
    index: Tensor
    name: str

    def along(self, dim: int) -> Selection:
        """The same indices of another dimension."""
        return dataclasses.replace(self, dim=dim)

    def of(self, node: Node) -> Node:
        """The selected part of a node, as a node."""
        op: Op
        size, rank, index = node.shape[self.dim], len(node.shape), self.index
        step = int(index[1] - index[0]) if len(index) > 1 else 1
        start = int(index[0])
        if step > 0 and torch.equal(index, start + step * torch.arange(len(index))):
            op = shape.Slice(self.dim, start, min(size, int(index[-1]) + 1), step, rank, size)
        else:
            op = shape.Take(self.dim, index, rank, size)
        return Node(self.name, op, (node,), self.shape(node.shape))

    def shape(self, dims: Sequence[int]) -> Shape:
        """The shape of the part."""
        return (*dims[: self.dim], len(self.index), *dims[self.dim + 1 :])

    def of_field(self, tensor: Tensor, rank: int) -> Tensor:
        """The part of a tensor that broadcasts to the whole, which has `rank` dimensions."""
        dim = self.dim - rank
        if tensor.dim() < -dim or tensor.shape[dim] == 1:
            return tensor
        return tensor.index_select(dim, self.index.to(tensor.device))

    def of_fields(self, op: Op, rank: int) -> Op:
        """An op with all its tensors, which broadcast to its output, restricted to the part."""
        fields = {name: value for name, value in vars(op).items() if isinstance(value, Tensor)}
        return dataclasses.replace(op, **{name: self.of_field(value, rank) for name, value in fields.items()})  # type: ignore[type-var]


def selected_first(node: Node, view: View) -> Node | None:
    """A selection of what an op computes row by row is the op of the selected rows."""
    op = node.op
    if not isinstance(op, shape.Slice | shape.Take):
        return None
    index = torch.arange(op.size)[op.start : op.stop : op.step] if isinstance(op, shape.Slice) else op.index.cpu()
    base = node.inputs[0]
    if not 0 < len(index) < op.size or not view.sole(base):
        return None
    found = through(base, Selection(op.dim, index, node.name))
    if found is None:
        return None
    new, inputs = found
    return Node(base.name, new, inputs, node.shape)


def through(base: Node, part: Selection) -> tuple[Op, tuple[Node, ...]] | None:
    """The op that computes the part of a node, and its inputs; None if the op does not handle rows for themselves."""
    op, inputs, rank = base.op, base.inputs, len(base.shape)
    if isinstance(op, BY_NUMBER):
        if isinstance(op, Round):  # the comparison with onnxruntime asks which numbers of a tensor are left
            op = op.numbered(base.shape)
        return part.of_fields(op, rank), tuple(part.of(i) for i in inputs)
    rule = next((rule for kind, rule in RULES.items() if isinstance(op, kind)), None)
    return None if rule is None else rule(op, inputs, part, rank)


Through = tuple[Op, tuple[Node, ...]] | None


def _through_linear(op: linear.Linear, inputs: tuple[Node, ...], part: Selection, rank: int) -> Through:
    """Along every dimension but the channels."""
    return (op, (part.of(inputs[0]),)) if part.dim < rank - 1 and op.weight.dim() == 2 else None


def _through_permute(op: shape.Permute, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """Along the dimension that it came from."""
    return op, (part.along(op.dims[part.dim]).of(inputs[0]),)


def _through_reshape(op: shape.Reshape, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """Along a dimension that is there before and after, with as many numbers before it and behind it."""
    left = math.prod(op.after[: part.dim])
    for d, size in enumerate(op.before):
        if size == op.after[part.dim] and math.prod(op.before[:d]) == left:
            source = part.along(d)
            return shape.Reshape(source.shape(op.before), part.shape(op.after)), (source.of(inputs[0]),)
    return None


def _through_concat(op: shape.Concat, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """Along another dimension from each input; along the joined one if all indices are of one input."""
    if part.dim != op.dim:
        return op, tuple(part.of(i) for i in inputs)
    start = 0
    for source, size in zip(inputs, op.sizes, strict=True):
        if start <= int(part.index.min()) and int(part.index.max()) < start + size:
            inner = dataclasses.replace(part, index=part.index - start)
            kept = inner.of(source).op
            return kept, (source,)
        start += size
    return None


def _through_expand(op: shape.Expand, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """From the input, unless the dimension is one that is repeated."""
    if op.before[part.dim] != op.after[part.dim]:
        return shape.Expand(op.before, part.shape(op.after)), inputs
    return shape.Expand(part.shape(op.before), part.shape(op.after)), (part.of(inputs[0]),)


def _through_normalize(op: Normalize, inputs: tuple[Node, ...], part: Selection, rank: int) -> Through:
    """Along the dimensions that are not normalised."""
    return (op, (part.of(inputs[0]),)) if part.dim < rank - op.count else None


def _masked(op: MaskedSoftmax, part: Selection, rank: int) -> Op:
    return part.of_fields(op, rank)


def _through_softmax(op: Softmax, inputs: tuple[Node, ...], part: Selection, rank: int) -> Through:
    """Along every dimension but the keys."""
    return (_masked(op, part, rank), (part.of(inputs[0]),)) if part.dim < rank - 1 else None


def _through_attention(op: Attention, inputs: tuple[Node, ...], part: Selection, rank: int) -> Through:
    """Query rows are rows of the scores; heads are of both; coordinates are of the values."""
    scores, values = inputs
    if part.dim == rank - 1:
        return op, (scores, part.of(values))
    return _masked(op, part, rank), (part.of(scores), values if part.dim == rank - 2 else part.of(values))


def _through_product(op: bilinear.MatMul, inputs: tuple[Node, ...], part: Selection, rank: int) -> Through:
    """Rows are of the left factor, columns of the right one, and what comes before of both."""
    left, right = inputs
    if part.dim == rank - 2:
        return op, (part.of(left), right)
    if part.dim == rank - 1:
        return op, (left, part.of(right))
    return op, (part.of(left), part.of(right))


def _through_sum(op: linear.Sum, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """Along what is not summed."""
    return None if part.dim in op.dims else (op, (part.of(inputs[0]),))


def _through_selection(op: shape.Slice | shape.Take, inputs: tuple[Node, ...], part: Selection, _rank: int) -> Through:
    """Two selections along one dimension are one; a Slice or Take along another stays behind."""
    if part.dim != op.dim:
        return None
    first = torch.arange(op.size)[op.start : op.stop : op.step] if isinstance(op, shape.Slice) else op.index.cpu()
    return dataclasses.replace(part, index=first[part.index]).of(inputs[0]).op, inputs


RULES: dict[type[Op], Callable[..., Through]] = {
    linear.Linear: _through_linear,
    linear.Sum: _through_sum,
    shape.Permute: _through_permute,
    shape.Reshape: _through_reshape,
    shape.Concat: _through_concat,
    shape.Expand: _through_expand,
    shape.Slice: _through_selection,
    shape.Take: _through_selection,
    Normalize: _through_normalize,
    Softmax: _through_softmax,
    Attention: _through_attention,
    bilinear.MatMul: _through_product,
}

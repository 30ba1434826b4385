"""Which numbers of a network depend on the numbers of the input that move.

Invariant: a number that is not marked has the same value, in real arithmetic, for any two inputs that differ only in
marked numbers of the input. There is a rule for each op whose outputs read only some inputs; the outputs of any other
op are all marked if any of its inputs is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.graph.liveness import BY_NUMBER
from vertex_softmax.ops import bilinear, linear, shape
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.softmax import MaskedSoftmax, Softmax


def moving_numbers(graph: Graph, moves: Tensor) -> dict[Node, Tensor]:
    """By node, which of its numbers may change, (*shape) bool, if the input's numbers change only where `moves` is
    True.
    """
    found = {graph.input: moves}
    for node in graph.nodes():
        if node is not graph.input:
            found[node] = _of(node, [found[i] for i in node.inputs], moves)
    return found


def _of(node: Node, given: list[Tensor], moves: Tensor) -> Tensor:
    op = node.op
    if isinstance(op, Constant):
        return torch.zeros(node.shape, dtype=torch.bool, device=moves.device)
    if not any(bool(each.any()) for each in given):
        return torch.zeros(node.shape, dtype=torch.bool, device=moves.device)
    if isinstance(op, shape.Moving):
        return op.evaluate(*given)
    if isinstance(op, BY_NUMBER):
        return torch.stack([each.expand(node.shape) for each in given]).any(0)
    if isinstance(op, linear.Linear):
        return given[0].any(-1, keepdim=True).expand(node.shape)
    if isinstance(op, linear.Sum):
        return given[0].sum(op.dims).reshape(node.shape) > 0
    if isinstance(op, Normalize):
        rows = given[0].flatten(-op.count).any(-1)
        return rows.reshape(*rows.shape, *[1] * op.count).expand(node.shape)
    if isinstance(op, bilinear.MatMul):
        left, right = given[0].any(-1, keepdim=True), given[1].any(-2, keepdim=True)
        return (left | right).expand(node.shape)
    if isinstance(op, Attention):
        seen = _seen(op, given[0])
        scores = (given[0] & seen).any(-1, keepdim=True)
        values = (seen.unsqueeze(-1) & given[1].unsqueeze(-3)).any(-2)
        return (scores | values).expand(node.shape)
    if isinstance(op, Softmax):
        seen = _seen(op, given[0])
        return ((given[0] & seen).any(-1, keepdim=True) & seen).expand(node.shape)
    return torch.ones(node.shape, dtype=torch.bool, device=moves.device)


def _seen(op: MaskedSoftmax, scores: Tensor) -> Tensor:
    """Which keys each row reads, shaped like the scores: all but those that the mask sets to −∞."""
    if op.mask is None:
        return torch.ones_like(scores)
    hidden = op.mask if op.penalty is None else op.mask & (op.penalty == 0)
    return ~hidden.expand(scores.shape)

"""Attention decomposed into exp, sum, reciprocal, product and matrix product, as other verifiers represent it.

Invariant: the graph computes the same function. Its bounds are not better: the paper's CROWN baseline relaxes each of
these ops separately, which is the source of its large gaps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.rewrite import View, rewrite
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Exp, Reciprocal


def decompose(graph: Graph, x: Tensor) -> Graph:
    """The graph with each attention softmax(s) v as (e^t · 1/Σ e^t) v, t_j = s_j − s_top.

    top is the key with the row's largest score at the point x (*input shape), as in auto_LiRPA at the centre of the
    set. Any key gives the same function; this one keeps e^t small. Masked keys are refused.
    """
    values = graph.values(x)

    def decomposed(node: Node, _: View) -> Node | None:
        if not isinstance(node.op, Attention):
            return None
        if node.op.mask is not None and bool(node.op.mask.any()):
            raise InvalidValueError(
                f"{node.name}: an attention with masked keys cannot be taken apart into exp and sum"
            )
        scores, content = node.inputs
        scores_at_x = values[scores]
        top = torch.zeros_like(scores_at_x).scatter(-1, scores_at_x.argmax(-1, keepdim=True), 1.0)
        picked = build.multiply(scores, build.constant(top), f"{node.name}.top")
        shifted = build.subtract(scores, build.total(picked, [-1], True, f"{node.name}.top"), f"{node.name}.shifted")
        weights = build.apply(Exp(), shifted, name=f"{node.name}.exp")
        total = build.total(weights, [-1], True, f"{node.name}.sum")
        share = build.apply(Reciprocal(), total, name=f"{node.name}.reciprocal")
        p = build.multiply(weights, share, f"{node.name}.weights")
        return build.matmul(p, content, node.name)

    return rewrite(graph, decomposed)

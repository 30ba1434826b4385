"""The terms that affine forms are added up of, however much of them cancels in the form.

Invariant: a node's form differs from the node by at most a share of its terms, which is what sums of so many numbers
round (tolerances.OUTWARD); for each number of the node, the terms are at least the sum of the absolute values of all
products of weights along a path with the number that it starts at.

A relaxation over a form does not pass by the nodes between the input and the form. What these rounded is not in the
size of the pass that reads it unless it is put there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.interval import Interval


def terms_of(index: GraphIndex, start: Tensor, node: Node, known: dict[Node, Tensor]) -> Tensor:
    """The terms of each number of a node with a form, (batch, *shape); `start`: the largest |x| of the input.

    `known` has those that were found before, and gets new ones.
    """
    if node not in known:
        first = index.position[index.start]
        for each in index.ancestors(node):
            if each not in known and (index.position[each] >= first or isinstance(each.op, Constant)):
                known[each] = _terms(index, start, each, known)
    return known[node]


def _terms(index: GraphIndex, start: Tensor, node: Node, known: dict[Node, Tensor]) -> Tensor:
    if node is index.start:
        return start
    if isinstance(node.op, Constant):
        return node.op.value.abs()[None]
    sizes = [known[i] for i in node.inputs]
    return node.op.interval(*(Interval(-size, size) for size in sizes)).magnitude


def of_relaxation(node: Node, terms: Mapping[Node, Tensor], boxes: Boxes) -> Tensor:
    """How large the terms are that a relaxation of a node over the forms of these inputs adds up, (batch, *shape).

    Where a factor x of a product is off by a share of its terms, the product is off by that times the other factor; and
    where scores are off, the mean of values is off by at most that times twice the largest value.
    """
    reach = {i: boxes.reach(i).each for i in node.inputs}
    share = OUTWARD[boxes[node].lower.dtype]
    if isinstance(node.op, MatMul):
        x, y = node.inputs
        return terms[x] @ reach[y] + reach[x] @ terms[y] + share * (terms[x] @ terms[y])
    if not isinstance(node.op, Attention):
        return torch.zeros_like(boxes[node].lower)
    scores, values = node.inputs
    largest = torch.maximum(terms[values], reach[values]).amax(-2, keepdim=True)
    off = 2 * terms[scores].amax(-1, keepdim=True) if scores in terms else torch.zeros_like(largest)
    return largest * (1 + off)

"""Why a bound is not positive: the op whose relaxation takes most of it away, as far as the boxes know."""

from __future__ import annotations

import math

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.zonotopes import shares
from vertex_softmax.graph.ir import Input, Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.normalization import Normalize

KINDS = {
    Attention: "the attention",
    Multiply: "the product of two branches",
    MatMul: "the product",
    Normalize: "the norm",
}
"""What messages call an op; others are called a function."""


def cause(boxes: Boxes, which: int, label: int, target: int) -> str:
    """The end of a sentence about the margin of an input to a class; nothing where no zonotope was made.

    The zonotope of the scores is a sum over the ops that introduced unknowns: each op's part of the margin is what its
    own errors take away, after everything behind it. The input's part is no loss; nor is that of a last norm of one row
    (bounds do not need it: bounds/last_norm.py), if anything else is lost.
    """
    if not boxes.zonotopes:
        return ""
    output, *others = boxes.zonotopes
    zonotope = boxes.zonotopes[output]
    A = torch.zeros_like(zonotope.centre).flatten(1)
    if A.shape[1] <= max(label, target):
        return ""
    A[which, label], A[which, target] = 1.0, -1.0
    parts = {name: float(part[which]) for name, part in shares(zonotope, A.reshape(zonotope.centre.shape)).items()}
    # several ops of one module have its name: the errors are those of the one that is not affine
    nodes = {each.name: each for each in sorted(_above(output), key=lambda each: not each.op.affine)}
    lost = {name: part for name, part in parts.items() if not _is_input(nodes.get(name))}
    free = {node.name for node in nodes.values() if node.inputs and node.inputs[0] in others and _has_one_row(node)}
    if any(part > 0 for name, part in lost.items() if name not in free):
        lost = {name: part for name, part in lost.items() if name not in free}
    whole = sum(lost.values())
    if not lost or not whole > 0:
        return ""
    name = max(lost, key=lambda each: lost[each])
    return f"; {lost[name] / whole:.0%} of what is lost is lost at {_named(nodes.get(name))} {name!r}"


def _above(node: Node) -> list[Node]:
    """The node and all that it is made of."""
    found: dict[Node, None] = {}
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current not in found:
            found[current] = None
            waiting.extend(current.inputs)
    return list(found)


def _is_input(node: Node | None) -> bool:
    return node is not None and isinstance(node.op, Input)


def _has_one_row(node: Node) -> bool:
    """Whether a node is a norm of one row."""
    return isinstance(node.op, Normalize) and math.prod(node.shape[: len(node.shape) - node.op.count]) == 1


def _named(node: Node | None) -> str:
    return "the" if node is None else KINDS.get(type(node.op), "the function")

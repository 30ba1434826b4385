"""Detect underflow that may matter: where boxes lost small numbers, and how much of that can reach the output.

Invariant: `with_underflow` notes a problem for every input of the batch at which an op made numbers too small for the
precision to hold to rounding, if the ops behind it can magnify what was lost to more than the share of the output that
the guards of verdicts allow for. Gains are upper bounds of the factor by which an op can magnify an error of its
inputs, from its constants and from boxes widened by what was lost before. Underflow in the coefficients of a backward
pass is in the size of its terms, of which guards are shares (backward.py). Underflow inside an op is not detected
(docs/limits.md).
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes, Problem
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Constant, Node
from vertex_softmax.ops import activations
from vertex_softmax.ops import elementwise as curves
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.linear import Add, Convolution, LeftLinear, Linear, Scale, Shift, Subtract, Sum
from vertex_softmax.ops.maximum import Maximum
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rounding import Round
from vertex_softmax.ops.shape import Moving
from vertex_softmax.ops.softmax import Softmax

EXACT = (Moving, Shift, Add, Subtract, Sum, curves.Relu, Maximum, curves.Log, curves.Sqrt, Round)
"""Ops that lose nothing by underflow: sums of small floats are exact, and what `Round` maps to 0 is exactly 0."""
EXACT_AT_0 = (Moving, Shift, Add, Subtract, Sum, curves.Relu, Maximum)
"""Ops of which one interval around 0 tells where they are 0 whatever their inputs that are not 0 may be."""
SUMMED = (Shift, Constant)
"""Ops whose constants are added."""
PRODUCTS = (Linear, LeftLinear, Convolution, Scale, Multiply, MatMul)
"""Products; over input intervals [−1, 1], or 0 where an input is 0, their interval is exactly 0 where every product has
a factor 0."""
SUMS = (Linear, LeftLinear, Convolution, MatMul)
"""Sums of products, whose interval is rounded outward by a share of the absolute values of all terms."""
POSITIVE = (curves.Exp, curves.Sigmoid, curves.Square, curves.Rsqrt, activations.Softplus, Softmax)
"""Ops whose values are not negative: where a lower end underflows to 0, it is a lower end still."""
CURVES = (curves.Relu, curves.Tanh, curves.Sigmoid, curves.Erf, curves.Gelu, curves.Silu)
GENTLE = (*CURVES, activations.Elu, activations.Softplus, activations.Mish, activations.HardSwish, Maximum, Softmax)
"""Ops that at most double an error of their inputs."""
STEEP = {curves.Reciprocal: -2.0, curves.Rsqrt: -1.5, curves.Log: -1.0, curves.Sqrt: -0.5}
"""Ops whose slope at x is at most |x| to this power."""
SPARE = 2.0**-8
"""Magnified underflow is harmless up to this share of the output's rounding."""


def with_underflow(question: Question, boxes: Boxes) -> Boxes:
    """The boxes, with a problem noted for inputs at which underflow may matter at the output."""
    errors = lost_by_underflow(question, boxes)
    if not errors:
        return boxes
    info, output = torch.finfo(question.dtype), question.graph.output
    size = boxes[output].magnitude.double().flatten(1)
    nothing = ~_may_be_present(question, boxes).flatten(1)  # outputs that are 0 whatever was lost
    size = torch.where(nothing, torch.inf, size).amin(1).nan_to_num(posinf=0.0)
    harmful = errors[output] > SPARE * info.eps / info.tiny * size
    if not bool(harmful.any()):
        return boxes
    first = next(node for node, error in errors.items() if bool((error > 0).any()))
    text = "numbers underflow and are magnified later, so that bounds may have lost them: scale the weights"
    return dataclasses.replace(boxes, problems=(*boxes.problems, Problem(first, harmful.expand(boxes.batch), text)))


def _may_be_present(question: Question, boxes: Boxes) -> Tensor:
    """Which outputs may be other than 0, (batch, *shape) bool: not those where every product has a factor 0."""
    present: dict[Node, Tensor] = {}
    for node in question.index.nodes:
        box = boxes[node]
        there = torch.ones_like(box.lower, dtype=torch.bool)
        if not node.inputs:
            there = box.magnitude > 0
        elif not node.lacking and isinstance(node.op, (*PRODUCTS, *EXACT_AT_0)):
            whole = node.op.interval(*(Interval(-x, x) for x in (present[i].to(box.lower) for i in node.inputs)))
            there = whole.magnitude > 0
        present[node] = there
    return present[question.graph.output]


def lost_by_underflow(question: Question, boxes: Boxes) -> dict[Node, Tensor]:
    """By node, how far its numbers may lie outside of its box because of underflow, (batch,); {} if nothing underflows.

    In units of the least normal number, so that the measure itself does not underflow where an error is made smaller
    before it is magnified.
    """
    lost = {node: _lost(node, boxes) for node in question.index.nodes if _may_underflow(node)}
    if not any(bool(where.any()) for where in lost.values()):
        return {}
    errors: dict[Node, Tensor] = {}
    for node in question.index.nodes:
        error = torch.zeros(boxes.batch, dtype=torch.float64, device=question.device)
        arrived = [errors[i] for i in node.inputs]
        if any(bool((e > 0).any()) for e in arrived):
            wider = [widened(boxes[i], e) for i, e in zip(node.inputs, arrived, strict=True)]
            for e, gain in zip(arrived, _gains(node, wider), strict=True):
                more = torch.where((e > 0) & (gain != 0), e * gain, 0.0)
                error = error + torch.where(more.isnan(), torch.inf, more)
        if node in lost:
            error = error + torch.where(lost[node], _most_lost(node, boxes), 0.0)
        errors[node] = error
    return errors


def _may_underflow(node: Node) -> bool:
    return node.lacking or (bool(node.inputs) and not isinstance(node.op, (Constant, *EXACT)))


def _lost(node: Node, boxes: Boxes) -> Tensor:
    """Whether an op made numbers that its precision does not hold to rounding, or lacks constants; (batch,) bool."""
    if node.lacking:
        return torch.ones(boxes.batch, dtype=torch.bool, device=boxes[node].lower.device)
    info = torch.finfo(boxes[node].lower.dtype)
    terms = max(math.prod(i.shape) for i in node.inputs)
    least = terms * info.tiny / info.eps
    small = boxes[node].magnitude < least
    if bool(small.any()):
        present = [(boxes[i].magnitude > 0).to(boxes[i].lower) for i in node.inputs]
        if isinstance(node.op, PRODUCTS):
            small = small & (node.op.interval(*(Interval(-x, x) for x in present)).magnitude > 0)
        elif isinstance(node.op, curves.Elementwise):
            small = small & (present[0] > 0)
    small = small | _lost_at_one_end(node, boxes, least)
    return small.flatten(1).any(1).expand(boxes.batch)


def _lost_at_one_end(node: Node, boxes: Boxes, least: float) -> Tensor:
    """Where one end of the box lost numbers to underflow that the other end, which is large, does not make up for.

    Only a lower end that is below 0, and an upper end that is above it, come to lie inside of the true range. The ends
    of sums of products are rounded outward by a share of all terms, of both ends; those of other ops by a share of
    themselves.
    """
    lower, upper = boxes[node]
    below, above = lower.abs() < least, upper.abs() < least
    if isinstance(node.op, (*POSITIVE, *SUMS)) or not bool((below | above).any()):
        return torch.zeros_like(below)
    signs = [Interval(-(boxes[i].lower < 0).to(lower), (boxes[i].upper > 0).to(lower)) for i in node.inputs]
    if isinstance(node.op, PRODUCTS):
        true = node.op.interval(*signs)
        return (below & (true.lower < 0)) | (above & (true.upper > 0))
    if isinstance(node.op, curves.Elementwise):
        return (below & (signs[0].lower < 0)) | (above & (signs[0].upper > 0))
    negative, positive = (
        torch.stack([end.flatten(1).any(1).expand(boxes.batch) for end in ends])
        .any(0)
        .reshape(-1, *[1] * len(node.shape))
        for ends in zip(*signs, strict=True)
    )
    return (below & negative) | (above & positive)


def _most_lost(node: Node, boxes: Boxes) -> Tensor:
    """The most that underflow inside an op can take away, (batch or 1,): a unit for each term.

    In an attention, each term is multiplied by the largest value. Constants that were too small for the precision are
    off by a unit, and are added or multiplied by the op's inputs; of what other ops make of them nothing is known.
    """
    terms = float(max((math.prod(i.shape) for i in node.inputs), default=1))
    if node.lacking:
        size = torch.ones((1,), dtype=torch.float64, device=boxes[node].lower.device)
        if isinstance(node.op, SUMMED):
            return size
        if not isinstance(node.op, (Linear, LeftLinear, Convolution, Scale)):
            return size * torch.inf
        return terms * (2 + boxes[node.inputs[0]].magnitude.double().flatten(1).amax(1))
    if not isinstance(node.op, Attention):
        return torch.full((1,), terms, dtype=torch.float64, device=boxes[node].lower.device)
    return terms * boxes[node.inputs[1]].magnitude.double().flatten(1).amax(1).clamp(min=1)


def widened(box: Interval, error: Tensor) -> Interval:
    """The box widened by an error (batch,) in units of the least normal number."""
    reach = (error * torch.finfo(box.lower.dtype).tiny).to(box.lower).reshape(-1, *[1] * (box.lower.dim() - 1))
    return Interval(box.lower - reach, box.upper + reach)


def _gains(node: Node, inputs: list[Interval]) -> list[Tensor]:
    """By how much an op can magnify an error of each input, in the maximum norm, (batch or 1,) each.

    inputs: boxes that contain the op's inputs with and without their errors.
    """
    op, one = node.op, torch.ones_like(inputs[0].lower.double().flatten(1)[:, 0])
    most = [box.magnitude.double().flatten(1).amax(1) for box in inputs]
    if op.affine:
        return [_unit_gain(node, inputs, i) for i in range(len(inputs))]
    if isinstance(op, GENTLE):
        return [2 * one] * len(inputs)
    if isinstance(op, Attention):
        return [2 * most[1], one]
    if isinstance(op, Multiply):
        return [most[1], most[0]]
    if isinstance(op, MatMul):
        count = node.inputs[0].shape[-1]
        return [count * most[1], count * most[0]]
    if isinstance(op, Normalize) and op.eps > 0:
        return [one * 2 * math.sqrt(math.prod(node.shape) / op.eps)]
    if isinstance(op, curves.Square):
        return [2 * most[0]]
    if isinstance(op, curves.Exp):
        return [inputs[0].upper.double().flatten(1).amax(1).exp()]
    for curve, power in STEEP.items():
        if isinstance(op, curve):
            lower, upper = (end.double().flatten(1) for end in inputs[0])
            nearest = torch.where(upper < 0, -upper, lower).amin(1)  # distance to 0; ≤ 0 where a box contains 0
            return [torch.where(nearest > 0, nearest**power, torch.inf)]
    return [one * torch.inf] * len(inputs)


def _unit_gain(node: Node, inputs: list[Interval], i: int) -> Tensor:
    """The gain of an affine op for input i: the largest sum of absolute values of the factors of one output."""
    ends = [torch.full_like(box.lower[:1], float(j == i)) for j, box in enumerate(inputs)]
    box = node.op.interval(*(Interval(-end, end) for end in ends))
    rounded = 2 * torch.finfo(box.lower.dtype).eps * box.magnitude.double()  # what adding the bias may have rounded
    return (box.radius.double() + rounded).flatten(1).amax(1)

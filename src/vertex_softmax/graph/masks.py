"""Masks: scores that a model makes so low, before a softmax, that their keys have no weight.

Invariant: the node that a rule returns computes the same function as the node it replaces, in real arithmetic. An
additive mask of −∞ gives a key exactly the weight 0. A finite one (−3.4e38, the least float32) does not, however low it
is: the op then stores it (`penalty`), and every bound of the op first proves, from the score box, that the key's weight
is below e⁻²⁰⁰⁰ (ops/softmax.py; the checker proves it again). If that cannot be proved, the op has no bound.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.rewrite import View, moved, moves, rewrite
from vertex_softmax.ops import linear
from vertex_softmax.ops.softmax import MaskedSoftmax

MASKED = -1e30
"""A number of at most this, added to a score or replacing it, is a mask; greater numbers are added as they are."""


class Masking(NamedTuple):
    """The parts of an additive mask: it equals `added`, plus −∞ or the penalty where `mask` is true."""

    added: Tensor
    """The part that is added to the scores as it is; 0 where masked."""
    mask: Tensor | None
    """Where a key is masked, bool; None if nowhere."""
    penalty: Tensor | None
    """The finite masking numbers, 0 elsewhere; None if all masks are −∞."""


def split_mask(mask: Tensor) -> Masking:
    """The parts of a mask, which is boolean (True: attend; False means −∞) or additive."""
    if mask.dtype == torch.bool:
        nothing = torch.zeros(mask.shape, dtype=torch.float64)
        return Masking(nothing, ~mask if bool((~mask).any()) else None, None)
    values = mask.double()
    masked = values <= MASKED
    if not bool(masked.any()):
        return Masking(values, None, None)
    penalty = torch.where(masked & values.isfinite(), values, 0.0)
    return Masking(values.masked_fill(masked, 0.0), masked, penalty if bool(penalty.any()) else None)


def mask_scores(node: Node, _view: View) -> Node | None:
    """softmax(… (scores + mask) · factors …): the mask, times the factors, becomes part of the softmax op.

    Between the mask and the softmax there may be Shifts, Scales and ops that move numbers.
    """
    op = node.op
    if not isinstance(op, MaskedSoftmax):
        return None
    between: list[Node] = []
    for link in moves(node.inputs[0], also=(linear.Shift, linear.Scale))[0]:
        if isinstance(link.op, linear.Shift) and bool((link.op.offset <= MASKED).any()):
            break
        between.append(link)
    else:
        return None
    masking = split_mask(link.op.offset)
    if masking.mask is None:
        return None
    amount = torch.where(masking.mask, link.op.offset.double(), 0.0).expand(link.shape)
    for step in reversed(between):  # the mask as it reaches the softmax, after the factors and moves
        if isinstance(step.op, linear.Scale):
            if bool((step.op.factor.expand(step.shape)[amount == -torch.inf] <= 0).any()):
                return None
            amount = torch.where(amount == 0, 0.0, amount * step.op.factor)
        elif not isinstance(step.op, linear.Shift):
            amount = step.op.evaluate(amount)
    low = _moved_to_softmax(masking.mask.expand(link.shape), between)
    if bool((amount[low] > MASKED).any()):  # a factor made it an ordinary number, or changed its sign
        return None
    infinite = _moved_to_softmax((link.op.offset == -torch.inf).expand(link.shape), between)
    penalty = torch.where(low & ~infinite, amount.clamp(min=-sys.float_info.max), 0.0)
    scores = link.inputs[0]
    if bool(masking.added.any()):
        scores = build.add(scores, build.constant(masking.added), link.name)
    for step in reversed(between):
        scores = build.apply(step.op, scores, name=step.name)
    new = op.also_masked(low, penalty if bool(penalty.any()) else None)
    return build.apply(new, scores, *node.inputs[1:], name=node.name)


def _moved_to_softmax(flags: Tensor, between: list[Node]) -> Tensor:
    """Bools of the mask's shape, moved as the scores are moved on their way to the softmax."""
    return moved(flags, [step for step in between if not isinstance(step.op, linear.Shift | linear.Scale)])


def ignore_masked(node: Node, _view: View) -> Node | None:
    """A Scale or Shift that changes only masked scores is removed.

    Where the mask is −∞ it has no effect. Where the mask is a penalty, a factor 0 means that the penalty replaces the
    score, and an offset is added to the penalty.
    """
    op = node.op
    if not isinstance(op, MaskedSoftmax) or op.mask is None:
        return None
    scores = node.inputs[0]
    mask = op.mask.expand(scores.shape)
    penalty = torch.zeros(()) if op.penalty is None else op.penalty
    soft = mask & (penalty != 0)
    replaced = torch.zeros_like(soft) if op.replaced is None else op.replaced.expand(scores.shape)
    new: MaskedSoftmax
    if isinstance(scores.op, linear.Scale):
        factor = scores.op.factor.expand(scores.shape)
        if not bool(((factor == 1) | replaced | (mask & ~soft) | (soft & (factor == 0))).all()):
            return None
        new = op.with_replaced(soft & (factor == 0))
    elif isinstance(scores.op, linear.Shift):
        offset = scores.op.offset.expand(scores.shape)
        total = torch.where(soft & ~replaced, penalty + offset, penalty)
        if not bool(((offset == 0) | mask).all()) or bool((total[soft] > MASKED).any()):
            return None
        new = op.with_penalty(total if bool(soft.any()) else None)
    else:
        return None
    return build.apply(new, scores.inputs[0], *node.inputs[1:], name=node.name)


def move_masks(graph: Graph) -> Graph:
    """The graph with additive masks moved from Shifts into the Softmax and Attention ops (`mask_scores`)."""
    while (new := rewrite(graph, mask_scores)) is not graph:
        graph = new
    return graph


def check_masks(graph: Graph) -> None:
    """Raise if a row of scores has all keys masked, or if a number of size 1e30 or more is not part of a mask."""
    for node in graph.nodes():
        if isinstance(node.op, MaskedSoftmax) and node.op.mask is not None:
            dead = node.op.mask.expand(node.inputs[0].shape).all(-1)
            if bool(dead.any()):
                row = tuple(dead.nonzero()[0].tolist())
                raise UnsupportedModelError(
                    f"{node.name}: every key of row {row} is masked, so its softmax is undefined; "
                    "leave each query at least one key, or drop such queries from the input"
                )
        for name, value in vars(node.op).items():
            if not isinstance(value, Tensor) or not value.is_floating_point() or name == "penalty":
                continue
            if not bool((value.abs() < -MASKED).all()):
                raise UnsupportedModelError(
                    f"{node.name}: {type(node.op).__name__} holds infinity, NaN or a number beyond {-MASKED:g}; "
                    "masks are understood where they are added to scores before a softmax"
                )

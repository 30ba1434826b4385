"""Masks: scores that a model makes so low, before a softmax, that their keys have no weight.

Invariant: what a rule returns computes the same function as what it was given, in real arithmetic. An additive mask of
−∞ gives a key the weight 0 exactly. A finite one (−3.4e38, the least float32) does not, however low it is: the op then
remembers it (`penalty`), and every bound of the op first proves, from the scores' own boxes, that the key's weight is
below e⁻²⁰⁰⁰ (ops/softmax.py; the checker does so again). Where that cannot be proved there is no bound.
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
"""Numbers up to this, added to scores or put in their place, are meant as masks; all others are added as they are."""


class Masking(NamedTuple):
    """An additive mask taken apart: added + (−∞, or the penalty, where masked) is what was added to the scores."""

    added: Tensor
    """what is left to add to the scores, 0 where masked"""
    mask: Tensor | None
    """where a key is masked; None: nowhere"""
    penalty: Tensor | None
    """the finite numbers that mask, 0 elsewhere; None: all masks are −∞"""


def split_mask(given: Tensor) -> Masking:
    """A boolean mask (True: attend; False is −∞) or an additive one, taken apart."""
    if given.dtype == torch.bool:
        nothing = torch.zeros(given.shape, dtype=torch.float64)
        return Masking(nothing, ~given if bool((~given).any()) else None, None)
    values = given.double()
    masked = values <= MASKED
    if not bool(masked.any()):
        return Masking(values, None, None)
    penalty = torch.where(masked & values.isfinite(), values, 0.0)
    return Masking(values.masked_fill(masked, 0.0), masked, penalty if bool(penalty.any()) else None)


def mask_scores(node: Node, _view: View) -> Node | None:
    """softmax(… (scores + mask) · factors …): the mask, times the factors, in the softmax; nothing else changes."""
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
    for c in reversed(between):  # what is left of the mask behind the factors and moves on the way
        if isinstance(c.op, linear.Scale):
            if bool((c.op.factor.expand(c.shape)[amount == -torch.inf] <= 0).any()):
                return None
            amount = torch.where(amount == 0, 0.0, amount * c.op.factor)
        elif not isinstance(c.op, linear.Shift):
            amount = c.op.evaluate(amount)
    low = _pushed(masking.mask.expand(link.shape), between)
    if bool((amount[low] > MASKED).any()):  # a factor made an ordinary number of it, or turned it round
        return None
    infinite = _pushed((link.op.offset == -torch.inf).expand(link.shape), between)
    penalty = torch.where(low & ~infinite, amount.clamp(min=-sys.float_info.max), 0.0)
    scores = link.inputs[0]
    if bool(masking.added.any()):
        scores = build.add(scores, build.constant(masking.added), link.name)
    for c in reversed(between):
        scores = build.apply(c.op, scores, name=c.name)
    new = op.also_masked(low, penalty if bool(penalty.any()) else None)
    return build.apply(new, scores, *node.inputs[1:], name=node.name)


def _pushed(where: Tensor, between: list[Node]) -> Tensor:
    """Truth values of a mask's shape, moved as the scores are moved on the way to the softmax."""
    return moved(where, [c for c in between if not isinstance(c.op, linear.Shift | linear.Scale)])


def ignore_masked(node: Node, _view: View) -> Node | None:
    """A Scale or Shift of masked scores alone goes away.

    At a mask of −∞ it changes nothing. At a penalty, a factor 0 puts the penalty in the place of the score, and an
    offset becomes a part of the penalty.
    """
    op = node.op
    if not isinstance(op, MaskedSoftmax) or op.mask is None:
        return None
    scores = node.inputs[0]
    mask = op.mask.expand(scores.shape)
    penalty = torch.zeros(()) if op.penalty is None else op.penalty
    soft = mask & (penalty != 0)
    kept = torch.zeros_like(soft) if op.replaced is None else op.replaced.expand(scores.shape)
    new: MaskedSoftmax
    if isinstance(scores.op, linear.Scale):
        factor = scores.op.factor.expand(scores.shape)
        if not bool(((factor == 1) | kept | (mask & ~soft) | (soft & (factor == 0))).all()):
            return None
        new = op.with_replaced(soft & (factor == 0))
    elif isinstance(scores.op, linear.Shift):
        offset = scores.op.offset.expand(scores.shape)
        total = torch.where(soft & ~kept, penalty + offset, penalty)
        if not bool(((offset == 0) | mask).all()) or bool((total[soft] > MASKED).any()):
            return None
        new = op.with_penalty(total if bool(soft.any()) else None)
    else:
        return None
    return build.apply(new, scores.inputs[0], *node.inputs[1:], name=node.name)


def move_masks(graph: Graph) -> Graph:
    """The graph with masks in Softmax and Attention instead of −∞ and the like in a Shift."""
    while (new := rewrite(graph, mask_scores)) is not graph:
        graph = new
    return graph


def check_masks(graph: Graph) -> None:
    """Every row of scores has a key, and no number that is infinite or meant so is left anywhere but in a mask."""
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

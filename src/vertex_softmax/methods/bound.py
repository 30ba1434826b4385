"""What every method returns: bounds, the boxes they were computed over, and the choice that gave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT, Choice
from vertex_softmax.ops.rules import Rules


@dataclasses.dataclass(frozen=True, eq=False)
class Bound:
    """Lower bounds of objectives over the input set of a question."""

    lower: Tensor
    """(batch, S): no input of the set falls below, to rounding; NaN where there is no bound"""
    boxes: Boxes
    """the method's boxes, with the problems that were met in making them"""
    choice: Choice = DEFAULT
    """the free parameters after the last ascent, for the objectives that were not settled before"""
    terms: Mapping[Rules, Tensor] = dataclasses.field(default_factory=dict)
    """the terms (batch, S) of last passes over these boxes by their rules (`bounds.guard.terms`), where known"""
    hopeless: Tensor | None = None
    """(batch,) bool, if there is a goal: inputs with an objective known not to be above it somewhere in the set"""


def larger(first: Tensor, *others: Tensor) -> Tensor:
    """The largest of several bounds, number by number; NaN if one is, so that it is not overlooked."""
    best = first
    for other in others:
        best = torch.maximum(best, other)
    return best

"""The result of every method: bounds, the boxes they were computed over, and the choice that gave them."""

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
    """Lower bounds of S objectives over the input sets of a question.

    Invariant: no input of the set has an objective below its bound, to rounding.
    """

    lower: Tensor
    """(batch, S); NaN where there is no bound"""
    boxes: Boxes
    """the boxes that the method made, with the problems that were found in them"""
    choice: Choice = DEFAULT
    """the free parameters after the last ascent, for objectives that were not settled before"""
    terms: Mapping[Rules, Tensor] = dataclasses.field(default_factory=dict)
    """by rules, the sizes of terms (batch, S) of passes over these boxes (`bounds.guard.terms`), as far as they are
    known"""
    hopeless: Tensor | None = None
    """(batch,) bool, if there is a goal: inputs for which some point of the set is known where an objective is not
    above it"""


def larger(first: Tensor, *others: Tensor) -> Tensor:
    """The largest of several bounds, entry by entry; NaN if one of them is NaN, so that a failure is not overlooked."""
    best = first
    for other in others:
        best = torch.maximum(best, other)
    return best

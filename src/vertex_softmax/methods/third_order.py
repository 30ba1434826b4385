"""Bounds by zonotopes to third order in the input's unknowns, for networks with norms in which `joint` is too loose.

Invariant: the bounds hold over the whole set of the question, as those of `joint` do; nothing is split.

Behind a second attention errors of third order multiply, so that within a tenth of the radius a margin's bound falls by
many times its size (docs/norms.md). If products of three of the input's unknowns are kept, errors are of fourth order.
That takes about fifteen times as long as `joint`; it is done if `joint` has not decided, and if it is expected to end
in time.
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import MOST_PAIR_NUMBERS, PAIR_ARRAYS, triple_numbers
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import input_products
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.methods.boxes import tightened_boxes, uses_zonotopes
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.ops.triples import size
from vertex_softmax.ops.unknowns import InputUnknowns
from vertex_softmax.sets.region import BoxRegion

A_SECOND = 2e7
"""About how many products of three unknowns, times the numbers of all nodes, one thread computes in a second."""


def to_third_order(question: Question, objective: Objective, options: Options, seconds: float | None) -> Tensor | None:
    """Lower bounds (1, S) of dense objectives within some time; None if they would take too long, or fail."""
    begin = time.perf_counter()
    if not is_meant(question, options) or refusal(question, seconds):
        return None
    ends = [end for end in (None if seconds is None else begin + seconds, question.clock.deadline) if end is not None]
    wider = question.to_third_order(min(ends, default=None))
    plain = dataclasses.replace(options, ascent=None)
    try:
        boxes = tightened_boxes(wider, plain)
        found = last_pass(wider, boxes, objective, Passes(plain=(RowRule.AFFINE,)), plain)
    except OutOfTimeError:
        return None
    return None if boxes.problems else found.lower.where(found.lower.isfinite(), -torch.inf)


def is_meant(question: Question, options: Options) -> bool:
    """Whether such bounds are made at all: for a network with norms and one box with few enough products of three.

    Memory and time are not considered here.
    """
    normal = any(isinstance(node.op, Normalize) for node in question.graph.nodes())
    box = question.batch == 1 and isinstance(question.given, BoxRegion)
    if not (normal and box and uses_zonotopes(question, options)):
        return False
    inputs = _inputs(question)
    return inputs is not None and triple_numbers(question.graph, inputs.count) <= MOST_PAIR_NUMBERS


def refusal(question: Question, seconds: float | None) -> str:
    """Why such bounds are left out for a question that they are made for, in words; empty if memory and time are
    enough.
    """
    inputs = _inputs(question)
    count = 0 if inputs is None else inputs.count
    need = 4 * PAIR_ARRAYS * question.dtype.itemsize * triple_numbers(question.graph, count)  # as `Memory.most_pairs`
    short = question.memory.refusal("zonotopes to third order, beside all else,", need)
    expected = size(count) * sum(math.prod(node.shape) for node in question.graph.nodes()) / A_SECOND
    if short or seconds is None or expected <= seconds:
        return short
    return f"zonotopes to third order may take {expected:.2g} s of the {seconds:.2g} that are left for bounds"


def _inputs(question: Question) -> InputUnknowns | None:
    """The unknowns of the input with those of their products, as if there were no memory limit."""
    free = dataclasses.replace(question.memory, total=None)
    return input_products(dataclasses.replace(question, memory=free))

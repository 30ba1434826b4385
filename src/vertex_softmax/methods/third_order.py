"""Networks with norms whose boxes `joint` leaves too wide: zonotopes to third order in the input's unknowns.

Invariant: the bounds hold over the whole set of the question, as those of `joint` do; there is no tree.

Behind a second attention errors of third order multiply, so that a margin falls by many times itself within a tenth of
the radius (docs/norms.md). With products of three of the input's unknowns kept apart errors are of fourth order. That
takes some fifteen times as long as `joint`; it is done where `joint` has not decided, if it is expected to end in time.
"""

from __future__ import annotations

import dataclasses
import math
import time

import torch
from torch import Tensor

from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import triple_numbers
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import input_products
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import tightened_boxes, uses_zonotopes
from vertex_softmax.methods.last_pass import Passes, last_pass
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.ops.triples import size
from vertex_softmax.sets.region import BoxRegion

A_SECOND = 2e7
"""About how many products of three, times numbers of all nodes, are done in a second on one thread."""


def to_third_order(question: Question, objective: Objective, options: Options, seconds: float | None) -> Tensor | None:
    """Lower bounds (1, S) of dense objectives within some time; None if they would take too much, or are none."""
    begin = time.perf_counter()
    if not _is_asked(question, options) or (seconds is not None and _expected(question) > seconds):
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


def _is_asked(question: Question, options: Options) -> bool:
    """Whether a network has norms, one input that is a box, and products of three that fit into memory."""
    normal = any(isinstance(node.op, Normalize) for node in question.graph.nodes())
    box = question.batch == 1 and isinstance(question.given, BoxRegion)
    if not (normal and box and uses_zonotopes(question, options)):
        return False
    inputs = input_products(question)
    most = question.memory.most_pairs(question.dtype.itemsize)
    return inputs is not None and triple_numbers(question.graph, inputs.count) <= most


def _expected(question: Question) -> float:
    """About how many seconds it takes."""
    inputs = input_products(question)
    return 0.0 if inputs is None else size(inputs.count) * _numbers(question.graph) / A_SECOND


def _numbers(graph: Graph) -> int:
    return sum(math.prod(node.shape) for node in graph.nodes())

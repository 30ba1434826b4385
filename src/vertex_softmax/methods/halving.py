"""Networks with few inputs that vary: the input's box is cut into halves until `crown` bounds each of them.

Invariant: the bounds hold over the whole set of the question, as those of every method do (bounds/halving.py).

This is tried before any split inside of the network. With at most FEW numbers that vary it goes on as long as it has
time, because it ends sooner or later; with more, as long as its worst bound promises an end.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from vertex_softmax.bounds.aims import Aim, Outcome, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.halving import BoundBoxes, Halves, InputHalving
from vertex_softmax.bounds.memory import MOST_PAIR_NUMBERS, PAIR_ARRAYS, pair_numbers
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotope_sizes import zonotope_numbers
from vertex_softmax.foundation.tolerances import VERDICT
from vertex_softmax.methods.crown import crown
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion

FEW = 12
"""With so many numbers that vary it is patient."""
MOST = 32
"""With more numbers that vary it is not tried."""
TOGETHER = 1 << 20
"""About how many numbers boxes that are bounded together have, in all nodes."""
WIDTH = 256
"""At most so many boxes are bounded together."""
BYTES = 1 << 29
"""About what the zonotopes of these boxes take, at most."""


def by_halving(
    question: Question, aim: Aim, options: Options, watchers: Watchers, seconds: float | None
) -> Outcome | None:
    """Bounds of objectives over a question with one box, within some seconds; None where it is not tried."""
    share, varying = options.search.halving, numbers_that_vary(question)
    if not is_meant(question, options):
        return None
    plain = dataclasses.replace(options, ascent=None, goal=None)

    def make(narrower: Question, objective: Objective) -> BoundBoxes:
        found = crown(narrower, objective, plain)
        lower = found.lower
        for size in found.terms.values():
            lower = torch.minimum(lower, found.lower - VERDICT[narrower.dtype] * size)
        for problem in found.boxes.problems:
            lower = torch.where(problem.where.unsqueeze(1), -math.inf, lower)
        return BoundBoxes(lower, found.boxes)

    limits = Halves(
        width=_width(question, varying),
        patient=varying <= FEW,
        domains=options.search.domains,
        bytes=question.memory.for_parts(options.search.memory),
    )
    rules = Rules(attention=RowRule.LSE, product=options.product)
    halving = InputHalving(question, aim, rules, make, limits, watchers)
    outcome = halving.run(None if seconds is None else share * seconds)
    if watchers.record is not None:
        noted = {k for box in halving.noted for k in box.objectives}
        watchers.record.note_halves(halving.noted, [k for k in sorted(noted) if int(outcome.open[k]) == 0])
    return outcome


def is_meant(question: Question, options: Options) -> bool:
    """Whether the box of a question is halved: it is one box, in which few numbers vary."""
    return options.search.halving > 0 and 0 < numbers_that_vary(question) <= MOST


def numbers_that_vary(question: Question) -> int:
    """How many numbers of the input vary, if the question is about one box; 0 otherwise."""
    if question.batch != 1 or not isinstance(question.given, BoxRegion):
        return 0
    box = question.given.box
    return int((box.upper > box.lower).sum())


def _width(question: Question, varying: int) -> int:
    """How many boxes are bounded together."""
    graph, item = question.graph, question.dtype.itemsize
    numbers = sum(math.prod(node.shape) for node in question.index.nodes)
    products = pair_numbers(graph, varying)
    each = item * (zonotope_numbers(graph, varying, local=True) + PAIR_ARRAYS * min(products, MOST_PAIR_NUMBERS))
    room = BYTES if question.memory.total is None else min(BYTES, question.memory.total // 4)
    return max(2, min(WIDTH, TOGETHER // max(1, numbers), room // max(1, each)))

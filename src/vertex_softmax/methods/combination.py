"""Methods made of others: their bounds are at least as tight as those of each part, by construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.methods.bound import Bound, larger
from vertex_softmax.methods.options import Options

Own = Callable[[Sequence[Boxes]], Bound]
"""Makes a method's own boxes, met with the given ones, and bounds the objectives over them."""


def combined(own: Bound, *others: Bound) -> Bound:
    """The entrywise largest bounds, with the first one's boxes and the problems of all of them."""
    marks = [bound.hopeless for bound in (own, *others) if bound.hopeless is not None]
    hopeless = torch.stack(marks).any(0) if marks else None
    problems = tuple(dict.fromkeys(problem for bound in (own, *others) for problem in bound.boxes.problems))
    boxes = own.boxes  # the same object if there are no new problems, which saves meeting it with itself
    if problems != boxes.problems:
        boxes = dataclasses.replace(boxes, problems=problems)
    lower = larger(own.lower, *(other.lower for other in others))
    return dataclasses.replace(own, lower=lower, boxes=boxes, hopeless=hopeless)


def goal_first(own: Own, in_full: Callable[[], Bound], options: Options) -> Bound:
    """Run a method in full. With a goal, first bound over its own boxes alone, and return that if it settles every
    objective.
    """
    if options.goal is None:
        return in_full()
    alone = own(())
    settled = (alone.lower > options.goal).all(1)
    if alone.hopeless is not None:
        settled = settled | alone.hopeless
    return alone if bool(settled.all()) else combined(in_full(), alone)

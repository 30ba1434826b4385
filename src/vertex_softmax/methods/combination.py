"""Methods that are made of others: at least as tight as each of them, by construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch

from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.methods.bound import Bound, larger
from vertex_softmax.methods.options import Options

Own = Callable[[Sequence[Boxes]], Bound]
"""A method's own boxes, met with known ones, and its bounds over them."""


def combined(own: Bound, *others: Bound) -> Bound:
    """The larger bounds over a method's own boxes; the problems of all of them count."""
    marks = [bound.hopeless for bound in (own, *others) if bound.hopeless is not None]
    hopeless = torch.stack(marks).any(0) if marks else None
    problems = tuple(dict.fromkeys(problem for bound in (own, *others) for problem in bound.boxes.problems))
    boxes = own.boxes  # the same object where nothing is new, as whoever meets it with itself need not do so
    if problems != boxes.problems:
        boxes = dataclasses.replace(boxes, problems=problems)
    lower = larger(own.lower, *(other.lower for other in others))
    return dataclasses.replace(own, lower=lower, boxes=boxes, hopeless=hopeless)


def goal_first(own: Own, in_full: Callable[[], Bound], options: Options) -> Bound:
    """A method in full; with a goal its own boxes alone first, which are enough if they settle every objective."""
    if options.goal is None:
        return in_full()
    alone = own(())
    settled = (alone.lower > options.goal).all(1)
    if alone.hopeless is not None:
        settled = settled | alone.hopeless
    return alone if bool(settled.all()) else combined(in_full(), alone)

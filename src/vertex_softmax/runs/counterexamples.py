"""Counterexamples: a short attack on inputs that are not verified, and the judgement of what it found.

Invariant: what `attacked` finds is a point of its set, without tolerance; bounds in float64 over that point
alone put a class that counts above the label, by more than rounding can have added; and the user's own model, in its
own precision, puts one above it there too.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError
from vertex_softmax.runs.centres import Centres
from vertex_softmax.runs.classes import Classes
from vertex_softmax.search.attack import Descent, descended
from vertex_softmax.sets import InputSet


@dataclasses.dataclass(frozen=True)
class Attacking:
    """The short attack beside the bounds: projected gradient descent (search/attack.py) on inputs not verified."""

    steps: int = 12
    restarts: int = 2
    targets: int = 3
    """to how many classes it descends, those with the least bounds; 0: no attack"""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("restarts", 1), ("targets", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidTypeError(f"{name} is {value!r}; give an integer")
            if value < least:
                raise InvalidValueError(f"{name} is {value}; it must be at least {least}")


DEFAULT = Attacking()
BYTES = 1 << 30
"""What the points that go through the network at once may take, roughly, unless the options' memory allows less."""
ALIVE = 4
"""Numbers in memory for each activation of a point: values, gradients, and what the gradient needs."""


@dataclasses.dataclass(frozen=True, eq=False)
class Counterexamples:
    """Counterexamples among n inputs."""

    where: Tensor
    """(n,) bool: which inputs have one"""
    points: Tensor
    """(n, *input shape) float64, points of the sets"""
    margins: Tensor
    """(n, classes): the margins there; inf at the label and at classes that do not count"""


def attacked(centres: Centres, classes: Classes, bounds: Tensor, how: Attacking) -> Counterexamples:
    """Attack every input of `centres`; bounds (n, T) of the margins to the targets say which targets come first.

    Where the memory allows few points at once there are fewer targets and restarts; where it allows none, no attack.
    """
    room = _points(centres)
    restarts = min(how.restarts, room)
    count = min(how.targets, bounds.shape[1], room // max(1, restarts))
    if not count or not restarts:
        return judged(centres, classes, centres.input_set.centre, torch.zeros_like(classes.labels, dtype=torch.bool))
    least = bounds.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    order = least.topk(count, dim=1, largest=False).indices
    home = centres.input_set.lower.device
    aims, labels = classes.targets.gather(1, order).to(home), classes.labels.to(home)
    graph = centres.graph

    def logits(x: Tensor) -> Tensor:
        x = x.reshape(len(x), *graph.input.shape).to(graph.device)
        return classes.logits(graph.evaluate(x)).to(home)

    descent = Descent(how.steps, restarts, None, how.seed, room)
    margins, points = descended(logits, centres.input_set, labels, aims, descent)
    worst = points[torch.arange(len(points), device=home), margins.argmin(1)]
    chosen = in_precision(worst, centres.input_set, centres.original.precision)
    return judged(centres, classes, chosen, margins.amin(1) < 0)


def _points(centres: Centres) -> int:
    """How many points may go through the network at once."""
    total = centres.options.memory.total
    numbers = sum(math.prod(node.shape) for node in centres.graph.nodes())
    return min(BYTES, BYTES if total is None else total) // (8 * ALIVE * max(1, numbers)) or int(total is None)


def judged(centres: Centres, classes: Classes, points: Tensor, suspects: Tensor) -> Counterexamples:
    """Which of the points (n, *input shape), where suspected, are counterexamples."""
    inside = centres.input_set.contains(points) & suspects.to(points.device)
    placed = points.reshape(len(points), *centres.graph.input.shape).to(centres.graph.device)
    where = centres.misclassified(classes, inside.to(classes.labels.device), placed)
    with torch.no_grad():
        scores = classes.logits(centres.graph.evaluate(placed))
    margins = scores.gather(1, classes.labels[:, None]) - scores.gather(1, classes.targets)
    return Counterexamples(where, points, classes.spread(margins))


def in_precision(points: Tensor, input_set: InputSet, dtype: torch.dtype) -> Tensor:
    """The points as floats of the model's own precision, rounded towards the centre; unchanged where that leaves a set.

    So the user's model takes exactly the point that is reported.
    """
    if dtype != torch.float32:
        return points
    centre, near = input_set.centre, points.to(dtype)
    beyond = (near.double() - centre).abs() > (points - centre).abs()
    towards = torch.where(near.double() > centre, -torch.inf, torch.inf).to(dtype)
    rounded = torch.where(beyond, torch.nextafter(near, towards), near).double()
    inside = input_set.contains(rounded).reshape(-1, *[1] * (points.dim() - 1))
    return torch.where(inside, rounded, points)

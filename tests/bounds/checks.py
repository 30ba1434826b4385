"""What every method must hold: boxes around all sampled values, bounds below all sampled minima."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from tests.bounds.networks import descend, samples
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT, Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Constant, Graph, Node
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method, lower_bounds
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules
from vertex_softmax.sets.region import BoxRegion

TOLERANCE = 1e-9
"""Of 1 + the size of the values: what depth and rounding may cost in float64."""


QUICK = Options(ascent=Ascent(steps=2))
"""Few steps of ascent: every one of them is as sound as the last."""
SMALL = Options(memory=Memory(bytes=1), ascent=Ascent(steps=2))
"""One objective at a time."""


def asked(graph: Graph, lower: Tensor, upper: Tensor, memory: Memory | None = None) -> Question:
    """The question about a graph over a box."""
    return Question.over(graph, BoxRegion(lower, upper), memory=memory)


@dataclasses.dataclass(frozen=True)
class Ready:
    """A question whose boxes are made."""

    question: Question
    boxes: Boxes

    @property
    def graph(self) -> Graph:
        return self.question.graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.question.index.nodes

    @property
    def box(self) -> Interval:
        """Of the input."""
        return self.boxes[self.graph.input]

    def on_output(self, A: Tensor) -> Objective:
        return Objective.dense(self.graph.output, A)

    def bound(self, A: Tensor, rules: Rules, choice: Choice = DEFAULT) -> Tensor:
        """By one pass from the output."""
        return lower_bound(self.question, self.boxes, self.on_output(A), rules, choice)


def tightened(
    graph: Graph, lower: Tensor, upper: Tensor, options: Options | None = None, memory: Memory | None = None
) -> Ready:
    """With the boxes of `joint` alone."""
    question = asked(graph, lower, upper, memory)
    with torch.no_grad():
        boxes = tightened_boxes(question, options or Options())
    assert not boxes.problems, boxes.problems
    return Ready(question, boxes)


def objectives(graph: Graph, batch: int, seed: int = 0) -> Tensor:
    """(batch, S, *output): units, their negatives, and mixed ones."""
    size = graph.output.shape
    eye = torch.eye(int(torch.tensor(size).prod()), dtype=torch.float64).reshape(-1, *size)
    mixed = torch.randn(3, *size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([eye, -eye, mixed]).expand(batch, -1, *size)


def by_method(question: Question, method: str, options: Options | None = None, A: Tensor | None = None) -> Bound:
    """A method's bounds of objectives on the output."""
    wanted = objectives(question.graph, question.batch) if A is None else A
    with torch.no_grad():
        return lower_bounds(question, Objective.dense(question.graph.output, wanted), Method(method), options or QUICK)


def bounded(
    graph: Graph, lower: Tensor, upper: Tensor, method: str, options: Options | None = None, A: Tensor | None = None
) -> Bound:
    """The same, of a question of its own."""
    return by_method(asked(graph, lower, upper, (options or QUICK).memory), method, options, A)


def hard_points(graph: Graph, lower: Tensor, upper: Tensor, seed: int = 0, count: int = 60) -> Tensor:
    """Corners, the interior, and what descent on random objectives of the output and of inner nodes finds."""
    g = torch.Generator().manual_seed(seed + 50)
    found = [
        samples(lower, upper, count, seed),
        descend(graph, graph.output, objectives(graph, len(lower)), lower, upper),
    ]
    inner = [node for node in graph.nodes() if node.inputs and not isinstance(node.op, Constant)]
    for i in torch.randperm(len(inner), generator=g)[:3].tolist():
        A = torch.randn(len(lower), 2, *inner[i].shape, generator=g, dtype=torch.float64)
        found.append(descend(graph, inner[i], A, lower, upper, starts=1, steps=8))
    return torch.cat(found)


def check_boxes(graph: Graph, boxes: Boxes | Mapping[Node, Interval], x: Tensor) -> None:
    for node, value in graph.values(x).items():
        lower, upper = boxes[node]
        slack = TOLERANCE * (1 + value.abs().amax(0))
        over = torch.maximum(lower - slack - value, value - upper - slack)
        assert (over <= 0).all(), f"{node!r}: a value lies outside its box by {float(over.max()):.3g}"


def check_bounds(graph: Graph, found: Tensor, A: Tensor, x: Tensor) -> None:
    values = (A * graph.evaluate(x).unsqueeze(2)).flatten(3).sum(-1)  # (points, batch, S)
    least = values.amin(0)
    over = found - least - TOLERANCE * (1 + values.abs().amax(0))
    assert not found.isnan().any(), "a bound is NaN"
    assert (over <= 0).all(), f"a bound lies above a sampled minimum by {float(over.max()):.3g}"


def check_bound(graph: Graph, bound: Bound, x: Tensor) -> None:
    """Both, at points (points, batch, …) of the inputs' boxes."""
    assert not bound.boxes.problems, bound.boxes.problems
    check_boxes(graph, bound.boxes, x)
    check_bounds(graph, bound.lower, objectives(graph, x.shape[1]), x)


def check_network(graph: Graph, lower: Tensor, upper: Tensor, method: str, options: Options | None = None) -> Bound:
    """Both, on one network."""
    bound = bounded(graph, lower, upper, method, options)
    check_bound(graph, bound, hard_points(graph, lower, upper))
    return bound

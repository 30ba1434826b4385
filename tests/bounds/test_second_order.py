"""Zonotopes to second order: at every point of the set, what the linear and the quadratic part leave is in the rest.

The input's unknowns ξ of a point are known, so both parts are known numbers there. What is left of the true value has
to lie in what is said of errors alone, far less than the whole range: a wrong coefficient of any product shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, input_box, transformer
from tests.ops.propagation import second_order_checks
from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unknowns import InputUnknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion

CONFIGS = {
    "pre gelu": Config(depth=2, heads=2, norm="pre", activation="gelu", seed=4),
    "pre gelu tanh": Config(depth=1, heads=2, norm="pre", activation="gelu tanh", width=8, seed=14),
    "post causal": Config(depth=2, norm="post", mask="causal", activation="tanh", seed=5),
    "post relu": Config(depth=2, norm="post", mask="padding", seed=15),
    "gated": Config(depth=2, gated=True, norm="pre", activation="silu", seed=6),
    "none": Config(depth=2, activation="gelu", seed=7),
    "signs of curvature": Config(tokens=3, norm="pre", activation="gelu tanh", gain=6.0, seed=211),
    "peaked": Config(depth=2, heads=2, norm="pre", activation="silu", gain=4.0, tokens=5, seed=8),
}
RADII = (1e-3, 0.02, 0.1, 0.4)


def all_zonotopes(graph: Graph, lower: Tensor, upper: Tensor) -> dict[Node, Zonotope]:
    """The zonotopes of all nodes, none dropped."""
    question = Question.over(graph, BoxRegion(lower, upper))
    start = zonotopes.input_zonotope(question.given, graph.input.name)
    found = {graph.input: zonotopes._with_products(start, question)}
    boxes = {graph.input: question.given.box}
    for node in graph.nodes():
        if node is not graph.input:
            boxes[node] = by_intervals(node, boxes)
            found[node] = zonotopes.propagated(node, found, boxes)
            boxes[node] = boxes[node].meet(found[node].tight_box)
    return found


def inputs_of(found: dict[Node, Zonotope], graph: Graph) -> InputUnknowns:
    inputs = found[graph.input].inputs
    assert inputs is not None
    return inputs


def known_part(zonotope: Zonotope, inputs: InputUnknowns, xi: Tensor) -> Tensor:
    """centre + linear + quadratic part at ξ (batch, n)."""
    return second_order_checks.known_part(zonotope, second_order_checks.products_at(inputs, xi))


def errors_alone(zonotope: Zonotope, inputs: InputUnknowns) -> Zonotope:
    return second_order_checks.errors_alone(zonotope, (inputs, inputs.squares, inputs.pairs))


def points(inputs: int, batch: int, seed: int) -> Tensor:
    """Corners, points inside, and points with all but one unknown at 0: (points, batch, inputs)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = 2 * torch.rand(12, batch, inputs, generator=generator, dtype=torch.float64) - 1
    axes = torch.eye(inputs, dtype=torch.float64)[::3].unsqueeze(1).expand(-1, batch, -1)
    return torch.cat([drawn, drawn.sign(), axes])


class Limits(NamedTuple):
    """How far errors reach: of every number of a node, and of one functional η of each row (None: it has no rows)."""

    numbers: Tensor
    eta: Tensor
    rows: Tensor | None


def limits(
    found: dict[Node, Zonotope],
    inputs: InputUnknowns,
    alone: Callable[[Zonotope, InputUnknowns], Zonotope] = errors_alone,
) -> dict[Node, Limits]:
    """Of all nodes, each with a functional of its own."""
    generator = torch.Generator().manual_seed(3)
    most = {}
    for node, zonotope in found.items():
        errors = alone(zonotope, inputs)
        eta = torch.randn(zonotope.centre.shape, generator=generator, dtype=torch.float64)
        most[node] = Limits(errors.radius, eta, errors.reach(eta) if zonotope.centre.dim() > 2 else None)
    return most


def overshoot(found: dict[Node, Zonotope], most: dict[Node, Limits], graph: Graph, box: Interval, xi: Tensor) -> Tensor:
    """The most by which what is left at ξ (points, batch, n) exceeds the errors, (batch).

    Of all numbers of all nodes, and of random functionals of rows.
    """
    inputs = inputs_of(found, graph)
    products = {
        unknowns: numbers.unflatten(0, xi.shape[:2])
        for unknowns, numbers in second_order_checks.products_at(inputs, xi.flatten(0, 1)).items()
    }

    def known(node: Node) -> Tensor:
        zonotope = found[node]
        here = [(zonotope.blocks[u], numbers) for u, numbers in products.items() if u in zonotope.blocks]
        return zonotope.centre + sum(torch.einsum("pbmk,bmk...->pb...", n, columns) for columns, n in here)

    worst = torch.full(xi.shape[1:2], -torch.inf, dtype=torch.float64)
    for node, value in graph.values(known(graph.input).clamp(*box)).items():
        left, limit = value - known(node), most[node]
        slack = 1e-12 * (1 + value.abs().flatten(2).amax(-1)).reshape(*xi.shape[:2], *[1] * (value.dim() - 2))
        above = left.abs() - limit.numbers - slack
        worst = torch.maximum(worst, above.flatten(2).amax((0, 2)))
        if limit.rows is not None:
            along = (limit.eta * left).sum(-1).abs()
            above = along - limit.rows - slack.squeeze(-1) * limit.eta.abs().sum(-1)
            worst = torch.maximum(worst, above.flatten(2).amax((0, 2)))
    return worst


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_is_in_the_errors(name: str) -> None:
    """Two boxes of each radius, in one batch."""
    config, graph = CONFIGS[name], transformer(CONFIGS[name])
    lower, upper = (torch.cat(ends) for ends in zip(*(input_box(config, 2, radius) for radius in RADII), strict=True))
    found = all_zonotopes(graph, lower, upper)
    inputs = inputs_of(found, graph)
    most, box = limits(found, inputs), Interval(lower, upper)
    worst = overshoot(found, most, graph, box, points(inputs.count, len(lower), 0))
    assert (worst <= 0).all(), dict(zip(RADII, worst.unflatten(0, (-1, 2)).tolist(), strict=True))


@pytest.mark.parametrize("name", ["pre gelu", "gated", "post causal"])
def test_errors_are_of_third_order(name: str) -> None:
    """Half the radius, an eighth of the errors at the output, or nearly."""
    config = CONFIGS[name]
    graph = transformer(config)
    sizes = []
    for radius in (2e-3, 1e-3):
        lower, upper = input_box(config, 1, radius)
        found = all_zonotopes(graph, lower, upper)
        sizes.append(errors_alone(found[graph.output], inputs_of(found, graph)).radius.mean())
    assert float(sizes[0] / sizes[1]) > 7


def test_an_attack_on_the_errors_stays_within() -> None:
    """The residual itself is maximised by gradient steps, for every number of the output."""
    config = CONFIGS["pre gelu"]
    graph, (lower, upper) = transformer(config), input_box(config, 1, 0.2)
    found = all_zonotopes(graph, lower, upper)
    inputs, out = inputs_of(found, graph), found[graph.output]
    count = inputs.count
    errors = errors_alone(out, inputs).radius
    generator = torch.Generator().manual_seed(5)
    for index in range(out.centre.shape[-1]):
        for sign in (1.0, -1.0):
            xi = 2 * torch.rand(1, count, generator=generator, dtype=torch.float64) - 1
            for step in range(25):
                xi = xi.detach().requires_grad_(True)
                x = known_part(found[graph.input], inputs, xi)
                left = (graph.values(x)[graph.output] - known_part(out, inputs, xi))[..., index].sum()
                assert float(left.detach().abs()) <= float(errors[..., index].max()) + 1e-12
                (gradient,) = torch.autograd.grad(sign * left, xi)
                xi = (xi + (0.4 if step < 12 else 0.1) * gradient.sign()).clamp(-1, 1)

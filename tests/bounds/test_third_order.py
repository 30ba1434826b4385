"""Zonotopes to third order: at every point of the set, what products of up to three unknowns leave is in the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import input_box, transformer
from tests.bounds.test_second_order import CONFIGS, RADII, inputs_of, limits, overshoot, points
from tests.ops.propagation import second_order_checks
from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion


def all_zonotopes(graph: Graph, lower: Tensor, upper: Tensor) -> dict[Node, Zonotope]:
    """The zonotopes of all nodes, none dropped."""
    question = Question.over(graph, BoxRegion(lower, upper)).to_third_order(None)
    start = zonotopes.input_zonotope(question.given, graph.input.name)
    found = {graph.input: zonotopes._with_products(start, question)}
    boxes = {graph.input: question.given.box}
    for node in graph.nodes():
        if node is not graph.input:
            boxes[node] = by_intervals(node, boxes)
            found[node] = zonotopes.propagated(node, found, boxes)
            boxes[node] = boxes[node].meet(found[node].tight_box)
    return found


def errors_alone(zonotope: Zonotope, inputs: InputUnknowns) -> Zonotope:
    assert inputs.triples is not None
    known: tuple[Unknowns, ...] = (inputs, inputs.squares, inputs.pairs, inputs.triples)
    return second_order_checks.errors_alone(zonotope, known)


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_is_in_the_errors(name: str) -> None:
    """Of all numbers of all nodes and of functionals of rows; two boxes of each radius, in one batch."""
    config, graph = CONFIGS[name], transformer(CONFIGS[name])
    lower, upper = (torch.cat(ends) for ends in zip(*(input_box(config, 2, radius) for radius in RADII), strict=True))
    found = all_zonotopes(graph, lower, upper)
    inputs = inputs_of(found, graph)
    most, box = limits(found, inputs, errors_alone), Interval(lower, upper)
    worst = overshoot(found, most, graph, box, points(inputs.count, len(lower), 0))
    assert (worst <= 0).all(), dict(zip(RADII, worst.unflatten(0, (-1, 2)).tolist(), strict=True))


@pytest.mark.parametrize("name", ["pre gelu", "post causal"])
def test_errors_are_of_fourth_order(name: str) -> None:
    """Half the radius, a sixteenth of the errors at the output, or nearly: eps leaves a little of second order."""
    config = CONFIGS[name]
    graph = transformer(config)
    sizes = []
    for radius in (0.03, 0.015):
        lower, upper = input_box(config, 1, radius)
        found = all_zonotopes(graph, lower, upper)
        sizes.append(errors_alone(found[graph.output], inputs_of(found, graph)).radius.mean())
    assert float(sizes[0] / sizes[1]) > 11


def test_an_attack_on_the_errors_stays_within() -> None:
    """The residual itself is maximised by gradient steps, for every number of the output."""
    config = CONFIGS["pre gelu"]
    graph, (lower, upper) = transformer(config), input_box(config, 1, 0.2)
    found = all_zonotopes(graph, lower, upper)
    inputs, out = inputs_of(found, graph), found[graph.output]
    errors = errors_alone(out, inputs).radius
    generator = torch.Generator().manual_seed(5)

    def known(zonotope: Zonotope, xi: Tensor) -> Tensor:
        return second_order_checks.known_part(zonotope, second_order_checks.products_at(inputs, xi))

    for index in range(out.centre.shape[-1]):
        for sign in (1.0, -1.0):
            xi = 2 * torch.rand(1, inputs.count, generator=generator, dtype=torch.float64) - 1
            for step in range(25):
                xi = xi.detach().requires_grad_(True)
                left = graph.values(known(found[graph.input], xi))[graph.output] - known(out, xi)
                left = left[..., index].sum()
                assert float(left.detach().abs()) <= float(errors[..., index].max()) + 1e-12
                (gradient,) = torch.autograd.grad(sign * left, xi)
                xi = (xi + (0.4 if step < 12 else 0.1) * gradient.sign()).clamp(-1, 1)

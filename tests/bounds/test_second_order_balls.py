"""Zonotopes to second order over a Euclidean ball: what the linear and the quadratic part leave is in the errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops import pairs
from vertex_softmax.ops.unknowns import BallProducts, InputUnknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.lp_ball import LpBall

CONFIGS = {
    "pre gelu": Config(depth=2, heads=2, norm="pre", activation="gelu", seed=4),
    "post causal": Config(depth=2, norm="post", mask="causal", activation="tanh", seed=5),
    "gated": Config(depth=2, gated=True, norm="pre", activation="silu", seed=6),
    "peaked relu": Config(depth=2, heads=2, norm="pre", activation="relu", gain=4.0, tokens=5, seed=8),
}
RADII = (1e-3, 0.1, 0.8)


def ball_of(config: Config) -> LpBall:
    """One ball of each radius, with half axes of their own."""
    lower, upper = (torch.cat(ends) for ends in zip(*(input_box(config, 1, r) for r in RADII), strict=True))
    return LpBall((lower + upper) / 2, (upper - lower) / 2, 2)


def all_zonotopes(graph: Graph, ball: LpBall) -> dict[Node, Zonotope]:
    """The zonotopes of all nodes, none dropped."""
    question = Question.over(graph, ball.region(graph.input.shape, torch.float64, torch.device("cpu")))
    start = zonotopes.input_zonotope(question.given, graph.input.name)
    found = {graph.input: zonotopes._with_products(start, question)}
    boxes = {graph.input: question.given.box}
    for node in graph.nodes():
        if node is not graph.input:
            boxes[node] = by_intervals(node, boxes)
            found[node] = zonotopes.propagated(node, found, boxes)
            boxes[node] = boxes[node].meet(found[node].tight_box)
    return found


def known_part(zonotope: Zonotope, inputs: InputUnknowns, xi: Tensor) -> Tensor:
    """centre + linear + quadratic part at ξ (points, batch, n)."""
    first, second = pairs.places(inputs.count, xi.device)
    products = torch.cat([math.sqrt(2) * xi[..., first] * xi[..., second], xi.square()], -1)
    found = zonotope.centre.expand(len(xi), *zonotope.centre.shape)
    for unknowns, numbers in ((inputs, xi), (inputs.pairs, products)):
        if unknowns in zonotope.blocks:
            found = found + torch.einsum("pbk,bk...->pb...", numbers, zonotope.blocks[unknowns].squeeze(1))
    return found


def errors_alone(zonotope: Zonotope, inputs: InputUnknowns) -> Zonotope:
    others = {u: columns for u, columns in zonotope.blocks.items() if u not in (inputs, inputs.pairs)}
    return Zonotope(torch.zeros_like(zonotope.centre), others, zonotope.own, zonotope.slack)


def points(count: int, batch: int, seed: int) -> Tensor:
    """Of the unit ball, (points, batch, count): most of them on its surface, among them the axes."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(30, batch, count, generator=generator, dtype=torch.float64) ** 3
    drawn = drawn / drawn.norm(dim=-1, keepdim=True)
    axes = torch.eye(count, dtype=torch.float64).unsqueeze(1).expand(-1, batch, -1)
    return torch.cat([drawn, 0.5 * drawn, axes, -axes])


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_is_in_the_errors(name: str) -> None:
    """Of every number of every node; and the whole range holds the values as well."""
    graph, ball = transformer(CONFIGS[name]), ball_of(CONFIGS[name])
    found = all_zonotopes(graph, ball)
    inputs = found[graph.input].inputs
    assert inputs is not None
    assert inputs.ball
    assert isinstance(inputs.pairs, BallProducts)
    xi = points(inputs.count, len(RADII), 0)
    x = known_part(found[graph.input], inputs, xi)
    for node, value in graph.values(x).items():
        left = (value - known_part(found[node], inputs, xi)).abs()
        slack = 1e-12 * (1 + value.abs().flatten(2).amax(-1)).reshape(*xi.shape[:2], *[1] * (value.dim() - 2))
        assert (left <= errors_alone(found[node], inputs).radius + slack).all(), node
        for radius in (found[node].radius, found[node].tight_radius):
            assert ((value - found[node].centre).abs() <= radius + slack).all(), node


def test_an_attack_on_the_errors_stays_within() -> None:
    """The residual itself is maximised in the ball, for every number of the output."""
    graph, ball = transformer(CONFIGS["pre gelu"]), ball_of(CONFIGS["pre gelu"])
    found = all_zonotopes(graph, ball)
    inputs, out = found[graph.input].inputs, found[graph.output]
    assert inputs is not None
    errors = errors_alone(out, inputs).radius
    size = math.prod(out.centre.shape[1:])
    xi = points(inputs.count, len(RADII), 1)[: 2 * size]
    way = torch.cat([torch.eye(size, dtype=torch.float64), -torch.eye(size, dtype=torch.float64)])[: len(xi)]
    for _ in range(30):
        xi = xi.detach().requires_grad_(True)
        left = graph.values(known_part(found[graph.input], inputs, xi))[graph.output] - known_part(out, inputs, xi)
        assert (left.detach().abs() <= errors + 1e-12).all()
        relative = (left / errors).flatten(2)
        (gradient,) = torch.autograd.grad((relative * way.unsqueeze(1)).sum(), xi)
        xi = xi + 0.2 * gradient / gradient.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        xi = xi / xi.norm(dim=-1, keepdim=True).clamp(min=1)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_reach_of_quadratic_forms_over_a_ball(count: int) -> None:
    """Not below the largest eigenvalue in size, not above the Frobenius norm, and within a few percent of the first."""
    generator = torch.Generator().manual_seed(count)
    M = torch.randn(2, 7, count, count, generator=generator, dtype=torch.float64)
    M = (M + M.mT) / 2
    M[0, 0] = 0
    M[1, 1] *= 1e-200
    first, second = pairs.places(count, M.device)
    columns = torch.cat([math.sqrt(2) * M[..., first, second], M.diagonal(dim1=-2, dim2=-1)], -1)
    found = pairs.ball_reach(columns.mT.unsqueeze(1), count)
    exact = torch.linalg.eigvalsh(M).abs().amax(-1)
    assert (found >= exact * (1 - 1e-15)).all()
    assert (found <= 1.1 * exact).all()

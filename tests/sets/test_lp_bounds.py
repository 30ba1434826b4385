"""Transformers over balls: no bound of any method lies above what a descent in the ball reaches, nor any box below."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import by_method, objectives
from tests.bounds.networks import Config, transformer
from tests.slowly import few
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.sets.lp_ball import LpBall
from vertex_softmax.sets.region import BoxRegion, Region

CONFIGS = {
    "relu": Config(heads=2, seed=2),
    "class token": Config(heads=2, activation="relu", class_token=True, pooling="token", seed=5),
    "norm": Config(norm="pre", activation="gelu", class_token=True, pooling="token", seed=4),
}


def pulled(z: Tensor, p: int, per_token: bool) -> Tensor:
    """(points, batch, tokens, n) pulled into the unit balls."""
    flat = z if per_token else z.flatten(2).unsqueeze(2)
    size = torch.linalg.vector_norm(flat, ord=p, dim=-1, keepdim=True)
    return (flat / size.clamp(min=1)).reshape(z.shape)


def attacked(graph: Graph, ball: LpBall, A: Tensor) -> Tensor:
    """Points of the balls, (points, batch, *input): random ones, vertices, and where a projected descent ends."""
    generator = torch.Generator().manual_seed(0)
    p, centre, radius = int(ball.p), ball.centre, ball.eps
    z = torch.randn(4 * A.shape[1], *centre.shape, generator=generator, dtype=torch.float64)
    mine = A.transpose(0, 1).repeat(4, *[1] * (A.dim() - 1))
    visited = []
    for k in range(30):
        z = pulled(z, p, ball.per_token).requires_grad_()
        visited.append(z.detach())
        value = (mine * graph.values(centre + radius * z)[graph.output]).sum()
        (g,) = torch.autograd.grad(value, z)
        size = g.flatten(2).norm(dim=-1).clamp(min=1e-300).reshape(*g.shape[:2], 1, 1)
        z = z.detach() - 0.9**k * g / size
    some = torch.randn(500, *centre.shape, generator=generator, dtype=torch.float64) ** 5
    far = pulled(1e9 * some, p, ball.per_token)
    eye = (
        torch.eye(centre[0].numel(), dtype=torch.float64)
        .reshape(-1, 1, *centre.shape[1:])
        .expand(-1, len(centre), -1, -1)
    )
    points = centre + radius * torch.cat([*visited[-3:], far, eye, -eye])
    clip = (-math.inf, math.inf) if ball.clip is None else ball.clip
    return points.clamp(*clip)


@pytest.mark.parametrize("method", few(METHODS, lambda method: method == "crown"))
@pytest.mark.parametrize(
    ("kind", "p"),
    few(
        itertools.product(["one ball", "a ball for each token", "cut"], [1, 2]),
        lambda kind, p: (kind == "cut") == (p == 1),
    ),
)
@pytest.mark.parametrize("name", CONFIGS)
def test_no_bound_is_above_an_attack(name: str, p: int, kind: str, method: str) -> None:
    config = CONFIGS[name]
    graph = transformer(config)
    A = objectives(graph, 2)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, config.tokens, config.inputs, generator=generator, dtype=torch.float64)
    if method == "bab" and (name, kind) != ("class token", "one ball"):
        pytest.skip("the search takes long; one network is enough for it")
    for eps in (0.05, 0.6) if method == "crown" else (0.6,):
        radius = eps * (0.5 + torch.rand(x.shape, generator=generator, dtype=torch.float64))
        radius[..., 0] = 0  # a number that is fixed
        clip = (float(x.min()), float(x.max())) if kind == "cut" else None
        ball = LpBall(x, radius, p, clip, per_token=kind == "a ball for each token")
        region: Region = ball.region(x.shape[1:], torch.float64, torch.device("cpu"))
        if method == "bab":  # one input at a time
            region = region.at(slice(0, 1))
            ball, A_ = ball[0], A[:1]
        else:
            A_ = A
        bound = by_method(Question.over(graph, region), method, A=A_)
        assert not bound.boxes.problems
        points = attacked(graph, ball, A_)
        values = (A_ * graph.evaluate(points).unsqueeze(2)).flatten(3).sum(-1)
        over = bound.lower - values.amin(0) - 1e-9 * (1 + values.abs().amax(0))
        assert (over <= 0).all(), f"a bound lies above a value in the ball by {float(over.max()):.3g}"
        for node, value in graph.values(points).items():
            lower, upper = bound.boxes[node]
            slack = 1e-9 * (1 + value.abs().amax(0))
            assert ((value >= lower - slack) & (value <= upper + slack)).all(), node
        if method == "crown" and eps < 0.1:
            boxed = by_method(Question.over(graph, BoxRegion(*region.box)), method, A=A_)
            assert bool((bound.lower >= boxed.lower - 1e-5 * (1 + boxed.lower.abs())).all())

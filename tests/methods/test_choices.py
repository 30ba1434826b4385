"""Bounds over choices of words against all of their combinations, by every method."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import QUICK
from tests.bounds.networks import Config, transformer
from tests.sets.choice_cases import choice_region, every
from tests.slowly import few
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.registry import METHODS, Method, lower_bounds
from vertex_softmax.sets.choice_region import ChoiceRegion
from vertex_softmax.sets.region import BoxRegion

CONFIGS = [
    Config(heads=2, tokens=4, inputs=3),
    Config(depth=2, tokens=4, inputs=3, seed=1),
    Config(heads=2, tokens=4, inputs=3, norm="post", seed=2),
    Config(tokens=4, inputs=3, norm="pre", activation="gelu", class_token=True, seed=3),
    Config(tokens=4, inputs=3, mask="causal", gain=3.0, pooling="token", seed=4),
    Config(tokens=4, inputs=3, fused=False, gated=True, seed=5),
]
COUNTS = ((3, 1, 2, 3), (1, 4, 1, 2))


def objectives(graph: Graph, batch: int) -> Tensor:
    size = graph.output.shape[0]
    eye = torch.eye(size, dtype=torch.float64)
    return torch.cat([eye, -eye, eye[:1] - eye[1:2]]).expand(batch, -1, -1)


def least(graph: Graph, region: ChoiceRegion, C: Tensor) -> Tensor:
    return torch.stack([(graph.evaluate(every(region, i)) @ C[i].mT).amin(0) for i in range(len(C))])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("method", few(METHODS, lambda method: method in ("crown", "joint")))
def test_no_combination_is_below_a_bound(config: Config, method: Method) -> None:
    graph = transformer(config)
    for seed, apart in ((0, 0.3), (1, 1.5)):
        region = choice_region((4, 3), COUNTS, seed, apart=apart)
        C = objectives(graph, 2)
        some = [region.at(slice(i, i + 1)) for i in range(2)] if method is Method.BAB else [region]
        with torch.no_grad():
            found = [
                lower_bounds(
                    Question.over(graph, each),
                    Objective.dense(graph.output, C[: len(each.allowed)]),
                    method,
                    QUICK,
                )
                for each in some
            ]
        lower, exact = torch.cat([each.lower for each in found]), least(graph, region, C)
        assert bool((lower <= exact + 1e-9 * (1 + exact.abs())).all())
        assert bool(lower.isfinite().all())
        for at, each in enumerate(found):
            for i in range(len(each.lower)):
                values = graph.values(every(region, at + i))
                for node in graph.nodes():
                    box, value = each.boxes[node], values[node]
                    box = type(box)(*(end[min(i, len(end) - 1)] for end in box))
                    assert bool((value >= box.lower - 1e-9).all() & (value <= box.upper + 1e-9).all()), node


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_zonotopes_hold_every_combination(config: Config) -> None:
    graph = transformer(config)
    region = choice_region((4, 3), COUNTS, 2, apart=0.4)
    with torch.no_grad():
        boxes = boxes_by_zonotopes(Question.over(graph, region))
    for i in range(2):
        value, box = graph.evaluate(every(region, i)), boxes[graph.output]
        assert bool((value >= box.lower[i] - 1e-9).all() & (value <= box.upper[i] + 1e-9).all())


@pytest.mark.parametrize("method", ["ibp", "crown", "vertex", "hybrid"])
def test_scores_of_the_first_block_have_their_exact_ranges_in_every_method(method: str) -> None:
    graph = transformer(CONFIGS[0])
    region = choice_region((4, 3), COUNTS, 3)
    with torch.no_grad():
        question = Question.over(graph, region)
        found = lower_bounds(question, Objective.dense(graph.output, objectives(graph, 2)), Method(method), QUICK)
    scores = next(node for node in graph.nodes() if "scores" in node.name)
    for i in range(2):
        values = graph.values(every(region, i))[scores]
        torch.testing.assert_close(found.boxes[scores].lower[i], values.amin(0), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.boxes[scores].upper[i], values.amax(0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "method",
    few([method for method in METHODS if method is not Method.BAB], lambda method: method in ("crown", "joint")),
)
def test_bounds_over_choices_are_not_below_those_over_the_box_around_them(method: Method) -> None:
    gains = []
    for config in CONFIGS[:2]:
        graph = transformer(config)
        region = choice_region((4, 3), COUNTS, 4, apart=0.5)
        C = objectives(graph, 2)
        with torch.no_grad():
            ours, box = (
                lower_bounds(Question.over(graph, each), Objective.dense(graph.output, C), method, QUICK).lower
                for each in (region, BoxRegion(*region.box))
            )
        gains.append(ours - box)
    assert float(torch.cat(gains).mean()) > 0
    if method is Method.IBP:
        assert float(torch.cat(gains).min()) > -1e-9

"""The counts of unknowns along a graph are about those of the zonotopes that are made, and not fewer."""

from __future__ import annotations

import math

import pytest
import torch

from vertex_softmax.bounds import gathering, zonotope_sizes, zonotopes
from vertex_softmax.bounds.memory import MOST_GENERATOR_NUMBERS
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotope_sizes import REDUCED, ZONOTOPES, zonotope_numbers
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall
from vertex_softmax.sets.loading import load

torch.set_num_threads(1)
CPU = torch.device("cpu")


def network(**shape: object) -> tuple[Graph, LinfBall]:
    made = {"image": 8, "patch": 2, "dim": 8, "heads": 2, "mlp": 8, "classes": 3, **shape}
    net = PatchTransformer(**made).double().eval()  # type: ignore[arg-type]
    ball = LinfBall(torch.full((1, 1, made["image"], made["image"]), 0.5, dtype=torch.float64), 1e-3)
    return load(net, ball), ball


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"norm": "layer", "activation": "gelu"},
        {"norm": "layer", "activation": "gelu", "pool": "class", "blocks": 2},
        {"blocks": 4},
    ],
)
def test_no_zonotope_has_more(shape: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    graph, ball = network(**shape)
    seen = [0]
    reduced = zonotopes.reduced

    def watched(found: zonotopes.Zonotope, *rest: object, **more: object) -> zonotopes.Zonotope:
        seen.append(sum(columns.numel() for columns in found.blocks.values()))
        return reduced(found, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(zonotopes, "reduced", watched)
    monkeypatch.setattr(zonotopes, "input_products", lambda _question: None)
    monkeypatch.setattr(gathering, "MOST_SHARE", 0.0)  # as in sets in which errors are large
    region = ball.region(graph.input.shape, torch.float64, CPU)
    zonotopes.boxes_by_zonotopes(Question.over(graph, region))
    counted = zonotope_numbers(graph, math.prod(graph.input.shape))
    assert max(seen) <= counted <= 3 * ZONOTOPES * max(seen)


def test_beyond_the_limit_blocks_are_taken_together() -> None:
    graph, _ = network(image=16, patch=1, norm="layer")
    assert zonotope_numbers(graph, 256) == REDUCED * MOST_GENERATOR_NUMBERS


def test_unknowns_of_a_ball_stand_everywhere() -> None:
    graph, _ = network()
    assert zonotope_numbers(graph, 64, local=False) >= zonotope_numbers(graph, 64) > 0
    assert zonotope_sizes.zonotope_numbers(graph, 0) < zonotope_numbers(graph, 64)

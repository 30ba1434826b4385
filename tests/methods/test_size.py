"""What size leaves out: products of unknowns where nothing depends on them, zonotopes of wide inputs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import vertex_softmax as vx
from tests.slowly import few
from vertex_softmax.bounds import memory, zonotopes
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.boxes import boxes_by_passes, has_intervals_alone, tightened_boxes, uses_zonotopes
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets.loading import load


def network(**sizes: object) -> tuple[Graph, Tensor, Tensor]:
    """With LayerNorm and GELU, an image and its label."""
    shape = {
        "image": 4,
        "patch": 2,
        "dim": 8,
        "heads": 2,
        "mlp": 8,
        "classes": 3,
        "norm": "layer",
        "activation": "gelu",
    }
    net = PatchTransformer(**{**shape, **sizes}).double().eval()  # type: ignore[arg-type]
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return load(net, vx.LinfBall(x, 0.01)), x, net(x).argmax(-1)


def worst_of(graph: Graph, x: Tensor, label: Tensor, eps: float) -> Tensor:
    """The least margins that random corners and points reach, (classes)."""
    g = torch.Generator().manual_seed(0)
    away = 2 * torch.rand(4096, *x.shape[1:], generator=g, dtype=torch.float64) - 1
    away[:2048] = away[:2048].sign()
    y = graph.evaluate((x + eps * away).unsqueeze(1)).flatten(1)
    return (y[:, label] - y).amin(0)


NOW = {(0.001, "joint"), (0.01, "vertex"), (0.03, "joint"), (0.03, "crown"), (0.1, "crown")}


@pytest.mark.parametrize(
    ("eps", "method"),
    few(itertools.product([0.001, 0.01, 0.03, 0.1], ["crown", "vertex", "joint"]), lambda *case: case in NOW),
)
def test_a_goal_is_settled_by_the_cheapest(method: str, eps: float) -> None:
    """With a goal the verdict is that of the best bounds, and no bound is above what a point reaches."""
    graph, x, label = network()
    ball = vx.LinfBall(x, eps)
    best = vx.certify(graph, ball, label, method, attack=None)
    quick = vx.certify(graph, ball, label, method, options=vx.Options(goal=0.0), attack=None)
    assert bool(best.certified) == bool(quick.certified)
    assert bool((quick.lower[0] <= best.lower[0] + 1e-9).all())
    reached = worst_of(graph, x, label, eps)
    others = torch.arange(3) != label
    assert bool((best.lower[0] <= reached + 1e-9)[others].all())


def test_products_are_made_where_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where first order settles all; always without a goal."""
    graph, x, label = network()
    seen = []

    def watched(start: zonotopes.Zonotope, question: Question) -> zonotopes.Zonotope:
        found = with_products(start, question)
        seen.append(found is not start)
        return found

    with_products = zonotopes._with_products
    monkeypatch.setattr(zonotopes, "_with_products", watched)

    def made(eps: float, goal: float | None) -> bool:
        seen.clear()
        vx.certify(graph, vx.LinfBall(x, eps), label, "crown", options=vx.Options(goal=goal), attack=None)
        return any(seen)

    assert made(0.001, None)
    assert not made(0.001, 0.0)
    assert made(0.3, 0.0)


@pytest.mark.parametrize("blocks", [1, 5])
def test_wide_inputs(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    """Passes, or intervals in deep networks; sound, and finite."""
    graph, x, label = network(blocks=blocks)
    region = vx.LinfBall(x, 0.01).region(graph.input.shape, torch.float64, torch.device("cpu"))
    question = Question.over(graph, region)
    assert uses_zonotopes(question, vx.Options())
    monkeypatch.setitem(memory.MOST_START_NUMBERS, "cpu", 8)
    assert uses_zonotopes(question, vx.Options())  # the unknowns of single numbers stay local
    monkeypatch.setattr(zonotopes, "keeps_local", lambda _op: False)
    assert not uses_zonotopes(question, vx.Options())
    assert has_intervals_alone(question, vx.Options()) == (blocks > 3)
    found = vx.certify(graph, vx.LinfBall(x, 0.01), label, "crown", attack=None)
    others = torch.arange(3) != label
    assert bool(found.lower[0][others].isfinite().all())
    assert bool((found.lower[0] <= worst_of(graph, x, label, 0.01) + 1e-9)[others].all())


@pytest.mark.parametrize("centred", [True, False])
def test_all_methods_share_the_boxes_of_zonotopes(centred: bool) -> None:
    """The same objects, so that relaxations are made once; and with other boxes known, their meet."""
    graph, x, _ = network()
    question = Question.over(graph, vx.LinfBall(x, 0.01).region(graph.input.shape, x.dtype, x.device))
    options = vx.Options(centred=centred)
    first = boxes_by_passes(question, RowRule.LSE, options)
    assert boxes_by_passes(question, RowRule.VERTEX, options) is first
    assert tightened_boxes(question, options, [first, first]) is first
    assert bool(first.centred) == centred
    output = graph.output
    half = Interval(first[output].lower, first[output].centre)
    met = tightened_boxes(question, options, [first, first.tightened(output, half)])
    assert torch.equal(met[output].upper, torch.minimum(first[output].upper, half.upper))

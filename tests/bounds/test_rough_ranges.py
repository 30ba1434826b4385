"""Spanned unknowns and rough ranges in whole networks: boxes that ops read are those of exact ranges everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vertex_softmax.bounds import gathering, zonotopes
from vertex_softmax.bounds.box_passes import all_boxes, inspected_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.crown import crown
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.unknowns import span_of
from vertex_softmax.runs.certify import load
from vertex_softmax.runs.demo.model import PatchTransformer
from vertex_softmax.sets import LinfBall

KINDS = ((None, "relu", "mean"), ("layer", "gelu", "class"), (None, "gelu", "class"))
RADII = (0.003, 0.03, 0.3)
PIXELS = (1, 16, 16)


def network(norm: str | None, activation: str, pool: str, seed: int = 0) -> PatchTransformer:
    """Patches of 64 pixels are 8 numbers."""
    sizes = {"image": 16, "patch": 8, "channels": 1, "dim": 8, "heads": 2, "mlp": 12, "blocks": 2}
    return PatchTransformer(**sizes, norm=norm, activation=activation, pool=pool, seed=seed).double().eval()


def ball(eps: float, batch: int = 2) -> LinfBall:
    x = torch.rand(batch, *PIXELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return LinfBall(x, eps, clip=(0, 1))


def question_of(graph: Graph, around: LinfBall) -> Question:
    region = around.region(graph.input.shape, torch.float64, torch.device("cpu"))
    return Question.over(graph, region).to_first_order()  # pixels so few have products of their unknowns otherwise


def spanned(boxes: Boxes) -> bool:
    return any(span_of(unknowns) is not None for x in boxes.zonotopes.values() for unknowns in x.blocks)


@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("kind", KINDS)
def test_boxes_that_are_read_are_those_of_exact_ranges(
    kind: tuple[str | None, str, str], eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where intervals are tighter than zonotopes at some numbers, as behind a ReLU."""
    around = ball(eps)
    graph = load(network(*kind), around)
    question = question_of(graph, around)
    found = zonotopes.boxes_by_zonotopes(question)
    assert spanned(found)
    read = {*zonotopes._read_by_curves(question.index), graph.output}
    monkeypatch.setattr(zonotopes, "_read_by_curves", lambda index: set(index.nodes))
    exact = zonotopes.boxes_by_zonotopes(question_of(graph, around))
    for node in read:
        for a, b in zip(found[node], exact[node], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-14)
    assert any(not torch.equal(found[node].lower, exact[node].lower) for node in graph.nodes())  # some are rough


@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("kind", KINDS)
def test_boxes_are_those_of_the_pixels_own_unknowns(
    kind: tuple[str | None, str, str], eps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "MOST_SHARE", 2.0)  # rough ranges are others, and with them which errors are small
    around = ball(eps)
    graph = load(network(*kind), around)
    question = question_of(graph, around)
    found = zonotopes.boxes_by_zonotopes(question)
    monkeypatch.setattr(zonotopes, "WIDE", 1 << 20)
    plain = zonotopes.boxes_by_zonotopes(question_of(graph, around))
    assert spanned(found)
    assert not spanned(plain)
    for node in {*zonotopes._read_by_curves(question.index), graph.output}:
        for a, b in zip(found[node], plain[node], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("eps", RADII)
@pytest.mark.parametrize("kind", KINDS)
def test_every_value_is_in_its_box(kind: tuple[str | None, str, str], eps: float) -> None:
    """At corners and inside, of every node, without tolerance."""
    around = ball(eps)
    graph = load(network(*kind), around)
    found = zonotopes.boxes_by_zonotopes(question_of(graph, around))
    generator = torch.Generator().manual_seed(5)
    share = torch.rand(200, *around.lower.shape, generator=generator, dtype=torch.float64)
    share[:150] = share[:150].round()
    points = around.lower + share * (around.upper - around.lower)
    points = torch.minimum(torch.maximum(points, around.lower), around.upper)
    for node, value in graph.values(points.reshape(200, 2, *graph.input.shape)).items():
        lower, upper = found[node]
        assert bool(((value >= lower) & (value <= upper)).all()), node


class Twice(nn.Module):
    """A network that reads its pixels twice: as patches, and as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.pixels = network(None, "relu", "mean"), nn.Linear(256, 10).double()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.net(x) - self.pixels(x.flatten(1))
        return y


def test_pixels_that_are_read_twice_are_the_same_unknowns() -> None:
    """Of spanned unknowns the other reader would know nothing."""
    around = ball(0.01)
    torch.manual_seed(0)
    graph = load(Twice().eval(), around)
    assert not spanned(zonotopes.boxes_by_zonotopes(question_of(graph, around)))


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_by_zonotopes_are_met_with_intervals_already(kind: tuple[str | None, str, str]) -> None:
    around = ball(0.1)
    question = question_of(load(network(*kind), around), around)
    learnt = zonotopes.boxes_by_zonotopes(question)
    again, once = all_boxes(question, None, (), learnt), inspected_boxes(question, learnt)
    for node in question.index.nodes:
        assert all(torch.equal(a, b) for a, b in zip(again[node], once[node], strict=True))
    assert [problem.text for problem in again.problems] == [problem.text for problem in once.problems]


@pytest.mark.parametrize("kind", KINDS)
def test_the_terms_of_a_last_pass_are_those_of_a_pass_for_them(kind: tuple[str | None, str, str]) -> None:
    around = ball(0.01)
    graph = load(network(*kind), around)
    question = question_of(graph, around)
    A = torch.eye(10, dtype=torch.float64).expand(2, -1, -1).reshape(2, 10, *graph.output.shape)
    objective = Objective.dense(graph.output, A)
    found = crown(question, objective, Options())
    assert found.terms
    for rules, size in found.terms.items():
        torch.testing.assert_close(size, terms(question, found.boxes, objective, rules), rtol=1e-13, atol=0)

"""Graphs that users give are simplified; where that would compute something else, they are taken as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import vertex_softmax as vx
from vertex_softmax.graph import build
from vertex_softmax.graph.from_onnx.importer import from_onnx
from vertex_softmax.graph.ir import Graph
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.sets import given_graph
from vertex_softmax.sets.given_graph import GivenGraph

DIGIT = Path(__file__).parents[2] / "examples" / "digit.onnx"


def test_a_graph_as_it_was_imported_has_the_bounds_of_its_file() -> None:
    """Useless ones otherwise: its softmax is one of exponentials, sums and quotients."""
    graph = from_onnx(DIGIT)
    x = torch.full((1, *graph.input.shape), 0.3, dtype=torch.float64)
    ball = vx.LinfBall(x, 0.01)
    file, raw, simple = (vx.bound(model, ball, "crown") for model in (DIGIT, graph, simplify(graph)))
    for mine in (raw, simple):
        assert torch.equal(mine.lower, file.lower)
        assert torch.equal(mine.upper, file.upper)


def test_a_graph_that_is_simple_is_used_itself() -> None:
    graph = simplify(from_onnx(DIGIT))
    assert GivenGraph(graph).at(torch.zeros(1, *graph.input.shape)) is graph


def test_what_would_compute_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = build.source((3,))
    graph = Graph(x, build.multiply(x, build.constant(torch.tensor(2.0, dtype=torch.float64)), "twice"))
    for other in (2 + 1e-6, float("nan"), float("inf")):
        wrong = Graph(x, build.multiply(x, build.constant(torch.tensor(other, dtype=torch.float64)), "other"))
        monkeypatch.setattr(given_graph, "simplify", lambda _, wrong=wrong: wrong)
        assert GivenGraph(graph).at(torch.ones(2, 3)) is graph

"""Forms of nodes that are affine in the input decide nothing where the terms that they were made of cancel."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from vertex_softmax.bounds.form_terms import terms_of
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.linear import LeftLinear, Linear, Scale, Subtract
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.sets import InputSet, LinfBall, LpBall, TokenChoices

DTYPES = (torch.float32, torch.float64)


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def little(dtype: torch.dtype) -> float:
    """What is left of x where much cancels: 3 of 10⁸ + 3 and 10⁸, or what 3·10¹⁶ times the float next to ⅓ exceeds
    10¹⁶ by. A machine finds 0.
    """
    return 3.0 if dtype == torch.float32 else float(Fraction(1 / 3) * Fraction(3e16) - Fraction(1e16))


def with_little_left(x: Node, dtype: torch.dtype) -> Node:
    """The numbers x times what is left where much cancels, as a node that is affine in x."""

    def times(factor: float, node: Node) -> Node:
        return build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="times")

    if dtype == torch.float32:
        return build.apply(Subtract(), times(1e8 + 3, x), times(1e8, x), name="left")
    return build.apply(Subtract(), times(3e16, times(1 / 3, x)), times(1e16, x), name="left")


def network(kind: str, dtype: torch.dtype) -> Graph:
    """(1, relu of 2 f), where f is about 1 at x = (1, 1): the margin is −1 there."""
    x, left = build.source((2, 1), "x"), little(dtype)
    values = with_little_left(x, dtype)

    def token(which: int) -> Node:
        return build.apply(LeftLinear(torch.eye(2, dtype=torch.float64)[which : which + 1]), values, name="token")

    if kind == "product":
        found, size = build.apply(MatMul(), token(0), token(1), name="product"), left * left
    else:
        rows = double(0, 0) if kind == "mean" else double(1, -1)
        query = build.apply(LeftLinear(double(1, 1)[None]), x, name="query")
        scores = build.apply(Linear(rows[None]), query, name="scores")
        found, size = build.apply(Attention(None), scores, values, name="seen"), left
    whole = build.apply(Linear(torch.full((1, 1), 2 / size, dtype=torch.float64)), found, name="whole")
    rises = build.apply(Relu(), whole, name="relu")
    return Graph(x, build.apply(Linear(double(0, 1)[None], double(1, 0)), rises, name="y"))


def sets() -> list[InputSet]:
    """Around x = (1, 1)."""
    x = torch.ones(1, 2, 1, dtype=torch.float64)
    return [LinfBall(x, 0), LinfBall(x, 1e-3), LpBall(x, 1e-3, 2), LpBall(x, 1e-3, 1)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["product", "mean", "attention"])
def test_forms_of_which_little_is_left_decide_nothing(kind: str, dtype: torch.dtype, method: str) -> None:
    graph = network(kind, dtype)
    for given in sets():
        assert certify(graph, given, 0, method, dtype=dtype, attack=None).verdict is not Verdict.VERIFIED


class OfWords(nn.Module):
    """(1, relu of 2 f) of two words whose numbers are at least 1, f at least 1 where nothing is lost."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind, self.single, self.left = kind, dtype == torch.float32, little(dtype)
        self.words = nn.Embedding(3, 1).double()
        self.words.weight.data = double(1.0, 1.5, 2.0)[:, None]

    def forward(self, ids: Tensor) -> Tensor:
        x, left = self.words(ids), self.left
        values = x * 100000003.0 - x * 1e8 if self.single else x * (1 / 3) * 3e16 - x * 1e16
        if self.kind == "sum":
            found = values.sum(1) / 2
        else:
            both = {"product": values, "one factor": x}[self.kind]
            found, left = (values[:, :1] @ both[:, 1:])[:, 0], left * (left if self.kind == "product" else 1)
        rises = torch.relu(found * (2 / left))
        return torch.cat([0 * rises + 1.0, rises], -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sum", "product", "one factor"])
def test_choices_of_words_of_which_little_is_left_decide_nothing(kind: str, dtype: torch.dtype) -> None:
    model = OfWords(kind, dtype).eval()
    choices = TokenChoices(model, torch.tensor([[0, 1]]), [{0: [0, 1], 1: [1, 2]}])
    for method in METHODS:
        assert certify(model, choices, 0, method, dtype=dtype, attack=None).verdict is not Verdict.VERIFIED
    assert float(bound(model, choices, "crown", dtype=dtype).upper.flatten()[-1]) >= 2


def test_terms_are_sums_of_absolute_values_along_all_paths() -> None:
    weight, bias = double(1, -2, 0.5, 3).reshape(2, 2), double(1, -4)
    x = build.source((3, 2), "x")
    y = build.apply(Linear(weight, bias), x, name="y")
    z = build.apply(Subtract(), y, x, name="z")
    left = build.apply(LeftLinear(double(1, -1, 0)[None]), z, name="left")
    index, start = GraphIndex(Graph(x, left)), torch.arange(1.0, 7.0, dtype=torch.float64).reshape(1, 3, 2)
    known: dict[Node, Tensor] = {}
    found = terms_of(index, start, left, known)
    rows = start @ weight.abs() + bias.abs() + start
    assert torch.allclose(found, rows[:, :1] + rows[:, 1:2], rtol=1e-11)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6)), dtype=torch.float64).reshape(-1, 3, 2)
    assert bool((index.graph.evaluate(signs * start).abs() <= found).all())
    assert set(known) == {x, y, z, left}

"""Graphs off the beaten track: nodes used twice, inputs rearranged, a nonlinearity first, no path to the input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import check_network
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops import elementwise as e
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.softmax import Softmax


def drawn(*dims: int, seed: int = 0) -> Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turned(x: Node) -> Node:
    return build.transpose(x, -2, -1, "turned")


def twice_in_a_sum(x: Node) -> Node:
    return build.add(x, build.apply(e.Tanh(), build.add(x, x, "double"), name="tanh"), "sum")


def twice_in_a_concat(x: Node) -> Node:
    y = build.concat([x, x, build.negate(x, "minus")], 0, "joined")
    return build.apply(e.Silu(), build.affine(y, drawn(2, 2), None, "mixed"), name="silu")


def gram(x: Node) -> Node:
    """x xᵀ straight from the input, then attention over it."""
    scores = build.matmul(x, turned(x), "gram")
    return build.apply(Attention(), scores, x, name="attention")


def attention_alone(x: Node) -> Node:
    """Under the rule vertex nothing of the input is left but a constant."""
    scores = build.affine(x, drawn(3, 2, seed=1), None, "scores")
    return build.apply(Attention(), scores, build.affine(x, drawn(2, 2, seed=2), None, "values"), name="attention")


def constant_values(x: Node) -> Node:
    scores = build.affine(x, 3 * drawn(3, 2, seed=3), None, "scores")
    return build.apply(Attention(), scores, build.constant(drawn(3, 2, seed=4)), name="attention")


def constant_scores(x: Node) -> Node:
    return build.apply(Attention(), build.constant(drawn(3, 3, seed=5)), x, name="attention")


def rearranged(x: Node) -> Node:
    y = build.reshape(turned(build.reshape(x, (1, 3, 2), "lead")), (2, 3), "flat")
    return build.apply(e.Gelu(), turned(build.affine(y, drawn(3, 3, seed=6), None, "mixed")), name="gelu")


def nonlinear_first(x: Node) -> Node:
    y = build.apply(e.Exp(), build.reshape(turned(x), (6,), "flat"), name="exp")
    return build.affine(build.multiply(y, y, "square"), drawn(4, 6, seed=7), None, "out")


def softmax_over_tokens(x: Node) -> Node:
    return build.matmul(build.softmax(x, 0, "softmax"), turned(x), "mixed")


def log_softmax(x: Node) -> Node:
    p = build.apply(Softmax(), build.affine(x, 6 * drawn(4, 2, seed=8), None, "logits"), name="softmax")
    return build.apply(e.Log(), p, name="log")


def without_the_input(x: Node) -> Node:
    return build.multiply(build.subtract(x, x, "zero"), build.constant(drawn(3, 2, seed=9)), "nothing")


def normalised_by_hand(x: Node) -> Node:
    """x / √(mean x² + 1): as an importer meets it."""
    square = build.mean(build.multiply(x, x, "square"), (1,), True, "mean")
    root = build.apply(e.Sqrt(), build.add(square, build.constant(torch.ones(1).double()), "shift"), name="root")
    return build.divide(x, root, "divide")


def everything_taken(x: Node) -> Node:
    y = build.take(x, 0, torch.tensor([2, 0, 2, 1]), "taken")
    y = build.slice_(build.expand(build.reshape(y, (4, 1, 2), "wide"), (4, 3, 2), "repeated"), 1, 0, 3, 2, "part")
    y = build.apply(e.Relu(), build.affine(y, drawn(3, 2, seed=10), None, "mixed"), name="relu")
    return build.maximum(y, (0,), False, "max")


def output_is_input(x: Node) -> Node:
    return x


ODD: list[Callable[[Node], Node]] = [
    twice_in_a_sum, twice_in_a_concat, gram, attention_alone, constant_values, constant_scores, rearranged,
    nonlinear_first, softmax_over_tokens, log_softmax, without_the_input, normalised_by_hand, everything_taken,
    output_is_input,
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", ODD, ids=lambda f: f.__name__)
def test_boxes_and_bounds_hold(make: Callable[[Node], Node], method: str) -> None:
    torch.set_num_threads(1)
    x = build.source((3, 2))
    graph = Graph(x, make(x))
    centre, radius = drawn(2, 3, 2, seed=20), drawn(2, 3, 2, seed=21).abs() * 0.5
    radius[0, 1] = 0
    check_network(graph, centre - radius, centre + radius, method)

"""Selections move up: the same values, fewer rows, and nothing moves that is read elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.liveness import selected_first
from vertex_softmax.graph.rewrite import rewrite, share
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.ops import bilinear, linear, shape
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.softmax import Softmax
from vertex_softmax.runs.certify import load
from vertex_softmax.sets import LinfBall

GENERATOR = torch.Generator().manual_seed(0)


def draw(*dims: int) -> Tensor:
    return torch.randn(*dims, generator=GENERATOR, dtype=torch.float64)


MASK = torch.tensor([[False, True, False], [False, False, False], [True, False, False]])
PARTS = {
    "slice of rows": shape.Slice(1, 0, 1, 1, 3, 3),
    "every second row": shape.Slice(1, 0, 3, 2, 3, 3),
    "rows taken twice": shape.Take(1, torch.tensor([2, 0]), 3, 3),
    "last column": shape.Slice(2, 2, 3, 1, 3, 3),
    "one head": shape.Slice(0, 1, 2, 1, 3, 2),
}


def before(x: Node) -> dict[str, Node]:
    """Nodes (2, 3, 3) of every kind that a selection may meet, from an input (2, 3, 3)."""
    other = build.apply(linear.Linear(draw(3, 3), draw(3)), x, name="other")
    made = {
        "relu": build.apply(Relu(), other, name="relu"),
        "scale": build.apply(linear.Scale(draw(3, 1)), other, name="scale"),
        "shift": build.apply(linear.Shift(draw(2, 3, 3)), other, name="shift"),
        "add": build.apply(linear.Add(), x, other, name="add"),
        "subtract": build.apply(linear.Subtract(), x, other, name="subtract"),
        "multiply": build.apply(bilinear.Multiply(), x, other, name="multiply"),
        "linear": other,
        "permute": build.permute(x, (0, 2, 1), "permute"),
        "reshape": build.reshape(build.reshape(other, (1, 2, 3, 3), "wide"), (2, 3, 3), "back"),
        "concat": build.apply(shape.Concat(1, (1, 2), 3), _rows(x, 0, 1), _rows(other, 1, 3), name="concat"),
        "expand": build.apply(shape.Expand((2, 1, 3), (2, 3, 3)), _rows(other, 0, 1), name="expand"),
        "normalize": build.apply(Normalize(1e-5), other, name="normalize"),
        "softmax": build.apply(Softmax(MASK), other, name="softmax"),
        "attention": build.apply(Attention(MASK), other, x, name="attention"),
        "product": build.apply(bilinear.MatMul(), other, x, name="product"),
        "sum": build.apply(
            shape.Expand((2, 1, 3), (2, 3, 3)), build.apply(linear.Sum((1,), 3, (3,)), other, name="sum"), name="again"
        ),
        "selection": build.apply(shape.Take(1, torch.tensor([2, 1, 0]), 3, 3), other, name="turned"),
    }
    assert all(node.shape == (2, 3, 3) for node in made.values())
    return made


def _rows(x: Node, start: int, stop: int) -> Node:
    return build.apply(shape.Slice(1, start, stop, 1, 3, 3), x, name="rows")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", before(build.source((2, 3, 3))))
def test_the_value_is_the_same(kind: str, part: str) -> None:
    """Bit for bit: nothing is computed otherwise, only less of it."""
    x = build.source((2, 3, 3))
    graph = Graph(x, build.apply(PARTS[part], before(x)[kind], name="part"))
    points = draw(7, 2, 3, 3)
    expected = graph.evaluate(points)
    new = graph
    for _ in range(10):
        changed = rewrite(share(new), selected_first)
        if changed is new:
            break
        new = changed
    assert torch.allclose(new.evaluate(points), expected, rtol=1e-15, atol=1e-15)
    assert new.output.shape == graph.output.shape


def test_what_is_read_elsewhere_stays() -> None:
    x = build.source((2, 3, 3))
    row = build.apply(Relu(), x, name="relu")
    one = build.apply(PARTS["slice of rows"], row, name="one")
    graph = Graph(x, build.apply(linear.Add(), row, build.expand(one, (2, 3, 3), "wide"), name="sum"))
    assert rewrite(graph, selected_first) is graph


class Classifier(nn.Module):
    """A block of which the first token alone is read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).double()
        self.head = nn.Linear(8, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)[:, 0])


def test_a_class_token_has_one_row_of_scores() -> None:
    """Scores, norms and MLP have one row each; keys and values all."""
    ball = LinfBall(draw(1, 5, 8), 0.1)
    graph = load(Classifier().eval(), ball)
    rows = [node.shape[-2] for node in graph.nodes() if isinstance(node.op, Attention | Normalize | Relu)]
    assert rows
    assert set(rows) == {1}
    assert simplify(graph) is graph

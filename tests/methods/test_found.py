"""What attacks on our own bounds found once: it stays fixed."""

from __future__ import annotations

import pytest
import torch

from tests.bounds.checks import QUICK
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import elementwise
from vertex_softmax.ops.attention import Attention
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.sets import Box

HERE = (-torch.ones(1, 2, 2, dtype=torch.float64), torch.ones(1, 2, 2, dtype=torch.float64))
CORNERS = torch.tensor([[[1.0, 1.0], [1.0, -1.0]], [[1.0, -1.0], [1.0, 1.0]]], dtype=torch.float64)


def nearly_orthogonal(seed: int, off: float, scale: float, d: int = 8) -> Graph:
    """Queries and keys that vary in directions with the cosine `off`: of their product rounding leaves little."""
    g = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(d, generator=g, dtype=torch.float64) for _ in range(2))
    a = a / a.norm()
    b = b - a * (a @ b)
    b = b / b.norm() + off * a
    two = torch.full((2, 2), 2.0, dtype=torch.float64)
    x = build.source((2, 2))
    hidden = build.apply(elementwise.Relu(), build.add(x, build.constant(two), "up"), name="relu")
    same = build.add(hidden, build.constant(-two), "down")  # x again, but no longer affine in it
    q = build.affine(same, torch.stack([a * scale, 0 * a], 1), None, "q")
    k = build.affine(same, torch.stack([0 * b, b * scale], 1), None, "k")
    scores = build.matmul(q, build.transpose(k, -2, -1, "turned"), "scores")
    values = build.constant(torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64))
    rows = build.apply(Attention(), scores, values, name="attention")
    other = build.constant(torch.tensor([0.0, 0.48], dtype=torch.float64))
    return Graph(x, build.add(build.select(rows, 0, 0, "first"), other, "logits"))


@pytest.mark.parametrize("options", [QUICK, Options(goal=0.0)], ids=["all", "goal"])
@pytest.mark.parametrize(
    ("dtype", "seed", "off", "scale"), [(torch.float64, 8, 1e-9, 1e4), (torch.float32, 1, 1e-4, 100.0)]
)
def test_a_root_of_what_cancels(dtype: torch.dtype, seed: int, off: float, scale: float, options: Options) -> None:
    graph = nearly_orthogonal(seed, off, scale)
    out = graph.evaluate(CORNERS)
    margin = float((out[:, 0] - out[:, 1]).min())
    found = certify(graph, Box(*HERE), 0, "joint", options=options, dtype=dtype)
    assert margin < 0
    assert found.verdict is not Verdict.VERIFIED
    assert float(found.worst) <= margin + 1e-5 * (dtype == torch.float32)


def test_one_node_as_both_factors() -> None:
    x = build.source((2, 2))
    y = build.apply(elementwise.Tanh(), x, name="tanh")
    graph = Graph(x, build.reshape(build.matmul(y, y, "square"), (4,), "out"))
    low, high = bound(graph, Box(*HERE), "joint", options=QUICK)
    t = 2 * torch.rand(2000, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    out = graph.evaluate(torch.cat([t, t.sign()]))
    assert (out >= low - 1e-12).all()
    assert (out <= high + 1e-12).all()
    assert low.isfinite().all()


def test_an_ascent_of_boxes_with_nothing_undecided() -> None:
    x = build.source((2, 2))
    rows = build.apply(
        Attention(), build.matmul(x, build.transpose(x, -2, -1, "turned"), "scores"), x, name="attention"
    )
    up = build.add(rows, build.constant(torch.full((2, 2), 5.0, dtype=torch.float64)), "up")
    out = build.reshape(build.apply(elementwise.Relu(), up, name="relu"), (4,), "out")  # rows + 5 > 0: all on
    low, high = bound(Graph(x, out), Box(*HERE), "joint", options=Options(ascent=QUICK.ascent, box_ascent=QUICK.ascent))
    assert low.isfinite().all()
    assert (low <= high).all()

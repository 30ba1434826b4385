"""In double precision boxes hold what exact arithmetic gives, however much cancels on the way: no tolerance at all."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from tests.bounds.checks import asked
from vertex_softmax.bounds import backward as backward_module
from vertex_softmax.bounds.backward import backward, lower_bound
from vertex_softmax.bounds.box_passes import all_boxes, box_by_pass
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.linear import Add, Linear, Shift, Subtract
from vertex_softmax.ops.rules import Rules
from vertex_softmax.runs.certify import certify
from vertex_softmax.sets import Box

Matrix = list[list[Fraction]]
SIZE = 4


def exact(x: Tensor) -> Matrix:
    return [[Fraction(float(v)) for v in row] for row in x]


def product(x: Matrix, y: Matrix) -> Matrix:
    return [
        [sum((a * row[j] for a, row in zip(left, y, strict=True)), Fraction(0)) for j in range(len(y[0]))] for left in x
    ]


def total(x: Matrix, y: Matrix) -> Matrix:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, y, strict=True)]


def drawn(seed: int, *shape: int) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g, dtype=torch.float64) * 10 ** (3 * torch.randn(shape, generator=g).double())


def network(seed: int) -> tuple[Graph, Tensor, dict[str, Matrix]]:
    """x W + b, its product with x, and less almost all of itself; an input, and every node's exact value there."""
    W, b = drawn(seed, SIZE, SIZE), drawn(seed + 1, SIZE)
    x = drawn(seed + 2, SIZE, SIZE)
    x[:, -1] = -(x[:, :-1] @ W[:-1, 0] + b[0]) / W[-1, 0]  # the first column of x W + b is rounding alone
    node = build.source((SIZE, SIZE))
    y = build.affine(node, W.mT, b, "linear")
    z = build.matmul(y, node, "product")
    C = drawn(seed + 3, SIZE, SIZE)
    end = build.add(build.matmul(build.constant(C), z, "left"), y, "sum")
    known: dict[str, Matrix] = {"linear": total(product(exact(x), exact(W)), [exact(b[None])[0]] * SIZE)}
    known["product"] = product(known["linear"], exact(x))
    known["left"] = product(exact(C), known["product"])
    known["sum"] = total(known["left"], known["linear"])
    return Graph(node, end), x, known


def check(node: Node, box: Interval, value: Matrix) -> None:
    for i, row in enumerate(value):
        for j, v in enumerate(row):
            low, high = (Fraction(float(end[0, i, j])) for end in box)
            assert low <= v <= high, f"{node.name} at {(i, j)}: {float(v)} is not in [{float(low)}, {float(high)}]"


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_intervals_of_a_point_hold_its_exact_values(seed: int) -> None:
    graph, x, known = network(seed)
    boxes = all_boxes(asked(graph, x[None], x[None]))
    for node in graph.nodes():
        if node.name in known:
            check(node, boxes[node], known[node.name])


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_boxes_by_a_pass_over_a_point_hold_its_exact_values(seed: int) -> None:
    graph, x, known = network(seed)
    question = asked(graph, x[None], x[None])
    boxes = all_boxes(question)
    for node in graph.nodes():
        if node.name in known:
            check(node, box_by_pass(question, boxes, node, Rules(), everywhere=True), known[node.name])
    assert not boxes.problems


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_boxes_of_an_affine_node_hold_its_exact_range(seed: int) -> None:
    graph, x, _ = network(seed)
    node = next(n for n in graph.nodes() if n.name == "linear")
    lower, upper = x - 1e-3 * x.abs(), x + 1e-3 * x.abs()
    question = asked(graph, lower[None], upper[None])
    boxes = all_boxes(question)
    W, b = exact(node.op.weight), exact(node.op.bias[None])[0]  # type: ignore[attr-defined]
    for box in (boxes[node], box_by_pass(question, boxes, node, Rules(), everywhere=True)):
        for pick in (min, max):
            corners = [
                [
                    sum((pick(w[j] * a, w[j] * z) for w, a, z in zip(W, low, high, strict=True)), b[j])
                    for j in range(SIZE)
                ]
                for low, high in zip(exact(lower), exact(upper), strict=True)
            ]
            check(node, box, corners)


@pytest.mark.parametrize("seed", range(0, 80, 4))
def test_the_interval_of_a_product_of_points_holds_its_exact_value(seed: int) -> None:
    x, y = drawn(seed, SIZE, SIZE), drawn(seed + 1, SIZE, SIZE)
    x[:, -1] = -(x[:, :-1] @ y[:-1, 0]) / y[-1, 0]
    box = MatMul().interval(Interval(x[None], x[None]), Interval(y[None], y[None]))
    check(build.source(()), box, product(exact(x), exact(y)))


def test_a_lower_bound_of_infinity_is_an_overflow_and_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x, _ = network(0)
    question = asked(graph, x[None], x[None])
    boxes = all_boxes(question)
    objective = Objective.dense(graph.output, torch.ones(1, 2, SIZE, SIZE, dtype=torch.float64))
    found = backward(question, boxes, objective, Rules())
    ends = torch.tensor([[torch.inf, -torch.inf]], dtype=torch.float64)
    huge = dataclasses.replace(found, constant=found.constant + ends)
    monkeypatch.setattr(backward_module, "backward", lambda *_args, **_options: huge)
    plain = dataclasses.replace(huge, coefficients=None)
    for bound in (
        lower_bound(question, boxes, objective, Rules()),
        huge.least(question.region),
        huge.minimise(question.region)[0],
        plain.least(question.region),
        plain.minimise(question.region)[0],
    ):
        assert bound[0, 0].isnan()
        assert float(bound[0, 1]) == -torch.inf


class SumThatCancels(nn.Module):
    """(0.5, relu of a sum minus what is 1 less than it): the sum is exact in no order that a machine takes."""

    def __init__(self, less: float, *, attending: bool) -> None:
        super().__init__()
        self.less, self.attending = less, attending

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum(-1, keepdim=True)
        if self.attending:  # of 2ⁿ equal weights
            scores = 0 * x.unsqueeze(1)
            total = (scores.softmax(-1) @ x.unsqueeze(-1)).squeeze(1) * x.shape[-1]
        return torch.cat([0 * x[:, :1] + 0.5, torch.relu(total - self.less)], -1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("attending", [False, True], ids=["sum", "attention"])
@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [(torch.float32, [1.0, 1.0, 1e9, -1e9] * 8), (torch.float64, [-1e16, 3.0, 1e16, 1.0, 1.0, 1.0, 1.0, 1.0] * 4)],
)
def test_sums_whose_terms_cancel_decide_nothing(
    dtype: torch.dtype, numbers: list[float], attending: bool, method: str
) -> None:
    x = torch.tensor([numbers], dtype=torch.float64)
    total = float(sum(map(Fraction, numbers)))  # the margin is −½ at this one point
    model = SumThatCancels(total - 1, attending=attending).double().eval()
    found = certify(model, Box(x, x), 0, method, dtype=dtype, attack=None)
    assert found.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("op", ["shift", "add", "subtract", "scores"])
def test_constants_that_single_precision_rounds_decide_nothing(op: str, method: str) -> None:
    """(1, relu(3)): 10⁸ + 3 less 10⁸, the first of which single precision does not have; or a score that is 3 more."""
    offset = torch.full((1, 1), 1e8 + 3, dtype=torch.float64)
    x, point = build.source((1, 1), "x"), torch.full((1, 1, 1), -1e8, dtype=torch.float64)
    if op == "shift":
        node = build.apply(Shift(offset[0]), x, name="shift")
    elif op == "add":
        node = build.apply(Add(), x, build.constant(offset, "constant"), name="add")
    elif op == "subtract":
        point = -point
        node = build.apply(Subtract(), build.constant(offset, "constant"), x, name="subtract")
    else:
        scores = build.constant(torch.tensor([[1e8 + 3, 1e8]], dtype=torch.float64), "scores")
        rows = build.apply(Linear(torch.tensor([[-3e-8, 0.0]], dtype=torch.float64)), x, name="values")
        node = build.apply(Attention(None), scores, build.reshape(rows, (2, 1), "rows"), name="seen")
    rises = build.apply(Relu(), node, name="relu")
    less = 2.0 if op == "scores" else 1.0
    y = build.apply(Linear(torch.tensor([[0.0, 1.0]]).double(), torch.tensor([less, 0.0]).double()), rises, name="y")
    graph = Graph(x, y)
    values = graph.evaluate(point)[0, 0]
    assert float(values[0] - values[1]) < -0.5
    found = certify(graph, Box(point, point), 0, method, dtype=torch.float32, attack=None)
    assert found.verdict is not Verdict.VERIFIED


def test_a_constant_at_the_end_of_single_precision_stays_finite() -> None:
    huge = torch.full((1, 1), -float(torch.finfo(torch.float32).max), dtype=torch.float64)
    box = by_intervals(build.constant(huge.float(), "mask"), {})
    assert bool(box.lower.isfinite().all() & box.upper.isfinite().all())
    moved = Shift(huge.float()).interval(Interval(torch.zeros(1, 1), torch.ones(1, 1)))
    assert bool(moved.lower.isfinite().all() & moved.upper.isfinite().all())


def test_an_offset_of_scores_is_in_the_size_of_an_attention() -> None:
    """Its rows round weights relative to the scores; a key that is masked by −10⁹ is no offset."""
    x = build.source((2, 2), "x")
    seen = build.apply(Attention(None), x, x, name="seen")
    numbers = torch.tensor([[2.0**40, 2.0**40 - 3], [2.0, -1e9]], dtype=torch.float64)[None]
    boxes = all_boxes(asked(Graph(x, seen), numbers, numbers))
    each, largest = boxes.reach(seen).each, numbers.abs().amax(-2, keepdim=True)
    assert bool((each[:, :1] >= largest * 2.0**36).all())
    assert bool((each[:, 1:] <= 2 * largest).all())

"""Nothing broken is ever called verified: bounds that are no numbers, that cross, that overflow."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import transformer
from tests.methods.test_certify import CONFIG, bound, certify, inputs, labels
from tests.slowly import few
from vertex_softmax.bounds import backward as backward_module
from vertex_softmax.bounds import box_passes, branch_and_bound, generate, guard, slack
from vertex_softmax.bounds.boxes import Boxes, Problem
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.errors import InvalidValueError, VertexError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods import boxes as box_recipes
from vertex_softmax.methods import last_pass
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops import attention, bilinear, elementwise, linear
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import AffineOp, Relaxation, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.runs import certify as api
from vertex_softmax.sets import Box, LinfBall
from vertex_softmax.sets.region import Region


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def graph() -> Graph:
    return transformer(CONFIG)


def spoil(value: float) -> Callable[[Interval], Interval]:
    """One entry's upper end of the second input of the batch."""

    def change(box: Interval) -> Interval:
        upper = box.upper.contiguous().clone()  # of other layouts `reshape` would change a copy
        upper[1 % len(upper)].reshape(-1)[0] = value
        return Interval(box.lower, upper)

    return change


def cross(box: Interval) -> Interval:
    """Its ends change places, far apart."""
    lower, upper = (x.contiguous().clone() for x in box)
    lower[1 % len(lower)].reshape(-1)[0] = 5.0
    upper[1 % len(upper)].reshape(-1)[0] = -5.0
    return Interval(lower, upper)


BROKEN: dict[str, tuple[Callable[[Interval], Interval], str]] = {
    "NaN": (spoil(torch.nan), "NaN"),
    "inf": (spoil(torch.inf), "infinite"),
    "crossed": (cross, "cross"),
}
PLACES: dict[str, tuple[type, str]] = {
    "relu": (elementwise.Relu, "relu"),
    "attention": (attention.Attention, "attention"),
    "linear": (linear.Linear, "linear"),
    "scores": (bilinear.MatMul, "scores"),
}


def quick(method: str, where: str, kind: str) -> bool:
    """Every method in every place, and with everything that is broken; not each with each."""
    if method in {"joint", "bab"}:
        return where == "attention"
    numbers = (list(METHODS).index(method), list(PLACES).index(where), list(BROKEN).index(kind))
    return where == "attention" or sum(numbers) % 3 == 0


@pytest.mark.parametrize(("method", "where", "kind"), few(itertools.product(METHODS, PLACES, BROKEN), quick))
def test_a_broken_interval_is_unknown_at_its_node(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, method: str, where: str, kind: str
) -> None:
    """Whatever box an op returns broken, the input is unknown; if a backward pass repaired it, verified is right."""
    change, text = BROKEN[kind]
    cls, name = PLACES[where]
    real = cls.interval
    monkeypatch.setattr(cls, "interval", lambda self, *boxes: change(real(self, *boxes)))
    x = inputs()
    found = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    repaired = kind == "inf" and method != "ibp"
    assert repaired or found.verdicts[1] == "unknown"
    assert repaired or (text in found.reasons[1] and name in found.reasons[1].lower())
    if found.verdicts[1] == "verified":
        assert (found.lower[1] <= found.clean[1] + 1e-9).all()
    out = bound(graph, LinfBall(x, 1e-6), method)
    assert repaired or not out.lower[1].isfinite().any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("cls", [elementwise.Relu, attention.Attention, linear.Linear])
@pytest.mark.parametrize("method", ["crown", "vertex", "hybrid"])
@pytest.mark.parametrize("part", ["constant", "coefficients"])
def test_a_broken_backward_rule_is_never_verified(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, value: float, cls: type, method: str, part: str
) -> None:
    def broken(step: Step) -> Step:
        if part == "constant":
            return dataclasses.replace(step, constant=None if step.constant is None else step.constant + value)
        return dataclasses.replace(
            step, coefficients=tuple(None if c is None else c + value for c in step.coefficients)
        )

    class Broken(Relaxation):
        def __init__(self, real: Relaxation) -> None:
            self.real = real

        def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
            return broken(self.real.backward(A, diagonal))

    def plant() -> None:
        if issubclass(cls, AffineOp):
            real = cls.backward
            monkeypatch.setattr(cls, "backward", lambda op, A, *rest: broken(real(op, A, *rest)))
        else:
            relax = cls.relax
            monkeypatch.setattr(cls, "relax", lambda op, context: Broken(relax(op, context)))

    x = inputs()
    sound = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    plant()
    found = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    assert sound.verdict == "verified"
    if cls is attention.Attention and method == "vertex" and part == "coefficients":
        assert found.verdict == "verified"  # that rule has none
    else:
        assert "verified" not in found.verdicts
        assert all(found.reasons)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_infinite_margin_is_never_verified(monkeypatch: pytest.MonkeyPatch, graph: Graph, sign: float) -> None:
    """Every backward pass overflows: inf is no proof."""
    x = inputs()
    real = backward_module.backward

    def overflowing(*args: Any, **options: Any) -> LinearBound:
        found = real(*args, **options)
        return dataclasses.replace(found, constant=torch.full_like(found.constant, sign * torch.inf))

    for module in (backward_module, branch_and_bound, generate, guard, last_pass, slack):
        monkeypatch.setattr(module, "backward", overflowing)
    found = certify(graph, LinfBall(x, 1e-6), labels(graph, x), "crown")
    assert "verified" not in found.verdicts
    out = bound(graph, LinfBall(x, 1e-6), "crown")
    assert not out.lower.isfinite().any()
    assert not (out.lower == torch.inf).any()


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("every", [True, False], ids=["all margins", "one margin"])
def test_a_final_bound_that_is_no_number_is_never_verified(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, value: float, every: bool
) -> None:
    """The final bounds alone, of one input: no box says anything of it."""
    real = api.lower_bounds

    def broken(*args: Any) -> Bound:
        found = real(*args)
        lower = found.lower.clone()
        lower[1, slice(None) if every else slice(0, 1)] = value
        return dataclasses.replace(found, lower=lower)

    monkeypatch.setattr(api, "lower_bounds", broken)
    x = inputs()
    found = certify(graph, LinfBall(x, 1e-6), labels(graph, x), "crown")
    assert found.verdicts == ("verified", "unknown", "verified")
    assert "the final bound is not finite" in found.reasons[1]


def overflowing(kind: str) -> Graph:
    """Networks whose numbers leave the floats: weights of 1e200 at some place."""
    x = build.source((3, 2))
    big = 1e200 * torch.eye(2, dtype=torch.float64)
    small = torch.tensor([[1.0, 0.2], [-0.3, 1.0]], dtype=torch.float64)
    q = k = v = build.affine(x, small, None, "embed")
    if kind in {"scores", "negative scores"}:
        q = build.affine(x, big if kind == "scores" else -big, None, "queries")
        k = build.affine(x, big, None, "keys") if kind == "scores" else q
    if kind == "values":
        v = build.affine(build.affine(x, big, None, "values"), big, None, "values again")
    scores = build.matmul(q, build.transpose(k, 0, 1, "turned"), "scores")
    if kind == "negative scores":
        wide = build.matmul(q, build.constant(torch.ones(2, 3).double()), "wide")
        scores = build.negate(build.apply(elementwise.Square(), wide, name="squares"), "scores")
    out = build.apply(Attention(), scores, v, name="attention")
    if kind == "exponential":
        out = build.apply(elementwise.Exp(), build.affine(out, 1e4 * small, None, "steep"), name="exponential")
    if kind == "products":
        out = build.affine(out, big, None, "large")
        out = build.multiply(out, build.affine(x, big, None, "also large"), "product")
    if kind == "cancelled":  # forward 1e200 · 1e-200, backward the same the other way round
        tiny = build.affine(out, 1e-200 * small, None, "tiny")
        out = build.affine(build.affine(tiny, big, None, "large"), small, None, "back")
    return Graph(x, build.mean(out, (0,), False, "pooled"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["scores", "negative scores", "values", "exponential", "products"])
def test_overflow_is_unknown_and_names_the_node(kind: str, method: str) -> None:
    graph = overflowing(kind)
    x = inputs(2) + 1
    names = {node.name for node in graph.nodes()}
    for label in (0, 1):
        found = certify(graph, LinfBall(x, 0.1), label, method)
        assert "verified" not in found.verdicts
        for verdict, reason in zip(found.verdicts, found.reasons, strict=True):
            assert verdict == "falsified" or any(repr(name) in reason for name in names), reason


@pytest.mark.parametrize("method", METHODS)
def test_large_factors_that_cancel_are_no_trouble(method: str) -> None:
    graph = overflowing("cancelled")
    x = inputs(1) + 1
    label = int(graph.evaluate(x).argmax())
    assert certify(graph, LinfBall(x, 1e-6), label, method).verdict == "verified"


@pytest.mark.parametrize("method", METHODS)
def test_layer_norm_of_a_constant_vector_without_eps(method: str) -> None:
    """0 / 0 lies in the set: no answer, however large the bias that would outweigh any normalised vector."""
    x = build.source((4,))
    y = build.normalize(build.centre(x, (0,), "centred"), (0,), 0.0, "normalized")
    weight, bias = torch.tensor([[5.0, 0, 0, 0], [0, 1, 0, 0]]).double(), torch.tensor([100.0, 0]).double()
    graph = Graph(x, build.affine(y, weight, bias, "out"))
    for radius in (0.0, 1e-9, 0.1):
        found = certify(graph, LinfBall(torch.ones(1, 4).double(), radius), 0, method)
        assert found.verdict == "unknown"
        assert "normalized" in found.reasons[0]
    fine = certify(graph, LinfBall(torch.tensor([[1.0, 0, -1, 2]]).double(), 1e-4), 0, method)
    assert fine.verdict == "verified"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("op", "low", "high"), [
    (elementwise.Reciprocal(), -0.1, 1.0), (elementwise.Log(), 0.0, 1.0), (elementwise.Sqrt(), -0.1, 1.0),
    (elementwise.Rsqrt(), 0.0, 1.0),
])  # fmt: skip
def test_leaving_a_domain_is_unknown(op: Any, low: float, high: float, method: str) -> None:
    x = build.source((2,))
    inner = build.apply(op, build.affine(x, torch.eye(2).double(), None, "before"), name="partial")
    for sign in (1.0, -1.0):  # either side of the function is asked for
        weight = sign * torch.tensor([[1.0, 0], [0, 1.0]]).double()
        graph = Graph(x, build.affine(inner, weight, torch.tensor([1e6, 0.0]).double(), "out"))
        box = Box(torch.full((1, 2), low).double(), torch.full((1, 2), high).double())
        found = certify(graph, box, 0, method)
        assert found.verdict == "unknown"
        assert "partial" in found.reasons[0]
        assert bound(graph, box, method).lower.isnan().all()


def test_a_row_with_every_key_masked_is_an_error() -> None:
    x = build.source((2, 2))
    mask = torch.tensor([[False, True], [True, True]])
    scores = build.matmul(x, build.transpose(x, 0, 1, "turned"), "scores")
    graph = Graph(x, build.mean(build.apply(Attention(mask), scores, x, name="attention"), (0,), False, "pooled"))
    for method in METHODS:
        with pytest.raises(VertexError):
            certify(graph, LinfBall(torch.ones(1, 2, 2).double(), 0.1), 0, method)


def test_a_set_in_single_precision_is_rounded_outward() -> None:
    x = torch.tensor([[1.0, 0.1, -7.0]], dtype=torch.float64)
    low, high = Box(x - 1e-9, x + 1e-9).region((1, 3), torch.float32, torch.device("cpu")).box
    assert low.dtype == high.dtype == torch.float32
    assert bool((low.double()[:, 0] <= x - 1e-9).all())
    assert bool((high.double()[:, 0] >= x + 1e-9).all())


def test_the_question_in_single_precision_is_over_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Interval] = []

    def over(graph: Graph, region: Region, **options: Any) -> Question:
        seen.append(region.box)
        return Question.over(graph, region, **options)

    monkeypatch.setattr(api, "Question", SimpleNamespace(over=over))
    x = build.source((2,))
    graph = Graph(x, build.affine(x, torch.eye(2, dtype=torch.float64), None, "same"))
    ball = LinfBall(torch.tensor([[1.0, 0.1]], dtype=torch.float64), 1e-9)
    bound(graph, ball, "ibp", dtype=torch.float32)
    certify(graph, ball, 0, "ibp", dtype=torch.float32)
    assert len(seen) == 2
    for lower, upper in seen:
        assert lower.dtype == torch.float32
        assert bool((lower.double() <= ball.lower).all())
        assert bool((upper.double() >= ball.upper).all())


@pytest.mark.parametrize("method", ["hybrid", "joint", "bab"])
def test_a_problem_of_a_part_is_a_problem_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, method: str
) -> None:
    real = box_recipes.all_boxes

    def broken(
        question: Question, refine: box_passes.Refine, known: Sequence[Boxes], learnt: Boxes | None = None
    ) -> Boxes:
        boxes = real(question, refine, known, learnt)
        if known:
            return boxes
        problem = Problem(graph.output, torch.ones(question.batch, dtype=torch.bool), "planted")  # of a part
        return dataclasses.replace(boxes, problems=(*boxes.problems, problem))

    monkeypatch.setattr(box_recipes, "all_boxes", broken)
    x = inputs(1)
    found = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    assert found.verdicts == ("unknown",)
    assert "planted" in found.reasons[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype) -> None:
    node = build.source((1, 3))
    graph = Graph(node, node)
    with pytest.raises(InvalidValueError, match=r"choose torch\.float64 or torch\.float32"):
        certify(graph, Box(torch.zeros(1, 3), torch.ones(1, 3)), 0, "crown", dtype=dtype)


def test_an_overflow_at_the_centre_is_no_counterexample() -> None:
    x = build.source((1, 2))
    huge = build.multiply(x, build.constant(torch.tensor(1e308, dtype=torch.float64)), "huge")
    graph = Graph(x, build.multiply(huge, build.constant(torch.tensor([[1e3, 1.0]], dtype=torch.float64)), "more"))
    found = certify(graph, Box(torch.full((1, 2), -1.0), torch.full((1, 2), -0.5)), 0, "crown")
    assert found.verdict == "unknown"

"""`certify` and `bound`: what they answer, what they refuse, and that nothing broken is ever called verified."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, samples, transformer
from tests.slowly import few
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import Problem, Walk
from vertex_softmax.bounds.linear import Linear
from vertex_softmax.bounds.memory import Memory
from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, VertexError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import attention, elementwise, linear
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.runs import certify as api
from vertex_softmax.sets import Box, LinfBall

QUICK = Options(ascent=Ascent(steps=2))
certify = functools.partial(api.certify, options=QUICK)
bound = functools.partial(api.bound, options=QUICK)
CONFIG = Config(heads=2, classes=4, seed=3)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def graph() -> Graph:
    return transformer(CONFIG)


def inputs(count: int = 3, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, CONFIG.tokens, CONFIG.inputs, generator=g, dtype=torch.float64)


def labels(graph: Graph, x: Tensor) -> Tensor:
    return graph.evaluate(x).argmax(-1)


# Answers


@pytest.mark.parametrize("method", METHODS)
def test_small_balls_are_verified_and_large_ones_unknown(graph: Graph, method: str) -> None:
    x = inputs()
    small = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    assert small.verdicts == (Verdict.VERIFIED,) * 3
    assert small.verdict == "verified"
    assert small.certified.all()
    assert small.reasons == ("", "", "")
    assert small.method == method
    assert (small.lower <= small.clean).all()
    assert torch.allclose(small.lower.clamp(max=1e9), small.clean.clamp(max=1e9), atol=1e-2)
    large = certify(graph, LinfBall(x, 30.0), labels(graph, x), method)
    assert "verified" not in large.verdicts
    assert not large.certified.any()
    assert all(large.reasons)


@pytest.mark.parametrize("method", METHODS)
def test_the_label_has_margin_inf_and_the_others_their_bounds(graph: Graph, method: str) -> None:
    x = inputs()
    which = labels(graph, x)
    found = certify(graph, LinfBall(x, 0.05), which, method)
    assert found.lower.shape == (3, 4)
    for b in range(3):
        assert found.lower[b].isinf().tolist() == [j == which[b] for j in range(4)]
        assert found.clean[b].isinf().tolist() == [j == which[b] for j in range(4)]
        assert float(found.worst[b]) == float(found.lower[b].min())
    ball = LinfBall(x, 0.05)
    at = samples(ball.lower, ball.upper, 200)
    y = graph.evaluate(at)
    margins = y.gather(-1, which.expand(200, 3).unsqueeze(-1)) - y
    margins = margins.scatter(-1, which.expand(200, 3).unsqueeze(-1), torch.inf)
    assert (found.lower <= margins.amin(0) + 1e-9).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_misclassified_centre_is_falsified(graph: Graph, method: str) -> None:
    x = inputs()
    right = labels(graph, x)
    wrong = right.clone()
    wrong[1] = (right[1] + 1) % 4
    found = certify(graph, LinfBall(x, 1e-6), wrong, method)
    assert found.verdicts == ("verified", "falsified", "verified")
    assert found.verdict == "falsified"
    assert "misclassified" in found.reasons[1]
    assert found.certified.tolist() == [True, False, True]


@pytest.mark.parametrize("method", METHODS)
def test_every_margin_has_to_be_positive(method: str) -> None:
    x = build.source((1,))
    scores = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    graph = Graph(x, build.affine(x, scores, torch.tensor([0.0, -5.0, 0.0], dtype=torch.float64), "scores"))
    found = certify(graph, LinfBall(torch.tensor([[-0.5]], dtype=torch.float64), 1.0), 0, method)
    assert found.verdicts == ("unknown",)
    assert "to class 2 is not positive" in found.reasons[0]
    assert float(found.lower[0, 1]) > 4
    assert float(found.lower[0, 2]) < 0


def test_a_tie_is_not_verified() -> None:
    x = build.source((2,))
    graph = Graph(x, build.affine(x, torch.tensor([[1.0, 1], [1, 1]]).double(), None, "same"))
    found = certify(graph, LinfBall(torch.ones(1, 2).double(), 0.0), 0, "crown")
    assert found.verdict == "unknown"
    assert "not positive" in found.reasons[0]


def test_a_batch_is_its_singles_whatever_the_parts(graph: Graph) -> None:
    x = inputs(5)
    ball, which = LinfBall(x, torch.tensor([0.01, 0.1, 0.3, 0.0, 1.0]).double()), labels(graph, x)
    whole = certify(graph, ball, which)
    parts = certify(graph, ball, which, options=Options(batch=2, memory=Memory(bytes=1), ascent=QUICK.ascent))
    assert torch.allclose(whole.lower, parts.lower, atol=1e-9)
    assert whole.verdicts == parts.verdicts
    for b in range(5):
        one = certify(graph, ball[b], int(which[b]))
        assert torch.allclose(one.lower[0], whole.lower[b], atol=1e-9)
        assert one.verdicts[0] == whole.verdicts[b]
        assert one.reasons[0].split(" ")[0:3] == whole.reasons[b].split(" ")[0:3]


@pytest.mark.parametrize("method", METHODS)
def test_bound_holds_every_sampled_output(graph: Graph, method: str) -> None:
    x = inputs()
    ball = LinfBall(x, 0.3)
    found = bound(graph, ball, method)
    y = graph.evaluate(samples(ball.lower, ball.upper, 300))
    assert found.lower.shape == (3, 4)
    assert (found.lower <= y.amin(0) + 1e-9).all()
    assert (found.upper >= y.amax(0) - 1e-9).all()
    point = bound(graph, LinfBall(x, 0.0), method)
    assert torch.allclose(point.lower, graph.evaluate(x), atol=1e-8)
    assert torch.allclose(point.upper, graph.evaluate(x), atol=1e-8)


def test_seconds_are_told(graph: Graph) -> None:
    found = certify(graph, LinfBall(inputs(), 0.1), labels(graph, inputs()))
    assert {"import", "scores", "objective", "total"} <= set(found.seconds)
    assert all(t >= 0 for t in found.seconds.values())


def test_float32_is_float64_to_single_precision(graph: Graph) -> None:
    x = inputs()
    args = (LinfBall(x, 0.05), labels(graph, x))
    single, double = certify(graph, *args, dtype=torch.float32), certify(graph, *args)
    assert single.lower.dtype == torch.float32
    assert torch.allclose(single.lower.double(), double.lower, rtol=1e-3, atol=1e-3)


# Refusals


def test_labels_that_are_none(graph: Graph) -> None:
    ball = LinfBall(inputs(), 0.1)
    for wrong, text in ((4, "label 4"), (-1, "label -1"), ([0, 1, 7], "at index 2"), ([0, 1], "2 labels for 3 inputs")):
        with pytest.raises(InvalidValueError, match=text):
            certify(graph, ball, wrong)
    for kind in (1.0, True, torch.ones(3), torch.tensor([True, False, True])):
        with pytest.raises(InvalidTypeError, match="label has dtype"):
            certify(graph, ball, kind)
    for right in (1, [1], [1, 1, 1], torch.tensor([1, 1, 1], dtype=torch.int32)):
        assert len(certify(graph, ball, right, "ibp").verdicts) == 3


def test_unknown_names(graph: Graph) -> None:
    ball = LinfBall(inputs(), 0.1)
    with pytest.raises(InvalidValueError, match="method is 'crwon'"):
        certify(graph, ball, 0, "crwon")
    with pytest.raises(InvalidValueError, match="method is 'crwon'"):
        bound(graph, ball, "crwon")
    for name in ("scores", "preactivations", "suffix"):
        with pytest.raises(InvalidValueError, match=f"{name} is 'pas'"):
            Options(**{name: "pas"})
    with pytest.raises(TypeError):
        Options(score="pass")  # type: ignore[call-arg]
    with pytest.raises(InvalidValueError, match="pieces is 0"):
        Options(pieces=0)
    with pytest.raises(InvalidValueError, match="goal is NaN"):
        Options(goal=float("nan"))
    with pytest.raises(InvalidValueError, match="batch is 0"):
        Options(batch=0)
    with pytest.raises(InvalidTypeError, match="the model is a dict"):
        certify({}, ball, 0)  # type: ignore[arg-type]


def test_shapes_that_do_not_fit(graph: Graph) -> None:
    with pytest.raises(InvalidValueError, match="the network takes"):
        certify(graph, LinfBall(torch.zeros(2, 5, 2).double(), 0.1), 0)
    x = build.source((2, 3))
    two = Graph(x, build.affine(x, torch.ones(2, 3).double(), None, "rows"))
    with pytest.raises(InvalidValueError, match="margins need one row"):
        certify(two, LinfBall(torch.zeros(1, 2, 3).double(), 0.1), 0)
    one = Graph(x, build.affine(build.reshape(x, (6,), "flat"), torch.ones(1, 6).double(), None, "one"))
    with pytest.raises(InvalidValueError, match="at least two class scores"):
        certify(one, LinfBall(torch.zeros(1, 2, 3).double(), 0.1), 0)
    assert bound(two, LinfBall(torch.zeros(1, 2, 3).double(), 0.1)).lower.shape == (1, 2, 2)


# Nothing broken is ever verified


def spoil(value: float) -> Callable[[Interval], Interval]:
    """One entry's upper end of the second input of the batch."""

    def change(box: Interval) -> Interval:
        upper = box.upper.clone()
        upper[1 % len(upper)].reshape(-1)[0] = value
        return Interval(box.lower, upper)

    return change


def cross(box: Interval) -> Interval:
    """Its ends change places, far apart."""
    lower, upper = (x.clone() for x in box)
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
    "scores": (linear.Scale, "scale"),
}


def quick(method: str, where: str, _kind: str) -> bool:
    return where == "attention" or method not in {"joint", "bab"}


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
    real = cls.backward

    def broken(self: Any, A: Tensor, *rest: Any) -> Step:
        step = real(self, A, *rest)
        if part == "constant":
            return step._replace(constant=None if step.constant is None else step.constant + value)
        return step._replace(coefficients=tuple(None if c is None else c + value for c in step.coefficients))

    x = inputs()
    sound = certify(graph, LinfBall(x, 1e-6), labels(graph, x), method)
    monkeypatch.setattr(cls, "backward", broken)
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
    real = Walk.back

    def overflowing(self: Walk, *args: Any, **options: Any) -> Linear:
        found = real(self, *args, **options)
        found.add(torch.full_like(found.constant, sign * torch.inf))
        return found

    monkeypatch.setattr(Walk, "back", overflowing)
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

    def broken(*args: Any) -> Tensor:
        found = real(*args).clone()
        found[1, slice(None) if every else slice(0, 1)] = value
        return found

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
    from vertex_softmax.runs.certify import _placed

    node = build.source((1, 3))
    graph = Graph(node, node)
    x = torch.tensor([[1.0, 0.1, -7.0]], dtype=torch.float64)
    low = _placed(x - 1e-9, graph, torch.float32, None, -torch.inf)
    high = _placed(x + 1e-9, graph, torch.float32, None, torch.inf)
    assert bool((low.double()[:, 0] <= x - 1e-9).all())
    assert bool((high.double()[:, 0] >= x + 1e-9).all())


def test_the_walk_in_single_precision_is_over_the_whole_set(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []

    def walk(graph: Graph, lower: Tensor, upper: Tensor, **options: Any) -> Walk:
        seen.append((lower, upper))
        return Walk(graph, lower, upper, **options)

    monkeypatch.setattr(api, "Walk", walk)
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
    real = Walk.run

    def run(self: Walk, refine: Callable[[Walk, Node], None]) -> None:
        real(self, refine)
        if not self.known:  # a part: the whole knows what its parts found
            self.problems.append(Problem(graph.output, torch.ones(self.batch, dtype=torch.bool), "planted"))

    monkeypatch.setattr(Walk, "run", run)
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

"""Numbers that underflow and are magnified later: no bound is drawn from boxes that lost them."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from tests.ops.cases import CASES, Case, boxes, points, suits
from tests.slowly import few
from vertex_softmax.bounds import underflow
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.elementwise import Relu, Tanh
from vertex_softmax.ops.linear import Add, Linear, Scale, Shift
from vertex_softmax.ops.rounding import Round
from vertex_softmax.runs.certify import bound, certify
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.cascade import verify
from vertex_softmax.sets import Box, LinfBall
from vertex_softmax.sets.loading import Loaded, read
from vertex_softmax.specs.vnnlib import read_vnnlib

ONE = torch.ones(1, 1, dtype=torch.float64)


class ThereAndBack(nn.Module):
    """(0.5, x) for x ≥ 0: x is multiplied by small numbers and divided by them again."""

    def __init__(self, small: float, times: int) -> None:
        super().__init__()
        self.small, self.times = small, times

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = torch.relu(x * self.small)
        for _ in range(self.times):
            x = torch.relu(x / self.small)
        return torch.cat([0 * x + 0.5, x], -1)


def there_and_back(small: float, times: int) -> Graph:
    """The same as a graph, whose constants are as they are."""
    source = node = build.source((1,), "x")
    for factor in [small] * times + [1 / small] * times:
        node = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="scale")
        node = build.apply(Relu(), node, name="relu")
    nothing = build.apply(Scale(torch.zeros((), dtype=torch.float64)), node, name="zero")
    half = build.apply(Shift(torch.full((1,), 0.5, dtype=torch.float64)), nothing, name="half")
    return Graph(source, build.concat([half, node], 0, "y"))


@functools.cache
def that_was_read(small: float, times: int) -> Loaded:
    """The module exported once for all methods."""
    return read(ThereAndBack(small, times).eval())


FAR = [(torch.float32, 1e-25, 2), (torch.float64, 1e-29, 12)]


@pytest.mark.parametrize(
    ("method", "dtype", "small", "times"),
    few(
        [(method, *far) for method in METHODS for far in FAR],
        lambda method, dtype, *_: dtype == torch.float32 or method in ("ibp", "crown"),
    ),
)
def test_what_underflows_and_comes_back_is_unknown(method: str, dtype: torch.dtype, small: float, times: int) -> None:
    model, ball = that_was_read(small, times), LinfBall(ONE, 0.1)
    found = certify(model, ball, 0, method, dtype=dtype, attack=None)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reasons[0].startswith("numbers underflow and are magnified later")
    assert bound(model, ball, method, dtype=dtype).lower.isnan().all()


@pytest.mark.parametrize(("dtype", "small", "times"), [(torch.float32, 1e-10, 2), (torch.float64, 1e-25, 10)])
def test_what_stays_in_range_is_bounded(dtype: torch.dtype, small: float, times: int) -> None:
    found = certify(ThereAndBack(small, times).eval(), LinfBall(ONE, 0.1), 1, "crown", dtype=dtype)
    assert found.verdict is Verdict.VERIFIED
    assert found.lower[0, 0].item() == pytest.approx(0.4, rel=1e-5)


@pytest.mark.parametrize("small", [1e-320, 1e-200, 0.0])
def test_small_numbers_that_nothing_magnifies_are_harmless(small: float) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)).double().eval()
    with torch.no_grad():
        model[0].bias.zero_()
        model[4].bias.copy_(torch.tensor([90.0, 0.0]))
    x = torch.full((2, 3), small, dtype=torch.float64)
    for method in ("ibp", "crown", "joint"):
        assert certify(model, LinfBall(x, small), 0, method).verdict is Verdict.VERIFIED


def rounded(factors: list[float]) -> Graph:
    """x, multiplied by the factors in turn, rounded to whole numbers after the first and after the last."""
    source = node = build.source((2,), "x")
    for k, factor in enumerate(factors):
        node = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name=f"scale{k}")
        if k in (0, len(factors) - 1):
            node = build.apply(Round(-8.0, 8.0), node, name=f"round{k}")
    return Graph(source, node)


@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_a_number_that_is_rounded_to_0_has_not_underflowed(method: str) -> None:
    ball = LinfBall(torch.tensor([[0.2, 0.9]], dtype=torch.float64), 0.05)
    found = bound(rounded([1.0, 1e3]), ball, method)
    assert found.lower[0].tolist() == pytest.approx([0.0, 8.0])
    assert found.upper[0].tolist() == pytest.approx([0.0, 8.0])


def test_rounding_does_not_hide_what_underflowed_before_it() -> None:
    ball = LinfBall(torch.tensor([[0.0, 3.0]], dtype=torch.float64), 0.05)
    assert bound(rounded([1.0, *[1e-29] * 12, *[1e29] * 12]), ball, "ibp").lower.isnan().all()


class WithTwoLost(nn.Module):
    """(0.5, x y) for x, y ≥ 0, of each of which nothing is left before they are magnified again."""

    def forward(self, x: Tensor) -> Tensor:
        back = ThereAndBack(1e-29, 12)(x)[:, 2:]
        return torch.stack([0 * x[:, 0] + 0.5, back[:, 0] * back[:, 1]], -1)


@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_the_gain_of_a_factor_counts_what_the_other_has_lost(method: str) -> None:
    found = certify(WithTwoLost().eval(), LinfBall(ONE.expand(1, 2), 0.1), 0, method, attack=None)
    assert found.verdict is Verdict.UNKNOWN
    assert found.reasons[0].startswith("numbers underflow and are magnified later")


class OfAFaintKey(nn.Module):
    """(0.5, about 10): a key of the weight e^−799 whose value is 10^290."""

    def forward(self, x: Tensor) -> Tensor:
        values, scores = torch.stack([0 * x, x], 1), torch.stack([0 * x + 400, x - 400], -1)
        for _ in range(10):
            values = values * 1e29
        found = (scores.softmax(-1) @ values).squeeze(1)
        for _ in range(2):
            found = found * 1e29
        return torch.cat([0 * x + 0.5, found], -1)


def test_the_weight_of_a_key_that_underflows_counts_as_much_as_its_value() -> None:
    assert certify(OfAFaintKey().eval(), LinfBall(ONE, 0.1), 0, "ibp", attack=None).verdict is Verdict.UNKNOWN


def test_verify_says_nothing_of_it_either() -> None:
    text = "(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real) (assert (<= 0.9 X_0 1.1))"
    prop = read_vnnlib(f"{text} (assert (>= Y_1 Y_0))".encode())  # true everywhere, as Y_1 is X_0 and Y_0 is 0.5
    graph = there_and_back(1e-29, 12)
    found = verify(graph, prop, lambda _x: None, budget=Budget(10.0), method="crown")
    assert found.verdict is Verdict.UNKNOWN
    assert "underflow" in found.reason


@pytest.mark.parametrize("kind", ["ordinary", "wide", "straddling", "positive", "point"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_a_gain_is_at_least_what_an_op_makes_of_an_error(case: Case, kind: str) -> None:
    """The row sums of the Jacobian at points of the boxes are the gains of small errors there."""
    if not suits(case, kind):
        kind = "positive"
    given = boxes(case, kind)
    nodes = [build.source(shape, f"x{i}") for i, shape in enumerate(case.shapes)]
    node = Node("y", case.op, tuple(nodes), case.out)
    gains = underflow._gains(node, given)
    for xs in zip(*(x.unbind(0) for x in points(given, 4)), strict=True):
        for b in range(3):
            rows = jacobian(case.evaluate, tuple(x[b] for x in xs))
            for part, gain in zip(rows, gains, strict=True):
                most = float(
                    part.nan_to_num(nan=0.0, posinf=math.inf).reshape(math.prod(case.out), -1).abs().sum(1).max()
                )
                assert most <= float(gain.expand(3)[b]) * (1 + 1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "small", "large"),
    [(torch.float32, 1e-25, 1e30), (torch.float32, 1e-23, 1e20), (torch.float64, 1e-170, 1e300)],
)
def test_coefficients_that_underflow_decide_nothing(
    dtype: torch.dtype, small: float, large: float, method: str
) -> None:
    """(0.8 small² large − small² relu(x), 0): small² underflows, but its product with x up to `large` does not."""
    source = build.source((1, 1), "x")
    once = build.apply(Scale(torch.tensor(small, dtype=torch.float64)), source, name="once")
    weight = torch.tensor([[-small, 0.0]], dtype=torch.float64)
    bias = torch.tensor([0.8 * (small * large) * small, 0.0], dtype=torch.float64)
    y = build.apply(Linear(weight, bias), build.apply(Relu(), once, name="relu"), name="y")
    graph, box = Graph(source, y), Box(0 * ONE, large * ONE)
    assert float(graph.evaluate(large * ONE)[0, 0]) < 0
    assert float(graph.evaluate(0 * ONE)[0, 0]) > 0
    found = certify(graph, box, 0, method, dtype=dtype, attack=None)
    assert found.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_forms_whose_coefficients_underflow_decide_nothing(method: str, dtype: torch.dtype) -> None:
    """The same of values of an attention, all alike, whose form as an affine function of the input has lost small²."""
    small, large = (1e-170, 1e300) if dtype == torch.float64 else (1e-23, 1e20)
    source = node = build.source((1, 1), "x")
    for name in ("once", "twice"):
        node = build.apply(Scale(torch.tensor(small, dtype=torch.float64)), node, name=name)
    scores = build.apply(Linear(torch.zeros(1, 2).double(), torch.zeros(2).double()), node, name="scores")
    values = build.reshape(build.apply(Linear(torch.ones(1, 2).double()), node, name="values"), (2, 1), "rows")
    seen = build.apply(Attention(None), scores, values, name="seen")
    bias = torch.tensor([0.8 * (small * large) * small, 0.0], dtype=torch.float64)
    y = build.apply(Linear(torch.tensor([[-1.0, 0.0]]).double(), bias), seen, name="y")
    found = certify(Graph(source, y), Box(0 * ONE, large * ONE), 0, method, dtype=dtype, attack=None)
    assert found.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factors", [(1e-23, 1e-23), (1e-46,), (1e-26, 1e-20)])
def test_constants_that_are_too_small_for_single_precision_decide_nothing(
    factors: tuple[float, ...], method: str
) -> None:
    """(0.8·f·large − f·x, 0) for a factor f that is 0 in single precision, and x up to `large`, which is not lost."""
    large, whole = 1e20, math.prod(factors)
    source = node = build.source((1, 1), "x")
    for factor in factors:
        node = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="scale")
    bias = torch.tensor([0.8 * whole * large, 0.0], dtype=torch.float64)
    y = build.apply(Linear(torch.tensor([[-1.0, 0.0]]).double(), bias), node, name="y")
    found = certify(Graph(source, y), Box(0 * ONE, large * ONE), 0, method, dtype=torch.float32, attack=None)
    assert found.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("op", ["shift", "constant", "weight"])
def test_constants_that_are_lost_and_magnified_decide_nothing(op: str) -> None:
    """A constant of 1e-46 is divided by 1e-60 behind two ops."""
    source = node = build.source((1, 1), "x")
    tiny = torch.tensor(1e-46, dtype=torch.float64)
    if op == "weight":
        node = build.apply(Linear(tiny.reshape(1, 1)), node, name="weight")
    else:
        node = build.apply(Scale(torch.zeros((), dtype=torch.float64)), node, name="nothing")
        if op == "shift":
            node = build.apply(Shift(tiny), node, name="shift")
        else:
            node = build.apply(Add(), node, build.constant(tiny.reshape(1, 1), "constant"), name="sum")
    for _ in range(2):
        node = build.apply(Scale(torch.tensor(1e30, dtype=torch.float64)), node, name="magnified")
    y = build.apply(Linear(torch.tensor([[-1.0, 0.0]]).double(), torch.tensor([0.5, 0.0]).double()), node, name="y")
    graph = Graph(source, y)
    assert float(graph.evaluate(ONE)[0, 0]) < 0
    found = certify(graph, Box(0 * ONE, ONE), 0, "ibp", dtype=torch.float32, attack=None)
    assert found.verdict is not Verdict.VERIFIED


def test_weights_that_are_too_small_to_matter_are_harmless() -> None:
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).double().eval()
    with torch.no_grad():
        model[0].weight[3] = 1e-50
        model[2].bias.copy_(torch.tensor([9.0, 0.0]))
    for method in ("ibp", "crown"):
        found = certify(model, LinfBall(torch.rand(1, 2).double(), 0.1), 0, method, dtype=torch.float32)
        assert found.verdict is Verdict.VERIFIED


@pytest.mark.parametrize("method", ["ibp", "crown", "joint"])
@pytest.mark.parametrize(
    ("dtype", "small", "times", "large", "again", "end"),
    [(torch.float32, 1e-25, 2, 1e15, 2, 1e20), (torch.float64, 1e-29, 12, 1e25, 2, 1e60)],
)
def test_an_end_that_underflows_beside_a_large_one_decides_nothing(
    dtype: torch.dtype, small: float, times: int, large: float, again: int, end: float, method: str
) -> None:
    """(0.5, relu(−x)) for x ≥ −1: −1 underflows on its way, and the other end of the interval does not."""
    source = node = build.source((1, 1), "x")
    for factor in (small,) * times:
        scaled = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="small")
        node = build.apply(Tanh(), scaled, name="tanh")
    for factor in (large,) * again:
        node = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="large")
    node = build.apply(
        Relu(), build.apply(Scale(torch.tensor(-1.0, dtype=torch.float64)), node, name="minus"), name="relu"
    )
    for factor in (1 / small,) * times + (1 / large,) * again:
        node = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="back")
    y = build.apply(Linear(torch.tensor([[0.0, 1.0]]).double(), torch.tensor([0.5, 0.0]).double()), node, name="y")
    found = certify(Graph(source, y), Box(-ONE, end * ONE), 0, method, dtype=dtype, attack=None)
    assert found.verdict is not Verdict.VERIFIED


@pytest.mark.parametrize("method", ["ibp", "crown"])
def test_an_output_that_underflowed_is_not_measured_by_a_large_one_beside_it(method: str) -> None:
    """Y_0 is x, of which nothing is left, and Y_1 is 1e20: what Y_0 has lost is little to Y_1 alone."""
    source = node = build.source((1,), "x")
    for factor in [1e-29] * 12 + [1e29] * 12:
        scaled = build.apply(Scale(torch.tensor(factor, dtype=torch.float64)), node, name="scale")
        node = build.apply(Relu(), scaled, name="relu")
    nothing = build.apply(Scale(torch.zeros((), dtype=torch.float64)), source, name="zero")
    large = build.apply(Shift(torch.full((1,), 1e20, dtype=torch.float64)), nothing, name="large")
    graph = Graph(source, build.concat([node, large], 0, "y"))
    text = "(declare-const X_0 Real) (declare-const Y_0 Real) (declare-const Y_1 Real) (assert (<= 0.9 X_0 1.1))"
    prop = read_vnnlib(f"{text} (assert (>= Y_0 0.5))".encode())
    found = verify(graph, prop, lambda _x: None, budget=Budget(10.0), method=method)
    assert found.verdict is Verdict.UNKNOWN
    assert "underflow" in found.reason


def test_an_output_that_is_0_whatever_was_lost_is_harmless() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double().eval()
    with torch.no_grad():
        model[0].weight[3], model[0].bias[3] = 1e-200, 0.0
        model[0].weight[2], model[0].bias[2] = 1e-300, 0.0
        model[2].weight[2], model[2].bias[2] = 0.0, 0.0
        model[2].bias[:2] = torch.tensor([9.0, 1.0])
    x = torch.full((1, 2), 1e-5, dtype=torch.float64)
    assert certify(model, LinfBall(x, 1e-6), 0, "crown").verdict is Verdict.VERIFIED

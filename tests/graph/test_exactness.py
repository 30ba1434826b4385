"""Simplification is exact: no sum is rounded, and functions are recognised by their exact numbers or not at all."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.rewrite import ONE_UP, exact_sum, peel, product, stored
from vertex_softmax.graph.simplify import MOST_FACTORS, simplify
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops import elementwise, linear
from vertex_softmax.runs.certify import load

ROOT, THIRD = math.sqrt(2 / math.pi), 0.044715


def const(x: float) -> Node:
    return build.constant(torch.tensor(x, dtype=torch.float64))


def kinds(graph: Graph) -> list[str]:
    return sorted(type(node.op).__name__ for node in graph.nodes())


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Cancelling(nn.Module):
    """(x + 2⁶⁰) + 1 − 2⁶⁰ − x − 2 = −1, written as biases and Linears that can be merged."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, 1).double(), nn.Linear(1, 2, bias=False).double()
        with torch.no_grad():
            self.first.weight.fill_(1.0)
            self.first.bias.fill_(2.0**60)
            self.second.weight.copy_(torch.tensor([[1.0], [0.0]]))

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(self.first(x) + 1.0)
        return y + torch.tensor([-(2.0**60), 0.5], dtype=torch.float64)


@pytest.mark.parametrize("method", METHODS)
def test_terms_are_not_lost_in_merged_weights(method: str) -> None:
    """In real arithmetic the margin of class 0 is x + 1 − .5: with the 1 lost it would be x − .5."""
    graph = load(Cancelling().eval(), vx.LinfBall(torch.zeros(1, 1, dtype=torch.float64), 0.0))
    held = [value for value in graph.constants() if value.numel() == 1 and float(value) == 1.0]
    assert held, f"the 1 is in none of the numbers of {graph}"
    biases = [op.bias for node in graph.nodes() if isinstance(op := node.op, linear.Linear) and op.bias is not None]
    assert any(float(b.abs().max()) == 2.0**60 for b in biases)
    box = vx.LinfBall(torch.full((1, 1), 0.25, dtype=torch.float64), 0.1)
    found = vx.certify(Cancelling().eval(), box, 0, method)
    # the true margins are .65 … .85; in floating point nothing within 128 of them can be told
    assert found.verdicts[0] is not vx.Verdict.VERIFIED


class Losing(nn.Module):
    """Class 0 has ((x + 2⁶⁰) − 1) − 2⁶⁰ + ½ = x − ½ against 0; with the 1 lost in a sum it would have x + ½."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(1, 1).double() for _ in range(3)), nn.Linear(1, 2).double())
        with torch.no_grad():
            for layer, bias in zip(self.layers, (2.0**60, -1.0, -(2.0**60), 0.0), strict=True):
                layer.weight.fill_(1.0)
                layer.bias.fill_(bias)
            self.layers[3].weight.copy_(torch.tensor([[1.0], [0.0]]))
            self.layers[3].bias.copy_(torch.tensor([0.5, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("certificate", [False, True])
def test_a_loaded_graph_has_no_false_proof(loaded: bool, certificate: bool) -> None:
    """What `load` gives has no sum in which the 1 is lost, so that a certificate of it is one of the model."""
    ball = vx.LinfBall(torch.zeros(1, 1, dtype=torch.float64), 0.1)
    model = Losing().eval()
    found = vx.certify(load(model, ball) if loaded else model, ball, 0, "crown", certificate=certificate)
    assert found.verdicts[0] is not vx.Verdict.VERIFIED
    assert not any(found.certificates or ())


def test_no_rule_multiplies_matrices() -> None:
    x = build.source((1, 3))
    y = build.affine(build.affine(x, torch.eye(3).double(), None, "a"), torch.ones(2, 3).double(), None, "b")
    assert kinds(simplify(Graph(x, y))) == ["Input", "Linear", "Linear"]


def written_tanh(x: Node, k: float, third: float) -> Node:
    cube = build.multiply(x, build.apply(elementwise.Square(), x, name="2"), "3")
    inner = build.multiply(build.add(x, build.multiply(cube, const(third), "c"), "a"), const(k), "k")
    gate = build.add(build.apply(elementwise.Tanh(), inner, name="t"), const(1.0), "1")
    return build.multiply(build.multiply(x, const(0.5), "h"), gate, "g")


def test_the_tanh_form_is_recognised_by_its_exact_constants() -> None:
    def found(k: float, third: float) -> list[str]:
        x = build.source((1, 4))
        return kinds(simplify(Graph(x, written_tanh(x, k, third))))

    assert found(ROOT, THIRD) == ["Gelu", "Input"]
    single = [float(torch.tensor(value, dtype=torch.float32)) for value in (ROOT, THIRD)]
    assert found(*single) == ["Gelu", "Input"]
    for k, third in ((ROOT * (1 + 9e-13), THIRD), (math.nextafter(ROOT, 1), THIRD), (ROOT, math.nextafter(THIRD, 1))):
        assert "Gelu" not in found(k, third)


@pytest.mark.parametrize("method", ["crown", "joint"])
def test_two_nearly_equal_gelus_do_not_cancel(method: str) -> None:
    """k (1 ± 9e-13), amplified by 1e12: the difference is not 0, and no bound may say so."""

    def gelu(x: Tensor, k: float) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(k * (x + THIRD * x * x * x)))

    class Twins(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = (gelu(x, ROOT * (1 + 9e-13)) - gelu(x, ROOT * (1 - 9e-13))) * 1e12
            return torch.cat([torch.full_like(y, 0.1), y], -1)

    x = torch.full((1, 1), 0.9, dtype=torch.float64)
    truth = 0.1 - 0.5 * 0.9 * (1 - math.tanh(ROOT * (0.9 + THIRD * 0.9**3)) ** 2) * 1.8 * ROOT * (0.9 + THIRD * 0.9**3)
    assert truth < 0
    found = vx.certify(Twins().eval(), vx.LinfBall(x, 1e-9), 0, method)
    assert found.verdicts[0] is not vx.Verdict.VERIFIED


def test_a_factor_that_is_nearly_one_is_not_one() -> None:
    x = build.source((1, 2))
    y = build.multiply(build.multiply(x, const(3.0), "a"), const(1 / 3), "b")  # 3 · fl(1/3) rounds to 1 and is not 1
    graph = simplify(Graph(x, build.subtract(y, x, "s")))
    assert "Scale" in kinds(graph)
    assert [float(v) for v in graph.constants()] == [ONE_UP]
    z = build.divide(build.multiply(x, const(3.0), "a"), const(3.0), "b")  # may be left as it is, or be x
    assert float(simplify(Graph(x, z)).evaluate(tensor(1.0, 2.0)[None])[0, 1]) == pytest.approx(2.0, rel=1e-15)


def test_products_that_underflow_are_not_made() -> None:
    x = build.source((1, 2))
    y = build.multiply(build.multiply(x, const(1e-200), "a"), const(1e-200), "b")
    assert kinds(simplify(Graph(x, y))) == ["Input", "Scale", "Scale"]


def test_many_factors_in_a_row_are_not_rounded_together() -> None:
    x = y = build.source((1, 2))
    for i in range(MOST_FACTORS + 1):
        y = build.multiply(y, const(1.1 + i * 1e-3), "m")
    assert kinds(simplify(Graph(x, y))).count("Scale") == MOST_FACTORS + 1
    x = y = build.source((1, 2))
    for i in range(MOST_FACTORS):
        y = build.multiply(y, const(1.1 + i * 1e-3), "m")
    graph = simplify(Graph(x, y))
    exact = math.prod(Fraction(1.1 + i * 1e-3) for i in range(MOST_FACTORS))
    (factor,) = (float(value) for value in graph.constants())
    assert abs(Fraction(factor) / exact - 1) < Fraction(1, 2**47)


def test_the_variance_needs_exact_means() -> None:
    """mean(x²) − mean(x)² with fl(1/3) is not mean((x − mean)²): with x near 1e8 the two differ by 1."""

    def graph(exact: bool) -> Graph:
        x = build.source((1, 3))
        square = build.apply(elementwise.Square(), x, name="2")
        means = []
        for y in (square, x):
            total = build.total(y, [1], True, "t")
            means.append(build.mean(y, [1], True, "m") if exact else build.multiply(total, const(1 / 3), "m"))
        plain = build.apply(elementwise.Square(), means[1], name="2")
        return simplify(Graph(x, build.subtract(means[0], plain, "v")))

    assert "Linear" in kinds(graph(True))  # the centring
    assert "Linear" not in kinds(graph(False))


def test_a_norm_by_nearly_the_mean_is_nearly_a_norm() -> None:
    """Σ y² · fl(1/3) is not the mean of y²: what is left of the factor is near 1, and stays in the graph."""
    x = build.source((1, 3))
    total = build.total(build.apply(elementwise.Square(), x, name="2"), [1], True, "t")
    mean = build.add(build.multiply(total, const(1 / 3), "m"), const(0.5), "e")
    root = build.apply(elementwise.Rsqrt(), mean, name="r")
    graph = simplify(Graph(x, build.multiply(x, root, "n")))
    assert kinds(graph) == ["Input", "Normalize", "Scale"]
    assert [float(v) for v in graph.constants()] == [ONE_UP]


def test_sigmoid_needs_equal_numbers() -> None:
    def graph(scale: float, one: float) -> Graph:
        x = build.source((1, 3))
        e = build.apply(elementwise.Exp(), build.negate(x, "-"), name="e")
        total = build.add(build.divide(e, const(scale), "d"), const(one), "1")
        return simplify(Graph(x, build.apply(elementwise.Reciprocal(), total, name="r")))

    assert "Sigmoid" in kinds(graph(4.0, 0.25))
    assert "Sigmoid" not in kinds(graph(3.0, 1 / 3))  # a third is not fl(1/3)


def test_time_is_limited() -> None:
    x = build.source((1, 2))
    with pytest.raises(OutOfTimeError, match="time for reading the model"):
        simplify(Graph(x, build.multiply(x, const(2.0), "a")), deadline=0.0)


def test_deep_chains_need_no_stack() -> None:
    x = y = build.source((2, 3))
    for i in range(1500):
        y = build.permute(y, (1, 0), "p") if i % 2 else build.reshape(y, (y.shape[1], y.shape[0]), "r")
    y = build.affine(
        build.affine(y, torch.ones(4, y.shape[-1]).double(), None, "l"), torch.ones(4, 4).double(), None, "m"
    )
    graph = simplify(Graph(x, build.slice_(y, 1, 0, 2, 1, "s")))
    assert graph.output.shape == (y.shape[0], 2)
    x = y = build.source((1, 2))
    for _ in range(1500):
        y = build.add(y, x, "a")
    gate = build.apply(elementwise.Sigmoid(), y, name="s")
    simplify(Graph(x, build.multiply(x, gate, "g")))


floats = st.floats(-1e300, 1e300, allow_subnormal=False)


@settings(max_examples=300, deadline=None)
@given(floats, floats)
def test_products_and_sums_know_whether_they_are_exact(a: float, b: float) -> None:
    exact_product, exact_total = Fraction(a) * Fraction(b), Fraction(a) + Fraction(b)
    plain = product(tensor(a), tensor(b), rounding=False)
    assert plain is None or Fraction(float(plain)) == exact_product
    rounded = product(tensor(a), tensor(b), rounding=True)
    if rounded is not None and exact_product:
        assert abs(Fraction(float(rounded)) / exact_product - 1) <= Fraction(1, 2**52)
        assert float(rounded) != 1 or exact_product == 1
    total = exact_sum(tensor(a), tensor(b))
    assert (total is not None) == (math.isfinite(a + b) and Fraction(a + b) == exact_total)
    near = stored(exact_product)
    assert near is None or exact_product == 0 or abs(Fraction(near) / exact_product - 1) <= Fraction(1, 2**52)


def test_peeled_numbers_are_exact() -> None:
    x = build.source((1, 2))
    y = build.add(build.divide(build.multiply(x, const(0.1), "a"), const(3.0), "b"), const(0.3), "c")
    base, scale, shift = peel(y)
    assert base is x
    assert (scale, shift) == (Fraction(0.1) / 3, Fraction(0.3))

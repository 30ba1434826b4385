"""Ops to third order: what the linear part and the products of two and three inputs leave is within the errors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mpmath
import pytest
import torch
from torch import Tensor

from tests.ops.propagation.second_order_checks import (
    Case,
    case,
    errors_alone,
    inputs_like,
    known_part,
    overshoot,
    products_at,
)
from vertex_softmax.ops import pairs
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.contract import Propagating
from vertex_softmax.ops.elementwise import Elementwise, Gelu, Relu, Sigmoid, Silu, Tanh
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.propagation.third_curves import bent_to_third_order
from vertex_softmax.ops.propagation.third_norms import normalized_to_third_order
from vertex_softmax.ops.propagation.third_rows import Sizes, _along, attended_to_third_order, cubics
from vertex_softmax.ops.zonotope import Zonotope

CURVES: list[Elementwise] = [Gelu(), Gelu(tanh=True), Silu(), Tanh(), Sigmoid()]
NAMES = ["gelu", "gelu tanh", "silu", "tanh", "sigmoid"]
MASKS = {
    "open": None,
    "causal": torch.tensor([[False, True, True, True], [False, False, True, True], [False, False, False, True]]),
    "padding": torch.tensor([False, False, True, True]),
}
RESTS = (0.0, 1.0, 5.0)


def check(op: Propagating, drawn: Case, steps: int = 6) -> Zonotope:
    """What the op chooses; products of three are kept where they may be."""
    found = op.propagate(drawn.zonotopes, tuple(x.tight_box for x in drawn.zonotopes), "the op")
    assert overshoot(found, drawn, op.evaluate, None, steps) <= 0
    assert not bool(found.tightest_radius.isnan().any())
    return found


def has_triples(found: Zonotope, drawn: Case) -> bool:
    triples = drawn.inputs.triples
    return triples in found.blocks and bool((found.blocks[triples] != 0).any())


def sizes(tau: float, rest: float) -> Sizes:
    one = torch.tensor(1.0, dtype=torch.float64)
    return Sizes(whole=tau * one, line=(tau - rest) * one, form=rest / 2 * one, third=rest / 2 * one, rest=rest * one)


@pytest.mark.parametrize("rest", [0.0, 0.05, 0.9])
@pytest.mark.parametrize("tau", [1e-6, 1e-3, 0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 15.0])
def test_a_polynomial_is_within_its_error(tau: float, rest: float) -> None:
    """By 60 digits; what rounding takes off the terms is left to the slack of whoever uses them."""
    e = cubics(sizes(tau, rest * tau))
    alpha, beta, gamma, mu, delta = (mpmath.mpf(float(x)) for x in (e.alpha, e.beta, e.gamma, e.mu, e.delta))
    with mpmath.workdps(60):
        slack = 4 * 2.0**-52 * (abs(alpha) + abs(beta) * tau + gamma * tau**2 + mu * tau**3 + delta)
        for i in range(-200, 201):
            t = mpmath.mpf(tau) * i / 200
            assert abs(mpmath.exp(t) - alpha - beta * t - gamma * t**2 - mu * t**3) <= delta + slack


@pytest.mark.parametrize("tau", [1e-3, 0.1, 0.5, 1.0, 2.0])
def test_a_cubic_is_within_its_error_to_the_last_digit(tau: float) -> None:
    """By its formulas in 60 digits: without any tolerance."""
    with mpmath.workdps(60):
        t = mpmath.mpf(tau)
        exact = (1 - t**4 / 192, 1 - t**4 / 384, mpmath.mpf(1) / 2 + t**2 / 24, mpmath.mpf(1) / 6 + t**2 / 96)
        delta = t**4 / 192 + t**5 / 1920 + (t**6 / 720 + t**7 / 5040) * mpmath.cosh(t)
        for i in range(-300, 301):
            x = t * i / 300
            assert abs(mpmath.exp(x) - sum(a * x**k for k, a in enumerate(exact))) <= delta
    e = cubics(sizes(tau, 0.0))
    if float(e.mu) > 0:
        for mine, true in zip((e.alpha, e.beta, e.gamma, e.mu, e.delta), (*exact, delta), strict=True):
            assert float(mine) == pytest.approx(float(true), rel=1e-13)
    else:
        assert tau > 1  # there a line may have less error


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("centre", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("size", [1e-3, 0.05, 0.3, 1.0])
def test_rows_of_attention(size: float, centre: float, mask: str) -> None:
    """Both what is chosen and, in every row of numbers, the rule of third order itself."""
    op = Attention(mask=MASKS[mask])
    for seed, rest in enumerate(RESTS):
        drawn = case([(2, 3, 4), (2, 4, 5)], size, seed, rest=rest, centre=centre, third=True)
        scores, values = drawn.zonotopes
        masked = op._centre(scores, scores.box)
        third, _ = attended_to_third_order(scores, masked, values, drawn.inputs, "attention")
        finite = third.centre.isfinite().all(-1) & third.radius.isfinite().all(-1)
        assert bool(finite.all()) or size >= 1
        assert overshoot(third, drawn, op.evaluate, finite, 6) <= 0
        assert has_triples(check(op, drawn, 0), drawn) or size >= 1


@pytest.mark.parametrize("side", ["scores", "values"])
def test_attention_of_which_only_one_side_depends_on_the_input(side: str) -> None:
    for seed in range(3):
        drawn = case([(2, 3, 4), (2, 4, 5)], 0.3, seed, third=True)
        scores, values = drawn.zonotopes
        fixed = values if side == "scores" else scores
        blocks = {u: x for u, x in fixed.blocks.items() if u.origin == "other"}
        fixed = Zonotope(fixed.centre, blocks, fixed.own, fixed.slack)
        both = (scores, fixed) if side == "scores" else (fixed, values)
        check(Attention(), Case(both, drawn.inputs, drawn.generator))


@pytest.mark.parametrize("size", [1e-3, 0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    ("op", "shapes"), [(Multiply(), [(3, 4), (3, 4)]), (MatMul(), [(2, 3, 4), (2, 4, 5)])], ids=["elements", "matrices"]
)
def test_products(op: Propagating, shapes: Sequence[tuple[int, ...]], size: float) -> None:
    for seed, (rest, centre) in enumerate(itertools.product(RESTS, (0.0, 1.0))):
        check(op, case(shapes, size, seed, rest=rest, centre=centre, third=True))


@pytest.mark.parametrize("size", [1e-4, 0.05, 0.3, 1.5])
@pytest.mark.parametrize("op", CURVES, ids=NAMES)
def test_curves(op: Elementwise, size: float) -> None:
    for seed, rest in enumerate(RESTS):
        drawn = case([(3, 5)], size, seed, rest=rest, third=True)
        check(op, drawn, 0)
        (x,) = drawn.zonotopes
        at = op.derivatives(x.centre)
        assert at is not None
        third = bent_to_third_order(x, at, x.tightest_radius, drawn.inputs, "curve")
        assert overshoot(third, drawn, op.evaluate) <= 0
        assert has_triples(third, drawn)


def test_a_curve_that_is_not_smooth_keeps_the_products_it_is_given() -> None:
    for seed in range(3):
        check(Relu(), case([(3, 5)], 0.3, seed, third=True))


@pytest.mark.parametrize("eps", [0.0, 1e-5, 0.3])
@pytest.mark.parametrize("centre", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("size", [1e-4, 0.02, 0.1, 0.4])
def test_norms(size: float, centre: float, eps: float) -> None:
    """Both what is chosen and, in the rows of which something is claimed, the rule of third order itself."""
    op = Normalize(count=1, eps=eps) if eps else Normalize(count=1, eps=1e-12)
    for seed, rest in enumerate(RESTS):
        drawn = case([(3, 5)], size, seed, rest=rest, centre=centre, third=True)
        (y,) = drawn.zonotopes
        third, useful = normalized_to_third_order(y, op.eps, "norm", drawn.inputs)
        assert overshoot(third, drawn, op.evaluate, useful, 8) <= 0
        found = check(op, drawn, 2)
        assert has_triples(found, drawn) or size > 0.02 * centre or eps > 0.1  # which leaves an error of second order


def test_products_of_three_leave_less_than_products_of_two() -> None:
    """On small sets errors are of fourth order: a tenth of the size leaves a ten-thousandth, not a thousandth."""
    for op, shapes in ((Attention(), [(3, 4), (4, 5)]), (Gelu(), [(3, 5)]), (Normalize(count=1, eps=1e-12), [(3, 5)])):
        left = []
        for size in (0.02, 0.002):
            drawn = case(shapes, size, 1, rest=0.0, third=True)
            found = op.propagate(drawn.zonotopes, tuple(x.tight_box for x in drawn.zonotopes), "the op")
            errors = [found.blocks[u] for u in found.blocks if u not in drawn.old()]
            left.append(float(sum((x.abs().sum() for x in errors), found.loose.sum())))
        assert left[1] < left[0] / 5000


def test_the_order_of_a_batch_does_not_matter() -> None:
    drawn = case([(2, 3, 4), (2, 4, 5)], 0.2, 3, third=True)

    def twice(x: Tensor) -> Tensor:
        return torch.cat([x, x])

    both = tuple(
        Zonotope(twice(x.centre), {u: twice(c) for u, c in x.blocks.items()}, twice(x.loose - x.slack), twice(x.slack))
        for x in drawn.zonotopes
    )
    found = Attention().propagate(both, tuple(x.tight_box for x in both), "the op")
    alone = Attention().propagate(drawn.zonotopes, tuple(x.tight_box for x in drawn.zonotopes), "the op")
    torch.testing.assert_close(found.centre[1:], alone.centre)
    torch.testing.assert_close(found.tightest_radius[1:], alone.tightest_radius)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("tau", "rest"), [(0.1, 6e-4), (0.2, 2e-3), (0.05, 1e-4)])
def test_every_error_of_a_cubic_is_needed(tau: float, rest: float, sign: float) -> None:
    """One key, t = ±ℓ ξ₁ + r ξ₁ ξ₂: at ξ = (1, 1) the errors of e^t, of γ r² and of μ m r have one sign and add up."""
    inputs = inputs_like(3, third=True)  # the last one moves nothing
    shape = (1, 1)  # one row, one key
    pair = torch.tensor([rest * pairs.unit(3), 0.0, 0.0], dtype=torch.float64).reshape(1, 1, 3, *shape)
    line = torch.tensor([sign * (tau - rest), 0.0, 0.0], dtype=torch.float64).reshape(1, 3, 1, *shape)
    zero = torch.zeros(1, *shape, dtype=torch.float64)
    t = Zonotope(zero, {inputs: line, inputs.pairs: pair}, None, zero)
    one = torch.ones_like(zero)
    reach = Sizes(whole=tau * one, line=(tau - rest) * one, form=rest * one, third=zero, rest=rest * one)
    assert float(cubics(reach).mu) > 0
    found, _ = _along(t, reach, one, torch.ones(1, 1, 1, dtype=torch.float64), inputs, "the op")
    xi = torch.tensor([[a, b, 1.0] for a in (-1.0, 1.0) for b in (-1.0, 0.0, 1.0)], dtype=torch.float64)
    values = products_at(inputs, xi)
    true = known_part(t, values).exp()
    off = (true - known_part(found, values)).abs()
    allowed = errors_alone(found, list(values)).radius
    assert (off <= allowed).all()
    if sign > 0:  # nearly attained, so that each of the three is needed
        assert float(off.max()) > 0.99 * float(allowed)

"""Attention, products and curves to second order: what the linear and the quadratic part leave is within the errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from torch import Tensor

from tests.ops.propagation.second_order_checks import (
    Case,
    beside,
    case,
    errors_alone,
    has_products,
    known_part,
    overshoot,
    scaled,
)
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.contract import Propagating
from vertex_softmax.ops.elementwise import Elementwise, Gelu, Relu, Sigmoid, Silu, Tanh
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.curves import bent_to_second_order
from vertex_softmax.ops.propagation.second_order import chosen, with_products
from vertex_softmax.ops.propagation.second_rows import attended_to_second_order, parabolas
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.ops.zonotope import Zonotope

TAUS = [1e-9, 1e-6, 1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 15.0, 30.0]
CURVES: list[Elementwise] = [Gelu(), Gelu(tanh=True), Gelu(tanh=True, single=True), Silu(), Tanh(), Sigmoid(), Relu()]
NAMES = ["gelu", "gelu tanh", "gelu single", "silu", "tanh", "sigmoid", "relu"]
MASKS = {
    "open": None,
    "causal": torch.tensor([[False, True, True, True], [False, False, True, True], [False, False, False, True]]),
    "padding": torch.tensor([False, False, True, True]),
}


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize("mixed", [0.0, 1e-3, torch.inf])
@pytest.mark.parametrize("tau", TAUS)
def test_a_parabola_is_within_its_error(tau: float, mixed: float) -> None:
    """By 60 digits; what rounding takes off α, β τ and γ τ² is left to the slack of whoever uses them."""
    e = parabolas(number(tau), number(mixed))
    alpha, beta, gamma, delta = (mpmath.mpf(float(x)) for x in (e.alpha, e.beta, e.gamma, e.delta))
    assert float(gamma) > 0 or mixed > 0 or tau > 1 or tau < 1e-7  # to rounding, a line has no error there
    with mpmath.workdps(60):
        slack = 4 * 2.0**-52 * (abs(alpha) + beta * tau + gamma * tau**2 + delta)
        worst = mpmath.mpf(0)
        for i in range(-200, 201):
            t = mpmath.mpf(tau) * i / 200
            worst = max(worst, abs(mpmath.exp(t) - alpha - beta * t - gamma * t * t))
        assert worst <= delta + slack
        if tau >= 1e-3:
            assert worst >= delta / (2 if tau <= 2 else 1000)  # it is not far off


@pytest.mark.parametrize("tau", [1e-3, 0.1, 0.5, 1.0])
def test_a_parabola_is_within_its_error_to_the_last_digit(tau: float) -> None:
    """α, β, γ and δ by their formulas in 60 digits: without any tolerance, so that every term of δ is needed."""
    with mpmath.workdps(60):
        t = mpmath.mpf(tau)
        odd, even = t**5 * mpmath.cosh(t) / 120, t**6 * mpmath.cosh(t) / 720
        exact = (1 - t**4 / 192 + even / 2, 1 + t**2 / 8, mpmath.mpf(1) / 2 + t**2 / 24)
        delta = t**3 / 24 + t**4 / 192 + odd + even / 2
        for i in range(-300, 301):
            x = t * i / 300
            assert abs(mpmath.exp(x) - exact[0] - exact[1] * x - exact[2] * x * x) <= delta
    e = parabolas(number(tau), number(0.0))
    for mine, true in zip((e.alpha, e.beta, e.gamma, e.delta), (*exact, delta), strict=True):
        assert float(mine) == pytest.approx(float(true), rel=1e-14)


def test_a_line_is_taken_where_the_rest_is_large() -> None:
    tau = number(0.5).expand(2)
    e = parabolas(tau, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert float(e.gamma[0]) > 0
    assert float(e.gamma[1]) == 0
    assert float(e.beta[1]) == pytest.approx(math.sinh(0.5) / 0.5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("centre", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("size", [1e-3, 0.05, 0.3, 1.0])
def test_rows_of_attention(size: float, centre: float, mask: str) -> None:
    """Both what is chosen and, in every row of numbers, the rule of second order itself."""
    op = Attention(mask=MASKS[mask])
    for seed, rest in enumerate((0.0, 1.0, 4.0)):
        drawn = case([(2, 3, 4), (2, 4, 5)], size, seed, rest=rest, centre=centre)
        scores, values = drawn.zonotopes
        masked = op._centre(scores, scores.box)
        second, _ = attended_to_second_order(scores, masked, values, drawn.inputs, "attention")
        finite = second.centre.isfinite().all(-1) & second.radius.isfinite().all(-1)
        assert bool(finite.all()) or size >= 1
        assert overshoot(second, drawn, op.evaluate, finite, 6) <= 0
        check(op, drawn, steps=0)


def boxes_of(drawn: Case) -> tuple[Interval, ...]:
    return tuple(x.tight_box for x in drawn.zonotopes)


def check(op: Propagating, drawn: Case, steps: int = 6) -> Zonotope:
    found = op.propagate(drawn.zonotopes, boxes_of(drawn), "the op")
    assert overshoot(found, drawn, op.evaluate, None, steps) <= 0
    assert not bool(found.radius.isnan().any())
    assert not bool(found.tight_radius.isnan().any())
    return found


@pytest.mark.parametrize("side", ["scores", "values"])
def test_attention_of_which_only_one_side_depends_on_the_input(side: str) -> None:
    for seed in range(3):
        drawn = case([(2, 3, 4), (2, 4, 5)], 0.3, seed)
        scores, values = drawn.zonotopes
        fixed = values if side == "scores" else scores
        blocks = {u: x for u, x in fixed.blocks.items() if u.origin == "other"}
        fixed = Zonotope(fixed.centre, blocks, fixed.own, fixed.slack)
        both = (scores, fixed) if side == "scores" else (fixed, values)
        check(Attention(), Case(both, drawn.inputs, drawn.generator))


def test_attention_of_scores_that_are_linear_and_values_that_are_not() -> None:
    """Two keys, scores ±ξ/5 and values ±ζ: the error is ξ ζ/5, of what is linear in scores times the values' rest."""
    drawn = case([(1, 2), (2, 1)], 1.0, 0)
    other = next(u for u in drawn.zonotopes[0].blocks if u.origin == "other")
    opposite = torch.tensor([1.0, -1.0], dtype=torch.float64)
    columns = torch.zeros(1, 4, 1, 1, 2, dtype=torch.float64)
    columns[0, 0, 0, 0] = 0.2 * opposite
    zeros = [torch.zeros(1, 1, 2, dtype=torch.float64), torch.zeros(1, 2, 1, dtype=torch.float64)]
    scores = Zonotope(zeros[0], {drawn.inputs: columns}, None, zeros[0])
    values = Zonotope(zeros[1], {other: opposite.reshape(1, 1, 1, 2, 1)}, None, zeros[1])
    second, _ = attended_to_second_order(scores, zeros[0], values, drawn.inputs, "attention")
    assert overshoot(second, Case((scores, values), drawn.inputs, drawn.generator), Attention().evaluate) <= 0


def test_a_weight_near_one_and_peaked_rows() -> None:
    for seed, centre in itertools.product(range(2), (10.0, 40.0)):
        check(Attention(), case([(2, 3, 4), (2, 4, 5)], 0.5, seed, centre=centre))


@pytest.mark.parametrize("size", [1e-3, 0.05, 0.3, 1.0])
@pytest.mark.parametrize(
    ("op", "shapes"), [(Multiply(), [(3, 4), (3, 4)]), (MatMul(), [(2, 3, 4), (2, 4, 5)])], ids=["elements", "matrices"]
)
def test_products(op: Propagating, shapes: Sequence[tuple[int, ...]], size: float) -> None:
    for seed, (rest, centre) in enumerate(itertools.product((0.0, 1.0, 5.0), (0.0, 1.0))):
        drawn = case(shapes, size, seed, rest=rest, centre=centre)
        assert has_products(check(op, drawn), drawn.inputs) or size > 0.1


@pytest.mark.parametrize("scale", [1e-60, 1e-6, 1e6, 1e60])
def test_products_and_attention_of_other_scales(scale: float) -> None:
    for seed in range(2):
        check(Multiply(), scaled(case([(3, 4), (3, 4)], 0.3, seed), scale, 1.0), 0)
        check(Multiply(), scaled(case([(3, 4), (3, 4)], 0.3, seed, centre=0.0), scale, scale), 0)
        check(MatMul(), scaled(case([(2, 3, 4), (2, 4, 5)], 0.3, seed), scale, scale), 0)
        check(Attention(), scaled(case([(2, 3, 4), (2, 4, 5)], 0.3, seed), 1.0, scale), 0)


def test_a_product_without_rest_is_exact() -> None:
    """(Σ x_i ξ_i)(Σ y_i ξ_i) has no error but rounding: all of it is products of inputs."""
    for op, shapes in ((Multiply(), [(3, 4), (3, 4)]), (MatMul(), [(3, 4), (4, 2)])):
        drawn = case(shapes, 1.0, 3, rest=0.0)
        found = check(op, drawn)
        known = {drawn.inputs, drawn.inputs.squares, drawn.inputs.pairs}
        assert all(float(x.abs().max()) < 1e-9 for u, x in found.blocks.items() if u not in known)
        assert float(found.loose.max()) < 1e-9


@pytest.mark.parametrize("size", [1e-4, 0.05, 0.3, 1.5])
@pytest.mark.parametrize("op", CURVES, ids=NAMES)
def test_curves(op: Elementwise, size: float) -> None:
    for seed, rest in enumerate((0.0, 1.0, 5.0)):
        drawn = case([(3, 5)], size, seed, rest=rest)
        found = check(op, drawn, 0)
        assert has_products(found, drawn.inputs) or size > 0.05 or isinstance(op, Relu)  # whose sign may be decided
        # whatever is better: an endlessly wide band is never chosen
        (x,) = drawn.zonotopes
        band = op.band(x.tight_box, Rules(attention=RowRule.AFFINE, parallel=True))
        wide = band._replace(half=band.half + 1e6)
        second = bent_to_second_order(x, wide, op.parabola(x, x.tight_box), "curve")
        assert overshoot(second, drawn, op.evaluate) <= 0


@pytest.mark.parametrize("op", CURVES, ids=NAMES)
def test_curves_far_away_are_numbers(op: Elementwise) -> None:
    for scale in (1e-100, 1e-6, 30.0, 1e6, 1e100, 1e150):
        check(op, scaled(case([(2, 3)], 0.1, 0), scale), 0)


def test_curves_whose_box_is_narrower_than_the_zonotope() -> None:
    """Only points in the box are claimed: the band and the cubic part are of the box."""
    drawn = case([(3, 4)], 0.6, 2)
    (x,) = drawn.zonotopes
    whole = x.tight_box
    box = Interval(x.centre - 0.4 * (x.centre - whole.lower), x.centre + 0.4 * (whole.upper - x.centre))
    for op in CURVES:
        found = op.propagate((x,), (box,), "curve")
        values, (points,) = drawn.values([t * 0.5 for t in drawn.drawn(False)])
        fits = ((points >= box.lower) & (points <= box.upper)).all(-1)
        left = op.evaluate(points) - known_part(found, values)
        errors = errors_alone(found, list(values))
        assert bool(((left.abs() <= errors.radius).all(-1) | ~fits).all())
        assert int(fits.sum()) > 5


OPS: list[tuple[Propagating, list[tuple[int, ...]]]] = [
    (Multiply(), [(3, 4), (3, 4)]),
    (MatMul(), [(2, 3, 4), (2, 4, 5)]),
    (Attention(), [(2, 3, 4), (2, 4, 5)]),
    (Attention(mask=MASKS["causal"]), [(2, 3, 4), (2, 4, 5)]),
    *((op, [(3, 4)]) for op in CURVES),
]


@pytest.mark.parametrize(("op", "shapes"), OPS, ids=lambda x: type(x).__name__)
def test_a_batch_is_its_singles(op: Propagating, shapes: list[tuple[int, ...]]) -> None:
    cases = [case(shapes, size, seed) for seed, size in enumerate((0.01, 0.2, 2.0))]
    together = beside(cases)
    found = op.propagate(together.zonotopes, boxes_of(together), "batch")
    for i, each in enumerate(cases):
        alone = op.propagate(each.zonotopes, boxes_of(each), "single")
        torch.testing.assert_close(found.centre[i], alone.centre[0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.radius[i], alone.radius[0], rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(found.tight_radius[i], alone.tight_radius[0], rtol=1e-5, atol=1e-12)
        eta = torch.linspace(-1, 2, alone.centre.numel(), dtype=torch.float64).reshape(alone.centre.shape)
        many = found.reach(eta.expand_as(found.centre))
        torch.testing.assert_close(many[i], alone.reach(eta)[0], rtol=1e-5, atol=1e-12)


def test_products_are_added_to_what_is_there() -> None:
    drawn = case([(3, 4)], 0.5, 4)
    (x,) = drawn.zonotopes
    generator, n = drawn.generator, drawn.inputs.count
    p = torch.randn(1, n * (n - 1) // 2, 3, 4, generator=generator, dtype=torch.float64)
    q = torch.randn(1, n, 3, 4, generator=generator, dtype=torch.float64)
    found = with_products(x, drawn.inputs, (p, q))
    values, _ = drawn.values(drawn.drawn(False))
    xi = values[drawn.inputs].squeeze(2)
    true = known_part(x, values) + torch.einsum("pi,i...->p...", xi.square(), q[0])
    for k, (i, j) in enumerate(itertools.combinations(range(n), 2)):
        true = true + (xi[:, i] * xi[:, j])[:, None, None] * p[0, k]
    torch.testing.assert_close(known_part(found, values), true)
    assert found.own is x.own
    assert found.slack is x.slack


def test_chosen_takes_all_of_a_number_from_one() -> None:
    one, two = case([(3, 4)], 0.5, 5), case([(3, 4)], 0.2, 6)
    (a,), (b,) = one.zonotopes, two.zonotopes
    b = Zonotope(b.centre, b.blocks, None, b.slack)
    first = torch.tensor([[[True], [False], [True]]])
    for x, y in ((a, b), (b, a)):
        found = chosen(first, x, y)
        for row, source in ((0, x), (1, y), (2, x)):
            torch.testing.assert_close(found.centre[:, row], source.centre[:, row], rtol=0, atol=0)
            torch.testing.assert_close(found.loose[:, row], source.loose[:, row], rtol=0, atol=0)
            for unknowns, columns in found.blocks.items():
                true = source.blocks.get(unknowns)
                true = torch.zeros_like(columns) if true is None else true
                torch.testing.assert_close(columns[..., row, :], true[..., row, :], rtol=0, atol=0)
    assert chosen(torch.ones(1, 1, 1, dtype=torch.bool), a, b) is a
    assert chosen(torch.zeros(1, 1, 1, dtype=torch.bool), a, b) is b

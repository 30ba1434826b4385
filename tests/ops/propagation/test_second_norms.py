"""y / σ(y) to second order: what the linear and the quadratic part leave is within the errors, whatever the scale."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.ops.propagation.second_order_checks import Case, beside, case, has_products, overshoot, scaled
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.propagation.norms import _to_second_order, across_centre, inner, normalized
from vertex_softmax.ops.zonotope import Zonotope

EPSILONS = [0.0, 1e-12, 1e-5, 0.1, 1.0]
WIDTHS = [1, 2, 16]


def check(drawn: Case, eps: float, steps: int = 6) -> float:
    """The share of rows that may be used to second order, after all of what is claimed was tried."""
    evaluate = Normalize(eps).evaluate
    (y,) = drawn.zonotopes
    second, useful = _to_second_order(y, eps, "norm", drawn.inputs)
    if bool(useful.any()):
        assert overshoot(second, drawn, evaluate, useful, steps) <= 0
    found = normalized(y, eps, "norm")
    assert overshoot(found, drawn, evaluate, None, 0) <= 0
    assert not bool(found.radius.isnan().any())
    assert not bool(found.tight_radius.isnan().any())
    return float(useful.double().mean())


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("d", WIDTHS)
@pytest.mark.parametrize("size", [1e-3, 0.05, 0.2, 0.6])
def test_rows_of_a_norm(eps: float, d: int, size: float) -> None:
    for seed, rest in enumerate((0.0, 1.0)):
        check(case([(3, d)], size, seed, rest=rest), eps)


@pytest.mark.parametrize("rest", [3.0, 10.0])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_rows_whose_rest_is_as_large_as_what_is_linear(eps: float, rest: float) -> None:
    for seed in range(3):
        check(case([(3, 6)], 0.15, seed, rest=rest), eps)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize("scale", [1e-150, 1e-6, 1e6, 1e150])
def test_scales(eps: float, scale: float) -> None:
    for size in (1e-2, 0.2):
        check(scaled(case([(2, 2, 4)], size, 1), scale), eps, steps=4)


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("centre", [0.0, 1e-9, 1e-3, 0.1])
def test_nearly_no_variance(eps: float, centre: float) -> None:
    """A row whose centre is 0 or next to it, with deviations larger and smaller than that."""
    for size in (0.01 * centre, 0.3 * centre, 0.3, 3.0):
        check(case([(2, 4)], size, 2, centre=centre), eps, steps=4)


def test_small_rows_are_of_second_order_and_their_errors_of_third() -> None:
    """With an eps that matters beside the variance the errors along the centre are of second order in eps/σ² · a."""
    for eps in (0.0, 1e-6):
        sizes = []
        for size in (2e-3, 1e-3):
            drawn = case([(3, 6)], size, 3, rest=0.0)
            found, _ = _to_second_order(drawn.zonotopes[0], eps, "norm", drawn.inputs)
            assert has_products(found, drawn.inputs)
            assert has_products(normalized(drawn.zonotopes[0], eps, "norm"), drawn.inputs)
            known = (drawn.inputs, drawn.inputs.squares, drawn.inputs.pairs)
            errors = [x for u, x in found.blocks.items() if u not in known]
            sizes.append(sum(float(x.square().sum().sqrt()) for x in errors))
            assert check(drawn, eps) == 1
        assert sizes[0] / sizes[1] > 7


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_a_batch_is_its_singles(eps: float) -> None:
    cases = [case([(2, 5)], size, 4) for size in (0.01, 0.3, 3.0)]
    together = beside(cases).zonotopes[0]
    found = normalized(together, eps, "norm")
    eta = torch.linspace(-1, 1, 10, dtype=torch.float64).reshape(1, 2, 5)
    for i, each in enumerate(cases):
        alone = normalized(each.zonotopes[0], eps, "norm")
        same(found.centre[i], alone.centre[0])
        same(found.radius[i], alone.radius[0])
        same(found.reach(eta.expand(3, 2, 5))[i], alone.reach(eta)[0])


def same(x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-12)


def test_across_is_orthogonal_and_holds_own_errors() -> None:
    drawn = case([(3, 4)], 0.3, 5)
    (y,) = drawn.zonotopes
    c = y.centre
    found = across_centre(y, c, c.square().sum(-1))
    for unknowns, columns in found.blocks.items():
        assert float((columns * c[:, None, None]).sum(-1).abs().max()) < 1e-14
        whole = y.blocks[unknowns]
        along = (whole * c[:, None, None]).sum(-1, keepdim=True) / c.square().sum(-1)[:, None, None, ..., None]
        torch.testing.assert_close(columns + along * c[:, None, None], whole)
    for _ in range(200):
        e = y.loose * torch.randn(c.shape, generator=drawn.generator, dtype=torch.float64).sign()
        projected = e - (e * c).sum(-1, keepdim=True) / c.square().sum(-1, keepdim=True) * c
        assert bool((projected.abs() <= found.loose * (1 + 1e-14)).all())


def test_the_inner_product_of_two_rows() -> None:
    drawn = case([(3, 4), (3, 4)], 0.5, 6, rest=3.0)
    x, y = drawn.zonotopes
    most = inner(x.row_shape, y.row_shape)
    reached = torch.zeros_like(most)
    for corner in (True, False):
        for _ in range(20):
            _, (a, b) = drawn.values(drawn.drawn(corner))
            reached = torch.maximum(reached, ((a - x.centre) * (b - y.centre)).sum(-1).abs().amax(0, keepdim=True))
    assert bool((reached <= most).all())
    assert bool((most <= 12 * reached).all())


def test_the_inner_product_of_parallel_rows_is_reached() -> None:
    """One unknown, both rows along one direction: |x'·y'| is |x'| |y'|, so that half of it is not enough."""
    drawn = case([(1, 3)], 1.0, 7, rest=0.0)
    column = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64).reshape(1, 1, 1, 1, 3)
    zero = torch.zeros(1, 1, 3, dtype=torch.float64)
    row = Zonotope(zero, {drawn.inputs: column}, None, zero)
    assert 9 <= float(inner(row.row_shape, row.row_shape)) <= 9 * (1 + 1e-9)


@pytest.mark.parametrize("size", [1e160, 1e200])
def test_overflow_is_no_number_that_is_used(size: float) -> None:
    drawn = scaled(case([(2, 4)], 0.1, 8), size)
    (y,) = drawn.zonotopes
    _, useful = _to_second_order(y, 1e-5, "norm", drawn.inputs)
    assert not bool(useful.any())
    found = normalized(y, 1e-5, "norm")
    assert bool((found.radius >= 1).all())
    assert float(found.radius.max()) <= math.sqrt(4) * (1 + 1e-12)


ALONG, ACROSS = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)
TERMS = {
    "the square of the rest across": ((0.0, ACROSS), (0.2, ACROSS), 0.0),
    "what is linear across times the rest across": ((0.1, ACROSS), (0.1, ACROSS), 0.0),
    "the rest along, with eps": ((0.0, ALONG), (0.01, ALONG), 1 / 3),
    "the rest along times what is linear across": ((0.1, ACROSS), (0.1, ALONG), 0.0),
    "what is linear along times the rest across": ((0.1, ALONG), (0.1, ACROSS), 0.0),
}


@pytest.mark.parametrize("name", TERMS)
def test_every_error_is_needed_where_nothing_else_is(name: str) -> None:
    """Two unknowns, one of the input and one of the rest, in directions in which one term is far above the others."""
    (line, of_line), (other, of_rest), eps = TERMS[name]
    drawn = case([(1, 3)], 1.0, 9)
    more = next(u for u in drawn.zonotopes[0].blocks if u.origin == "other")
    columns = torch.zeros(1, 4, 1, 1, 3, dtype=torch.float64)
    columns[0, :, 0, 0] = 1e-9
    columns[0, 0, 0, 0] += line * torch.tensor(of_line, dtype=torch.float64)
    balls = other * torch.tensor(of_rest, dtype=torch.float64).reshape(1, 1, 1, 1, 3)
    c = torch.tensor(ALONG, dtype=torch.float64).reshape(1, 1, 3)
    y = Zonotope(c, {drawn.inputs: columns, more: balls}, None, torch.zeros_like(c))
    second, useful = _to_second_order(y, eps, "norm", drawn.inputs)
    assert bool(useful.all())
    ends = Case((y,), drawn.inputs, drawn.generator)
    assert overshoot(second, ends, Normalize(eps).evaluate, useful) <= 0

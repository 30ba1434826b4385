"""The envelope formulas: gradcheck away from ties, finite subgradients at ties, finite gradients on wide boxes."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import vertex_softmax as vx
from tests.softmax_box.boxes import family
from tests.softmax_box.helpers import DTYPES

SHAPES = [((3, 4, 6), (3, 4, 6), (3, 4, 6)), ((5, 1, 6), (3, 6), (3, 6)), ((6,), (4, 6), (6,)), ((1,), (2, 1), (2, 1))]


def leaves(*shapes: tuple[int, ...], masked: bool = False, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    c, lower, width = (torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    c, lower, upper = 4 * c - 2, 2 * lower - 3, 2 * width + 0.5
    if masked:
        lower[..., -1], upper[..., -1] = -torch.inf, -torch.inf
    return [x.requires_grad_() for x in (c, lower, upper)]


def finite_part(function, mask: bool):
    """gradcheck perturbs every entry; a masked one (−inf) is put in by the function itself."""

    def wrapped(c: Tensor, lower: Tensor, upper: Tensor):
        if not mask:
            return function(c, lower, upper)
        gone = torch.full((*lower.shape[:-1], 1), -torch.inf, dtype=lower.dtype)
        gone_up = torch.full((*upper.shape[:-1], 1), -torch.inf, dtype=upper.dtype)
        more = torch.cat([c, torch.full((*c.shape[:-1], 1), 0.3, dtype=c.dtype)], -1)
        return function(more, torch.cat([lower, gone], -1), torch.cat([upper, gone_up], -1))

    return wrapped


@pytest.mark.parametrize("algorithm", ["newton", "threshold"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("function", [vx.softmax_box_min, vx.softmax_box_max, vx.softmax_box_bounds])
def test_gradcheck(function, shapes, masked, algorithm) -> None:
    checked = finite_part(functools.partial(function, algorithm=algorithm), masked)
    assert gradcheck(checked, leaves(*shapes))


@pytest.mark.parametrize("which", range(3))
def test_gradients_of_one_argument_alone(which) -> None:
    arguments = [x.detach() for x in leaves(*SHAPES[1])]
    leaf = arguments[which].clone().requires_grad_()

    def only(x: Tensor) -> tuple[Tensor, ...]:
        return vx.softmax_box_bounds(*(x if i == which else other for i, other in enumerate(arguments)))

    assert gradcheck(only, [leaf])


def test_second_derivatives() -> None:
    assert gradgradcheck(vx.softmax_box_min, leaves(*SHAPES[1]))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(4, 5), (1,), (2, 1)])
def test_gradcheck_of_probabilities(shape, masked) -> None:
    _, lower, upper = leaves(shape, shape, shape)

    def ranges(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        checked = finite_part(lambda _, lo, up: vx.softmax_box_probabilities(lo, up), masked)
        return checked(torch.zeros(shape, dtype=torch.float64), lower, upper)

    assert gradcheck(ranges, [lower, upper])


def test_gradcheck_of_probabilities_in_the_log_domain() -> None:
    """Keys with width beyond e^600 elsewhere in the row; the others are ordinary."""
    _, lower, upper = leaves((2, 4), (2, 4), (2, 4))

    def ranges(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        far = torch.tensor([0.0, 0.0, 0.0, -2000.0], dtype=torch.float64)
        return vx.softmax_box_probabilities(lower + far, upper + far)

    assert gradcheck(ranges, [lower, upper])


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        ([-1000.0], [0.0]),
        ([-1000.0, -torch.inf], [0.0, -torch.inf]),
        ([-1000.0, -torch.inf, 3], [0.0, -torch.inf, 900]),
    ],
)
def test_gradients_of_probabilities_are_finite_on_wide_rows(lower, upper) -> None:
    ends = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (lower, upper)]
    least, greatest = vx.softmax_box_probabilities(*ends)
    (least.sum() + greatest.sum()).backward()
    assert all(bool(x.grad.isfinite().all()) for x in ends)


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize(
    "name", ["ties", "duplicates", "equal_coefficients", "wide", "full_range", "masked", "huge_scores"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_finite_and_of_a_softmax(name, dtype, outward) -> None:
    """∂/∂c is a probability vector (it sums to 1); at masked keys every derivative is 0."""
    for keys in (1, 2, 6, 40):
        arguments = [x.requires_grad_() for x in family(name, 20, keys, dtype)]
        vx.softmax_box_min(*arguments, outward=outward).sum().backward()
        gradients = [x.grad for x in arguments]
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert bool((gradients[0] >= 0).all())
        torch.testing.assert_close(gradients[0].sum(-1), torch.ones(20, dtype=dtype))
        gone = arguments[2] == -torch.inf
        assert all(bool((g[gone] == 0).all()) for g in gradients)


def test_the_gradient_in_c_is_a_subgradient_everywhere() -> None:
    """min is concave in c: min(c') ≤ min(c) + g · (c' − c) for every c', also at ties and on wide boxes."""
    generator = torch.Generator().manual_seed(0)
    for name in ("ties", "duplicates", "wide", "dominating", "masked", "degenerate"):
        for keys in (2, 5, 30):
            c, lower, upper = family(name, 40, keys, torch.float64)
            c.requires_grad_()
            value = vx.softmax_box_min(c, lower, upper)
            value.sum().backward()
            for _ in range(5):
                other = c.detach() + torch.randn(c.shape, generator=generator, dtype=torch.float64)
                bound = value.detach() + (c.grad * (other - c.detach())).sum(-1)
                assert bool((vx.softmax_box_min(other, lower, upper) <= bound + 1e-9).all()), (name, keys)


def test_gradients_belong_to_the_vertex_that_attains_the_value() -> None:
    """g · c is the value, because p* · c is; a dominating key whose coefficient is the value must keep its weight."""
    for name in ("wide", "dominating", "full_range", "ordinary", "ties"):
        for dtype in DTYPES:
            for keys in (2, 3, 8, 40):
                c, lower, upper = family(name, 100, keys, dtype)
                c.requires_grad_()
                for function in (vx.softmax_box_min, vx.softmax_box_max):
                    value = function(c, lower, upper)
                    (gradient,) = torch.autograd.grad(value.sum(), c)
                    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
                    torch.testing.assert_close((gradient * c).sum(-1), value, rtol=0, atol=tolerance)


def test_the_dominating_key_has_the_whole_gradient() -> None:
    arguments = [
        torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in ([0.3, 1.0], [-50.0, 0.0], [50.0, 0.0])
    ]
    vx.softmax_box_min(*arguments).backward()
    np.testing.assert_allclose(arguments[0].grad, [1, 0], atol=1e-15)
    np.testing.assert_allclose(arguments[1].grad, [0, 0], atol=1e-15)


def test_no_gradient_is_recorded_where_none_is_asked_for() -> None:
    c, lower, upper = leaves(*SHAPES[0])
    with torch.no_grad():
        assert not vx.softmax_box_min(c, lower, upper).requires_grad
    assert vx.softmax_box_min(c, lower.detach(), upper.detach()).requires_grad
    assert not vx.softmax_box_argmin(c, lower, upper).value.requires_grad

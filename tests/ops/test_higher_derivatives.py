"""Second and third derivatives are autograd's, and no fourth derivative on a dense grid is above its bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops import higher_derivatives as higher
from vertex_softmax.ops.activations import Mish, Softplus
from vertex_softmax.ops.elementwise import Elementwise, Gelu, Sigmoid, Silu, Tanh

DOUBLE, SINGLE = Gelu(tanh=True).constants(), Gelu(tanh=True, single=True).constants()
Function = Callable[[Tensor], Tensor]


def gelu_by_tanh(x: Tensor, k: float, c: float) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(k * (x + c * x**3)))


FUNCTIONS: dict[str, tuple[Function, Callable[[Tensor], higher.Higher], Elementwise]] = {
    "gelu": (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), higher.gelu, Gelu()),
    "gelu tanh": (lambda x: gelu_by_tanh(x, *DOUBLE), lambda x: higher.gelu_by_tanh(x, *DOUBLE), Gelu(tanh=True)),
    "gelu single": (
        lambda x: gelu_by_tanh(x, *SINGLE),
        lambda x: higher.gelu_by_tanh(x, *SINGLE),
        Gelu(tanh=True, single=True),
    ),
    "sigmoid": (torch.sigmoid, higher.sigmoid, Sigmoid()),
    "silu": (lambda x: x * torch.sigmoid(x), higher.silu, Silu()),
    "tanh": (torch.tanh, higher.tanh, Tanh()),
    "softplus": (lambda x: -torch.nn.functional.logsigmoid(-x), higher.softplus, Softplus()),
    "mish": (lambda x: x * torch.tanh(-torch.nn.functional.logsigmoid(-x)), higher.mish, Mish()),
}


def derivatives(function: Function, x: Tensor) -> list[Tensor]:
    """f, f', f'', f''' and f'''' by autograd."""
    x = x.clone().requires_grad_(True)
    found = [function(x)]
    for _ in range(4):
        found.append(torch.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
    return [each.detach() for each in found]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_those_of_autograd(name: str) -> None:
    function, formula, op = FUNCTIONS[name]
    x = torch.linspace(-14, 14, 20_001, dtype=torch.float64)
    value, first, second, third, fourth = derivatives(function, x)
    two, three, bound = formula(x)
    torch.testing.assert_close(two, second, rtol=0, atol=2e-13)
    torch.testing.assert_close(three, third, rtol=0, atol=2e-12)
    most = float(fourth.abs().max())
    assert most <= bound <= 1.01 * most  # a bound, and no larger than need be
    at = op.derivatives(x)
    torch.testing.assert_close(at.value, value, rtol=0, atol=1e-13)
    torch.testing.assert_close(at.first, first, rtol=0, atol=1e-13)
    assert (at.second - two).abs().max() == (at.third - three).abs().max() == 0
    assert at.fourth == bound


@pytest.mark.parametrize("name", FUNCTIONS)
def test_taylor_remainders_are_within_the_bound(name: str) -> None:
    """f(c + t) is within F t⁴/24 of its polynomial of degree three, to ulps of what is added up."""
    _, _, op = FUNCTIONS[name]
    c = torch.linspace(-6, 6, 241, dtype=torch.float64).unsqueeze(1)
    t = torch.linspace(-3, 3, 121, dtype=torch.float64)
    at = op.derivatives(c)
    polynomial = at.value + t * (at.first + t * (at.second / 2 + t * at.third / 6))
    off = (op.evaluate(c + t) - polynomial).abs()
    assert bool((off <= at.fourth * t**4 / 24 + 1e-14).all())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_far_away_they_are_zero_or_no_number(name: str) -> None:
    """Where squares overflow a formula may give NaN, which curves do not use: never a wrong number."""
    _, formula, _ = FUNCTIONS[name]
    x = torch.tensor([40.0, 1e3, 1e100, 1e150, 1e200, 1e300], dtype=torch.float64)
    for far in (x, -x):
        for found in formula(far)[:2]:
            assert bool(((found.abs() < 1e-15) | found.isnan()).all())
            assert bool(found[:3].isfinite().all())

"""The affine vertex rule: no sampled scores and values fall below it, and its inner minimum is the minimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vertex_softmax import softmax_box_min
from vertex_softmax.softmax_box.affine import affine_minorant, least, log_probabilities

TOLERANCE = 1e-13
"""of the sum of the sizes of all terms: floating point, not a proof"""


def numbers(generator, *shape, low=-1.0, high=2.0):
    """Normal numbers whose scale differs by orders of magnitude from row to row."""
    scale = 10 ** (low + (high - low) * torch.rand(shape[0], 1, generator=generator, dtype=torch.float64))
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def rows(kind: int, generator, count: int):
    """Boxes and parameters of every sort: gradients, silly slopes, Σa ≠ 0, m outside [0, 1], points, masks."""
    keys = int(torch.randint(1, 10, (1,), generator=generator))
    lower = numbers(generator, count, keys)
    upper = lower + numbers(generator, count, keys, low=-4).abs()
    value_lower = numbers(generator, count, keys)
    value_upper = value_lower + numbers(generator, count, keys, low=-3).abs()
    p = ((lower + upper) / 2).softmax(-1)
    middle = (value_lower + value_upper) / 2
    mu = (p * middle).sum(-1)
    a, m = p * (middle - mu[:, None]), p
    if kind % 3 == 1:
        a, mu = numbers(generator, count, keys, low=-3), numbers(generator, count, 1).squeeze(-1)
    if kind % 3 == 2:
        a = a - a.mean(-1, keepdim=True) + numbers(generator, count, keys, low=-3)
    if kind % 2:
        m = 1.6 * torch.rand(count, keys, generator=generator, dtype=torch.float64) - 0.3
    if kind % 5 == 0:
        value_upper = value_lower.clone()
    if kind % 7 == 0:
        upper = lower.clone()
    if kind % 4 == 3 and keys > 1:
        masked = torch.rand(count, keys, generator=generator) < 0.4
        masked[:, 0] = False
        lower, upper = lower.masked_fill(masked, -torch.inf), upper.masked_fill(masked, -torch.inf)
        a = a.masked_fill(masked, 0.0)
    return lower, upper, value_lower, value_upper, a, m, mu


def slack(box, constant, s, v):
    """How far sampled values lie above the rule, relative to the size of its terms."""
    _, upper, value_lower, value_upper, a, m, mu = box
    there = upper > -torch.inf
    s = torch.where(there, s, torch.zeros_like(s))
    p = torch.where(there, s, torch.full_like(s, -torch.inf)).softmax(-1)
    terms = (p * v, a * s, m * v)
    ends = ((p + m.abs()) * (value_lower.abs() + value_upper.abs())).sum(-1)  # the rule looks at both ends
    size = sum(term.abs().sum(-1) for term in terms) + constant.abs() + mu.abs() + ends
    return ((terms[0] - terms[1] - terms[2]).sum(-1) - constant) / size


def samples(box, generator, count):
    lower, upper, value_lower, value_upper, _, m, _ = box
    t, w = (torch.rand(count, *lower.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    t[::2], w[::2] = (t[::2] < 0.5).double(), (w[::2] < 0.5).double()
    low, high = (torch.where(upper > -torch.inf, x, torch.zeros_like(x)) for x in (lower, upper))
    s = torch.minimum(low + (high - low) * t, high)
    v = torch.minimum(value_lower + (value_upper - value_lower) * w, value_upper)
    p = torch.where(upper > -torch.inf, s, torch.full_like(s, -torch.inf)).softmax(-1)
    v[1::3] = torch.where(p >= m, value_lower, value_upper)[1::3]  # the values the rule fears
    return s, v


@pytest.mark.parametrize("seed", range(42))
def test_no_sample_falls_below(seed) -> None:
    """42 · 2,500 = 105,000 rows."""
    generator = torch.Generator().manual_seed(seed)
    for kind in range(10):
        box = rows(seed + kind, generator, 250)
        constant = affine_minorant(*box)
        assert constant.isfinite().all()
        assert slack(box, constant, *samples(box, generator, 40)).min() >= -TOLERANCE


@pytest.mark.parametrize("seed", range(6))
def test_no_descent_falls_below(seed) -> None:
    generator = torch.Generator().manual_seed(100 + seed)
    box = rows(seed, generator, 200)
    lower, upper, value_lower, value_upper = box[:4]
    constant = affine_minorant(*box)
    finite = upper > -torch.inf
    low, high = (torch.where(finite, x, torch.zeros_like(x)) for x in (lower, upper))
    t = torch.rand(lower.shape, generator=generator, dtype=torch.float64)
    w = torch.rand(lower.shape, generator=generator, dtype=torch.float64)
    for _ in range(60):
        t, w = t.detach().requires_grad_(), w.detach().requires_grad_()
        found = slack(box, constant, low + (high - low) * t, value_lower + (value_upper - value_lower) * w)
        assert found.min() >= -TOLERANCE
        dt, dw = torch.autograd.grad(found.sum(), (t, w), allow_unused=True)
        t = (t - 0.1 * dt.sign()).clamp(0, 1)
        w = w if dw is None else (w - 0.1 * dw.sign()).clamp(0, 1)


def test_the_inner_minimum_is_the_minimum() -> None:
    generator = torch.Generator().manual_seed(0)
    w, a = numbers(generator, 4000, 1), numbers(generator, 4000, 1)
    left = numbers(generator, 4000, 1, high=1.0)
    right = left + numbers(generator, 4000, 1, high=0.5).abs()
    found = least(w, a, left, right, left.exp(), right.exp()).numpy()
    grid = left.numpy() + (right - left).numpy() * np.linspace(0, 1, 4001)
    values = w.numpy() * np.exp(grid) - a.numpy() * grid
    size = (np.abs(w.numpy()) * np.exp(grid) + np.abs(a.numpy() * grid)).max(-1, keepdims=True)
    assert (found <= values.min(-1, keepdims=True) + 1e-14 * size).all()
    assert (found >= values.min(-1, keepdims=True) - 1e-5 * size).all()


def test_without_slopes_and_with_fixed_values_it_is_the_lagrangian_of_the_exact_minimum() -> None:
    """a = 0, m = 0, v fixed, one piece: never above softmax_box_min, and for points equal to it."""
    generator = torch.Generator().manual_seed(3)
    lower = torch.randn(500, 6, generator=generator, dtype=torch.float64)
    upper = lower + torch.rand(500, 6, generator=generator, dtype=torch.float64)
    c = torch.randn(500, 6, generator=generator, dtype=torch.float64)
    exact = softmax_box_min(c, lower, upper)
    zero = torch.zeros_like(c)
    assert (affine_minorant(lower, upper, c, c, zero, zero, exact) <= exact + 1e-14).all()
    point = affine_minorant(lower, lower, c, c, zero, zero, softmax_box_min(c, lower, lower))
    torch.testing.assert_close(point, softmax_box_min(c, lower, lower), rtol=0, atol=1e-14)


def test_log_probabilities_are_those_of_the_corners() -> None:
    generator = torch.Generator().manual_seed(4)
    lower = 300 * torch.randn(200, 5, generator=generator, dtype=torch.float64)
    upper = lower + 10 * torch.rand(200, 5, generator=generator, dtype=torch.float64)
    low, high = log_probabilities(lower, upper)
    for j in range(5):
        worst, best = upper.clone(), lower.clone()
        worst[:, j], best[:, j] = lower[:, j], upper[:, j]
        torch.testing.assert_close(low[:, j], worst.log_softmax(-1)[:, j], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(high[:, j], best.log_softmax(-1)[:, j], rtol=1e-13, atol=1e-13)


def test_gradients_are_those_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(5)
    box = list(rows(1, generator, 20))  # Σa ≠ 0: at Σa = 0 there is a kink
    free = [x.clone().requires_grad_() for x in box[4:]]
    assert torch.autograd.gradcheck(lambda *f: affine_minorant(*box[:4], *f), free, eps=1e-7, atol=1e-5)

"""The remainders of y/σ(y): ranges against points of a, b and κ, in Arb; sharp where they are attained."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flint import arb

from tests.certificate.checker.helpers import exact, module, precisely

norms, second, rounding = module("forward.norms"), module("forward.second_norms"), module("rounding")
SIZES = (0.0, 1e-12, 1e-3, 0.1, 0.4, 0.9)


def ball(x: float) -> arb:
    return arb(exact(float(x)))


@precisely
def test_first_order() -> None:
    """(1 + 2a + b)^{−1/2} − 1 + a over |a| ≤ A, a² ≤ b ≤ B."""
    for A, B in itertools.product(SIZES, (1e-20, 1e-6, 1e-3, 0.1, 1.0, 30.0)):
        low, high = (float(x) for x in norms.remainder(np.array(A), np.array(B)))
        seen = []
        for a in np.clip([*(A * np.cos(np.arange(21) * np.pi / 20)), -B / 2], -A, A):
            all_b = [
                b for b in np.linspace(min(a * a * (1 + 1e-15), B), B, 5) if exact(float(b)) >= exact(float(a)) ** 2
            ]
            seen += [1 / (1 + 2 * ball(a) + ball(b)).sqrt() - 1 + ball(a) for b in all_b]
        for value in seen:
            assert not value < ball(low), (A, B)
            assert not value > ball(high), (A, B)
        if seen and A >= 1e-3 and A * A <= B:
            assert min(map(float, seen)) <= low + 1e-9 + 0.01 * abs(low)
            assert max(map(float, seen)) >= 0.97 * high


def points(A: float, count: int = 7) -> list[float]:
    return [A * float(np.cos(k * np.pi / (count - 1))) for k in range(count)]


@precisely
@pytest.mark.parametrize("kappa", [0.0, 1e-6, 0.3, 1.0])
def test_second_order(kappa: float) -> None:
    """k and what is left along c, from the equation itself, over everything that they depend on."""
    chance = np.random.default_rng(1)
    for A_line, A_rest in [(0.0, 0.0), (1e-3, 1e-4), (0.1, 0.05), (0.5, 0.2), (0.6, 0.0)]:
        for line, rest in [(0.0, 0.0), (1e-2, 1e-3), (0.3, 0.3), (0.5, 0.0), (1.5, 0.3)]:  # |ℓ⊥|/√W and |r⊥|/√W
            A = (A_line + A_rest) * (1 + 1e-12)
            numbers = (
                A,
                A_line,
                A_rest,
                (line + rest) ** 2 * (1 + 1e-12),
                rest**2 * (1 + 1e-12),
                line * rest * (1 + 1e-12),
            )
            k, e = second.ranges(*(np.array(x) for x in numbers), rounding.ProvedInterval(np.array(kappa)))
            (k_low, k_high), (e_low, e_high) = ([ball(float(x)) for x in pair] for pair in (k, e))
            for a_l, a_r in itertools.product(points(A_line, 5), points(A_rest, 3)):
                some = (line * chance.random(), rest * chance.random(), chance.uniform(-1, 1))
                ends = [(line, rest, 1), (line, rest, -1), (line, 0.0, 1), (0.0, rest, 1), (0.0, 0.0, 1), some]
                for of_l, of_r, angle in ends:
                    a, K = ball(a_l) + ball(a_r), ball(kappa)
                    ll, rr, lr = ball(of_l) ** 2, ball(of_r) ** 2, ball(of_l) * ball(of_r) * ball(float(angle))
                    q = (ll + 2 * lr + rr) / (1 + a) ** 2
                    root = 1 / (1 + q + K * (1 / (1 + a) ** 2 - 1)).sqrt()
                    k_true = root / (1 + a) - 1 + (1 - K) * a
                    along = root - 1 - K * a + ll / 2 + arb(3) / 2 * K * ball(a_l) ** 2
                    assert not k_true < k_low, (A_line, A_rest, line, rest, a_l, a_r)
                    assert not k_true > k_high, (A_line, A_rest, line, rest, a_l, a_r)
                    assert not along < e_low, (A_line, A_rest, line, rest, a_l, a_r)
                    assert not along > e_high, (A_line, A_rest, line, rest, a_l, a_r)


@precisely
def test_what_is_left_is_of_third_order() -> None:
    """With everything half as large, the ranges are an eighth, or a quarter for k."""
    zero = rounding.ProvedInterval(np.array(0.0))

    def widths(h: float) -> tuple[float, float]:
        numbers = (1.1 * h, h, 0.1 * h * h, 1.2 * h * h, 0.01 * h**4, 0.1 * h**3)
        k, e = second.ranges(*(np.array(x) for x in numbers), zero)
        return float(k[1] - k[0]), float(e[1] - e[0])

    one, half = widths(0.02), widths(0.01)
    assert half[0] < one[0] / 3.5
    assert half[1] < one[1] / 6.5


def test_a_row_of_numbers() -> None:
    c = np.array([[3.0, -4.0], [1.0, 0.0]])
    row = norms.row_of(c, 0.5)
    assert float(row.whole.lo[0]) == pytest.approx(26)
    assert float(row.rho.lo[0]) == pytest.approx((2 / 26) ** 0.5)
    row = norms.row_of(c, 2.0**30)  # a stored number
    assert row.whole.lo[1] <= 1 + 2.0**31 * (1 - 2.0**-46)
    assert row.whole.hi[1] >= 1 + 2.0**31 * (1 + 2.0**-46)
    assert row.relative[1] >= 2.0**-46


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-170])
@pytest.mark.parametrize("eps", [1e-12, 1.0])
def test_rows_around_zero(size: float, eps: float) -> None:
    """Of which the square of the centre is not known to be positive: no error is negative."""
    forms = module("forward.forms")
    c, zero = np.full((1, 4), size), np.zeros((1, 4))
    y = forms.Form(centre=c, blocks={forms.LINES: 0.1 * np.ones((2, 1, 1, 4))}, own=zero, slack=zero)
    with np.errstate(all="ignore"):
        found = norms.normalized(y, eps, 0, 40, lambda _, better: np.ones_like(better))
    assert (found.own >= 0).all()
    assert (found.slack >= 0).all()
    assert (found.box().hi >= (size + 0.2) / np.sqrt((size + 0.2) ** 2 + eps)).all()

"""Taylor's polynomials of curves against Arb, and forms through curves."""

from __future__ import annotations

import numpy as np
import pytest
from flint import arb, ctx

from tests.certificate import exact as other
from tests.certificate.checker.helpers import PRECISION, exact, module

curves = module("forward.curves")
POSITIVE = ("Log", "Sqrt", "Rsqrt", "Reciprocal")


@pytest.mark.parametrize("op", sorted(curves.SERIES))
def test_taylor(op: str) -> None:
    """f(c + x) is within max|f''''|/24 · h⁴ of the polynomial, for |x| ≤ h; and that is not far too much."""
    centre = np.array([-40.0, -3.0, -1.4142, -0.3, 0.0, 1e-8, 0.7, 2.4, 9.0])
    centre = np.abs(centre) + 0.5 if op in POSITIVE else centre
    for radius in (0.0, 1e-3, 0.3):
        h = np.full_like(centre, radius)
        terms, fourth = curves.taylor(op, centre, h)
        with ctx.workprec(PRECISION):
            for i, c in enumerate(centre):
                for x in radius * np.cos(np.arange(9) * np.pi / 8):
                    at = arb(exact(float(x)))
                    true = other.CURVES[op](arb(exact(float(c))) + at)
                    for side, choose in ((1, max), (-1, min)):
                        total = sum(
                            (choose((arb(exact(float(end))) * at**k for end in (t.lo[i], t.hi[i])), key=float)
                             for k, t in enumerate(terms)), arb(0),
                        ) + side * arb(exact(float(fourth[i]))) * abs(at) ** 4  # fmt: skip
                        assert not (true - total) * side > 0, (op, c, x)
            middle = [float(t.middle()[5]) for t in terms]
            width = max(float((t.hi - t.lo).max()) for t in terms)
        assert width < 1e-12 * (1 + max(map(abs, middle)) * 1e20)
    if op in ("Gelu", "Tanh", "Silu", "Erf", "GeluTanh"):
        _, fourth = curves.taylor(op, np.linspace(-3, 3, 25), np.full(25, 0.2))
        assert fourth.max() < 3


def test_where_there_is_no_series() -> None:
    terms, fourth = curves.taylor("Log", np.array([1.0, 0.5, np.nan]), np.array([0.5, 0.5, 0.1]))
    assert np.isfinite(fourth[0])
    assert not np.isfinite(fourth[1:]).any()
    assert not any(np.isfinite(t.hi[1:]).any() for t in terms)
    _, fourth = curves.taylor("Reciprocal", np.array([0.5, 0.5]), np.array([0.6, np.inf]))
    assert not np.isfinite(fourth).any()
    _, fourth = curves.taylor("Tanh", np.array([0.0]), np.array([1e6]))
    assert 0.17 < fourth[0] < 3


def test_a_radius_of_a_ball_is_not_rounded_down() -> None:
    for radius in np.random.default_rng(0).random(50):
        assert arb(0.0, float(radius)).upper() >= arb(float(radius))

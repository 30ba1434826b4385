"""Fitted ellipsoids: whatever they are fitted to, no functional goes farther; and nearly as far where they fit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from flint import arb, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.certificate.checker.ball_cases import balls_of, dot, point
from tests.certificate.checker.helpers import above, exact, module, precisely
from tests.certificate.checker.helpers import dot as exact_dot
from tests.certificate.checker.zonotopes_cases import (
    ERRORS,
    KINDS,
    functionals,
    random_columns,
    random_errors,
    reach,
    zonotope,
    zonotopes,
)

fitted = module("fitted")
SHAPES = ((1, 1, 1), (2, 1, 5), (2, 2, 1), (1, 3, 2), (2, 4, 9), (1, 6, 40))
SCALES = (0.0, 1e-320, 1e-170, 1e-9, 1.0, 1e9, 1e170, 1e300)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ERRORS)
def test_functionals_whatever_is_fitted(kind: str, errors: str) -> None:
    """Fitted to the functionals themselves, to others, and to numbers of any size."""
    rng, done = np.random.default_rng(2), 0
    for n, d, count in SHAPES:
        z = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, errors, n, d))
        for j in range(n):
            eta = np.stack(functionals(rng, z, j))  # (m, d)
            wild = rng.standard_normal(eta.shape) * rng.choice(SCALES, (len(eta), 1))
            for at in (eta, wild, np.zeros_like(eta), eta * (rng.random(eta.shape) < 0.5)):
                found = fitted.by_fitted(eta[None], fitted.fitted(z, at))
                assert found.shape == (1, len(eta), n)
                for i in range(len(eta)):
                    truth = reach(eta[i], z, j)
                    assert np.isnan(found[0, i, j]) or above(float(found[0, i, j]), truth), (kind, (n, d, count), i)
                    done += 1
    assert done >= 160


@settings(max_examples=80)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(-20, 20), st.sampled_from(KINDS))
def test_any_functional(d: int, count: int, seed: int, power: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    columns, errors = random_columns(rng, kind, 1, d, count), np.abs(rng.standard_normal((1, d)))
    z = zonotope(columns * 10.0**power, errors * 10.0**-power)
    eta = rng.standard_normal((1, 1, d)) * 10 ** rng.uniform(-5, 5, d)
    at = rng.standard_normal((1, d)) * 10 ** rng.uniform(-9, 9, d)
    assert above(float(fitted.by_fitted(eta, fitted.fitted(z, at))[0, 0, 0]), reach(eta[0, 0], z, 0))


def test_as_tight_as_the_sums_where_they_fit() -> None:
    """At η₀ itself, and nearly so around it: there the plain ellipsoid is much farther off."""
    rng = np.random.default_rng(3)
    for d in (2, 5, 16):
        z = zonotope(
            rng.standard_normal((1, d, 400)) * 10 ** rng.uniform(-2, 0, (1, 1, 400)), 0.01 * rng.random((1, d))
        )
        at = rng.standard_normal((1, d))
        made = fitted.fitted(z, at)
        sums = zonotopes.by_columns(at[None], z)[0, 0, 0]
        assert fitted.by_fitted(at[None], made)[0, 0, 0] <= 1.02 * sums
        near = at + 0.05 * rng.standard_normal((1, d))
        near_sums = zonotopes.by_columns(near[None], z)[0, 0, 0]
        assert fitted.by_fitted(near[None], made)[0, 0, 0] <= 1.05 * near_sums


def test_stacks_of_rows_and_functionals() -> None:
    """Each functional has its own ellipsoids, of the rows of its own head."""
    rng = np.random.default_rng(4)
    z = zonotope(rng.standard_normal((2, 3, 4, 6)), rng.random((2, 3, 4)))
    at = rng.standard_normal((2, 7, 4))
    eta = at + 0.1 * rng.standard_normal((5, 2, 7, 4))
    found = fitted.by_fitted(eta, fitted.fitted(z, at))
    assert found.shape == (5, 2, 7, 3)
    for s, b, i, j in np.ndindex(5, 2, 7, 3):
        truth = reach(eta[s, b, i], zonotope(z.columns[b], z.error[b]), j)
        assert above(float(found[s, b, i, j]), truth)
        assert found[s, b, i, j] <= 2 * float(arb(truth))


def test_a_few_functionals_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces the same ellipsoids are made."""
    rng = np.random.default_rng(5)
    z = zonotope(rng.standard_normal((2, 3, 4, 6)), rng.random((2, 3, 4)))
    at = rng.standard_normal((2, 7, 4))
    whole = fitted.fitted(z, at)
    monkeypatch.setattr(fitted, "AT_ONCE", 1)
    parts = fitted.fitted(z, at)
    assert np.allclose(whole.L, parts.L, rtol=1e-9, atol=1e-12)
    assert np.allclose(whole.root, parts.root, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_columns_in_balls(order: int, seed: int) -> None:
    """The columns of a ball have one weight: no point of the balls is farther."""
    chance = np.random.default_rng(seed)
    z = zonotopes.ProvedZonotope(
        centre=np.zeros((2, 3)), columns=chance.standard_normal((2, 3, 9)), error=np.zeros((2, 3)), exact=True,
        balls=balls_of(order),
    )  # fmt: skip
    eta = chance.standard_normal((5, 4, 3))
    for at in (eta[0], chance.standard_normal((4, 3)), np.zeros((4, 3))):
        found = fitted.by_fitted(eta, fitted.fitted(z, at))
        for s, i, j in np.ndindex(5, 4, 2):
            xi = point(eta[s, i] @ z.columns[j], order, chance)
            value = sum((Fraction(float(e)) * dot(z.columns[j, k], xi) for k, e in enumerate(eta[s, i])), Fraction(0))
            assert value <= Fraction(float(found[s, i, j]))


@precisely
def test_lengths_whatever_the_factor() -> None:
    """root · |Lᵀ η| for any L: singular, tiny, huge, not triangular."""
    rng = np.random.default_rng(6)
    for d in (1, 2, 3, 8):
        for scale in (1.0, 1e-70, 1e60):
            for power in (0.0, 40.0, -200.0):
                L = rng.standard_normal((2, 3, d, d)) * scale
                L[:, 1] = L[:, 1, :, :1] * rng.standard_normal(d)
                eta = rng.standard_normal((4, 2, d)) * 10.0**power
                root = np.abs(rng.standard_normal((2, 3)))
                found = fitted.by_fitted(eta, fitted.CheckedFits(L, root))
                for s, i, j in np.ndindex(4, 2, 3):
                    square = sum((exact_dot(L[i, j, :, k], eta[s, i]) ** 2 for k in range(d)), fmpq(0))
                    assert above(float(found[s, i, j]), arb(square * exact(root[i, j]) ** 2).sqrt())


def test_functionals_that_cancel() -> None:
    """η·g is 0 to rounding, and not in truth."""
    rng = np.random.default_rng(7)
    for d in (2, 6, 30):
        half = rng.standard_normal(d // 2)
        g = np.concatenate([half, -half])[:, None] * np.ones((1, 40))
        eta = np.concatenate([half, half * (1 + 2.0**-52 * rng.integers(-3, 4, d // 2))])
        z = zonotope(g[None])
        for at in (eta, np.ones(d), np.zeros(d)):
            assert above(
                float(fitted.by_fitted(eta[None, None], fitted.fitted(z, at[None]))[0, 0, 0]), reach(eta, z, 0)
            )


def test_what_is_too_large_is_rejected() -> None:
    z = zonotope(np.zeros((1 << 9, 1 << 9, 1)))
    with pytest.raises(module("file").Rejected, match="too large"):
        fitted.fitted(z, np.zeros((1 << 9, 1 << 9)))

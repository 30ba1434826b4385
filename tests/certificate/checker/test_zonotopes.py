"""Zonotopes: every bound is at least what the corners of the cube attain, exactly; and no more where it is sharp."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from flint import arb, fmpq
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.certificate.checker.helpers import above, below, dot, exact, precisely
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

SHAPES = ((1, 1, 1), (2, 1, 5), (2, 2, 1), (1, 3, 2), (2, 4, 9), (1, 6, 40))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ERRORS)
def test_boxes(kind: str, errors: str) -> None:
    rng = np.random.default_rng(0)
    for n, d, count in (*SHAPES, (1, 2, 700)):
        z = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, errors, n, d))
        for centre in (np.zeros((n, d)), rng.standard_normal((n, d)), 1e9 * rng.standard_normal((n, d))):
            box = dataclasses.replace(z, centre=centre).box()
            for i, k in np.ndindex(n, d):
                far = sum((exact(abs(x)) for x in z.columns[i, k]), exact(z.error[i, k]))
                assert below(float(box.lo[i, k]), exact(centre[i, k]) - far)
                assert above(float(box.hi[i, k]), exact(centre[i, k]) + far)
                width = float(box.hi[i, k] - box.lo[i, k])
                assert width <= 2 * float(arb(far)) * (1 + 1e-9) + 1e-9 * abs(centre[i, k]) + 1e-300


def test_a_box_of_many_columns_that_are_each_lost() -> None:
    """Along an outer axis numpy adds in order: 1 + 2⁻⁵³ + 2⁻⁵³ + … is 1."""
    columns = np.full((5000, 30), 2.0**-53)
    columns[0] = 1
    box = zonotope(columns.T).box()
    assert all(above(x, 1 + fmpq(4999, 2**53)) for x in box.hi)
    assert all(below(x, -1 - fmpq(4999, 2**53)) for x in box.lo)


def test_a_zonotope_of_the_transposed_matrix() -> None:
    rng = np.random.default_rng(1)
    z = zonotope(rng.standard_normal((2, 3, 4, 5)), rng.random((2, 3, 4)), rng.standard_normal((2, 3, 4)))
    turned = z.transposed()
    for at in np.ndindex(2, 3, 4):
        back = (at[0], at[2], at[1])
        assert turned.centre[back] == z.centre[at]
        assert turned.error[back] == z.error[at]
        assert (turned.columns[back] == z.columns[at]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ERRORS)
def test_functionals_by_columns_and_by_ellipsoids(kind: str, errors: str) -> None:
    rng, done = np.random.default_rng(2), 0
    for n, d, count in SHAPES:
        z = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, errors, n, d))
        round_ = zonotopes.ellipsoid(z)
        for j in range(n):
            eta = np.stack(functionals(rng, z, j))[:, None]  # (S, m, d)
            ways = {"columns": zonotopes.by_columns(eta, z), "ellipsoid": zonotopes.by_ellipsoid(eta, round_)}
            for name, found in ways.items():
                assert found.shape == (len(eta), 1, n)
                for s in range(len(eta)):
                    truth = reach(eta[s, 0], z, j)
                    assert above(float(found[s, 0, j]), truth), (name, kind, (n, d, count), s, found[s, 0, j], truth)
                    done += 1
                    if name == "columns" and kind not in ("tiny", "subnormal", "squares below the least"):
                        most = np.abs(eta[s, 0]) @ np.abs(z.columns[j]).sum(-1)
                        assert found[s, 0, j] <= float(arb(truth)) * (1 + 1e-9) + 1e-9 * most + 1e-300
    assert done >= 80


def test_functionals_of_stacks_of_rows() -> None:
    """η (S, 2, m, d) against rows (2, n, d)."""
    rng = np.random.default_rng(3)
    z = zonotope(rng.standard_normal((2, 3, 4, 6)), rng.random((2, 3, 4)))
    eta = rng.standard_normal((5, 2, 7, 4))
    for found in (zonotopes.by_columns(eta, z), zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(z))):
        assert found.shape == (5, 2, 7, 3)
        for s, b, i, j in np.ndindex(5, 2, 7, 3):
            one = zonotope(z.columns[b], z.error[b])
            truth = reach(eta[s, b, i], one, j)
            assert above(float(found[s, b, i, j]), truth)
            assert found[s, b, i, j] <= 4 * float(arb(truth))


def test_functionals_that_cancel() -> None:
    """η·g is 0 to rounding, and not in truth; without errors nothing else pays for it."""
    rng = np.random.default_rng(4)
    for d in (2, 5, 30, 300):
        half = rng.standard_normal(d)
        g = np.concatenate([half, -half])[:, None] * np.ones((1, 40))
        eta = np.concatenate([half, half * (1 + 2.0**-52 * rng.integers(-3, 4, d))])
        z = zonotope(g[None])
        for order in (slice(None), slice(None, None, -1)):
            z_, e_ = zonotope(z.columns[:, order]), eta[order]
            assert above(float(zonotopes.by_columns(e_[None, None], z_)[0, 0, 0]), reach(e_, z_, 0))
            assert above(
                float(zonotopes.by_ellipsoid(e_[None, None], zonotopes.ellipsoid(z_))[0, 0, 0]), reach(e_, z_, 0)
            )


def test_functionals_of_which_every_product_is_lost() -> None:
    for value in (1.4e-162, 1e-170, 1.5e-162):
        eta = np.full((1, 1, 30), value)
        z = zonotope(np.full((1, 30, 50), value))
        assert above(float(zonotopes.by_columns(eta, z)[0, 0, 0]), reach(eta[0, 0], z, 0))
        assert above(float(zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(z))[0, 0, 0]), reach(eta[0, 0], z, 0))
        only = zonotope(np.zeros((1, 30, 1)), np.full((1, 30), value))
        assert above(float(zonotopes.by_columns(eta, only)[0, 0, 0]), reach(eta[0, 0], only, 0))
        assert above(float(zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(only))[0, 0, 0]), reach(eta[0, 0], only, 0))


def test_functionals_of_what_has_no_columns() -> None:
    z = zonotope(np.zeros((2, 3, 0)), np.ones((2, 3)))
    assert (zonotopes.by_ellipsoid(np.ones((1, 1, 3)), zonotopes.ellipsoid(z)) >= 3).all()
    assert (zonotopes.by_columns(np.ones((1, 1, 3)), z) >= 3).all()


@settings(max_examples=80)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(-20, 20), st.sampled_from(KINDS))
def test_any_functional(d: int, count: int, seed: int, power: float, kind: str) -> None:
    rng = np.random.default_rng(seed)
    z = zonotope(
        random_columns(rng, kind, 1, d, count) * 10.0**power, np.abs(rng.standard_normal((1, d))) * 10.0**-power
    )
    eta = rng.standard_normal((1, 1, d)) * 10 ** rng.uniform(-5, 5, d)
    truth = reach(eta[0, 0], z, 0)
    assert above(float(zonotopes.by_columns(eta, z)[0, 0, 0]), truth)
    assert above(float(zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(z))[0, 0, 0]), truth)


@precisely
def test_by_ellipsoid_is_at_least_the_length_whatever_the_factor() -> None:
    """root · |Lᵀ η|, for any L: singular, with cancellation, tiny, not triangular."""
    rng = np.random.default_rng(5)
    for d, scale, power in itertools.product((1, 2, 3, 8), (1.0, 1e-70, 1e60), (0.0, 40.0, -200.0)):
        for kind in ("any", "singular", "zero"):
            L = rng.standard_normal((1, d, d)) * scale * (kind != "zero")
            eta = rng.standard_normal(d)
            if kind == "singular":
                first = rng.standard_normal(d)
                L = (first[:, None] * rng.standard_normal(d))[None] * scale
                eta = eta - first * (eta @ first) / (first @ first)
            eta = eta * 10.0**power
            root = np.array([abs(rng.standard_normal()) * 10.0 ** rng.integers(-3, 4)])
            found = zonotopes.by_ellipsoid(eta[None, None], zonotopes.CheckedEllipsoid(np.zeros((1, d)), L, root))[
                0, 0, 0
            ]
            square = sum((dot(L[0, :, k], eta) ** 2 for k in range(d)), fmpq(0)) * exact(root[0]) ** 2
            assert above(float(found), arb(square).sqrt()), (d, scale, power, kind)
            length = np.linalg.norm(np.abs(L[0]).T @ np.abs(eta)) * root[0]
            assert below(
                float(found) - 1e-9 * length - 1e-140 * root[0] * (1 + np.abs(L).max()), arb(square).sqrt() * (1 + 1e-9)
            )


def test_ellipsoids_are_sharp_where_they_can_be() -> None:
    """One column, or orthogonal ones and their sum: then Cauchy and Schwarz lose nothing."""
    rng = np.random.default_rng(6)
    for d in (1, 2, 5, 8):
        g = rng.standard_normal((1, d, 1))
        along = g[None, :, :, 0]
        assert zonotopes.by_ellipsoid(along, zonotopes.ellipsoid(zonotope(g)))[0, 0, 0] <= (g**2).sum() * (1 + 1e-6)
        many = np.linalg.qr(rng.standard_normal((d, d)))[0][None]
        eta = many.sum(-1)[None]
        assert zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(zonotope(many)))[0, 0, 0] <= d * (1 + 1e-6)
        only = zonotopes.ellipsoid(zonotope(np.zeros((1, d, 1)), np.ones((1, d))))
        assert zonotopes.by_ellipsoid(np.ones((1, 1, d)), only)[0, 0, 0] <= d * (1 + 1e-6)


def test_an_ellipsoid_around_nothing() -> None:
    for columns in (np.zeros((2, 3, 4)), np.zeros((2, 3, 0))):
        found = zonotopes.ellipsoid(zonotope(columns))
        assert (found.root >= 0).all()
        assert np.isfinite(found.L).all()
        assert (zonotopes.by_ellipsoid(np.ones((1, 1, 3)), found) <= 1e-140).all()

"""Products of zonotopes and spectral norms hold at every point."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from flint import arb, fmpq

from tests.certificate.checker.helpers import Array, above, below, dot, exact, precisely, size
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


def corners(columns: Array, error: Array) -> list[list[fmpq]]:
    """Every corner of one row's zonotope about its centre, up to its sign."""
    d, count = columns.shape
    wide = [[exact(x) for x in columns[:, p]] for p in range(count)]
    wide += [[exact(error[i]) if i == k else fmpq(0) for i in range(d)] for k in range(d) if error[k]]
    return [
        [sum((s * g[i] for s, g in zip((1, *signs), wide, strict=False)), fmpq(0)) for i in range(d)]
        for signs in itertools.product((1, -1), repeat=max(len(wide) - 1, 0))
    ]


def largest_product(x: Any, y: Any, i: int, j: int) -> fmpq:
    """max |(x_i − centre)·(y_j − centre)| over independent corners: in y the sum is known."""
    return max(
        sum((size(dot(a, y.columns[j, :, q])) for q in range(y.columns.shape[-1])), fmpq(0))
        + dot([size(v) for v in a], y.error[j])
        for a in corners(x.columns[i], x.error[i])
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ERRORS)
def test_products_of_two_zonotopes(kind: str, errors: str) -> None:
    rng = np.random.default_rng(7)
    for n, m, d, count in ((2, 3, 1, 3), (1, 2, 2, 4), (2, 2, 3, 5)):
        x = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, errors, n, d))
        y = zonotope(random_columns(rng, "ordinary", m, d, count), random_errors(rng, errors, m, d))
        for left, right in ((x, y), (y, x), (x, x)):
            found = zonotopes.products(left, right)
            assert found.shape == (left.centre.shape[0], right.centre.shape[0])
            for i, j in np.ndindex(*found.shape):
                truth = largest_product(left, right, i, j)
                assert above(float(found[i, j]), truth), (kind, errors, found[i, j], truth)


def test_products_of_stacks_and_of_many_columns() -> None:
    """Random corners of 60 columns."""
    rng = np.random.default_rng(8)
    x, y = (zonotope(rng.standard_normal((2, n, 4, 60)), rng.random((2, n, 4))) for n in (3, 2))
    found = zonotopes.products(x, y)
    assert found.shape == (2, 3, 2)
    for _ in range(8):
        ends = []
        for z in (x, y):
            xi, e = rng.choice([-1, 1], 60), rng.choice([-1, 1], z.error.shape)
            ends.append(
                {at: dot(z.columns[at], xi) + int(e[at]) * exact(z.error[at]) for at in np.ndindex(z.error.shape)}
            )
        for b, i, j in np.ndindex(*found.shape):
            value = sum((ends[0][b, i, k] * ends[1][b, j, k] for k in range(4)), fmpq(0))
            assert above(float(found[b, i, j]), size(value))
    assert (found <= 60 * 60 * 10).all()


def test_products_are_sharp_for_one_column() -> None:
    rng = np.random.default_rng(9)
    for d in (1, 2, 6):
        g, h = rng.standard_normal((1, d, 1)), rng.standard_normal((1, d, 1))
        found = zonotopes.products(zonotope(g), zonotope(h))[0, 0]
        assert found <= abs((g * h).sum()) + 1e-6 * np.linalg.norm(g) * np.linalg.norm(h)


@pytest.mark.parametrize("kind", ["tiny", "subnormal", "errors"])
def test_products_that_underflow(kind: str) -> None:
    rng = np.random.default_rng(7)
    x = zonotope(np.zeros((1, 2, 1)), np.full((1, 2), 1e-200))
    x = x if kind == "errors" else zonotope(random_columns(rng, kind, 1, 2, 3))
    assert above(float(zonotopes.products(x, x)[0, 0]), largest_product(x, x, 0, 0))


def sum_of_products(x: Any, y: Any, i: int, j: int) -> fmpq:
    """Σ_pq |g_p·h_q| and errors twice."""
    G, H = x.columns[i], y.columns[j]
    M = sum((size(dot(G[:, p], H[:, q])) for p in range(G.shape[1]) for q in range(H.shape[1])), fmpq(0))
    far, end = ([sum((exact(abs(v)) for v in row), fmpq(0)) for row in side] for side in (G, H))
    end = [a + exact(b) for a, b in zip(end, y.error[j], strict=True)]
    return M + 2 * (dot(far, y.error[j]) + dot(x.error[i], end))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("errors", ERRORS)
def test_sums_of_products_of_columns(kind: str, errors: str) -> None:
    """At least Σ |M| with errors twice, and so at least |(x − c)·(y − c')| at corners that both share."""
    rng = np.random.default_rng(10)
    for n, m, d, count in ((2, 3, 1, 3), (1, 2, 3, 4), (1, 1, 5, 9)):
        x = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, errors, n, d), input_alone=True)
        y = zonotope(random_columns(rng, "zero columns", m, d, count), random_errors(rng, errors, m, d))
        for left, right in ((x, y), (y, x), (x, x)):
            found, sums = zonotopes.exact_products(left, right)
            assert sums.shape == (*found.shape, count)
            for i, j in np.ndindex(*found.shape):
                truth = sum_of_products(left, right, i, j)
                assert above(float(found[i, j]), truth), (kind, errors, found[i, j], truth)
                M = np.abs(left.columns[i].T @ right.columns[j])
                assert np.allclose(sums[i, j], M.sum(1) + M.sum(0), rtol=1e-9, atol=1e-300)
                xi = rng.choice([-1.0, 1.0], count)
                a = [dot(row, xi) + e for row, e in zip(left.columns[i], map(exact, left.error[i]), strict=True)]
                b = [dot(row, xi) - e for row, e in zip(right.columns[j], map(exact, right.error[j]), strict=True)]
                assert above(float(found[i, j]), size(dot(a, b)))


def test_sums_of_products_that_cancel_and_that_underflow() -> None:
    rng = np.random.default_rng(11)
    for d in (2, 6, 60):
        half = rng.standard_normal((d, 3))
        G = np.concatenate([half, -half])[None]
        H = np.concatenate([half[:, :1], half[:, :1] * (1 + 2.0**-52 * rng.integers(-3, 4, (d, 1)))])[None] * np.ones(5)
        x, y = zonotope(G[..., :1]), zonotope(H)
        found, _ = zonotopes.exact_products(dataclasses.replace(x, columns=np.repeat(x.columns, 5, -1)), y)
        truth = sum_of_products(dataclasses.replace(x, columns=np.repeat(x.columns, 5, -1)), y, 0, 0)
        assert above(float(found[0, 0]), truth)
    for value in (1.4e-162, 1e-170):
        x = zonotope(np.full((1, 9, 12), value))
        only = zonotope(np.zeros((1, 9, 12)), np.full((1, 9), value))
        for a, b in itertools.product((x, only), repeat=2):
            assert above(float(zonotopes.exact_products(a, b)[0][0, 0]), sum_of_products(a, b, 0, 0))


def test_sums_of_products_of_stacks() -> None:
    rng = np.random.default_rng(12)
    x, y = (zonotope(rng.standard_normal((2, 2, n, 3, 4)), rng.random((2, 2, n, 3))) for n in (3, 2))
    found, sums = zonotopes.exact_products(x, y)
    assert found.shape == (2, 2, 3, 2)
    assert sums.shape == (2, 2, 3, 2, 4)
    for a, b, i, j in np.ndindex(*found.shape):
        ones = (zonotope(z.columns[a, b], z.error[a, b]) for z in (x, y))
        assert above(float(found[a, b, i, j]), sum_of_products(*ones, i, j))


def largest_length(N: Array) -> fmpq:
    """The square of a number that the norm is certainly at least, by the singular vector that floats find."""
    x = np.linalg.svd(N / (np.abs(N).max() or 1.0))[2][0]
    image = [dot(row, x) for row in N]
    return dot(image, image) / dot(x, x)


def matrices(rng: np.random.Generator) -> list[Array]:
    found = [rng.standard_normal((d, d)) * scale for d in (1, 2, 3, 7, 20) for scale in (1.0, 1e-70, 1e70)]
    found += [np.diag(10.0 ** rng.uniform(-8, 8, d)) for d in (2, 5)]
    found += [np.zeros((3, 3)), np.eye(4), np.ones((6, 6)), np.triu(np.ones((5, 5))), np.eye(5)[::-1]]
    found += [np.outer(rng.standard_normal(d), rng.standard_normal(d)) for d in (2, 9)]
    found += [np.array([[0.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 1e-9], [0.0, 1.0]]), np.diag([1.0, -3.0, 2.0])]
    return found


@precisely
def test_spectral_norms() -> None:
    for N in matrices(np.random.default_rng(13)):
        found, truth = float(zonotopes.spectral(N)), arb(largest_length(N)).sqrt()
        assert above(found, truth)
        assert below(found - 1e-300, truth * (1 + 1e-9)), (found, truth)


@precisely
def test_spectral_norms_of_two_by_two() -> None:
    """((a² + b² + c² + d²) + √((a² + b² + c² + d²)² − 4 (ad − bc)²)) / 2 is the square of the norm."""
    rng = np.random.default_rng(14)
    stack = rng.standard_normal((300, 2, 2)) * 10 ** rng.uniform(-5, 5, (300, 2, 2))
    found = zonotopes.spectral(stack)
    assert found.shape == (300,)
    for N, norm in zip(stack, found, strict=True):
        a, b, c, d = (exact(x) for x in N.ravel())
        total, det = a * a + b * b + c * c + d * d, a * d - b * c
        truth = ((arb(total) + arb(total * total - 4 * det * det).sqrt()) / 2).sqrt()
        assert above(float(norm), truth)
        assert below(float(norm) * (1 - 1e-9), truth)


@precisely
def test_spectral_norms_need_no_singular_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library says they are: nearly orthogonal, not at all, or not those of the matrix."""
    rng, real = np.random.default_rng(16), np.linalg.svd
    for off, which in itertools.product((0.0, 1e-6, 0.05, 0.2, 3.0), (0, 2)):

        def wrong(N: Array, off: float = off, which: int = which) -> list[Array]:
            found = list(real(N))
            found[which] = found[which] * (1 - off) + off * 0.01 * rng.standard_normal(N.shape)
            return found

        for N in matrices(rng):
            truth = arb(largest_length(N)).sqrt()
            with monkeypatch.context() as patch:
                patch.setattr(np.linalg, "svd", wrong)
                found = float(zonotopes.spectral(N))
            assert above(found, truth), (off, which, found, truth)
            assert off > 0.01 or found <= float(truth) * (1 + 1e-3) + 1e-300


@pytest.mark.parametrize("fault", ["smaller", "a little smaller", "zero", "none", "of another matrix", "diagonal"])
def test_ellipsoids_need_no_factor(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the library says it is."""
    rng, real = np.random.default_rng(17), np.linalg.cholesky

    def wrong(C: Array) -> Array:
        if fault == "none":
            raise np.linalg.LinAlgError
        if fault == "diagonal":
            return np.sqrt(C * np.eye(C.shape[-1]) * (1 + 1e-6))
        factor = {"smaller": 0.5, "a little smaller": 1 - 1e-12, "zero": 0.0}.get(fault, 1.0)
        return real(C) * factor if fault != "of another matrix" else real(C)[..., ::-1, :]

    for kind, (n, d, count) in itertools.product(
        ("ordinary", "one direction", "orthogonal"), ((2, 1, 3), (1, 3, 1), (2, 4, 9))
    ):
        z = zonotope(random_columns(rng, kind, n, d, count), random_errors(rng, "some", n, d) * (count > 1))
        with monkeypatch.context() as patch:
            patch.setattr(np.linalg, "cholesky", wrong)
            round_ = zonotopes.ellipsoid(z)
        for j in range(n):
            eta = np.stack(functionals(rng, z, j))[:, None]
            found = zonotopes.by_ellipsoid(eta, round_)
            assert all(above(float(found[s, 0, j]), reach(eta[s, 0], z, j)) for s in range(len(eta)))


def test_spectral_norms_that_underflow() -> None:
    assert above(float(zonotopes.spectral(np.array([[1e-200]]))), exact(1e-200))


def test_spectral_norms_of_what_is_no_matrix_of_numbers() -> None:
    """What is not finite has no norm, or an error; what overflows may be infinite."""
    assert above(float(zonotopes.spectral(np.full((2, 2), 1e200))), 2 * exact(1e200))
    for N in (np.full((2, 2), np.inf), np.full((2, 2), np.nan)):
        try:
            found = float(zonotopes.spectral(N))
        except np.linalg.LinAlgError:
            continue
        assert not found < math.inf


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_columns(kind: str) -> None:
    rng = np.random.default_rng(15)
    for d, count in ((16, 300), (48, 150), (64, 1000)):
        z = zonotope(random_columns(rng, kind, 1, d, count), random_errors(rng, "of all scales", 1, d))
        eta = np.stack(functionals(rng, z, 0))[:, None]
        for found in (zonotopes.by_columns(eta, z), zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(z))):
            assert all(above(float(found[s, 0, 0]), reach(eta[s, 0], z, 0)) for s in range(len(eta)))

"""Quadratic forms over the cube: no corner is beyond the bounds, which exact rationals decide."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from flint import fmpq

from tests.certificate.checker.helpers import Array, above, exact, floats, module

pairs = module("forward.pairs")
FAMILIES = ("ordinary", "any scale", "tiny", "squares below the least", "powers", "integers")


def values(q: Array, n: int) -> list[fmpq]:
    """|Σ q_ij ξ_i ξ_j| at all corners."""
    first, second = pairs.places(n)
    found = []
    for corner in itertools.product((-1, 1), repeat=n - 1):
        xi = (1, *corner)  # −ξ has the same value
        total = sum((exact(v) * (xi[i] * xi[j]) for v, i, j in zip(q, first, second, strict=True)), fmpq(0))
        found.append(abs(total))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_no_corner_is_beyond(family: str, n: int) -> None:
    rng = np.random.default_rng(n)
    q = floats(rng, family, (n * (n - 1) // 2, 4))
    q[:, 0] *= rng.random(len(q)) < 0.4
    q[:, 3] = 0
    with np.errstate(all="ignore"):
        found = [pairs.frobenius(q, n), pairs.spectral(q, n)]
    for k in range(4):
        most = max(values(q[:, k], n))
        assert all(above(bound[k], most) for bound in found), (family, k)


def test_they_are_sharp_where_a_form_is_a_product() -> None:
    """(Σ ξ)² − n: at a corner n(n−1), and U‖W‖ is n times the largest eigenvalue n − 1."""
    n = 6
    q = np.full((n * (n - 1) // 2, 1), 2.0)
    assert pairs.spectral(q, n)[0] == pytest.approx(n * (n - 1), rel=1e-6)
    one = np.zeros((n * (n - 1) // 2, 1))
    one[3] = -7.0
    assert pairs.frobenius(one, n)[0] == pytest.approx(7 * np.sqrt(2), rel=1e-9)
    assert pairs.spectral(one, n)[0] == pytest.approx(7 * 2 ** (1 / 16), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
@pytest.mark.parametrize("family", ["ordinary", "any scale", "tiny", "squares below the least"])
def test_the_norm_of_a_symmetric_matrix(family: str, n: int) -> None:
    """|W x| ≤ norm |x| for the vector that floats find to be stretched most, in rationals."""
    rng = np.random.default_rng(n)
    W = floats(rng, family, (3, n, n))
    W[1] = np.outer(W[1, 0], W[1, 0]) if family == "ordinary" else W[1]
    W = np.tril(W) + np.swapaxes(np.tril(W, -1), -1, -2)
    with np.errstate(all="ignore"):
        found = pairs.symmetric_norm(W)
    for k in range(3):
        largest = float(np.abs(W[k]).max())
        vectors = np.linalg.eigh(W[k] / largest)[1].T if largest > 0 else np.eye(n)
        for x in vectors:
            image = [sum((exact(a) * exact(b) for a, b in zip(row, x, strict=True)), fmpq(0)) for row in W[k]]
            left = sum((v * v for v in image), fmpq(0))
            length = sum((exact(v) ** 2 for v in x), fmpq(0))
            assert left <= exact(found[k]) ** 2 * length, (family, k)
        if n > 1 and family == "ordinary":
            assert found[k] <= 1.3 * np.abs(np.linalg.eigvalsh(W[k])).max()


@pytest.mark.parametrize("family", ["ordinary", "any scale", "powers"])
def test_the_ellipse_of_a_row(family: str) -> None:
    rng = np.random.default_rng(5)
    n, d = 4, 3
    q = floats(rng, family, (n * (n - 1) // 2, 2, d))
    with np.errstate(all="ignore"):
        columns, scale = pairs.ellipse(q, n)
    for row, eta in itertools.product(range(2), rng.standard_normal((4, d))):
        along = [sum((exact(a) * exact(b) for a, b in zip(v, eta, strict=True)), fmpq(0)) for v in q[:, row]]
        first, second = pairs.places(n)
        most = max(
            abs(sum((v * (xi[i] * xi[j]) for v, i, j in zip(along, first, second, strict=True)), fmpq(0)))
            for xi in itertools.product((-1, 1), repeat=n)
        )
        turned = [
            sum((exact(a) * exact(b) for a, b in zip(columns[row, :, k], eta, strict=True)), fmpq(0))
            for k in range(columns.shape[-1])
        ]
        length = sum((v * v for v in turned), fmpq(0))
        assert most**2 <= (exact(scale[row]) * (1 + exact(1e-14))) ** 2 * length * (1 + exact(1e-13))


def test_packing() -> None:
    rng = np.random.default_rng(1)
    n = 4
    x, y, xi = rng.standard_normal((n, 2)), rng.standard_normal((n, 2)), rng.standard_normal(n)
    first, second = pairs.places(n)
    for pair, square in (pairs.outer(x, y), pairs.packed(x[:, None] * y[None])):
        total = (xi[first] * xi[second]) @ pair + np.square(xi) @ square
        assert total == pytest.approx((xi @ x) * (xi @ y))
    assert [pairs.count(n * (n - 1) // 2) for n in range(2, 40)] == list(range(2, 40))
    squares = np.square(rng.standard_normal((6, 2)))
    full = np.zeros((n, n, 2))
    full[first, second] = full[second, first] = squares
    assert pairs.row_squares(squares, n) == pytest.approx(full.sum(1))
    assert pairs.starts(n).tolist() == [0, 3, 5, 6]

"""Zonotopes with balls: no point is farther along any functional, nor any product of two rows larger."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.certificate.checker.ball_cases import balls_of, dot, point
from tests.certificate.checker.helpers import module

unknowns = module("unknowns")
zonotopes = module("zonotopes")


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_zonotopes_with_balls(order: int, seed: int) -> None:
    """Functionals by columns and by ellipsoids, boxes, and products of two rows with the same unknowns."""
    chance = np.random.default_rng(seed)
    shape = (2, 3)
    x, y = (
        zonotopes.ProvedZonotope(
            centre=np.zeros(shape), columns=chance.standard_normal((*shape, 9)), error=np.zeros(shape), exact=True,
            balls=balls_of(order),
        )
        for _ in range(2)
    )  # fmt: skip
    cube = zonotopes.ProvedZonotope(centre=x.centre, columns=x.columns, error=x.error, exact=True)
    eta = chance.standard_normal((5, 4, 3))
    exact, rough = zonotopes.by_columns(eta, x), zonotopes.by_ellipsoid(eta, zonotopes.ellipsoid(x))
    assert (exact <= zonotopes.by_columns(eta, cube)).all()
    assert (exact <= rough * (1 + 1e-9)).all()
    products, of_cube = zonotopes.products(x, y), zonotopes.exact_products(x, y)[0]
    box = x.box()
    for s, i, j in np.ndindex(5, 4, 2):
        row = eta[s, i] @ x.columns[j]
        xi = point(row, order, chance)
        value = sum((Fraction(float(e)) * dot(x.columns[j, k], xi) for k, e in enumerate(eta[s, i])), Fraction(0))
        assert value <= Fraction(float(exact[s, i, j]))
        assert value <= Fraction(float(rough[s, i, j]))
        for a, b in np.ndindex(2, 2):
            u = [dot(x.columns[a, k], xi) for k in range(3)]
            v = [dot(y.columns[b, k], xi) for k in range(3)]
            inner = abs(sum((p * q for p, q in zip(u, v, strict=True)), Fraction(0)))
            assert inner <= Fraction(float(products[a, b]))
            assert inner <= Fraction(float(of_cube[a, b]))
        for a, k in np.ndindex(shape):
            assert Fraction(float(box.lo[a, k])) <= dot(x.columns[a, k], xi) <= Fraction(float(box.hi[a, k]))


def test_products_in_one_ball_are_nearly_reached() -> None:
    """Of one Euclidean ball the ellipsoid is exact: |x·x| is at most the square of the largest singular value."""
    G = np.random.default_rng(0).standard_normal((3, 9))
    ball = (unknowns.BallOfColumns(np.arange(9), 2),)
    x = zonotopes.ProvedZonotope(
        centre=np.zeros((1, 3)), columns=G[None], error=np.zeros((1, 3)), exact=True, balls=ball
    )
    most = float(np.linalg.svd(G)[1][0] ** 2)
    assert most * (1 - 1e-12) <= float(zonotopes.products(x, x)[0, 0]) <= most * (1 + 1e-6)
    assert float(zonotopes.exact_products(x, x)[0][0, 0]) > 2 * most

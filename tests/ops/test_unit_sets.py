"""Functionals and products of rows over balls: never below what points of the ball reach, and attained where exact."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.forms import functional_radius, product_radius, row_form
from vertex_softmax.ops.unit_sets import UnitBall, UnitSet

INPUTS, ROWS, D = 6, 3, 4
BALLS = {
    "one Euclidean ball": UnitSet(UnitBall.EUCLIDEAN),
    "Euclidean balls": UnitSet(UnitBall.EUCLIDEAN, torch.tensor([0, 0, 1, 1, 2, 2])),
    "balls across rows": UnitSet(UnitBall.EUCLIDEAN, torch.tensor([0, 1, 0, 1, 0, 1])),
    "a Euclidean ball and intervals": UnitSet(UnitBall.EUCLIDEAN, torch.tensor([0, 0, 0, 1, 2, 3])),
    "intervals and Euclidean balls": UnitSet(UnitBall.EUCLIDEAN, torch.tensor([0, 1, 2, 1, 3, 3])),
    "a cross-polytope and intervals": UnitSet(UnitBall.CROSS, torch.tensor([0, 0, 0, 1, 2, 3])),
    "intervals and cross-polytopes": UnitSet(UnitBall.CROSS, torch.tensor([0, 1, 2, 1, 3, 3])),
    "one cross-polytope": UnitSet(UnitBall.CROSS),
    "cross-polytopes": UnitSet(UnitBall.CROSS, torch.tensor([0, 0, 1, 1, 2, 2])),
    "cross-polytopes across rows": UnitSet(UnitBall.CROSS, torch.tensor([0, 1, 0, 1, 0, 1])),
}
KINDS = ("shared", "own", "dense", "fixed row")


def form(kind: str, unit: UnitSet, seed: int) -> AffineForm:
    """Rows (2, ROWS, D), each with two inputs of its own unless it is dense."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*dims: int) -> Tensor:
        return torch.randn(*dims, generator=generator, dtype=torch.float64)

    matrix = draw(ROWS, D, INPUTS)
    if kind != "dense":
        common = draw(D, 2)
        for j in range(ROWS):
            own = common if kind == "shared" else draw(D, 2)
            matrix[j] = 0
            matrix[j, :, 2 * j : 2 * j + 2] = own
    if kind == "fixed row":
        matrix[0] = 0
    radius = torch.full((2, INPUTS), 0.3, dtype=torch.float64)
    if kind in ("own", "dense"):
        radius = 0.1 + torch.rand(2, INPUTS, generator=generator, dtype=torch.float64)
    return AffineForm(draw(2, ROWS, D), matrix, radius, unit)


def points(unit: UnitSet, seed: int) -> Tensor:
    """Of the unit set, (count, INPUTS): many on its surface."""
    generator = torch.Generator().manual_seed(seed)
    of = torch.zeros(INPUTS, dtype=torch.long) if unit.of is None else unit.of
    z = torch.randn(4000, INPUTS, generator=generator, dtype=torch.float64) ** 3
    order = 2.0 if unit.ball is UnitBall.EUCLIDEAN else 1.0
    for ball in of.unique():
        size = torch.linalg.vector_norm(z[:, of == ball], ord=order, dim=1, keepdim=True)
        z[:, of == ball] /= size
    eye = torch.eye(INPUTS, dtype=torch.float64)
    if unit.of is None:
        return torch.cat([z, eye, -eye])
    corners = [
        a * eye[i] + b * eye[j] for i, j in itertools.combinations(range(INPUTS), 2) for a in (-1, 1) for b in (-1, 1)
    ]
    apart = [z_ for z_ in corners if len({int(of[p]) for p in z_.nonzero().flatten()}) == 2]
    return torch.cat([z, eye, -eye, torch.stack(apart)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BALLS)
def test_functionals(name: str, kind: str) -> None:
    """At least what any point reaches, and at most 1e-9 above what the best direction does."""
    unit = BALLS[name]
    given = form(kind, unit, 1)
    eta = torch.randn(2, 5, 2, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = functional_radius(eta, row_form(given))  # (2, 5, 2, ROWS)
    z = points(unit, 3)
    moved = torch.einsum("ndp,bp,cp->bcnd", given.matrix, given.radius, z)
    reached = torch.einsum("bsmd,bcnd->bscmn", eta, moved).abs().amax(2)
    assert bool((found >= reached - 1e-13).all())
    g = torch.einsum("bsmd,ndp,bp->bsmnp", eta, given.matrix, given.radius)
    balls = torch.zeros(INPUTS, dtype=torch.long) if unit.of is None else unit.of
    assert torch.allclose(found, unit.reach(g, balls), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BALLS)
def test_products(name: str, kind: str) -> None:
    """At least what any point reaches, also after a climb."""
    unit = BALLS[name]
    left, right = form(kind, unit, 1), form(kind, unit, 4)
    found = product_radius(row_form(left), row_form(dataclasses.replace(right, radius=left.radius)))
    z = points(unit, 5)
    x = torch.einsum("ndp,bp,cp->bcnd", left.matrix, left.radius, z)
    y = torch.einsum("ndp,bp,cp->bcnd", right.matrix, left.radius, z)
    reached = torch.einsum("bcnd,bcmd->bcnm", x, y).abs().amax(1)
    assert bool((found >= reached - 1e-13).all())


@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
def test_rows_of_one_ball_share_its_radius(ball: UnitBall) -> None:
    """Rows without a common input: half of the norm of their product over a Euclidean ball, a quarter over a cross."""
    unit = UnitSet(ball)
    left, right = form("shared", unit, 1), form("shared", unit, 4)
    found = product_radius(row_form(left), row_form(dataclasses.replace(right, radius=left.radius)))
    M = 0.09 * left.matrix[0, :, :2].mT @ right.matrix[1, :, 2:4]
    exact = torch.linalg.matrix_norm(M, ord=2) / 2 if ball is UnitBall.EUCLIDEAN else M.abs().max() / 4
    assert float(found[0, 0, 1]) >= float(exact) - 1e-13
    assert float(found[0, 0, 1]) <= 1.1 * float(exact)


@pytest.mark.parametrize("ball", [UnitBall.EUCLIDEAN, UnitBall.CROSS])
@pytest.mark.parametrize("kind", KINDS)
def test_balls_of_one_unknown_each_are_a_cube(ball: UnitBall, kind: str) -> None:
    single, cube = UnitSet(ball, torch.arange(INPUTS)), UnitSet()
    found = []
    for unit in (single, cube):
        left, right = form(kind, unit, 1), form(kind, unit, 4)
        found.append(product_radius(row_form(left), row_form(dataclasses.replace(right, radius=left.radius))))
    assert torch.allclose(*found, rtol=1e-12, atol=0)
    g = torch.randn(7, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(single.reach(g, single.at(torch.arange(INPUTS))), g.abs().sum(-1), rtol=1e-15, atol=0)

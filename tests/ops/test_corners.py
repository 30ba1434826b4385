"""The planes of a product of two affine rows: sound for every σ, at all corners of one ξ, exact where σ is a corner."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, generator
from tests.ops.checks import coefficients, context
from tests.ops.test_forms import INPUTS, Rows, at, corners, rows, widths
from vertex_softmax.ops.bilinear import MatMul, MatrixPlanes
from vertex_softmax.ops.contract import AffineForm, Step
from vertex_softmax.ops.corners import Corners, planes, row_inputs
from vertex_softmax.ops.corners import corners as touching
from vertex_softmax.ops.forms import product_radius, row_form
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import Rules

KINDS = ("shared", "class token")
"""Rows that share their matrix: others have no corners."""
PAIRS = [(a, b, heads) for a in KINDS for b in KINDS for heads in ((), (2,))]
PAIRS += [("turned", "shared", (2,)), ("class token", "turned", (2,)), ("turned", "turned", (2,))]
"""In "turned" every head reads other inputs; in all others heads share them."""
each = pytest.mark.parametrize(("left", "right", "heads"), PAIRS)
N, M, D = 3, 2, 2


def factors(left: str, right: str, heads: tuple[int, ...], radius: Tensor) -> tuple[Rows, Rows, AffineForm]:
    """Rows x_i and y_j of one input, and the form of yᵀ as MatMul takes it."""
    x, y = rows(left, N, D, radius, 41, heads), rows(right, M, D, radius, 42, heads)
    return x, y, AffineForm(y.form.centre.mT, y.form.matrix.transpose(-3, -2), radius)


def sigmas(S: int) -> list[Tensor]:
    """(BATCH, S, inputs): random, the centre, corners, and mixed."""
    g = generator(43)
    inner = 2 * torch.rand(BATCH, S, INPUTS, generator=g, dtype=torch.float64) - 1
    corner = torch.where(torch.rand(inner.shape, generator=g) < 0.5, -1.0, 1.0).double()
    mixed = torch.where(torch.rand(inner.shape, generator=g) < 0.5, corner, 0 * corner)
    return [inner, torch.zeros_like(inner), corner, mixed, 0.3 * corner]


def relaxed(left: str, right: str, heads: tuple[int, ...], radius: Tensor) -> tuple[Rows, Rows, MatrixPlanes]:
    x, y, turned = factors(left, right, heads, radius)
    box = (x.box, Interval(y.box.lower.mT, y.box.upper.mT))
    found = MatMul().relax(context(box, Rules(), (x.form, turned)))
    assert isinstance(found, MatrixPlanes)
    return x, y, found


def value(step: Step, xs: Tensor, ys: Tensor, xi: Tensor) -> Tensor:
    """The plane at x, y and the deviation ξ of the input, (points, BATCH, S)."""
    to_x, to_y = step.coefficients
    assert to_x is not None
    assert to_y is not None
    assert step.constant is not None
    total = (to_x * xs.unsqueeze(2)).flatten(3).sum(-1) + (to_y * ys.unsqueeze(2)).flatten(3).sum(-1) + step.constant
    return total if step.start is None else total + (step.start * xi.unsqueeze(2)).sum(-1)


def check_planes(left: str, right: str, heads: tuple[int, ...], scale: float = 1.0) -> None:
    """A product's backward rule with every σ, at all corners and at points between them, ξ the same in both factors."""
    radius = scale * widths()
    x, y, found = relaxed(left, right, heads, radius)
    assert isinstance(found.corners, Corners)
    A = coefficients((*heads, N, M), 44)
    xi = corners(radius)
    xs, ys = at(x.form, xi), at(y.form, xi).mT
    true = (A * (xs @ ys).unsqueeze(2)).flatten(3).sum(-1)
    for sigma in sigmas(A.shape[1]):
        step = found.with_parameters({"corner": sigma}).backward(A)
        got = value(step, xs, ys, xi)
        size = (A.abs() * (xs.abs() @ ys.abs() + x.form.centre.abs() @ y.form.centre.abs().mT).unsqueeze(2)).flatten(3)
        over = got - true - 1e-12 * size.sum(-1)
        assert (over <= 0).all(), f"a plane lies {float(over.max()):.3g} above the product"


@each
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e3])
def test_every_point_to_touch_is_sound(left: str, right: str, heads: tuple[int, ...], scale: float) -> None:
    check_planes(left, right, heads, scale)


@each
def test_the_planes_of_the_part_of_second_order(left: str, right: str, heads: tuple[int, ...]) -> None:
    """`corners.planes` alone: A·(dx dyᵀ) from below, about the centre."""
    radius = widths()
    x, y, _ = factors(left, right, heads, radius)
    one, other = row_form(x.form), row_form(y.form)
    error = product_radius(one, other)
    at_corner = touching(one, other, error, INPUTS)
    assert at_corner is not None
    A = coefficients((*heads, N, M), 45)
    sigma = sigmas(A.shape[1])[0]
    to_x, to_y, middle, start = planes(A, at_corner, sigma)
    assert start.shape == sigma.shape
    xi = corners(radius)
    xs, ys = at(x.form, xi), at(y.form, xi)
    dx, dy = xs - x.form.centre, ys - y.form.centre
    true = (A * (dx @ dy.mT).unsqueeze(2)).flatten(3).sum(-1)
    plane = (to_x * xs.unsqueeze(2)).flatten(3).sum(-1) + (to_y * ys.unsqueeze(2)).flatten(3).sum(-1)
    plane = plane + (A * middle - A.abs() * error.unsqueeze(1)).flatten(2).sum(-1)
    got = plane + (start * xi.unsqueeze(2)).sum(-1)
    size = (A.abs() * (xs.abs() @ ys.abs().mT + error).unsqueeze(2)).flatten(3).sum(-1)
    assert (got <= true + 1e-11 * size).all()


def check_exact_at_corners(left: str, right: str, heads: tuple[int, ...]) -> None:
    """At ξ = r σ, σ a corner, the plane is the product."""
    radius = widths()
    x, y, found = relaxed(left, right, heads, radius)
    A = coefficients((*heads, N, M), 46)
    sigma = torch.where(torch.rand(BATCH, A.shape[1], INPUTS, generator=generator(47)) < 0.5, -1.0, 1.0).double()
    step = found.with_parameters({"corner": sigma}).backward(A)
    for s in range(A.shape[1]):
        xi = (sigma[:, s] * radius)[None]
        xs, ys = at(x.form, xi), at(y.form, xi).mT
        true = (A * (xs @ ys).unsqueeze(2)).flatten(3).sum(-1)[0, :, s]
        got = value(step, xs, ys, xi)[0, :, s]
        size = (A.abs() * (xs.abs() @ ys.abs() + found.error.abs()[:, 0]).unsqueeze(2)).flatten(3).sum(-1)[0, :, s]
        assert ((got - true).abs() <= 1e-11 * (size + 1e-12)).all(), f"the plane does not touch at σ: {got - true}"


@each
def test_planes_touch_at_corners(left: str, right: str, heads: tuple[int, ...]) -> None:
    check_exact_at_corners(left, right, heads)


@each
def test_the_middle_is_the_plane_at_the_centre(left: str, right: str, heads: tuple[int, ...]) -> None:
    """σ = 0, the default, is the plane without parameters; its error may be that of the forms alone, never less."""
    radius = widths()
    x, y, found = relaxed(left, right, heads, radius)
    A = coefficients((*heads, N, M), 48)
    start = found.parameters()["corner"]
    assert start.shape == (BATCH, 1, INPUTS)
    assert (start == 0).all()
    plain = found.backward(A)
    free = found.with_parameters({"corner": start.expand(-1, A.shape[1], -1)}).backward(A)
    assert free.start is not None
    assert (free.start == 0).all()
    for a, b in zip(plain.coefficients, free.coefficients, strict=True):
        assert torch.allclose(a, b, rtol=1e-14, atol=0)
    exact = product_radius(row_form(x.form), row_form(y.form)).unsqueeze(1)
    lost = (A.abs() * (exact - found.error)).flatten(2).sum(-1)
    assert (lost >= -1e-12).all()
    assert torch.allclose(plain.constant - lost, free.constant, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["per row", "dense"])
def test_rows_with_matrices_of_their_own_have_no_corner(kind: str) -> None:
    radius = widths()
    _, _, found = relaxed(kind, "shared", (), radius)
    assert found.corners is None
    assert found.parameters() == {}


def test_a_plane_at_a_corner_can_be_far_better() -> None:
    """x = y = ξ in [−1, 1]: at the centre x y ≥ −1; the plane at the corner 1 is 2ξ − 1.

    Of the objective x·y − 2ξ the plane at the centre proves −3, that at the corner −1.
    """
    unit = torch.ones(1, 1, dtype=torch.float64)
    form = AffineForm(torch.zeros(1, 1, 1).double(), torch.ones(1, 1, 1).double(), unit)
    box = Interval(-torch.ones(1, 1, 1).double(), torch.ones(1, 1, 1).double())
    found = MatMul().relax(context((box, box), Rules(), (form, form)))
    A = torch.ones(1, 1, 1, 1).double()
    bounds = []
    for sigma in (0.0, 1.0):
        step = found.with_parameters({"corner": torch.full((1, 1, 1), sigma).double()}).backward(A)
        slope = float(step.coefficients[0]) + float(step.coefficients[1]) + float(step.start) - 2
        bounds.append(float(step.constant) - abs(slope))
    assert bounds == [-3.0, -1.0]


@pytest.mark.parametrize("kind", [*KINDS, "turned"])
def test_heads_that_share_their_inputs_are_multiplied_at_once(kind: str) -> None:
    """The same deviations and slopes as head by head."""
    found = row_inputs(row_form(rows(kind, N, D, widths(), 49, (2,)).form))
    assert found.shared == (kind != "turned")
    size, sums = coefficients((2, N, M), 50), coefficients((2, M, found.places.shape[-1]), 51)[:, :1]
    sigma = sigmas(size.shape[1])[0]
    own = found.at(sigma)
    deviation, slopes = found.deviation(own), found.slopes(own, size, sums)
    places = found.places.expand(*own.shape[2:]).reshape(-1)
    total = torch.zeros_like(sigma).index_add(2, places, slopes)
    each_own, each_radius = (x.expand(*x.shape[:2], 2, *x.shape[3:]) for x in (own, found.radius))
    wanted = torch.zeros_like(sigma)
    for head in range(2):
        weighted = (each_own * each_radius)[:, :, head]
        assert torch.allclose(deviation[:, :, head], weighted @ found.matrix[head].mT, rtol=1e-13, atol=1e-14)
        at_head = found.places.expand(2, *found.places.shape[1:])[head].reshape(-1)
        part = each_own[:, :, head] * (size[:, :, head] @ sums[:, :, head])
        wanted = wanted.index_add(2, at_head, part.flatten(2))
    assert torch.allclose(total, wanted, rtol=1e-12, atol=1e-13)

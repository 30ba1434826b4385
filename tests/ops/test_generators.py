"""Generators and their ellipsoids against brute force over all corners of ξ and e; zero, tiny and huge ones too."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, generator
from vertex_softmax.ops.generators import (
    SQUARINGS,
    Ellipsoid,
    Generators,
    ellipsoid,
    fitted,
    functional_radius,
    most_eigenvalue,
    product_radius,
)
from vertex_softmax.ops.interval import Interval

KINDS = ("plain", "no error", "no columns", "zero columns", "zero rows", "nothing", "parallel", "of all sizes")
SCALES = (1.0, 1e-9, 1e-120, 1e120)


def made(kind: str, seed: int, n: int = 2, d: int = 2, P: int = 3, heads: tuple[int, ...] = ()) -> Generators:
    """Rows (BATCH, *heads, n, d)."""
    g = generator(seed)
    centre = torch.randn(BATCH, *heads, n, d, generator=g, dtype=torch.float64)
    columns = torch.randn(*centre.shape, P, generator=g, dtype=torch.float64)
    error = torch.rand(centre.shape, generator=g, dtype=torch.float64)
    if kind in {"no error", "nothing", "parallel"}:
        error = torch.zeros_like(error)
    if kind in {"no columns", "nothing"}:
        columns = torch.zeros_like(columns)
    if kind == "zero columns":
        columns[..., 1] = 0
    if kind == "zero rows":
        columns[..., 0, :, :] = 0
        error[..., 0, :] = 0
    if kind == "parallel":  # all columns along one direction: C has rank one
        columns = columns[..., :1, :].expand_as(columns) * columns[..., :1, :1, :1]
    if kind == "of all sizes":
        columns = columns * 10.0 ** (8 * torch.rand(columns.shape, generator=g, dtype=torch.float64) - 4)
    return Generators(centre, columns, error)


def scaled(rows: Generators, by: float) -> Generators:
    return Generators(*(by * x for x in rows))


def signs(count: int) -> Tensor:
    """All corners of a cube, (2^count, count)."""
    return torch.tensor(list(itertools.product((-1.0, 1.0), repeat=count)), dtype=torch.float64).reshape(-1, count)


def deviations(rows: Generators) -> Tensor:
    """y − centre at all corners of ξ, shared by the rows, and of each row's own e: (corners, BATCH, ..., n, d)."""
    P, d = rows.columns.shape[-1], rows.centre.shape[-1]
    corner = signs(P + d)
    xi, e = corner[:, :P], corner[:, P:]
    rest = rows.centre.dim() - 1
    return (rows.columns @ xi.reshape(len(xi), *[1] * rest, P, 1)).squeeze(-1) + rows.error * e.reshape(
        len(e), *[1] * rest, d
    )


def check_functionals(rows: Generators, seed: int = 0, S: int = 4, m: int = 2) -> None:
    heads = rows.centre.shape[1:-2]
    eta = torch.randn(BATCH, S, *heads, m, rows.centre.shape[-1], generator=generator(seed + 1), dtype=torch.float64)
    eta[:, 0] = 0
    eta[:, 1, ..., 1:] = 0
    true = (eta @ deviations(rows).unsqueeze(2).mT).abs().amax(0)
    found = functional_radius(eta, ellipsoid(rows))
    assert found.shape == true.shape
    exact = functional_radius(eta, ellipsoid(rows), exact=True)
    size = rows.columns.abs().sum() + rows.error.sum()
    assert torch.allclose(exact, true, rtol=1e-12, atol=1e-13 * float(size)), "the exact sum is not the range"
    assert (exact <= found * (1 + 1e-9)).all(), "the ellipsoid is tighter than the exact sum"
    over = true * (1 - 1e-12) - found
    assert (over <= 0).all(), f"a functional goes {float(over.max()):.3g} beyond its radius"


def check_products(left: Generators, right: Generators) -> None:
    found = product_radius(ellipsoid(left), ellipsoid(right))
    x, y = deviations(left), deviations(right)
    k = torch.arange(len(x))
    true = torch.zeros_like(found)
    for shift in range(len(y)):  # every corner with every other: ξ is shared or not, all the same
        true = torch.maximum(true, (x @ y[(k + shift) % len(y)].mT).abs().amax(0))
    over = true * (1 - 1e-12) - found
    assert (over <= 0).all(), f"a product goes {float(over.max()):.3g} beyond its radius"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("heads", [(), (2,)])
def test_functionals_are_bounded(kind: str, scale: float, heads: tuple[int, ...]) -> None:
    for seed in range(3):
        check_functionals(scaled(made(kind, seed, heads=heads), scale), seed)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(KINDS, KINDS)))
def test_products_are_bounded(left: str, right: str) -> None:
    for seed, heads in ((3, ()), (4, (2,))):
        check_products(made(left, seed, heads=heads), made(right, seed + 10, n=3, heads=heads))
    for scale, other in ((1e-9, 1e-9), (1e-140, 1e-140), (1e140, 1e-100), (1e70, 1e70)):
        check_products(scaled(made(left, 5), scale), scaled(made(right, 6, n=3), other))


def test_rows_of_one_number_and_of_three() -> None:
    for d in (1, 3):
        for kind in KINDS:
            check_functionals(made(kind, 7, d=d))
            check_products(made(kind, 8, d=d, n=1), made("plain", 9, d=d, n=2))


def check_orthogonal(dtype: torch.dtype, sizes: tuple[float, ...]) -> None:
    """Rows that are orthogonal to each other but for a little: a radius is a square root, and must not lose it."""
    g = generator(11)
    eps = torch.finfo(dtype).eps
    for d, off in itertools.product((2, 4, 7), sizes):
        a, b = (torch.randn(200, 1, d, generator=g, dtype=torch.float64) for _ in range(2))
        b = b - (a * b).sum(-1, keepdim=True) / (a * a).sum(-1, keepdim=True) * a
        b = b + off * torch.randn(b.shape, generator=g, dtype=torch.float64)
        a, b = a.to(dtype), b.to(dtype)
        none = torch.zeros_like(a)
        one, other = (ellipsoid(Generators(none, v.unsqueeze(-1), none)) for v in (a, b))
        true = (a.double() * b.double()).sum(-1).abs().flatten()
        slack = 4 * d * eps * (a.double().norm(dim=-1) * b.double().norm(dim=-1)).flatten()
        for name, found in (
            ("product", product_radius(one, other)),
            ("functional", functional_radius(b.unsqueeze(1), one)),
        ):
            over = true - slack - found.double().flatten()
            assert (over <= 0).all(), f"a {name} of almost orthogonal rows is {float(over.max()):.3g} too small"


def test_almost_orthogonal_rows() -> None:
    check_orthogonal(torch.float64, (0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3))
    check_orthogonal(torch.float32, (0.0, 1e-6, 1e-4, 1e-2))


def test_radii_are_exact_for_one_column() -> None:
    """One column: the ellipsoid is the segment, and the radius |η·g|; products likewise, to rounding of a square."""
    rows, other = made("no error", 12, P=1), made("no error", 13, n=3, P=1)
    eta = torch.randn(BATCH, 4, 2, 2, generator=generator(14), dtype=torch.float64)
    true = (eta @ deviations(rows).unsqueeze(2).mT).abs().amax(0)
    assert torch.allclose(functional_radius(eta, ellipsoid(rows)), true, atol=1e-6)
    x, y = deviations(rows), deviations(other)
    pairs = torch.stack([a @ b.mT for a in x for b in y]).abs().amax(0)
    assert torch.allclose(product_radius(ellipsoid(rows), ellipsoid(other)), pairs, atol=1e-6)


def test_the_ellipsoid_is_no_wider_than_it_must_be() -> None:
    """√(Σu · ηᵀCη) is at most Σ_p ‖g_p‖ ‖η‖, and nothing where nothing varies."""
    rows = made("plain", 15, n=3, d=3, P=5)
    eta = torch.randn(BATCH, 4, 2, 3, generator=generator(16), dtype=torch.float64)
    found = functional_radius(eta, ellipsoid(rows))
    length = torch.linalg.vector_norm(rows.columns, dim=-2).sum(-1) + rows.error.sum(-1)
    assert (found <= torch.linalg.vector_norm(eta, dim=-1, keepdim=True) * length[:, None, None] * (1 + 1e-9)).all()
    empty = ellipsoid(made("nothing", 17))
    assert (functional_radius(eta[..., :2], empty) == 0).all()
    assert (product_radius(empty, empty) == 0).all()
    assert (product_radius(empty, ellipsoid(made("plain", 18))) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(), (2,)])
def test_box_and_transpose(kind: str, heads: tuple[int, ...]) -> None:
    rows = made(kind, 19, heads=heads)
    box = rows.box()
    values = rows.centre + deviations(rows)
    assert torch.allclose(box.lower, values.amin(0), rtol=1e-12, atol=1e-12)
    assert torch.allclose(box.upper, values.amax(0), rtol=1e-12, atol=1e-12)
    turned = rows.transposed()
    assert turned.columns.shape == (*turned.centre.shape, 3)
    for a, b in zip(turned.box(), box, strict=True):
        assert torch.equal(a, b.mT)
    for a, b in zip(turned.transposed(), rows, strict=True):
        assert torch.equal(a, b)
    again = turned.centre + deviations(turned._replace(error=torch.zeros_like(turned.error)))
    assert torch.allclose(again.amax(0) + turned.error, box.upper.mT, rtol=1e-12, atol=1e-12)


def check_eigenvalue(matrix: Tensor, rtol: float = 1e-12) -> None:
    """Between λ_max and d^(1/16) λ_max."""
    most = torch.linalg.eigvalsh(matrix.double())[..., -1].clamp(min=0)
    found = most_eigenvalue(matrix).double()
    root = matrix.shape[-1] ** (0.5**SQUARINGS)
    assert (found >= most * (1 - rtol)).all(), "the largest eigenvalue is not below its bound"
    assert (found <= most * root * (1 + rtol) + 1e-300).all(), "the bound of the largest eigenvalue is loose"


@pytest.mark.parametrize("scale", [1.0, 1e-100, 1e-250, 1e100, 1e250])
def test_the_largest_eigenvalue(scale: float) -> None:
    g = generator(20)
    for d, rank in ((1, 1), (2, 1), (2, 2), (5, 1), (5, 5), (40, 3), (40, 40)):
        root = torch.randn(4, 2, d, rank, generator=g, dtype=torch.float64)
        check_eigenvalue(scale * (root @ root.mT), 1e-11)
    flat = scale * torch.eye(64, dtype=torch.float64)
    assert float(most_eigenvalue(flat)) == pytest.approx(scale * 64 ** (0.5**SQUARINGS), rel=1e-12)


@pytest.mark.parametrize("d", [64, 768, 1100])
def test_the_largest_eigenvalue_in_float32(d: int) -> None:
    """A flat spectrum in high dimension: (1/d)^16 is 0 in float32."""
    check_eigenvalue(torch.eye(d, dtype=torch.float32), 1e-5)
    check_eigenvalue(1e-30 * torch.eye(d, dtype=torch.float32), 1e-5)
    one = torch.zeros(d, d, dtype=torch.float32)
    one[0, 0] = 3.0
    check_eigenvalue(one, 1e-5)


def test_no_radius_of_what_is_not_a_number() -> None:
    rows = made("plain", 21)
    rows.columns[1, 0, 0, 0] = torch.nan
    bad = ellipsoid(rows)
    assert isinstance(bad, Ellipsoid)
    assert functional_radius(torch.ones(BATCH, 1, 1, 2).double(), bad)[1, ..., 0].isnan().all()
    assert product_radius(bad, bad)[1, 0].isnan().all()
    assert most_eigenvalue(bad.shape)[1, 0].isnan()


def test_a_functional_of_nothing_has_a_gradient() -> None:
    """η = 0 in some rows, as under a class token: no NaN that would still all steps of an ascent."""
    eta = torch.randn(BATCH, 3, 2, 2, generator=generator(22), dtype=torch.float64)
    eta[:, 0], eta[:, 1, 1] = 0, 0
    eta.requires_grad_()
    functional_radius(eta, ellipsoid(made("zero rows", 23))).sum().backward()
    assert eta.grad is not None
    assert eta.grad.isfinite().all()


def test_numbers_whose_error_is_wider_than_their_box_are_taken_from_it() -> None:
    """Behind several norms errors overflow, and NaN, where the boxes stay small (found by the fuzzer)."""
    centre = torch.tensor([[1.0, 1e90, math.nan, 5.0]], dtype=torch.float64)
    columns = torch.tensor([[[0.5], [1e90], [math.nan], [2.0]]], dtype=torch.float64)
    error = torch.tensor([[0.25, 1e92, math.nan, 3.0]], dtype=torch.float64)
    lower = torch.tensor([[-1.0, -2.0, 0.0, -torch.inf]], dtype=torch.float64)
    upper = torch.tensor([[2.0, 4.0, 1.0, torch.inf]], dtype=torch.float64)
    found = Generators(centre, columns, error).within(Interval(lower, upper))
    assert found.centre.tolist() == [[1.0, 1.0, 0.5, 5.0]]
    assert found.columns.squeeze(-1).tolist() == [[0.5, 0.0, 0.0, 2.0]]
    assert found.error.tolist() == [[0.25, 3.0, 0.5, 3.0]]


@pytest.mark.parametrize("seed", range(12))
def test_fitted_ellipsoids_hold_for_every_functional_and_are_tight_at_their_own(seed: int) -> None:
    """Against the sums over all columns themselves, for functionals near and far from those that were fitted."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if seed % 4 == 3 else torch.float64

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    heads, n, d, m, P = 2, 3, 4, 3, 9
    columns = draw(1, heads, n, d, P) * 10.0 ** (3 * draw(1, heads, n, 1, P))
    columns[..., 2] = 0.0
    error = draw(1, heads, n, d).abs() * (seed % 3)
    eta = draw(heads, m, d)
    eta[0, 0] = 0.0
    eta[0, 1, 1:] = 0.0
    rows = Generators(draw(1, heads, n, d).to(dtype), columns.to(dtype), error.to(dtype))
    whole = fitted(ellipsoid(rows), eta.to(dtype))
    assert whole.fitted is not None
    columns, error, eta = (x.to(dtype).double() for x in (columns, error, eta))
    for spread in (0.0, 1e-3, 0.1, 1.0, 100.0):
        asked = (eta + spread * draw(7, 1, heads, m, d)).to(dtype)
        found = functional_radius(asked, whole).double()
        one = asked.double()
        exact = torch.einsum("bshid,hjdp->bshijp", one, columns[0]).abs().sum(-1)
        exact = exact + torch.einsum("bshid,hjd->bshij", one.abs(), error[0])
        assert (found >= exact * (1 - 8 * torch.finfo(dtype).eps)).all()
        if spread == 0.0 and dtype == torch.float64:  # then Σ (η·g_p)² / u_p ≤ Σ |η·g_p|
            busy = (exact > 0).expand_as(found)
            assert (found**2 <= 1.001 * exact * whole.fitted.size)[busy].all()


def test_ellipsoids_without_rows_or_of_several_inputs_are_not_fitted() -> None:
    rows = Generators(*(torch.ones(2, 1, 3, 4, *more, dtype=torch.float64) for more in ((), (5,), ())))
    several = ellipsoid(rows)
    assert fitted(several, torch.ones(1, 3, 4, dtype=torch.float64)) is several
    bare = dataclasses.replace(ellipsoid(Generators(*(x[:1] for x in rows))), rows=None)
    assert fitted(bare, torch.ones(1, 3, 4, dtype=torch.float64)) is bare

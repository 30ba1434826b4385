"""Affine forms against brute force over the corners of ξ, and the ops that use them at points that share one ξ."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, Case, generator
from tests.ops.checks import backward, check_backward, concrete
from vertex_softmax.ops import forms
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.contract import AffineForm
from vertex_softmax.ops.forms import ellipsoid_radius, functional_box, functional_radius, product_radius, row_form
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules

KINDS = ("shared", "per row", "class token", "dense", "no input")
INPUTS = 6


class Rows(NamedTuple):
    form: AffineForm
    box: Interval


def rows(kind: str, n: int, d: int, radius: Tensor, seed: int, heads: tuple[int, ...] = ()) -> Rows:
    """Rows (BATCH, *heads, n, d) that are affine in the inputs, and their exact box."""
    g = generator(seed)
    matrix = torch.zeros(*heads, n, d, INPUTS, dtype=torch.float64)
    per = INPUTS // n if n <= INPUTS else 1
    common = torch.randn(*heads, d, per, generator=g, dtype=torch.float64)
    for j in range(n):
        own = torch.randn(*heads, d, per, generator=g, dtype=torch.float64)
        matrix[..., j, :, j * per : (j + 1) * per] = common if kind in {"shared", "class token", "turned"} else own
    if kind == "class token":
        matrix[..., 0, :, :] = 0
    if kind == "turned" and heads:  # every head reads other inputs
        matrix = torch.stack([one.roll(head * per, -1) for head, one in enumerate(matrix)])
    if kind == "dense":
        matrix = torch.randn(*heads, n, d, INPUTS, generator=g, dtype=torch.float64)
        matrix[..., -1, :, :3] = 0  # a row with fewer inputs
    if kind == "no input":
        matrix = torch.zeros_like(matrix)
    centre = torch.randn(BATCH, *heads, n, d, generator=g, dtype=torch.float64)
    form = AffineForm(centre, matrix, radius)
    spread = (matrix.abs() @ radius.reshape(BATCH, *[1] * (len(heads) + 1), INPUTS, 1)).squeeze(-1)
    return Rows(form, Interval(centre - spread, centre + spread))


def at(form: AffineForm, xi: Tensor) -> Tensor:
    """The rows at ξ (points, BATCH, inputs)."""
    rest = form.matrix.dim() - 2
    return form.centre + (form.matrix @ xi.reshape(*xi.shape[:2], *[1] * rest, INPUTS, 1)).squeeze(-1)


def corners(radius: Tensor) -> Tensor:
    """All corners of ξ and points between them, (points, BATCH, inputs)."""
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=INPUTS)), dtype=torch.float64)
    inner = 2 * torch.rand(40, BATCH, INPUTS, generator=generator(3), dtype=torch.float64) - 1
    return torch.cat([signs[:, None].expand(-1, BATCH, -1), inner]) * radius


def widths(seed: int = 1) -> Tensor:
    radius = torch.rand(BATCH, INPUTS, generator=generator(seed), dtype=torch.float64)
    radius[0, 0] = 0
    return radius


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(), (2,)])
def test_functionals_are_exact(kind: str, heads: tuple[int, ...]) -> None:
    radius = widths()
    n, d = 3, 2
    form = rows(kind, n, d, radius, 5, heads).form
    eta = torch.randn(BATCH, 4, *heads, 2, d, generator=generator(6), dtype=torch.float64)
    found = functional_radius(eta, row_form(form))
    values = at(form, corners(radius)) - form.centre  # (points, BATCH, *heads, n, d)
    true = (eta @ values.unsqueeze(2).mT).abs().amax(0)
    assert torch.allclose(found, true, atol=1e-12)
    box = functional_box(eta, rows(kind, n, d, radius, 5, heads).box, row_form(form))
    assert (box.lower <= (eta @ at(form, corners(radius)).unsqueeze(2).mT).amin(0) + 1e-12).all()
    assert torch.allclose(box.upper - box.lower, 2 * true, atol=1e-12)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(KINDS, KINDS)))
@pytest.mark.parametrize("heads", [(), (2,)])
def test_products_are_bounded(left: str, right: str, heads: tuple[int, ...]) -> None:
    radius = widths()
    x, y = rows(left, 3, 2, radius, 7, heads).form, rows(right, 2, 2, radius, 8, heads).form
    found = product_radius(row_form(x), row_form(y))
    xi = corners(radius)
    for zeta in (xi, xi.flip(0), xi[torch.randperm(len(xi), generator=generator(9))]):  # shared, and on their own
        true = ((at(x, xi) - x.centre) @ (at(y, zeta) - y.centre).mT).abs().amax(0)
        assert (true <= found + 1e-12).all()


def shrunk(box: Interval, xs: Tensor, seed: int) -> tuple[Interval, Tensor]:
    """A box inside, not about the same centre; and which of the points (points, BATCH, ...) lie in it."""
    g = generator(seed)
    a, b = (torch.rand(box.lower.shape, generator=g, dtype=torch.float64) for _ in range(2))
    width = box.upper - box.lower
    small = Interval(box.lower + 0.25 * a * width, box.upper - 0.02 * b * width)
    return small, ((xs >= small.lower) & (xs <= small.upper)).flatten(2).all(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tighter", [False, True])
@pytest.mark.parametrize("heads", [(), (2,)])
def test_products_of_forms(kind: str, tighter: bool, heads: tuple[int, ...]) -> None:
    """MatMul with forms is sound at points that share ξ, also where another method made a box tighter on one side."""
    radius = widths()
    x, y = rows(kind, 3, 2, radius, 11, heads), rows("dense" if kind == "no input" else kind, 2, 2, radius, 12, heads)
    turned = AffineForm(y.form.centre.mT, y.form.matrix.transpose(-3, -2), radius)
    xi = corners(radius)
    if tighter:
        xi = xi[64:] if kind != "dense" else 0.3 * xi
    xs, ys = at(x.form, xi), at(y.form, xi).mT
    box = (x.box, Interval(y.box.lower.mT, y.box.upper.mT))
    if tighter:
        (small_x, in_x), (small_y, in_y) = shrunk(box[0], xs, 13), shrunk(box[1], ys, 14)
        box = (small_x, small_y)
        inside = in_x & in_y  # a point that left one box is replaced by one that is in both, if there is one
        xs, ys = _only(xs, inside), _only(ys, inside)
        box = (_around(small_x, xs), _around(small_y, ys))
    case = Case(MatMul(), ((*heads, 3, 2), (*heads, 2, 2)), size=torch.matmul)
    for mix in (0.5, 0.0, 0.3):
        check_backward(case, box, Rules(product=mix), xs=[xs, ys], forms=(x.form, turned))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(), (2,)])
def test_products_of_forms_in_a_corner_of_their_set(kind: str, heads: tuple[int, ...]) -> None:
    """Boxes that others cut to a corner: half their width is far less than their reach from the forms' centres."""
    radius = widths()
    x, y = rows(kind, 3, 2, radius, 11, heads), rows("dense" if kind == "no input" else kind, 2, 2, radius, 12, heads)
    turned = AffineForm(y.form.centre.mT, y.form.matrix.transpose(-3, -2), radius)
    xi = (1 - 0.1 * torch.rand(60, BATCH, INPUTS, generator=generator(15), dtype=torch.float64)) * radius
    xs, ys = at(x.form, xi), at(y.form, xi).mT
    box = (Interval(xs.amin(0), xs.amax(0)), Interval(ys.amin(0), ys.amax(0)))
    case = Case(MatMul(), ((*heads, 3, 2), (*heads, 2, 2)), size=torch.matmul)
    check_backward(case, box, Rules(), xs=[xs, ys], forms=(x.form, turned))


def test_a_functional_of_a_wide_form_in_a_corner_of_its_set() -> None:
    inputs = 40
    matrix = torch.ones(1, 1, inputs, dtype=torch.float64)
    form = row_form(AffineForm(torch.zeros(1, 1, 1).double(), matrix, torch.full((1, inputs), 1 / inputs).double()))
    box = Interval(*(torch.full((1, 1, 1), end, dtype=torch.float64) for end in (0.8, 1.0)))
    found = functional_box(torch.ones(1, 1, 1, 1, dtype=torch.float64), box, form, exact=False)
    assert float(found.lower) <= 0.8
    assert float(found.upper) >= 1.0 - 1e-12


def _only(points: Tensor, inside: Tensor) -> Tensor:
    """Points outside replaced by one inside, per input of the batch (the first if there is none)."""
    first = inside.to(torch.int8).argmax(0)  # (BATCH,)
    chosen = points[first, torch.arange(points.shape[1])]
    return torch.where(inside.reshape(*inside.shape, *[1] * (points.dim() - 2)), points, chosen)


def _around(box: Interval, points: Tensor) -> Interval:
    """Where no point was inside: a box that the first one is in."""
    return Interval(torch.minimum(box.lower, points.amin(0)), torch.maximum(box.upper, points.amax(0)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("rule", RowRule)
def test_attention_over_forms(kind: str, heads: tuple[int, ...], rule: RowRule) -> None:
    """Scores are free in their box, values are a form of the same ξ."""
    radius = widths()
    values = rows(kind, 3, 2, radius, 21, heads)
    g = generator(22)
    centre = torch.randn(BATCH, *heads, 2, 3, generator=g, dtype=torch.float64)
    wide = torch.rand(BATCH, *heads, 2, 3, generator=g, dtype=torch.float64)
    xi = corners(radius)
    t = 2 * torch.rand(len(xi), *centre.shape, generator=g, dtype=torch.float64) - 1
    t = torch.where(torch.rand(t.shape, generator=g) < 0.5, t.sign(), t)
    box = (Interval(centre - wide, centre + wide), values.box)
    case = Case(Attention(), ((*heads, 2, 3), (*heads, 3, 2)), size=lambda _s, v: v.amax(-2, keepdim=True))
    forms = (None, values.form)
    check_backward(case, box, Rules(attention=rule), xs=[centre + t * wide, at(values.form, xi)], forms=forms)


def test_attention_knows_values_better_by_their_form() -> None:
    """Two components that move against each other: their sum is a point, which the box does not know."""
    radius = widths()
    matrix = torch.zeros(3, 2, INPUTS, dtype=torch.float64)
    matrix[:, 0, 0], matrix[:, 1, 0] = 1.0, -1.0
    centre = torch.ones(BATCH, 3, 2, dtype=torch.float64)
    form = row_form(AffineForm(centre, matrix, radius + 1))
    eta = torch.ones(BATCH, 1, 1, 2, dtype=torch.float64)
    found = functional_box(eta, Interval(centre - 2, centre + 2), form)
    assert torch.allclose(found.lower, torch.full_like(found.lower, 2.0))
    assert torch.allclose(found.upper, found.lower)


def test_a_box_tightened_on_one_side_moves_the_plane_not_the_form() -> None:
    """x = (ξ, ξ), y = (ζ, −ζ): x·y = 0 about the centre of the forms, and nowhere else."""
    unit = torch.ones(1, 2, dtype=torch.float64)
    x = AffineForm(torch.zeros(1, 1, 2).double(), torch.tensor([[[1.0, 0], [1, 0]]]).double(), unit)
    y = AffineForm(torch.zeros(1, 2, 1).double(), torch.tensor([[[0.0, 1]], [[0, -1]]]).double(), unit)
    low_x, low_y = torch.tensor([[[-0.5, -1.0]]]).double(), torch.tensor([[[-1.0], [-0.5]]]).double()
    box = (Interval(low_x, torch.ones_like(low_x)), Interval(low_y, torch.ones_like(low_y)))
    step = backward(MatMul(), torch.tensor([1.0, -1]).double().reshape(1, 2, 1, 1), box, Rules(), (x, y))
    xi, zeta = torch.meshgrid(torch.linspace(-0.5, 1, 7).double(), torch.linspace(-1, 0.5, 7).double(), indexing="ij")
    xs = torch.stack([xi.flatten()] * 2, -1)[:, None, None]
    ys = torch.stack([zeta.flatten(), -zeta.flatten()], -1)[:, None, :, None]
    assert (concrete(step, [xs, ys]) <= 1e-12).all()


@pytest.mark.parametrize("heads", [(), (2,)])
@pytest.mark.parametrize("shared", [False, True])
def test_the_ellipsoid_holds_the_zonotope(heads: tuple[int, ...], shared: bool) -> None:
    """Wide forms: √(Σu · ηᵀCη) is at least Σ_p |η·g_p|, and the interval holds the exact one."""
    g = generator(31)
    n, d, inputs = 3, 2, 40
    matrix = torch.randn(*heads, 1 if shared else n, d, inputs, generator=g, dtype=torch.float64)
    matrix = matrix.expand(*heads, n, d, inputs).clone()
    matrix[..., :, 5:9] = 0
    radius = 10.0 ** (-6 * torch.rand(BATCH, inputs, generator=g, dtype=torch.float64))
    centre = torch.randn(BATCH, *heads, n, d, generator=g, dtype=torch.float64)
    form = row_form(AffineForm(centre, matrix, radius))
    eta = torch.randn(BATCH, 4, *heads, 2, d, generator=g, dtype=torch.float64)
    eta[:, 1] = 0
    exact = functional_radius(eta, form)
    assert (ellipsoid_radius(eta, form) >= exact * (1 - 1e-12)).all()
    spread = (matrix.abs() @ radius.reshape(BATCH, *[1] * (len(heads) + 1), inputs, 1)).squeeze(-1)
    loose = functional_box(eta, Interval(centre - spread, centre + spread), form, exact=False)
    tight = functional_box(eta, Interval(centre - spread, centre + spread), form)
    assert (loose.lower <= tight.lower + 1e-12).all()
    assert (loose.upper >= tight.upper - 1e-12).all()


def test_rows_of_almost_the_same_radius_take_the_largest() -> None:
    """Rows that share a matrix but not quite the radii: none may be bounded by a smaller one's."""
    matrix = torch.zeros(2, 1, 2, dtype=torch.float64)
    matrix[0, 0, 0] = matrix[1, 0, 1] = 1
    for other in (1 - 5e-5, 1 + 5e-5, 0.5, 0.0):
        form = AffineForm(torch.zeros(1, 2, 1).double(), matrix, torch.tensor([[1.0, other]], dtype=torch.float64))
        found = functional_radius(torch.ones(1, 1, 1, 1).double(), row_form(form)).flatten()
        assert (found >= torch.tensor([1.0, other], dtype=torch.float64)).all()


@pytest.mark.parametrize("piece", [1, 5, 1 << 17])
def test_products_in_pieces_are_those_of_all_at_once(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows that share their matrices: Σ_pq r_p |(Gᵀ G')_pq| r'_q."""
    radius = torch.rand(BATCH, INPUTS, generator=generator(1), dtype=torch.float64)
    x, y = (row_form(rows("shared", 3, 4, radius, seed, (2,)).form) for seed in (2, 3))
    assert x.matrix.shape[-3] == y.matrix.shape[-3] == 1
    monkeypatch.setattr(forms, "PIECE", piece)
    cross = (x.matrix.squeeze(-3).mT @ y.matrix.squeeze(-3)).abs()
    torch.testing.assert_close(product_radius(x, y), x.radius @ cross @ y.radius.mT, rtol=1e-13, atol=0)

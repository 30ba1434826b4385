"""Products of two variables: McCormick's planes, mixed; every mix is sound.

For x in [x_c ± x_r], y in [y_c ± y_r] and a mix θ, with δ = 1 − 2θ:
  x y ≥ (y_c + δ y_r) x + (x_c + δ x_r) y − θ x_l y_l − (1 − θ) x_u y_u,
  x y ≤ (y_c − δ y_r) x + (x_c + δ x_r) y − θ x_l y_u − (1 − θ) x_u y_l.
θ = 1 and 0 are the corner planes; θ = ½ is the plane at the centre, with error x_r y_r to either side.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vertex_softmax.ops.corners import Corners, corners, planes
from vertex_softmax.ops.forms import product_radius, row_form
from vertex_softmax.ops.generators import ellipsoid
from vertex_softmax.ops.generators import product_radius as generators_product_radius
from vertex_softmax.ops.registry import (
    ROUNDING,
    AffineForm,
    Interval,
    Op,
    Place,
    Range,
    Shape,
    Step,
    beside,
    register,
    sum_to,
)


class Planes(NamedTuple):
    """Slopes of the two planes, and the largest and least product along them, beside the objectives."""

    lower_x: Tensor
    upper_x: Tensor
    y: Tensor
    lower: Tensor
    upper: Tensor
    parallel: bool


@register
@dataclasses.dataclass(frozen=True)
class Multiply(Op):
    """x · y elementwise, of one shape."""

    parallels = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """Elementwise."""
        return xs[0] * xs[1]

    def interval(self, *boxes: Interval) -> Interval:
        """The extreme corners."""
        (a, b), (c, d) = boxes
        corners = torch.stack([a * c, a * d, b * c, b * d])
        return Interval(corners.amin(0), corners.amax(0))

    def needs(self) -> tuple[int, ...]:
        """Both factors."""
        return (0, 1)

    def relax(self, place: Place) -> Planes:
        """Both planes."""
        x, y = place.boxes
        mix = place.rules.product
        tilt = 1 - 2 * mix
        lower = -mix * x.lower * y.lower - (1 - mix) * x.upper * y.upper
        upper = -mix * x.lower * y.upper - (1 - mix) * x.upper * y.lower
        slopes = (y.centre + tilt * y.radius, y.centre - tilt * y.radius, x.centre + tilt * x.radius)
        lower_x, upper_x, at_y = map(beside, slopes)
        return Planes(lower_x, upper_x, at_y, beside(lower), beside(upper), place.rules.parallel)

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """A times the plane its sign asks for."""
        up = A >= 0
        to_x = A * torch.where(up, relaxed.lower_x, relaxed.upper_x)
        if relaxed.parallel:  # at the centre the two planes have one slope
            middle, half = (relaxed.upper + relaxed.lower) / 2, (relaxed.upper - relaxed.lower) / 2
            return Step((to_x, A * relaxed.y), sum_to(A * middle, keep), noise=A * half)
        return Step((to_x, A * relaxed.y), sum_to(A * torch.where(up, relaxed.lower, relaxed.upper), keep))

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Every dimension."""
        return (keep, keep)


class MatrixPlanes(NamedTuple):
    """For each product of a row and a column, beside the objectives."""

    x: Tensor
    """(batch, 1, ..., n, k): slope on y"""
    y: Tensor
    """(batch, 1, ..., k, m): slope on x"""
    tilt: Tensor | None
    """(batch, 1, ..., k, m): what the slope on x gains with |A|; None at the centre"""
    middle: Tensor
    """(batch, 1, ..., n, m): Σ A·middle is added"""
    error: Tensor
    """(batch, 1, ..., n, m): Σ |A|·error is taken off"""
    corners: Corners | None = None
    """where both factors are affine in the input"""
    sigma: Tensor | None = None
    """(batch, S, inputs): the corner to touch at; None: the centre"""
    parallel: bool = False


@register
@dataclasses.dataclass(frozen=True)
class MatMul(Op):
    """x @ y over the last two dimensions, of equal leading dimensions: one plane per row and column.

    At the centre the error is |x'_i · y'_j| for the parts x', y' that vary. Where both factors are affine in the input
    it is bounded from their exact forms, far below the product of the boxes.
    """

    ranges: ClassVar[dict[str, Range]] = {"corner": Range(-1.0, 1.0)}

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., n, k), (..., k, m) → (..., n, m)"""
        return xs[0] @ xs[1]

    parallels = True
    uses_forms = True

    def generated(self) -> tuple[int, ...]:
        """Both factors."""
        return (0, 1)

    def table(self, generators: tuple[Any, ...]) -> Any:
        """Centres of both, and the bound of the part of second order."""
        x, y = generators
        if x is None or y is None:
            return None
        y = y.turned()
        error = generators_product_radius(ellipsoid(x), ellipsoid(y))
        return x.centre, y.centre.mT, error

    def interval(self, *boxes: Interval) -> Interval:
        """Every product's extreme corners, added up; through centre and radius: no (n, k, m) array."""
        return product_interval(*boxes)

    def needs(self) -> tuple[int, ...]:
        """Both factors."""
        return (0, 1)

    def relax(self, place: Place) -> MatrixPlanes:
        """The planes of every row and column."""
        x, y = place.boxes
        mix = place.rules.product
        tilt = 1 - 2 * mix
        if tilt == 0:
            form_x, form_y = place.forms[0](), place.forms[1]()
            touch = None
            if place.table is not None:  # a ProductTable: about the centres of the generators
                at_x, at_y, error = place.table
                error = torch.minimum(_reach(x, at_x) @ _reach(y, at_y), error)
            elif form_x is None or form_y is None:
                at_x, at_y, error = x.centre, y.centre, x.radius @ y.radius
            else:  # the form's error holds about the form's centre, which a box made tighter on one side has left
                at_x, at_y = form_x.centre, form_y.centre
                turned = AffineForm(at_y.mT, form_y.matrix.transpose(-3, -2), form_y.radius)
                left, right = row_form(form_x), row_form(turned)
                exact = product_radius(left, right)
                error = torch.minimum(_reach(x, at_x) @ _reach(y, at_y), exact)
                touch = corners(left, right, exact, form_x.matrix.shape[-1])
            return MatrixPlanes(
                x=beside(at_x),
                y=beside(at_y),
                tilt=None,
                middle=beside(-(at_x @ at_y)),
                error=beside(error),
                corners=touch,
                parallel=place.rules.parallel,
            )
        low = -mix * (x.lower @ y.lower) - (1 - mix) * (x.upper @ y.upper)
        high = -mix * (x.lower @ y.upper) - (1 - mix) * (x.upper @ y.lower)
        return MatrixPlanes(
            x=beside(x.centre + tilt * x.radius),
            y=beside(y.centre),
            tilt=beside(tilt * y.radius),
            middle=beside((low + high) / 2),
            error=beside((high - low) / 2),
        )

    def backward(self, A: Tensor, relaxed: Any, keep: int | None = None) -> Step:
        """A yᵀ on x, xᵀ A on y. Diagonal along the rows of x, it stays so there and spreads over y."""
        plane: MatrixPlanes = relaxed
        to_x = A @ plane.y.mT
        size = A.abs()
        if plane.tilt is not None:
            to_x = to_x + size @ plane.tilt.mT
        if plane.corners is not None and plane.sigma is not None:  # objectives are dense where parameters are free
            more_x, more_y, middle, start = planes(A, plane.corners, plane.sigma)
            constant = sum_to(A * (plane.middle + middle) - size * plane.corners.error)
            return Step((to_x + more_x, plane.x.mT @ A + more_y.mT), constant, start)
        constant = sum_to(A * plane.middle, keep)
        noise = None  # under parallel rules the part of second order is one unknown per row and column
        if plane.parallel:
            noise = A * plane.error
        else:
            constant = constant - sum_to(size * plane.error, keep)
        if keep is None:
            return Step((to_x, plane.x.mT @ A), constant, noise=noise)
        # objective (s, i): x_iᵀ A_i, its own for every row i
        each = plane.x.unsqueeze(-1) * A.unsqueeze(-2)  # (batch, S, ..., n, k, m)
        each = each.movedim(-3, 2).flatten(1, 2)
        return Step((to_x, each), constant, noise=noise)

    def carries(self, keep: int, shape: Shape) -> tuple[int | None, ...] | None:
        """The rows of x."""
        return (keep, None) if keep == len(shape) - 2 else None

    def parameters(self, relaxed: Any) -> dict[str, Tensor]:
        """The corner of the input at which the planes touch, if both factors are affine there (corners.py)."""
        if relaxed.corners is None:
            return {}
        return {"corner": relaxed.x.new_zeros(relaxed.x.shape[0], 1, relaxed.corners.inputs)}

    def with_parameters(self, relaxed: Any, values: dict[str, Tensor]) -> Any:
        """Planes that touch at another point."""
        return relaxed._replace(sigma=values["corner"])


def product_interval(x: Interval, y: Interval) -> Interval:
    """Interval of Σ_k x_ik y_kj: x_c y_c ± (|x_c| y_r + x_r |y_c| + x_r y_r)."""
    centre = x.centre @ y.centre
    radius = x.centre.abs() @ y.radius + x.radius @ (y.centre.abs() + y.radius)
    share = ROUNDING[centre.dtype]
    if share > 0:
        radius = radius + share * ((x.centre.abs() + x.radius) @ (y.centre.abs() + y.radius))
    return Interval(centre - radius, centre + radius)


def _reach(box: Interval, point: Tensor) -> Tensor:
    """How far the box goes from a point."""
    return torch.maximum(box.upper - point, point - box.lower)

"""Products of two variables, bounded by mixes of McCormick's planes.

Invariant: for all x and y in their boxes, x y lies between the two planes, for every mix θ in [0, 1].

For x in [x_c ± x_r], y in [y_c ± y_r] and a mix θ, with δ = 1 − 2θ:
  x y ≥ (y_c + δ y_r) x + (x_c + δ x_r) y − θ x_l y_l − (1 − θ) x_u y_u,
  x y ≤ (y_c − δ y_r) x + (x_c + δ x_r) y − θ x_l y_u − (1 − θ) x_u y_l.
θ = 1 and 0 are the corner planes; θ = ½ is the plane at the centre, with the error x_r y_r to both sides.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from vertex_softmax.foundation.tolerances import OUTWARD
from vertex_softmax.ops.choice_rows import ChoiceForm, ChoiceRows
from vertex_softmax.ops.contract import AffineForm, Context, Propagating, Range, Relaxation, Shape, Step, Summarising
from vertex_softmax.ops.corners import Corners, corners, planes
from vertex_softmax.ops.forms import product_radius, row_form
from vertex_softmax.ops.generators import Generators, ellipsoid
from vertex_softmax.ops.generators import product_radius as generators_product_radius
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation.products import element_product, matrix_product, second_order
from vertex_softmax.ops.registry import register
from vertex_softmax.ops.tensors import beside, sum_to
from vertex_softmax.ops.zonotope import Zonotope


@dataclasses.dataclass(frozen=True, eq=False)
class ElementPlanes(Relaxation):
    """The two planes of each elementwise product, (batch, 1, *shape)."""

    lower_x: Tensor
    """slope on x of the plane below"""
    upper_x: Tensor
    """slope on x of the plane above"""
    y: Tensor
    """slope on y of both planes"""
    lower: Tensor
    """constant of the plane below"""
    upper: Tensor
    """constant of the plane above"""
    parallel: bool

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A times the plane that its sign asks for."""
        up = A >= 0
        to_x = A * torch.where(up, self.lower_x, self.upper_x)
        if self.parallel:  # at the centre the two planes have one slope
            middle, half = (self.upper + self.lower) / 2, (self.upper - self.lower) / 2
            return Step((to_x, A * self.y), sum_to(A * middle, diagonal), noise=A * half)
        return Step((to_x, A * self.y), sum_to(A * torch.where(up, self.lower, self.upper), diagonal))


@register
@dataclasses.dataclass(frozen=True)
class Multiply(Propagating):
    """x · y elementwise, of one shape."""

    reads = (0, 1)
    has_parallel_rule = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """The elementwise product."""
        return xs[0] * xs[1]

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The zonotope of the product; second-order parts are bounded together along the last dimension."""
        return element_product(inputs[0], inputs[1], origin)

    def interval(self, *boxes: Interval) -> Interval:
        """The least and the largest product of the ends."""
        (a, b), (c, d) = boxes
        corners = torch.stack([a * c, a * d, b * c, b * d])
        return Interval(corners.amin(0), corners.amax(0))

    def relax(self, context: Context) -> Relaxation:
        """The planes below and above."""
        x, y = context.boxes
        mix = context.rules.product
        tilt = 1 - 2 * mix
        lower = -mix * x.lower * y.lower - (1 - mix) * x.upper * y.upper
        upper = -mix * x.lower * y.upper - (1 - mix) * x.upper * y.lower
        return ElementPlanes(
            lower_x=beside(y.centre + tilt * y.radius),
            upper_x=beside(y.centre - tilt * y.radius),
            y=beside(x.centre + tilt * x.radius),
            lower=beside(lower),
            upper=beside(upper),
            parallel=context.rules.parallel,
        )

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients stay diagonal along every dimension, on both inputs."""
        return (dimension, dimension)


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixPlanes(Relaxation):
    """One plane for each product of a row of x and a column of y, without the objectives."""

    x: Tensor
    """(batch, 1, ..., n, k): slope on y"""
    y: Tensor
    """(batch, 1, ..., k, m): slope on x"""
    tilt: Tensor | None
    """(batch, 1, ..., k, m): what |A| adds to the slope on x; None at the centre"""
    middle: Tensor
    """(batch, 1, ..., n, m): Σ A·middle is added"""
    error: Tensor
    """(batch, 1, ..., n, m): Σ |A|·error is subtracted"""
    corners: Corners | None = None
    """if both factors are affine in the input: the data of planes that touch at a corner"""
    corner: Tensor | None = None
    """(batch, S, inputs), or (1, 1, inputs) for all objectives: the point of the input box where the planes touch;
    None: the centre"""
    parallel: bool = False

    ranges: ClassVar[Mapping[str, Range]] = {"corner": Range(-1.0, 1.0)}
    shared: ClassVar[tuple[str, ...]] = ("corner",)

    def backward(self, A: Tensor, diagonal: int | None = None) -> Step:
        """A yᵀ on x, xᵀ A on y. Coefficients diagonal along the rows stay so on x, and are dense on y."""
        to_x = A @ self.y.mT
        size = A.abs()
        if self.tilt is not None:
            to_x = to_x + size @ self.tilt.mT
        if self.corners is not None and self.corner is not None:  # objectives are dense where parameters are free
            more_x, more_y, middle, start = planes(A, self.corners, self.corner)
            constant = sum_to(A * (self.middle + middle) - size * self.corners.error)
            return Step((to_x + more_x, self.x.mT @ A + more_y.mT), constant, start=start)
        constant = sum_to(A * self.middle, diagonal)
        noise = None  # under parallel rules the second-order part is one unknown for each row and column
        if self.parallel:
            noise = A * self.error
        else:
            constant = constant - sum_to(size * self.error, diagonal)
        if diagonal is None:
            return Step((to_x, self.x.mT @ A), constant, noise=noise)
        # objective (s, i): x_iᵀ A_i, its own for every row i
        each = self.x.unsqueeze(-1) * A.unsqueeze(-2)  # (batch, S, ..., n, k, m)
        each = each.movedim(-3, 2).flatten(1, 2)
        return Step((to_x, each), constant, noise=noise)

    def parameters(self) -> dict[str, Tensor]:
        """The corner of the input at which the planes touch, if both factors are affine there (corners.py)."""
        if self.corners is None:
            return {}
        return {"corner": self.x.new_zeros(self.x.shape[0], 1, self.corners.inputs)}

    def with_parameters(self, values: Mapping[str, Tensor]) -> MatrixPlanes:
        """The same planes, touching at another point."""
        return dataclasses.replace(self, corner=values["corner"])


@dataclasses.dataclass(frozen=True, eq=False)
class ProductSummary:
    """What the relaxation of a matrix product needs of its factors' generators."""

    x: Tensor
    """centre of x, (batch, ..., n, k)"""
    y: Tensor
    """centre of y, (batch, ..., k, m)"""
    error: Tensor
    """a bound of the second-order part, (batch, ..., n, m)"""


@register
@dataclasses.dataclass(frozen=True)
class MatMul(Summarising, Propagating):
    """x @ y over the last two dimensions, with equal leading dimensions: one plane for each row and column.

    At the centre the error is |x'_i · y'_j| for the deviations x', y' from the centres. If both factors are affine in
    the input, it is bounded from their exact forms, far more tightly than by the product of the boxes.
    """

    reads = (0, 1)
    form_inputs = (0, 1)
    generator_inputs = (0, 1)
    rules_read = ("product",)
    has_parallel_rule = True

    def evaluate(self, *xs: Tensor) -> Tensor:
        """(..., n, k), (..., k, m) → (..., n, m)"""
        return xs[0] @ xs[1]

    def propagate(self, inputs: tuple[Zonotope, ...], boxes: tuple[Interval, ...], origin: str) -> Zonotope:
        """The zonotope of the product, in which every entry has its own unknown for its second-order part."""
        return matrix_product(inputs[0], inputs[1])

    def learnt(self, inputs: tuple[Zonotope, ...]) -> ProductSummary:
        """The centres of both factors, and a bound of the second-order part."""
        x, y = inputs
        return ProductSummary(x.centre, y.centre, second_order(x, y))

    def summarise(self, generators: Mapping[int, Generators]) -> ProductSummary:
        """The centres of both factors, and a bound of the second-order part."""
        x, y = generators[0], generators[1].transposed()
        error = generators_product_radius(ellipsoid(x), ellipsoid(y))
        return ProductSummary(x.centre, y.centre.mT, error)

    def interval(self, *boxes: Interval) -> Interval:
        """The extreme corners of every product, added up through centre and radius: no (n, k, m) array."""
        return product_interval(*boxes)

    def relax(self, context: Context) -> Relaxation:
        """The planes of every row and column."""
        x, y = context.boxes
        mix = context.rules.product
        tilt = 1 - 2 * mix
        if tilt == 0:
            return self._central(context)
        low = -mix * (x.lower @ y.lower) - (1 - mix) * (x.upper @ y.upper)
        high = -mix * (x.lower @ y.upper) - (1 - mix) * (x.upper @ y.lower)
        return MatrixPlanes(
            x=beside(x.centre + tilt * x.radius),
            y=beside(y.centre),
            tilt=beside(tilt * y.radius),
            middle=beside((low + high) / 2),
            error=beside((high - low) / 2),
        )

    def _central(self, context: Context) -> MatrixPlanes:
        """The planes at the centre; the second-order error by generators, by exact forms, or by the boxes."""
        x, y = context.boxes
        form_x, form_y = context.form(0), context.form(1)
        touch = None
        if isinstance(context.summary, ProductSummary):  # around the centres of the generators
            at_x, at_y, error = context.summary.x, context.summary.y, context.summary.error
            error = torch.minimum(_reach(x, at_x) @ _reach(y, at_y), error)
        elif (pair := choice_factors(form_x, form_y)) is not None:
            return self._over_choices(context, *pair)
        elif not isinstance(form_x, AffineForm) or not isinstance(form_y, AffineForm):
            at_x, at_y, error = x.centre, y.centre, x.radius @ y.radius
        else:  # the form's error holds around its own centre; the box's centre may differ after tightening
            at_x, at_y = form_x.centre, form_y.centre
            turned = dataclasses.replace(form_y, centre=at_y.mT, matrix=form_y.matrix.transpose(-3, -2))
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
            parallel=context.rules.parallel,
        )

    def _over_choices(self, context: Context, x: ChoiceRows, y: ChoiceRows) -> MatrixPlanes:
        """Planes at the centres of the rows' choices, with the exact range of the second-order part, not only its size.

        y: the columns of the second factor.
        """
        at_x, at_y = x.box.centre, y.box.centre
        second = x.products(y, at_x, at_y)
        return MatrixPlanes(
            x=beside(at_x),
            y=beside(at_y.mT),
            tilt=None,
            middle=beside(second.centre - at_x @ at_y.mT),
            error=beside(second.radius),
            parallel=context.rules.parallel,
        )

    def carries_diagonal(self, dimension: int, shape: Shape) -> tuple[int | None, ...] | None:
        """Coefficients that are diagonal along the rows stay so on x, and become dense on y."""
        return (dimension, None) if dimension == len(shape) - 2 else None


def choice_factors(
    x: AffineForm | ChoiceForm | None, y: AffineForm | ChoiceForm | None
) -> tuple[ChoiceRows, ChoiceRows] | None:
    """The rows of the first factor and the columns of the second if all are known at choices of words, else None."""
    if not isinstance(x, ChoiceForm) or not isinstance(y, ChoiceForm) or x.rows is None or y.columns is None:
        return None
    return x.rows, y.columns


def product_interval(x: Interval, y: Interval) -> Interval:
    """Interval of Σ_k x_ik y_kj: x_c y_c ± (|x_c| y_r + x_r |y_c| + x_r y_r)."""
    centre = x.centre @ y.centre
    radius = x.centre.abs() @ y.radius + x.radius @ (y.centre.abs() + y.radius)
    share = OUTWARD[centre.dtype]
    if share > 0:
        radius = radius + share * ((x.centre.abs() + x.radius) @ (y.centre.abs() + y.radius))
    return Interval(centre - radius, centre + radius)


def _reach(box: Interval, point: Tensor) -> Tensor:
    """How far the box extends from a point."""
    return torch.maximum(box.upper - point, point - box.lower)

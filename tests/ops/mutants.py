"""Deliberately broken rules. The checks of the contract, or of the pass, must catch each one (test_mutants.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.bounds.checks import asked, check_network
from tests.bounds.networks import Config, input_box, transformer
from tests.ops.cases import BATCH, CASES, generator
from tests.ops.checks import check_case
from vertex_softmax.bounds import backward, box_passes, coefficients
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Coefficients
from vertex_softmax.ops import (
    activations,
    attention,
    bilinear,
    elementwise,
    forms,
    line_relaxations,
    linear,
    lines,
    maximum,
    normalization,
    rounding,
    shape,
    softmax,
)
from vertex_softmax.ops.attention import lse_row, minorant, shared
from vertex_softmax.ops.attention import op as attention_op
from vertex_softmax.ops.contract import AffineForm, Step
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.tensors import sum_to

Check = Callable[[], None]
Mutants = dict[str, tuple[Callable[[], AbstractContextManager[Any]], Check]]
"""What puts each fault in place, and the check that must notice it; by name."""


# The checks, made quick


def contract(*names: str, kinds: tuple[str, ...] = ("positive", "straddling", "mixed", "point")) -> None:
    """The contract of some ops."""
    for case in CASES:
        if type(case.op).__name__ in names and getattr(case.op, "eps", 1.0) > 0:
            check_case(case, kinds, count=24)


NETWORKS = (
    Config(heads=2, depth=2, class_token=True),
    Config(norm="pre", activation="gelu", fused=False),
    Config(gated=True, pooling="max", heads=2),
)


def network(*methods: str) -> None:
    """Boxes and bounds on small transformers, and no box wider than its interval."""
    for config in NETWORKS:
        graph, box = transformer(config), input_box(config, 2, 0.4)
        plain = box_passes.all_boxes(asked(graph, *box))
        for method in methods or ("crown", "vertex"):
            found = check_network(graph, *box, method).boxes
            for node in graph.nodes():
                outer, inner = plain[node], found[node]
                wider = torch.maximum(outer.lower - inner.lower, inner.upper - outer.upper)
                assert (wider <= 1e-9).all(), f"{node!r} is wider than its interval"


def affine_forms() -> None:
    """Functionals and products of forms at all corners of two inputs."""
    radius = torch.ones(BATCH, 2, dtype=torch.float64)
    g = generator(1)
    matrices = [torch.randn(3, 2, 2, generator=g, dtype=torch.float64) for _ in range(2)]
    made = [forms.row_form(AffineForm(torch.zeros(BATCH, 3, 2).double(), matrix, radius)) for matrix in matrices]
    xi = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    x, y = ((matrix @ xi.mT).movedim(-1, 0) for matrix in matrices)  # (corners, 3, 2)
    eta = torch.randn(BATCH, 2, 1, 2, generator=g, dtype=torch.float64)
    true = (eta.unsqueeze(0) @ x.mT.reshape(4, 1, 1, 2, 3)).abs().amax(0)
    assert (forms.functional_radius(eta, made[0]) >= true - 1e-12).all(), "a functional's radius"
    products = torch.stack([a @ b.mT for a in x for b in y]).abs().amax(0)
    assert (forms.product_radius(*made) >= products - 1e-12).all(), "a product's radius"


# Ways to break things


def swapped(box: Interval) -> Interval:
    return Interval(box.upper, box.lower)


@contextlib.contextmanager
def altered(owner: Any, name: str, change: Callable[..., Any]) -> Iterator[None]:
    """owner.name gives change(what it gave, its arguments...)."""
    real = getattr(owner, name)

    def broken(*args: Any, **kwargs: Any) -> Any:
        return change(real(*args, **kwargs), *args)

    with mock.patch.object(owner, name, broken):
        yield


def replaced(owner: Any, name: str, new: Any) -> AbstractContextManager[Any]:
    return mock.patch.object(owner, name, new)


def fields(owner: Any, name: str, **changes: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """owner.name returns a dataclass with some fields changed, each from the whole."""
    return altered(
        owner,
        name,
        lambda found, *_: dataclasses.replace(found, **{k: change(found) for k, change in changes.items()}),
    )


def unmasked(owner: Any) -> AbstractContextManager[None]:
    return altered(owner, "score_box", lambda _found, _self, box: box)


def without_pivot(c: Tensor, rows: softmax.RowBounds, _choice: Any = None) -> tuple[Tensor, Tensor]:
    pivot = (c * rows.middle.unsqueeze(1)).sum(-1, keepdim=True)
    return softmax._row_below(c - pivot, rows, torch.zeros_like(pivot.squeeze(-1)))


def ends_only(
    f: lines.Function, _derivative: lines.Function, _pieces: Any, slope: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    return torch.minimum(f(lower) - slope * lower, f(upper) - slope * upper)


def narrow_gelu(self: elementwise.Gelu, box: Interval, _rules: Any) -> lines.Lines:
    convex, concave = ((-0.4, 0.4),), elementwise._outside(0.4)
    return lines.curved_lines(self.evaluate, self.derivative, convex, concave, *box)


def unmirrored(self: elementwise.Reciprocal, box: Interval, _rules: Any) -> lines.Lines:
    return lines.convex_lines(self.evaluate, self.derivative, *box)


def lower_line_only(
    _found: Step, self: line_relaxations.LineRelaxation, A: Tensor, diagonal: int | None = None
) -> Step:
    return Step((A * self.lines.lower_slope,), sum_to(A * self.lines.lower_intercept, diagonal))


def two_corners(_self: Any, x: Interval, y: Interval) -> Interval:
    return Interval(x.lower * y.lower, x.upper * y.upper)


def halved(found: Interval, *_: Any) -> Interval:
    return Interval((3 * found.lower + found.upper) / 4, (3 * found.upper + found.lower) / 4)


def columns_too(_self: Any, dimension: int, shape_: tuple[int, ...]) -> tuple[int | None, ...] | None:
    return (dimension, None) if dimension >= len(shape_) - 2 else None


def signed_radius(self: linear.Linear, box: Interval) -> Interval:
    return linear.image(box, self.evaluate, lambda r: r @ self.weight)


def unsorted_ends(self: linear.Scale, box: Interval) -> Interval:
    return Interval(box.lower * self.factor, box.upper * self.factor)


def not_inverse(self: shape.Permute, A: Tensor, *_: Any) -> Step:
    return Step((A.permute(0, 1, *(2 + d for d in self.dims)),))


def to_the_first(self: shape.Reshape, dimension: int, _shape: Any) -> tuple[int | None, ...] | None:
    return (0,) if self.before[0] == self.after[dimension] else None


def flipped_parts(found: Step, *_: Any) -> Step:
    return Step(tuple(c.flip(3) for c in found.coefficients if c is not None))


def averaged(found: Step, _self: Any, A: Tensor, *_: Any) -> Step:
    (back,) = found.coefficients
    assert back is not None
    return Step((back * back[0].numel() / A[0].numel(),))


def rolled_objectives(found: Step, *_: Any) -> Step:
    rolled = tuple(None if c is None else c.roll(1, 1) for c in found.coefficients)
    return dataclasses.replace(found, coefficients=rolled)


def chord_below(found: lines.Lines, *_: Any) -> lines.Lines:
    return dataclasses.replace(found, lower_slope=found.upper_slope, lower_intercept=found.upper_intercept)


def misplaced(found: Tensor, self: Coefficients) -> Tensor:
    """The diagonal one index further."""
    return found if self.diagonal is None else found.roll(1, 2 + self.diagonal)


@contextlib.contextmanager
def forgetful() -> Iterator[None]:
    """Of all coefficients that arrive at a node only the first."""
    real = coefficients.total
    with contextlib.ExitStack() as stack:
        for module in (coefficients, backward):
            stack.enter_context(replaced(module, "total", lambda given: real(given[:1])))
        yield


def widening(self: Boxes, node: Any, box: Interval) -> Boxes:
    old = self.intervals[node]
    wider = Interval(torch.minimum(old.lower, box.lower), torch.maximum(old.upper, box.upper))
    return dataclasses.replace(self, intervals={**self.intervals, node: wider})


def found_altered(change: Callable[[Tensor], Tensor]) -> AbstractContextManager[Any]:
    """The bounds (batch, lower and upper, rows, n) that a pass found, changed before they are written into a box."""
    real = box_passes._written

    def broken(box: Interval, found: Tensor, units: Any, diagonal: int | None, shape_: Any) -> Interval:
        both = found.reshape(found.shape[0], 2, len(units.rows), -1)
        return real(box, change(both).reshape(found.shape), units, diagonal, shape_)

    return replaced(box_passes, "_written", broken)


def upper_as_lower(found: tuple[Tensor, Tensor], *_: Any) -> tuple[Tensor, Tensor]:
    return found[1], found[0]


def at_the_upper_values(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def broken(log_low: Tensor, log_high: Tensor, _v_low: Tensor, v_high: Tensor, *rest: Tensor) -> Tensor:
        return real(log_low, log_high, v_high, v_high, *rest)

    return broken


def constantless(found: Step, *_: Any) -> Step:
    return dataclasses.replace(found, constant=None if found.constant is None else torch.zeros_like(found.constant))


def one(op: str, **options: Any) -> Check:
    return functools.partial(contract, op, **options)


e, a, n = elementwise, activations, normalization
MUTANTS: Mutants = {
    # functions of one number
    "ReLU: slopes of the two sides swapped": (
        lambda: fields(e.Relu, "lines", lower_slope=lambda f: f.upper_slope, upper_slope=lambda f: f.lower_slope),
        one("Relu"),
    ),
    "ReLU: the chord is not raised": (
        lambda: fields(e.Relu, "lines", upper_intercept=lambda f: 0 * f.upper_intercept),
        one("Relu"),
    ),
    "ReLU: a free slope beyond 1": (
        lambda: fields(e.Relu, "lines", lower_slope=lambda f: 1.1 * f.lower_slope),
        one("Relu"),
    ),
    "ELU: the chord below": (lambda: altered(a.Elu, "lines", chord_below), one("Elu")),
    "softplus: no step at the threshold": (lambda: replaced(a.Softplus, "step", 0.0), one("Softplus")),
    "mish: convex on too little": (
        lambda: replaced(a.Mish, "curvature", lambda _: (((-0.5, 0.5),), elementwise._outside(0.5))),
        one("Mish"),
    ),
    "hardswish: no kinks": (
        lambda: replaced(a.HardSwish, "curvature", lambda _: (((-math.inf, math.inf),), ())),
        lambda: contract("HardSwish", kinds=("wide", "straddling")),
    ),
    "rounding: a quarter instead of a half": (
        lambda: fields(
            rounding.Round,
            "lines",
            upper_intercept=lambda f: f.upper_intercept - 0.25 * (f.upper_slope > 0),
            lower_intercept=lambda f: f.lower_intercept + 0.25 * (f.lower_slope > 0),
        ),
        lambda: contract("Round", kinds=("wide",)),
    ),
    "rounding: the range is forgotten": (
        lambda: replaced(rounding.Round, "_cut", lambda _, box: (box, torch.zeros_like(box.lower))),
        lambda: contract("Round", kinds=("wide", "positive")),
    ),
    "Exp: the chord below": (lambda: altered(e.Exp, "lines", chord_below), one("Exp")),
    "Square: the interval forgets 0": (
        lambda: replaced(e.Square, "interval", e.Elementwise.interval),
        one("Square"),
    ),
    "GELU: the interval forgets its bottom": (
        lambda: replaced(e.Gelu, "interval", e.Elementwise.interval),
        one("Gelu"),
    ),
    "GELU: convex on too little": (lambda: replaced(e.Gelu, "lines", narrow_gelu), one("Gelu")),
    "tanh: convex and concave swapped": (
        lambda: mock.patch.multiple(e.Tanh, convex=e.Tanh.concave, concave=e.Tanh.convex),
        one("Tanh"),
    ),
    "lines: the inner minimum forgotten": (
        lambda: replaced(lines, "below", ends_only),
        one("Sigmoid", kinds=("wide",)),
    ),
    "lines: the tangent halfway up": (
        lambda: fields(e, "convex_lines", lower_intercept=lambda f: f.lower_intercept + 0.01),
        one("Square"),
    ),
    "1/x: the mirror forgotten": (
        lambda: replaced(e.Reciprocal, "lines", unmirrored),
        one("Reciprocal"),
    ),
    "elementwise: the sign of A forgotten": (
        lambda: altered(line_relaxations.LineRelaxation, "backward", lower_line_only),
        one("Silu"),
    ),
    "maximum: above without the other entries": (
        lambda: fields(
            maximum.Maximum,
            "relax",
            lines=lambda f: dataclasses.replace(f.lines, upper_slope=f.lines.lower_slope),
        ),
        one("Maximum"),
    ),
    "NaN in a ReLU's box is 0": (
        lambda: fields(
            e.Relu,
            "lines",
            lower_intercept=lambda f: f.lower_intercept.nan_to_num(),
            upper_intercept=lambda f: f.upper_intercept.nan_to_num(),
        ),
        one("Relu"),
    ),
    # products
    "product: lower and upper plane swapped": (
        lambda: fields(bilinear.Multiply, "relax", lower=lambda f: f.upper, upper=lambda f: f.lower),
        one("Multiply"),
    ),
    "product: interval from two corners": (
        lambda: replaced(bilinear.Multiply, "interval", two_corners),
        one("Multiply"),
    ),
    "matmul: the error dropped": (
        lambda: fields(bilinear.MatMul, "relax", error=lambda f: 0 * f.error),
        one("MatMul"),
    ),
    "matmul: the tilt's sign": (
        lambda: fields(bilinear.MatMul, "relax", tilt=lambda f: None if f.tilt is None else -f.tilt),
        one("MatMul"),
    ),
    "matmul: half the radius of the product": (
        lambda: altered(bilinear, "product_interval", halved),
        one("MatMul"),
    ),
    "matmul: diagonal along the columns too": (
        lambda: replaced(bilinear.MatMul, "carries_diagonal", columns_too),
        one("MatMul"),
    ),
    "forms: half a functional": (lambda: altered(forms, "functional_radius", lambda f, *_: f / 2), affine_forms),
    "forms: only the diagonal of a product": (
        lambda: altered(forms, "product_radius", lambda f, *_: f - 0.9 * f),
        affine_forms,
    ),
    # softmax and attention
    "softmax: the mask forgotten": (lambda: unmasked(softmax.Softmax), one("Softmax")),
    "attention: the mask forgotten": (lambda: unmasked(attention.Attention), one("Attention")),
    "softmax: p^L and p^U swapped": (
        lambda: altered(softmax, "softmax_box_probabilities", upper_as_lower),
        one("Softmax"),
    ),
    "softmax: the tangent's offset": (
        lambda: fields(softmax, "row_bounds", high=lambda f: f.high - 0.1 * f.slope),
        one("Softmax"),
    ),
    "softmax: the chord not raised": (
        lambda: fields(softmax, "row_bounds", high=lambda f: torch.where(f.slope > 0, f.high - f.box.lower, f.high)),
        one("Softmax"),
    ),
    "softmax: the sums of rises dropped": (
        lambda: fields(softmax, "row_bounds", rises=lambda f: 0 * f.rises),
        one("Softmax"),
    ),
    "softmax: rises transposed": (
        lambda: fields(softmax, "row_bounds", rise=lambda f: f.rise.mT, rises=lambda f: f.rise.mT.sum(-1)),
        one("Softmax"),
    ),
    "softmax: p^L a tenth too high": (lambda: fields(softmax, "row_bounds", low=lambda f: 1.1 * f.low), one("Softmax")),
    "softmax: the pivot not put back": (lambda: replaced(softmax, "row_below", without_pivot), one("Softmax")),
    "attention: p^U in place of p^L": (
        lambda: fields(attention_op, "linear_rows", box=lambda f: swapped(f.box)),
        one("Attention"),
    ),
    "attention: the values' upper ends": (
        lambda: altered(shared, "functional_box", lambda f, *_: swapped(f)),
        one("Attention"),
    ),
    "attention: the vertex maximum": (
        lambda: replaced(shared, "softmax_box_min", attention_op.softmax_box_max),
        one("Attention"),
    ),
    "attention: the interval's least value is its largest": (
        lambda: replaced(attention_op, "softmax_box_min", attention_op.softmax_box_max),
        one("Attention"),
    ),
    "attention: the affine rule's values at their upper ends": (
        lambda: replaced(minorant, "minorant_constant", at_the_upper_values(minorant.minorant_constant)),
        one("Attention"),
    ),
    "attention: the affine rule's range of log p halved": (
        lambda: altered(minorant, "log_probabilities", lambda f, *_: (f[0] + (f[1] - f[0]).nan_to_num() / 2, f[1])),
        one("Attention"),
    ),
    # normalisation
    "norm: the radius of 1/σ with the wrong sign": (
        lambda: fields(n.Normalize, "relax", inverse=lambda f: swapped(f.inverse)),
        one("Normalize"),
    ),
    "norm: both bounds of 1/σ from below": (
        lambda: fields(n.Normalize, "relax", high=lambda f: f.below()[1], high_slope=lambda f: f.below()[0]),
        one("Normalize"),
    ),
    "norm: 1/σ at the centre only": (
        lambda: fields(n.Normalize, "relax", inverse=lambda f: Interval(f.inverse.centre, f.inverse.centre)),
        one("Normalize"),
    ),
    "norm: the least σ a tenth too high": (
        lambda: altered(n.Normalize, "_sigma", lambda f, *_: Interval(1.1 * f.lower, f.upper)),
        one("Normalize"),
    ),
    # affine ops
    "linear: the bias forgotten": (lambda: altered(linear.Linear, "backward", constantless), one("Linear")),
    "linear: the radius through W, not |W|": (
        lambda: replaced(linear.Linear, "interval", signed_radius),
        one("Linear"),
    ),
    "convolution: the bias forgotten": (
        lambda: altered(linear.Convolution, "backward", constantless),
        one("Convolution"),
    ),
    "scale: the ends of a negative factor": (
        lambda: replaced(linear.Scale, "interval", unsorted_ends),
        one("Scale"),
    ),
    "subtract: A to both": (lambda: replaced(linear.Subtract, "backward", linear.Add.backward), one("Subtract")),
    "permute: not the inverse": (
        lambda: replaced(shape.Permute, "backward", not_inverse),
        one("Permute"),
    ),
    "reshape: carried to the first dimension": (
        lambda: replaced(shape.Reshape, "carries_diagonal", to_the_first),
        one("Reshape"),
    ),
    "concat: parts in the wrong order": (
        lambda: altered(shape.Concat, "backward", flipped_parts),
        one("Concat"),
    ),
    "expand: a mean, not a sum": (
        lambda: altered(shape.Expand, "backward", averaged),
        one("Expand"),
    ),
    # the pass
    "pass: a part forgotten": (forgetful, network),
    "pass: the diagonal misplaced": (lambda: altered(Coefficients, "dense", misplaced), network),
    "pass: a box widens": (lambda: replaced(Boxes, "tightened", widening), network),
    "pass: results written to the next row": (
        lambda: found_altered(lambda both: both.roll(1, 2)),
        network,
    ),
    "pass: lower and upper of a box swapped": (
        lambda: found_altered(lambda both: -both.flip(1)),
        network,
    ),
    "pass: a constant forgotten": (
        lambda: replaced(backward._Sums, "add_constant", lambda *_: None),
        network,
    ),
    "pass: the input set is its centre": (
        lambda: replaced(Interval, "radius", property(lambda self: 0 * self.lower)),
        network,
    ),
    "pass: attention's rows out of step": (
        lambda: altered(lse_row.LseRow, "backward", rolled_objectives),
        functools.partial(network, "crown"),
    ),
}

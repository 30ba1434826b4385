"""The optional faces of an op as code, beside checks.py: what an op may be told of its inputs, and may be asked.

Each check tries one op and raises AssertionError; test_contract.py tries each on every registered op that has the face.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from tests.ops.cases import BATCH, Case, generator, points
from tests.ops.checks import TOLERANCE, check_parameters, coefficients, concrete, context, scale, sizes
from vertex_softmax.ops.contract import (
    AffineForm,
    CentredRows,
    Centring,
    Context,
    InnerLoss,
    InnerRange,
    Relaxation,
    Splittable,
    Summarising,
)
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import Rules

INPUTS = 4
FORMS = ("own", "common")
"""Every number has a derivative of its own, or all have the same; products have corners to touch at in the latter."""
INNER: dict[type[InnerRange], Callable[[InnerRange, Tensor], Tensor]] = {
    Normalize: lambda op, x: (x.square().flatten(-op.count).mean(-1) + op.eps).sqrt()
}
"""What each op with an inner quantity computes on the way, (points, BATCH, ...)."""


def check_sound(case: Case, known: Context, xs: list[Tensor], about: str) -> Relaxation:
    """Σ A·f(x) ≥ Σ_i A_i·x_i + constant at the points, by the relaxation of a context."""
    relaxed = case.op.relax(known)
    A = coefficients(case.out, 21)
    values = case.evaluate(*xs)
    step = relaxed.backward(A)
    slack = TOLERANCE[torch.float64] * scale(A, step, known.boxes, sizes(case, known.boxes, values))
    over = concrete(step, xs) - (A * values.unsqueeze(2)).flatten(3).sum(-1) - slack
    assert (over <= 0).all(), f"{case.label} {about}: {float(over.max()):.3g} above the function"
    return relaxed


def hull(x: Tensor) -> Interval:
    return Interval(x.amin(0), x.amax(0))


# What it may be told


def by_forms(case: Case, kind: str, seed: int = 0) -> tuple[tuple[AffineForm, ...], list[Tensor], Tensor]:
    """Inputs that are affine in one ξ: their forms, points of them (points, BATCH, *shape), and the points' ξ."""
    g = generator(seed + 300)
    radius = torch.rand(BATCH, INPUTS, generator=g, dtype=torch.float64)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=INPUTS)), dtype=torch.float64)
    inner = 2 * torch.rand(20, BATCH, INPUTS, generator=g, dtype=torch.float64) - 1
    xi = torch.cat([signs[:, None].expand(-1, BATCH, -1), inner]) * radius
    forms, xs = [], []
    for dims in case.shapes:
        centre = torch.randn(BATCH, *dims, generator=g, dtype=torch.float64)
        own = dims if kind == "own" else tuple(1 for _ in dims)
        matrix = torch.randn(*own, INPUTS, generator=g, dtype=torch.float64).expand(*dims, INPUTS).clone()
        forms.append(AffineForm(centre, matrix, radius))
        xs.append(centre + (matrix @ xi.reshape(*xi.shape[:2], *[1] * (len(dims) - 1), INPUTS, 1)).squeeze(-1))
    return tuple(forms), xs, xi


def box_of(form: AffineForm) -> Interval:
    radius = form.radius.reshape(BATCH, *[1] * (form.matrix.dim() - 2), INPUTS, 1)
    spread = (form.matrix.abs() @ radius).squeeze(-1)
    return Interval(form.centre - spread, form.centre + spread)


def check_forms(case: Case, rules: Rules, kind: str) -> None:
    """Sound with the exact forms of the inputs it asks for, over their boxes and over tighter ones."""
    forms, xs, _ = by_forms(case, kind)
    given = tuple(form if i in case.op.form_inputs else None for i, form in enumerate(forms))
    assert any(form is not None for form in given)
    for box in (tuple(map(box_of, forms)), tuple(map(hull, xs))):
        check_sound(case, Context(boxes=box, rules=rules, forms=given), xs, f"forms {kind} {rules}")


def check_parameters_of_forms(case: Case, rules: Rules) -> Relaxation | None:
    """Every value of the free parameters that a relaxation has where forms are known."""
    forms, xs, xi = by_forms(case, "common")
    given = tuple(form if i in case.op.form_inputs else None for i, form in enumerate(forms))
    return check_parameters(case, tuple(map(box_of, forms)), rules, forms=given, at=(xs, xi))


def by_generators(case: Case, seed: int = 0, scale_: float = 0.3) -> tuple[tuple[Generators, ...], list[Tensor]]:
    """Inputs with generators of one ξ, and points of them."""
    g = generator(seed + 400)
    xi = 2 * torch.rand(60, BATCH, INPUTS, generator=g, dtype=torch.float64) - 1
    xi[:30] = xi[:30].sign()
    made, xs = [], []
    for dims in case.shapes:
        centre = 1 + torch.rand(BATCH, *dims, generator=g, dtype=torch.float64)
        columns = scale_ * torch.randn(BATCH, *dims, INPUTS, generator=g, dtype=torch.float64) / INPUTS
        error = 0.1 * scale_ * torch.rand(BATCH, *dims, generator=g, dtype=torch.float64)
        made.append(Generators(centre, columns, error))
        e = 2 * torch.rand(60, *centre.shape, generator=g, dtype=torch.float64) - 1
        moved = (columns @ xi.reshape(60, BATCH, *[1] * (len(dims) - 1), INPUTS, 1)).squeeze(-1)
        xs.append(centre + moved + error * e)
    return tuple(made), xs


def check_summary(case: Case, rules: Rules) -> None:
    """Sound with what it made of its inputs' generators, over their boxes and over tighter ones."""
    op = case.op
    assert isinstance(op, Summarising)
    assert set(op.generator_inputs) <= set(op.reads)
    made, xs = by_generators(case)
    summary = op.summarise({i: made[i] for i in op.generator_inputs})
    for box in (tuple(rows.box() for rows in made), tuple(map(hull, xs))):
        check_sound(case, Context(boxes=box, rules=rules, summary=summary), xs, f"generators {rules}")


def check_centred(case: Case, box: tuple[Interval, ...], rules: Rules) -> int:
    """Weights are weights, and with the rows less their means it is sound; how many inputs have weights."""
    op = case.op
    assert isinstance(op, Centring)
    count = 0
    for i, dims in enumerate(case.shapes):
        if op.centring_weights(i, box[i]) is None:
            continue
        count += 1
        xs = points(box, 60)
        common = torch.randn(60, BATCH, *dims[:-1], 1, generator=generator(i + 500), dtype=torch.float64)
        xs[i] = xs[i] + 5 * common
        boxes = tuple(hull(x) for x in xs)
        weights = op.centring_weights(i, boxes[i])
        assert weights is not None
        assert weights.shape == (BATCH, *dims)
        assert (weights >= 0).all(), f"{case.label}: a weight below 0"
        assert torch.allclose(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=1e-12), f"{case.label}: weights"
        rest = hull(xs[i] - (weights * xs[i]).sum(-1, keepdim=True))
        rows = tuple(CentredRows(weights, rest) if j == i else None for j in range(len(case.shapes)))
        check_sound(case, Context(boxes=boxes, rules=rules, centred=rows), xs, f"centred rows {rules}")
    return count


# What it may be asked


def check_split(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """Points to split at lie within; the bend is the range of the function less the plane; splits are exact if said."""
    op = case.op
    assert isinstance(op, Splittable)
    assert op.split_inputs
    assert set(op.split_inputs) <= set(op.reads)
    A = coefficients(case.out, 23)[:, :4]
    step = op.relax(context(box, rules)).backward(A)
    xs = [x[3:4].movedim(0, 1) for x in points(box, 12)]  # one inner point, (BATCH, 1, *shape)
    for i in op.split_inputs:
        low, high = (end.unsqueeze(1) for end in box[i])
        point = op.split_point(i, Interval(low, high), xs[i])
        wanted = op.undecided(i, box[i])
        open_ = (high > low) & (True if wanted is None else wanted.unsqueeze(1))
        assert ((point > low) & (point < high))[open_].all(), f"{case.label}: split at an end"
        slope = step.coefficients[i]
        if slope is None:
            continue
        cost = op.bend(i, A, slope, tuple(xs), (low, point, high))
        assert cost.shape == slope.shape, f"{case.label}: the bend's shape"
        want = brute_bend(case, i, A, slope, xs, (low, point, high))
        size = 1 + (A.abs().flatten(2).sum(-1) * 1e2).reshape(*A.shape[:2], *[1] * (slope.dim() - 2))
        open_ = open_.expand_as(cost)
        if op.splits_exactly:  # a share of the range that was measured to serve best
            assert (cost >= -1e-12 * size)[open_].all()
            assert (cost <= want.abs().amax() + A.abs() * (high - low) + 1e-9 * size)[open_].all()
            check_exact_halves(case, i, box, rules, point.squeeze(1))
        else:
            off = (cost - want).abs() - 1e-10 * size
            assert (off <= 0)[open_].all(), f"{case.label}: the bend is off by {float(off.max()):.3g}"


def brute_bend(
    case: Case, i: int, A: Tensor, slope: Tensor, xs: list[Tensor], ends: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """The same number by number: each moved to the three points, the others where they are."""
    found = torch.zeros_like(slope)
    for at in itertools.product(*(range(n) for n in case.shapes[i])):
        place = (slice(None), slice(None), *at)
        values = []
        for end in ends:
            x = [y.clone() for y in xs]
            x[i][place] = end[place]
            values.append((A * case.evaluate(*x)).flatten(2).sum(-1) - slope[place] * end[place])
        whole = torch.stack(values)
        found[place] = whole.amax(0) - whole.amin(0)
    return found


def check_exact_halves(case: Case, i: int, box: tuple[Interval, ...], rules: Rules, point: Tensor) -> None:
    """On both sides of a split the bound is the value."""
    wanted = case.op.undecided(i, box[i])
    inside = torch.ones_like(point, dtype=torch.bool) if wanted is None else wanted
    for half in (
        Interval(box[i].lower, torch.where(inside, point, box[i].upper)),
        Interval(torch.where(inside, point, box[i].lower), box[i].upper),
    ):
        check_decided(case, (*box[:i], half, *box[i + 1 :]), rules)


def check_decided(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """Where nothing is undecided no tighter box could help: the bound is the value at every point."""
    for i, b in enumerate(box):
        mask = case.op.undecided(i, b)
        assert mask is not None
        assert mask.dtype == torch.bool
        assert mask.shape == b.lower.shape
        assert not mask.any(), f"{case.label}: still undecided"
    A = coefficients(case.out, 25)
    xs = points(box, 20)
    step = case.op.relax(context(box, rules)).backward(A)
    values = case.evaluate(*xs)
    gap = (A * values.unsqueeze(2)).flatten(3).sum(-1) - concrete(step, xs)
    slack = TOLERANCE[torch.float64] * scale(A, step, box, sizes(case, box, values))
    assert (gap.abs() <= slack).all(), f"{case.label}: decided, and yet off by {float(gap.abs().max()):.3g}"


def check_inner(case: Case, box: tuple[Interval, ...], rules: Rules) -> None:
    """The inner quantity lies in its range; a part of that range bounds what lies in it, and loses no more."""
    op = case.op
    assert isinstance(op, InnerRange)
    quantity = INNER[type(op)]
    xs = points(box, 90)
    values = quantity(op, xs[0])
    known = context(box, rules)
    span = op.inner_range(known)
    slack = 1e-12 * values.abs().amax(0)
    assert (values >= span.lower - slack).all(), f"{case.label}: below the inner range"
    assert (values <= span.upper + slack).all(), f"{case.label}: above the inner range"
    A = coefficients(case.out, 27)[:, :6]
    whole = op.relax(known)
    assert isinstance(whole, InnerLoss)
    lost = whole.inner_loss(A)
    assert lost.shape == (BATCH, A.shape[1], *span.lower.shape[1:])
    assert (lost >= 0).all()
    middle = values.median(0).values
    for part, inside in (
        (Interval(span.lower, middle), values <= middle),
        (Interval(middle, span.upper), values >= middle),
    ):
        every = inside.flatten(2).all(-1)  # (points, BATCH)
        chosen = every.to(torch.int8).argmax(0)
        at = [
            torch.where(
                every.reshape(*every.shape, *[1] * (x.dim() - 2)), x, x[chosen, torch.arange(BATCH)].unsqueeze(0)
            )
            for x in xs
        ]
        use = every.any(0)
        part_ = Interval(
            torch.where(use.reshape(BATCH, *[1] * (middle.dim() - 1)), part.lower, span.lower),
            torch.where(use.reshape(BATCH, *[1] * (middle.dim() - 1)), part.upper, span.upper),
        )
        found = check_sound(case, dataclasses.replace(known, inner=part_), at, f"a part of the inner range {rules}")
        assert isinstance(found, InnerLoss)
        assert (found.inner_loss(A) <= lost * (1 + 1e-9) + 1e-12).all(), f"{case.label}: a part loses more"


def check_chosen(case: Case, box: tuple[Interval, ...], rules: Rules) -> set[str]:
    """The values a checker is given: of every objective, finite, and following the parameters; their names."""
    relaxed = case.op.relax(context(box, dataclasses.replace(rules, free=True)))
    A = coefficients(case.out, 29)[:, :5]
    found = relaxed.chosen_values(A)
    for name, value in found.items():
        assert value.shape[:2] == A.shape[:2], f"{case.label}: {name} is not one for every objective"
        assert value.isfinite().all(), f"{case.label}: {name} is not finite"
    names = relaxed.parameters()
    if not names:
        return set(found)
    full = {name: start.expand(BATCH, 5, *start.shape[2:]) for name, start in names.items()}
    same = relaxed.with_parameters(full)
    assert type(same) is type(relaxed)
    again = same.chosen_values(A)
    assert set(again) == set(found)
    for name, value in again.items():
        assert torch.allclose(value, found[name], rtol=1e-9, atol=1e-12), f"{case.label}: {name} at the defaults"
    moved = []
    for end in (0, 1):
        ends = {n: torch.full_like(v, relaxed.ranges[n][end]) for n, v in full.items()}
        other = relaxed.with_parameters(ends).chosen_values(A)
        moved += [not torch.allclose(other[n], found[n]) for n in found]
    assert not found or any(moved), f"{case.label}: nothing follows the parameters"
    return set(found)

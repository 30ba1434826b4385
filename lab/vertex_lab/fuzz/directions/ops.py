"""Ops by themselves: random zonotopes of the inputs, the op's zonotope of the output, and the op at exact points."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vertex_lab.fuzz.directions.families import Family, Regime, family, known_part, regime, scaled
from vertex_softmax.bounds import zonotopes
from vertex_softmax.ops import elementwise, linear
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.propagation import norms, products, rows, second_rows
from vertex_softmax.ops.propagation.second_order import chosen
from vertex_softmax.ops.unknowns import Unknowns
from vertex_softmax.ops.zonotope import RowShape, Zonotope, ellipsoid_balls

Evaluate = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """What an op makes of a family, and what is true."""

    name: str
    family: Family
    found: Zonotope
    evaluate: Evaluate
    """values of the inputs (points, batch, *shape) → of the output"""
    size: Evaluate
    """how large the numbers are that were added up to get the output, the same shape or broadcast to it"""
    claimed: Tensor | None = None
    """(batch, *shape): where anything is claimed"""
    inside: Evaluate | None = None
    """(points, batch): whether a point fulfils what the op assumes"""
    plain: bool = False
    """whether old unknowns stand for themselves in the output; else it says something of their whole range"""


def _pick(generator: torch.Generator, options: Sequence[float]) -> float:
    return options[int(torch.randint(len(options), (), generator=generator))]


def _count(generator: torch.Generator, options: Sequence[int]) -> int:
    return options[int(torch.randint(len(options), (), generator=generator))]


def _coin(generator: torch.Generator, share: float = 0.5) -> bool:
    return bool(torch.rand((), generator=generator) < share)


def _whole(x: Zonotope) -> Zonotope:
    """With small whole numbers, so that sums cancel exactly."""
    return Zonotope(
        x.centre.round(), {u: c.round() for u, c in x.blocks.items()}, None if x.own is None else x.own.round(), x.slack
    )


def _poisoned(x: Zonotope, generator: torch.Generator) -> Zonotope:
    """With one number of which nothing is known, or nothing but a centre."""
    at = int(torch.randint(x.centre[0].numel(), (), generator=generator))
    what = _pick(generator, [math.inf, math.nan])
    slack, blocks = x.slack.clone(), dict(x.blocks)
    if _coin(generator) or not blocks:
        slack.flatten(1)[0, at] = what
        slack = slack.reshape(x.slack.shape)
    else:
        unknowns = list(blocks)[int(torch.randint(len(blocks), (), generator=generator))]
        columns = blocks[unknowns].clone()
        columns[0].flatten(2)[:, :, at] = what
        blocks[unknowns] = columns
        slack.flatten(1)[0, at] = math.inf  # so that a point may be anywhere
    return Zonotope(x.centre, blocks, x.own, slack)


def _drawn(shapes: Sequence[tuple[int, ...]], generator: torch.Generator, second: float = 0.0) -> tuple[Family, Regime]:
    """`second`: the share of cases where what is of second order matters most."""
    how = regime(generator)
    if _coin(generator, second):
        how = dataclasses.replace(
            how,
            count=_count(generator, [2, 2, 3, 6]),
            linear=_pick(generator, [0.01, 0.03, 0.1, 0.2, 0.5]),
            rest=_pick(generator, [0.01, 0.1, 0.3, 0.7, 1.0]),
            own=_pick(generator, [0, 0, 0.1]),
            spread=_pick(generator, [0, 0, 1]),
            still=_pick(generator, [0, 0, 0.3]),
        )
    found = family(shapes, how, generator)
    xs = found.zonotopes
    if how.scale == 1 and _coin(generator, 0.12):
        xs = tuple(_whole(scaled(x, 2.0)) for x in xs)
    if _coin(generator, 0.06):
        xs = tuple(_poisoned(x, generator) if _coin(generator) else x for x in xs)
    return dataclasses.replace(found, zonotopes=xs), how


def _exact_norm(y: Tensor, eps: float) -> Tensor:
    """y / √(mean y² + eps), without overflow."""
    most = y.abs().amax(-1, keepdim=True)
    most = torch.where(most > 0, most, torch.ones_like(most))
    unit = y / most
    square = unit.square().mean(-1, keepdim=True) + (eps / most) / most
    return torch.where(square > 0, unit / square.sqrt(), torch.zeros_like(unit))


def norm(generator: torch.Generator) -> Case:
    """The normalisation to first and to second order, and whichever is better."""
    d, n = _count(generator, [1, 2, 3, 5, 8, 64]), _count(generator, [1, 2, 3])
    drawn, how = _drawn([(n if d < 64 else 1, d)], generator, 0.5)
    (y,) = drawn.zonotopes
    if _coin(generator, 0.3):
        y = dataclasses.replace(y, centre=y.centre * _pick(generator, [0, 1e-3, 0.1, 3.0, 30.0]))
        drawn = dataclasses.replace(drawn, zonotopes=(y,))
    eps = _pick(generator, [0, 0, 1e-12, 1e-5, 1, 100]) * (how.scale**2 if _coin(generator, 0.7) else 1.0)
    which, claimed = _count(generator, [0, 1, 2]), None
    if which == 0 or drawn.inputs is None or drawn.inputs not in y.blocks:
        name, found = "norm, first order", norms._to_first_order(y, eps, "new")
    elif which == 1:
        name = "norm, second order"
        found, useful = norms._to_second_order(y, eps, "new", drawn.inputs)
        claimed = useful.unsqueeze(-1).expand_as(found.centre)
    else:
        name, found = "norm", norms.normalized(y, eps, "new")
    return Case(name, drawn, found, lambda x: _exact_norm(x, eps), torch.ones_like, claimed)


def _scores(x: Zonotope, generator: torch.Generator) -> Zonotope:
    """Scores that move by a τ from next to nothing to 30, with centres of any peak."""
    most = float(x.radius.nan_to_num(0.0, 0.0, 0.0).amax())
    tau = _pick(generator, [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.3, 1, 2, 4, 8, 30])
    x = scaled(x, 1.0 if most == 0 else tau / most)
    large = float(x.centre.abs().amax())
    peak = _pick(generator, [0, 0.3, 1, 3, 10, 40, 300, 800])
    return dataclasses.replace(x, centre=x.centre * (0.0 if large == 0 else peak / large))


def _against(x: Zonotope) -> Zonotope:
    """The last key moves as the one before it does, the other way; the others do not move at all."""

    def turned(columns: Tensor) -> Tensor:
        found = torch.zeros_like(columns)
        found[..., -2], found[..., -1] = columns[..., -2], -columns[..., -2]
        return found

    centre = x.centre.clone()
    centre[..., -1] = centre[..., -2]
    zero = torch.zeros_like(centre)
    return Zonotope(centre, {u: turned(columns) for u, columns in x.blocks.items()}, None, zero)


def attention(generator: torch.Generator) -> Case:
    """Rows of attention to first and to second order, and the op with masks."""
    n, K, d = _count(generator, [1, 2, 3]), _count(generator, [1, 2, 3, 5]), _count(generator, [1, 2, 4])
    drawn, _ = _drawn([(n, K), (K, d)], generator, 0.5)
    whole = _coin(generator, 0.15)
    scores, values = drawn.zonotopes
    scores = (
        _whole(scaled(scores, 2 / max(float(scores.radius.nan_to_num(1.0, 1.0, 1.0).amax()), 1e-300)))
        if whole
        else _scores(scores, generator)
    )
    if K > 2 and _coin(generator, 0.15):  # keys that move against each other, beside others that do not move
        scores = _against(scores)
    if _coin(generator, 0.1):  # values that do not move
        zero = torch.zeros_like(values.centre)
        values = Zonotope(values.centre, {}, None, zero)
    drawn = dataclasses.replace(drawn, zonotopes=(scores, values))
    masked = torch.zeros(n, K, dtype=torch.bool)
    if _coin(generator, 0.3):
        masked = torch.rand(n, K, generator=generator) < 0.4
        masked[:, 0] = False
    centre = torch.where(masked, -torch.inf, scores.centre)
    which = _count(generator, [0, 1, 2])
    inputs = scores.inputs or values.inputs
    if which == 0 or inputs is None:
        name, found = "attention, first order", rows.attended(scores, centre, values, "new")
    elif which == 1:
        name = "attention, second order"
        found, _ = second_rows.attended_to_second_order(scores, centre, values, inputs, "new")
    else:
        op = Attention(masked)
        name, found = "attention", op.propagate((scores, values), (scores.box, values.box), "new")

    def evaluate(s: Tensor, v: Tensor) -> Tensor:
        return torch.where(masked, -torch.inf, s).softmax(-1) @ v

    def size(s: Tensor, v: Tensor) -> Tensor:
        most = v.abs().amax(-2, keepdim=True) * (1 + s.abs().amax((-2, -1), keepdim=True))
        return most.expand(*most.shape[:-2], n, d)

    return Case(name, drawn, found, evaluate, size)


def element_product(generator: torch.Generator) -> Case:
    """x · y, also of a zonotope with itself."""
    d, n = _count(generator, [1, 2, 4, 8, 20]), _count(generator, [1, 2, 3])
    same = _coin(generator, 0.25)
    drawn, _ = _drawn([(n, d)] if same else [(n, d), (n, d)], generator, 0.5)
    xs = drawn.zonotopes
    if not same and _coin(generator, 0.3):
        xs = (xs[0], _other_scale(xs[1], generator))
        drawn = dataclasses.replace(drawn, zonotopes=xs)
    found = products.element_product(xs[0], xs[-1], "new")
    return Case("element product", drawn, found, lambda *v: v[0] * v[-1], lambda *_: _sizes(xs[0]) * _sizes(xs[-1]))


def _other_scale(x: Zonotope, generator: torch.Generator) -> Zonotope:
    """The same at a size that has nothing to do with it."""
    most = float(x.centre.abs().amax())
    if not 0 < most < math.inf:
        return x
    wanted = [1e-30, 1.0, 1e30, 1e100] if x.centre.dtype == torch.float64 else [1e-8, 1.0, 1e10]
    return scaled(scaled(x, 1 / most), _pick(generator, wanted))


def _sizes(x: Zonotope) -> Tensor:
    return (x.centre.abs() + x.rough_radius).double().unsqueeze(0)


def matrix_product(generator: torch.Generator) -> Case:
    """x @ y, also of a zonotope with itself transposed."""
    n, k, m = (_count(generator, [1, 2, 3]), _count(generator, [1, 2, 4, 8]), _count(generator, [1, 2, 3]))
    same = _coin(generator, 0.25)
    drawn, _ = _drawn([(n, k)] if same else [(n, k), (k, m)], generator, 0.5)
    if not same and _coin(generator, 0.3):
        drawn = dataclasses.replace(drawn, zonotopes=(drawn.zonotopes[0], _other_scale(drawn.zonotopes[1], generator)))
    x = drawn.zonotopes[0]
    y = x.transposed if same else drawn.zonotopes[1]
    found = products.matrix_product(x, y)
    return Case(
        "matrix product", drawn, found, lambda *v: v[0] @ (v[0].mT if same else v[1]), lambda *_: _sizes(x) @ _sizes(y)
    )


CURVES: list[elementwise.Elementwise] = [
    elementwise.Gelu(),
    elementwise.Gelu(tanh=True),
    elementwise.Gelu(tanh=True, single=True),
    elementwise.Silu(),
    elementwise.Tanh(),
    elementwise.Sigmoid(),
    elementwise.Erf(),
    elementwise.Exp(),
    elementwise.Relu(),
]
INFLECTIONS = [0.0, math.sqrt(2), -math.sqrt(2), 1.4185040087908284, 2.3993572805154677, -0.7517915246935645, 5.0, -8.0]


def curve(generator: torch.Generator) -> Case:
    """Functions of one number, near where their curvature changes its sign too, over a box that may be narrower."""
    d, n = _count(generator, [1, 2, 4, 8, 20]), _count(generator, [1, 2, 3])
    drawn, how = _drawn([(n, d)], generator, 0.6)
    (x,) = drawn.zonotopes
    x = scaled(x, _pick(generator, [0.1, 0.5, 1, 3]) / how.scale) if how.dtype == torch.float64 else x
    if _coin(generator, 0.6):
        near = torch.tensor([_pick(generator, INFLECTIONS) for _ in range(d)], dtype=x.centre.dtype)
        x = dataclasses.replace(x, centre=near.expand_as(x.centre) + 0.1 * x.centre * float(_coin(generator)))
    drawn = dataclasses.replace(drawn, zonotopes=(x,))
    op = CURVES[int(torch.randint(len(CURVES), (), generator=generator))]
    share = _pick(generator, [1, 1, 1, 1.5, 0.7])
    radius = share * (x.tight_radius if _coin(generator) else x.rough_radius)
    box = Interval(x.centre - radius, x.centre + radius)
    found = op.propagate((x,), (box,), "new")

    def inside(v: Tensor) -> Tensor:
        return ((v >= box.lower.double()) & (v <= box.upper.double())).flatten(2).all(2)

    return Case(
        f"curve {type(op).__name__}", drawn, found, op.evaluate,
        lambda v: v.abs() + op.evaluate(v).abs(), inside=inside,
    )  # fmt: skip


def affine(generator: torch.Generator) -> Case:
    """Affine ops with own errors: a matrix, sums and differences."""
    d, n, out = _count(generator, [1, 2, 5]), _count(generator, [1, 2, 3]), _count(generator, [1, 2, 5])
    kind = _count(generator, [0, 1, 2])
    drawn, how = _drawn([(n, d)] if kind == 0 else [(n, d), (n, d)], generator)
    xs = drawn.zonotopes
    if kind == 0:
        weight = torch.randn(d, out, generator=generator, dtype=torch.float64)
        weight = weight * 10.0 ** (
            _pick(generator, [0, 0, 3, 12]) * torch.randn(d, 1, generator=generator, dtype=torch.float64)
        )
        if _coin(generator, 0.3):
            weight = weight * (torch.rand(weight.shape, generator=generator) < 0.5)
        weight = weight.to(how.dtype)
        op: linear.Linear | linear.Add | linear.Subtract = linear.Linear(weight, torch.zeros(out, dtype=how.dtype))
        found = zonotopes._affine(op, xs, "new")
        return Case(
            "affine", drawn, found, lambda x: x @ weight.double(), lambda *_: _sizes(xs[0]) @ weight.double().abs()
        )
    op = linear.Add() if kind == 1 else linear.Subtract()
    sign = 1 if kind == 1 else -1
    return Case(
        "affine", drawn, zonotopes._affine(op, xs, "new"), lambda x, y: x + sign * y,
        lambda *_: _sizes(xs[0]) + _sizes(xs[1]),
    )  # fmt: skip


def kept(generator: torch.Generator) -> Case:
    """What changes a zonotope and not the values: merged, reduced, within a box, chosen, moved."""
    d, n = _count(generator, [1, 2, 4, 8]), _count(generator, [1, 2, 3])
    drawn, _ = _drawn([(n, d)], generator)
    (x,) = drawn.zonotopes
    kind = _count(generator, [0, 1, 2, 3])
    inside: Evaluate | None = None
    if kind == 0:
        name, found = "merged", zonotopes.merged(x, _count(generator, [0, 20, 60]), "new")
    elif kind == 1:
        name, found = "reduced", zonotopes.reduced(x, _count(generator, [0, 20, 60]))
    elif kind == 2:
        share = torch.rand(x.centre.shape, generator=generator, dtype=torch.float64).to(x.centre.dtype)
        radius = torch.where(share < 0.5, x.loose * 2 * share, x.radius).nan_to_num(1e9, 1e9)
        box = Interval(x.centre - radius, x.centre + radius)
        name, found = "within", zonotopes._within(x, box)

        def inside(v: Tensor) -> Tensor:
            return ((v >= box.lower.double()) & (v <= box.upper.double())).flatten(2).all(2)
    else:
        pick = torch.rand(x.centre.shape, generator=generator) < 0.5
        name, found = "chosen", chosen(pick, zonotopes.merged(x, 0, "new"), zonotopes.reduced(x, 0))
    return Case(name, drawn, found, lambda v: v, lambda *_: _sizes(x), inside=inside)


def ranges(generator: torch.Generator) -> Case:
    """Radii, ellipsoids of rows and bounds of functionals, of the whole range of all unknowns."""
    d, n = _count(generator, [1, 2, 4, 8]), _count(generator, [1, 2, 3])
    drawn, _ = _drawn([(n, d)], generator)
    (x,) = drawn.zonotopes
    kind = _count(generator, [0, 1, 2, 3, 4, 5])
    zero = torch.zeros_like(x.centre)
    if kind == 0:
        name, found = "radius", Zonotope(x.centre, {}, x.radius, zero)
    elif kind == 1:
        name, found = "tight radius", Zonotope(x.centre, {}, x.tight_radius, zero)
    elif kind == 2:
        name, found = "rough radius", Zonotope(x.centre, {}, x.rough_radius, zero)
    elif kind == 3:
        name, found = "row shape", _of_shape(x.centre, x.row_shape)
    elif kind == 4:
        eta = torch.randn(x.centre.shape, generator=generator, dtype=torch.float64).to(x.centre.dtype)
        reach = x.reach(eta).unsqueeze(-1)
        found = Zonotope((eta * x.centre).sum(-1, keepdim=True), {}, reach, torch.zeros_like(reach))
        return Case("reach", drawn, found, lambda v: (eta.double() * v).sum(-1, keepdim=True),
                    lambda *_: (eta.double().abs() * _sizes(x)).sum(-1, keepdim=True), plain=True)  # fmt: skip
    else:
        far = x.row_shape.farthest().clamp(min=torch.finfo(x.centre.dtype).tiny).sqrt().unsqueeze(-1)
        found = Zonotope(torch.zeros_like(far), {}, far, torch.zeros_like(far))
        return Case("farthest", drawn, found, lambda v: _length(v - x.centre.double()),
                    lambda *_: _length(_sizes(x)), plain=True)  # fmt: skip
    return Case(name, drawn, found, lambda v: v, lambda *_: _sizes(x), plain=True)


def _length(v: Tensor) -> Tensor:
    most = v.abs().amax(-1, keepdim=True).clamp(min=1e-300)
    return (v / most).square().sum(-1, keepdim=True).sqrt() * most


def _of_shape(centre: Tensor, shape: RowShape) -> Zonotope:
    unknowns, columns = ellipsoid_balls([shape.ellipsoid()], "new")
    blocks: dict[Unknowns, Tensor] = {unknowns: columns}
    return Zonotope(centre, blocks, None, torch.zeros_like(centre))


def bounds(generator: torch.Generator) -> Case:
    """What ops learn of their inputs: products of deviations, of parts of rows, and scores less their mean."""
    n, k, m = (_count(generator, [1, 2, 3]), _count(generator, [1, 2, 4, 8]), _count(generator, [1, 2, 3]))
    kind = _count(generator, [0, 1, 2])
    if kind == 0:
        drawn, _ = _drawn([(n, k), (k, m)], generator)
        x, y = drawn.zonotopes
        second = products.second_order(x, y)
        found = Zonotope(torch.zeros_like(second), {}, second, torch.zeros_like(second))
        return Case(
            "product radius", drawn, found, lambda a, b: (a - x.centre.double()) @ (b - y.centre.double()),
            lambda *_: _sizes(x) @ _sizes(y), plain=True,
        )  # fmt: skip
    if kind == 1:
        drawn, _ = _drawn([(n, k), (n, k)], generator)
        x, y = drawn.zonotopes
        reach = norms.inner(x.row_shape, y.row_shape).unsqueeze(-1)
        found = Zonotope(torch.zeros_like(reach), {}, reach, torch.zeros_like(reach))
        return Case(
            "inner product", drawn, found,
            lambda a, b: ((a - x.centre.double()) * (b - y.centre.double())).sum(-1, keepdim=True),
            lambda *_: (_sizes(x) * _sizes(y)).sum(-1, keepdim=True), plain=True,
        )  # fmt: skip
    drawn, _ = _drawn([(n, k)], generator)
    scores = _scores(drawn.zonotopes[0], generator)
    drawn = dataclasses.replace(drawn, zonotopes=(scores,))
    t = rows.centred_scores(scores, scores.centre)
    weights = t.log_weights.exp().double()
    found = Zonotope(torch.zeros_like(t.reach), t.blocks, t.loose, torch.zeros_like(t.reach))
    if _coin(generator):
        found = Zonotope(torch.zeros_like(t.reach), {}, t.reach, torch.zeros_like(t.reach))

    def evaluate(s: Tensor) -> Tensor:
        moved = s - scores.centre.double()
        return moved - (weights * moved).sum(-1, keepdim=True)

    return Case(
        "centred scores", drawn, found, evaluate, lambda *_: _sizes(scores).amax(-1, keepdim=True), plain=not t.blocks
    )


def parts(generator: torch.Generator) -> Case:
    """The linear part and the rest of a zonotope by themselves, and their ellipsoids."""
    d, n = _count(generator, [1, 2, 4, 8]), _count(generator, [1, 2])
    drawn, _ = _drawn([(n, d)], generator)
    (x,) = drawn.zonotopes
    x = Zonotope(torch.zeros_like(x.centre), x.blocks, None, torch.zeros_like(x.centre))
    drawn = dataclasses.replace(drawn, zonotopes=(x,))
    ends = (x.linear, x.rest)
    shapes = [_of_shape(part.centre, part.row_shape) for part in ends]
    blocks = {u: c for shape in shapes for u, c in shape.blocks.items()}
    found = Zonotope(x.centre, blocks, None, torch.zeros_like(x.centre))
    return Case("parts", drawn, found, lambda v: v, lambda *_: _sizes(x), plain=True)


KINDS: dict[str, Callable[[torch.Generator], Case]] = {
    "norm": norm,
    "attention": attention,
    "element product": element_product,
    "matrix product": matrix_product,
    "curve": curve,
    "affine": affine,
    "kept": kept,
    "ranges": ranges,
    "bounds": bounds,
    "parts": parts,
}

__all__ = ["KINDS", "Case", "known_part"]

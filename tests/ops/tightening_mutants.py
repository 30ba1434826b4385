"""Deliberately broken generators, corners, centred rows, parallel rules and ascents; each must be caught."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.bounds import test_ascent as of_ascent
from tests.bounds import test_generators as of_networks
from tests.bounds.networks import Config, input_box
from tests.ops import test_attention_rows as of_rows
from tests.ops import test_corners as of_corners
from tests.ops import test_generators as of_generators
from tests.ops import test_lines as of_lines
from tests.ops import test_normalization as of_norms
from tests.ops import test_parallel as of_parallel
from tests.ops.cases import CASES, boxes
from tests.ops.mutants import Check, Mutants, altered, fields, halved, replaced
from vertex_softmax.bounds import ascent as ascent_module
from vertex_softmax.bounds import backward, box_passes, generate
from vertex_softmax.ops import bilinear, generators, lines, normalization
from vertex_softmax.ops.attention import minorant, shared
from vertex_softmax.ops.attention.affine_row import AffineRow
from vertex_softmax.ops.contract import Step
from vertex_softmax.ops.interval import Interval

# The checks, made quick


def ellipsoids() -> None:
    for kind in of_generators.KINDS:
        of_generators.check_functionals(of_generators.made(kind, 1))
        of_generators.check_products(of_generators.made(kind, 2), of_generators.made("plain", 3))
    of_generators.check_orthogonal(torch.float64, (0.0, 1e-9, 1e-5))
    of_generators.check_eigenvalue(torch.diag(torch.tensor([1.0, 3.0])).double())
    of_generators.check_eigenvalue(torch.eye(768), 1e-5)


def planes() -> None:
    for left, right, heads in of_corners.PAIRS:
        of_corners.check_planes(left, right, heads)
        of_corners.check_exact_at_corners(left, right, heads)


def rows() -> None:
    for kind in of_rows.FAMILIES:
        of_rows.check_log_probabilities(kind, None)
        of_rows.check_affine_rule(kind, 3, ("none", "key"))
        of_rows.check_lse_rule(kind)


def parallel() -> None:
    for case in CASES:
        if type(case.op).__name__ in {"Relu", "Tanh", "Multiply", "MatMul", "Attention", "Normalize"}:
            for kind in ("positive", "straddling"):
                if getattr(case.op, "eps", 1.0) > 0:
                    of_parallel.check_parallel(case, boxes(case, kind))


def summaries() -> None:
    for case in of_parallel.SUMMARISING[:-1]:
        for seed in range(3):
            of_parallel.check_summaries(case, tight=False, scale_=1.0, seed=seed)


def norms() -> None:
    for kind in of_norms.SETS:
        for seed in range(3):
            of_norms.check_inverse(1e-2, kind, seed)
            of_norms.check_touch(1e-2, kind, seed)


def free_lines() -> None:
    for name in of_lines.CURVED:
        for low, high in ((-2.0, 1.0), (0.5, 3.0), (-6.0, 6.0)):
            of_lines.check_free_lines(name, low, high, of_lines.TURNS)


def networks() -> None:
    for config in (Config(depth=2, heads=2, activation="tanh"), Config(norm="pre", gated=True)):
        of_networks.check_all_generators(config, *input_box(config, 2, 0.4))


def tightened() -> None:
    of_networks.test_each_tightening_alone_is_sound("two blocks", "all")
    of_networks.test_each_tightening_alone_is_sound("pre norm, two blocks", "all")


def ascent() -> None:
    of_ascent.test_never_below_the_start_and_as_sound("plain", "affine")
    of_ascent.test_every_step_is_sound("affine")
    of_ascent.test_what_starts_at_nan_stays_there("lse")
    of_ascent.test_the_hopeless_are_let_go()
    of_ascent.test_an_ascended_box_is_never_wider_and_holds_all_values("plain")


CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (ellipsoids, planes, rows, parallel, summaries, norms, free_lines, networks, tightened, ascent)
}


# Ways to break things


def one_size(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """√ of the second size forgotten."""
    return lambda left, right: real(left, dataclasses.replace(right, size=torch.ones_like(right.size)))


def no_error(real: Callable[..., Any]) -> Callable[..., Any]:
    """The error's part of the shape forgotten, its size kept."""
    return lambda rows: dataclasses.replace(real(rows._replace(error=0 * rows.error)), size=real(rows).size)


def largest_column_only(found: generators.Ellipsoid, *_: Any) -> generators.Ellipsoid:
    return dataclasses.replace(found, size=found.size / 2)


def not_symmetric(left: generators.Ellipsoid, right: generators.Ellipsoid) -> Tensor:
    """As it was: the power of C C' itself, without what rounding takes."""
    product = left.shape.unsqueeze(-3) @ right.shape.unsqueeze(-4)
    return (generators.most_eigenvalue(product) * left.size.unsqueeze(-1) * right.size.unsqueeze(-2)).sqrt()


def flat(real: Any) -> Any:
    """e^d − 1 − d dropped: lse(t) is taken as the entropy."""

    def broken(centred: Any, box: Interval) -> Any:
        low, high, (least, _) = real(centred, box)
        return torch.maximum(low, box.lower - least), high, [least, least]

    return broken


def unmissed(real: Any) -> Any:
    """A key whose ω is 0 not counted in lse(t)."""

    def broken(centred: Any, box: Interval) -> Any:
        low, high, (least, most) = real(centred, box)
        weights = centred.weights
        there = weights > 0
        log = torch.where(there, weights, torch.ones_like(weights)).log()
        entropy = -(weights * log).sum(-1, keepdim=True)
        ends = [torch.where(there, t - log - entropy, torch.zeros_like(t)) for t in centred.box]
        curved = torch.maximum(*(torch.expm1(d) - d for d in ends))
        top = torch.minimum(most, torch.maximum(least, entropy + torch.log1p((weights * curved).sum(-1, keepdim=True))))
        return torch.maximum(low, box.lower - top), high, [least, top]

    return broken


def first_piece(found: Interval, *_: Any) -> Interval:
    return Interval(found.lower[..., :1, :], found.upper[..., :1, :])


def uncoupled(
    found: tuple[Tensor, Tensor, Tensor],
    self: AffineRow,
    _a: Tensor,
    _m: Tensor,
    _b: Tensor,
    w: Interval,
    share: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """p^L·w^L not taken off."""
    return found[0], found[1], found[2] + share.squeeze(-1) * (self.minorant.log_low.exp() * w.lower).sum(-1)


def half_the_error(found: Step, *_: Any) -> Step:
    return found if found.error is None else dataclasses.replace(found, error=found.error / 2)


def half_the_noise(found: Step, *_: Any) -> Step:
    return found if found.noise is None else dataclasses.replace(found, noise=found.noise / 2)


def shared_noise(found: Step, *_: Any) -> Step:
    """The noise of one output heard at the next."""
    return found if found.noise is None else dataclasses.replace(found, noise=found.noise.roll(1, -1))


def crossed_ends(self: lines.Fan, below: Tensor, above: Tensor) -> lines.Lines:
    """Slopes of one end with the intercepts of the other."""
    return lines.Lines(
        lower_slope=self.left.lower_slope + 0 * below,
        lower_intercept=self.right.lower_intercept,
        upper_slope=self.right.upper_slope + 0 * above,
        upper_intercept=self.left.upper_intercept,
    )


def squareless(self: normalization.NormRelaxation) -> tuple[Tensor, Tensor]:
    cubed = 2 * self.touch**3
    return -self.square_slope / cubed.unsqueeze(-1), 1.5 / self.touch - 0 * self.square


def signless(found: Any, *_: Any) -> Any:
    return found[0], found[1], found[2], -found[3]


g, n = generators, normalization
tg = of_generators
MUTANTS: Mutants = {
    # ellipsoids
    "product radius: one size forgotten": (
        lambda: replaced(tg, "product_radius", one_size(g.product_radius)),
        ellipsoids,
    ),
    "product radius: one size forgotten, through a product": (
        lambda: replaced(bilinear, "generators_product_radius", one_size(g.product_radius)),
        summaries,
    ),
    "product radius: powers of a matrix that is not symmetric": (
        lambda: replaced(tg, "product_radius", not_symmetric),
        ellipsoids,
    ),
    "ellipsoid: the errors' axes forgotten": (lambda: replaced(tg, "ellipsoid", no_error(g.ellipsoid)), ellipsoids),
    "ellipsoid: half its size": (lambda: altered(tg, "ellipsoid", largest_column_only), ellipsoids),
    "ellipsoid: not raised": (lambda: altered(g, "raised", lambda _f, shape, _count: shape), ellipsoids),
    "eigenvalue: the mean": (
        lambda: altered(tg, "most_eigenvalue", lambda _f, m: g._trace(m) / m.shape[-1]),
        ellipsoids,
    ),
    "functional radius: halved in attention": (
        lambda: altered(shared, "functional_radius", lambda f, *_: f / 2),
        summaries,
    ),
    # corners
    "planes: the input's slopes turned": (lambda: altered(bilinear, "planes", signless), planes),
    "planes: half of them missing": (
        lambda: altered(bilinear, "planes", lambda f, *_: (0 * f[0], *f[1:])),
        planes,
    ),
    "planes: their constant missing": (
        lambda: altered(bilinear, "planes", lambda f, *_: (f[0], f[1], 0 * f[2], f[3])),
        planes,
    ),
    "planes: no error": (
        lambda: fields(
            bilinear.MatMul, "relax", corners=lambda f: dataclasses.replace(f.corners, error=0 * f.corners.error)
        ),
        planes,
    ),
    # rows
    "centred rows: the curved part dropped": (
        lambda: replaced(of_rows, "centred_log_probabilities", flat(minorant.centred_log_probabilities)),
        rows,
    ),
    "centred rows: the curved part dropped, in the rule": (
        lambda: replaced(minorant, "centred_log_probabilities", flat(minorant.centred_log_probabilities)),
        rows,
    ),
    "centred rows: a key that ω misses ignored": (
        lambda: replaced(of_rows, "centred_log_probabilities", unmissed(minorant.centred_log_probabilities)),
        rows,
    ),
    "pieces: only the first": (lambda: altered(minorant, "_pieces", first_piece), rows),
    "affine rule: what the exact optimum counts twice": (lambda: altered(AffineRow, "_coupled", uncoupled), rows),
    "centred rows: too narrow a box": (lambda: altered(box_passes, "centred_box", halved), tightened),
    # parallel rules
    "parallel attention: half the error": (
        lambda: altered(AffineRow, "backward", half_the_error),
        parallel,
    ),
    "parallel norm: half the error": (lambda: altered(n.NormRelaxation, "backward", half_the_error), parallel),
    "parallel matmul: half the noise": (lambda: altered(bilinear.MatrixPlanes, "backward", half_the_noise), parallel),
    "parallel product: another's noise": (lambda: altered(bilinear.ElementPlanes, "backward", shared_noise), parallel),
    # norms and lines
    "norm: |y − c|² forgotten": (
        lambda: fields(n.Normalize, "summarise", far=lambda f: 0 * f.far),
        norms,
    ),
    "norm: |c·(y − c)| forgotten": (
        lambda: fields(n.Normalize, "summarise", along=lambda f: 0 * f.along),
        norms,
    ),
    "norm: σ² forgotten where the tangent moves": (lambda: replaced(n.NormRelaxation, "below", squareless), norms),
    "norm: σ₀ at a centre beside the box": (
        lambda: fields(n.Normalize, "relax", touch=lambda f: ((f.square_slope * f.centre).sum(-1) + f.square).sqrt()),
        norms,
    ),
    "fan: ends crossed": (lambda: replaced(lines.Fan, "mixed", crossed_ends), free_lines),
    # passes
    "generate: noise not heard": (lambda: replaced(backward._Sums, "add_noise", lambda *_: None), networks),
    "generate: half the error": (
        lambda: altered(AffineRow, "backward", lambda f, *_: half_the_error(half_the_error(f))),
        networks,
    ),
    "generate: rows out of order": (
        lambda: altered(generate, "_shaped", lambda f, *_: f.roll(1, 1)),
        networks,
    ),
    # the ascent
    "ascent: the last bound, not the best": (
        lambda: replaced(ascent_module, "_better", lambda best, found, active: best.scatter(1, active, found)),
        functools.partial(of_ascent.test_every_step_is_never_below_the_start, "affine"),
    ),
    "ascent: NaN overlooked": (
        lambda: replaced(
            ascent_module,
            "_better",
            lambda best, found, active: best.scatter(
                1, active, torch.fmax(best.gather(1, active), found).nan_to_num(-1e9)
            ),
        ),
        ascent,
    ),
    "ascent: the hopeless go on": (
        lambda: altered(ascent_module, "_unsettled", lambda _f, _best, active, free, *_: (active, free)),
        ascent,
    ),
    "ascent: out of the ranges": (
        lambda: replaced(ascent_module.Parameter, "step", unclamped),
        ascent,
    ),
}


def unclamped(self: ascent_module.Parameter, size: float, _count: int) -> None:
    if self.value.grad is not None:
        with torch.no_grad():
            self.value.add_(50 * size * self.value.grad.sign())
        self.value.grad = None

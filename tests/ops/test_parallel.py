"""Parallel rules: one linear function for both sides, its error, and one unknown per number that serves every A.

And what generators make of products, functionals and norms, under parallel rules and under the others.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.ops.cases import BATCH, CASES, KINDS, Case, boxes, generator, points, suits
from tests.ops.checks import TOLERANCE, backward, coefficients, concrete, context, scale, sizes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Coefficients
from vertex_softmax.bounds.index import GraphIndex
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops import OPS
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.contract import Context, Op, Step, Summarising
from vertex_softmax.ops.elementwise import Tanh
from vertex_softmax.ops.generators import Generators
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.rules import RowRule, Rules

PARALLEL = Rules(attention=RowRule.AFFINE, parallel=True)
TRIED = [case for case in CASES if case.op.has_parallel_rule and not case.op.affine]
each = pytest.mark.parametrize("case", TRIED, ids=[case.label for case in TRIED])


def apart(step: Step, xs: list[Tensor], A: Tensor, values: Tensor) -> Tensor:
    """Σ A·f(x) less the linear function, (points, BATCH, S)."""
    return (A * values.unsqueeze(2)).flatten(3).sum(-1) - concrete(step, xs)


def reach(step: Step) -> Tensor:
    """Error + Σ |noise|, (BATCH, S)."""
    total = torch.zeros(1, 1, dtype=torch.float64)
    if step.error is not None:
        total = total + step.error
    return total if step.noise is None else total + step.noise.abs().flatten(2).sum(-1)


def check_parallel(case: Case, box: tuple[Interval, ...], count: int = 60, seed: int = 0) -> None:
    A = coefficients(case.out, seed)
    xs = points(box, count, seed)
    values = case.evaluate(*xs)
    step = backward(case.op, A, box, PARALLEL)
    assert step.error is not None or step.noise is not None, f"{case.label}: no error"
    size = scale(A, step, box, sizes(case, box, values))
    slack = TOLERANCE[torch.float64] * size
    over = apart(step, xs, A, values).abs() - reach(step) - slack
    assert (over <= 0).all(), f"{case.label} parallel: off by {float(over.max()):.3g} more than said"
    check_turned(case, step, backward(case.op, -A, box, PARALLEL), slack)
    if step.error is None:
        check_noise(case, box, step, A, xs, values)


def check_turned(case: Case, step: Step, turned: Step, slack: Tensor) -> None:
    """−A gives the negatives, and the same error."""
    for a, b in zip(step.coefficients, turned.coefficients, strict=True):
        assert a is not None
        assert b is not None
        most = a.abs().flatten(2).amax(-1).reshape(*a.shape[:2], *[1] * (a.dim() - 2))
        assert ((a + b).abs() <= 1e-12 * most).all(), f"{case.label} parallel: coefficients of −A"
    assert step.constant is not None
    assert turned.constant is not None
    assert ((step.constant + turned.constant).abs() <= slack).all(), f"{case.label} parallel: the constant of −A"
    assert ((reach(step) - reach(turned)).abs() <= slack).all(), f"{case.label} parallel: the error of −A"


def check_noise(case: Case, box: tuple[Interval, ...], step: Step, A: Tensor, xs: list[Tensor], values: Tensor) -> None:
    """ν in [−1, 1] from the single outputs is the ν of every combination of them."""
    assert step.noise is not None
    assert step.noise.shape == A.shape
    out = case.out
    count = int(torch.tensor(out).prod())
    eye = torch.eye(count, dtype=torch.float64).reshape(1, count, *out).expand(BATCH, -1, *out)
    units = backward(case.op, eye, box, PARALLEL)
    assert units.noise is not None
    half = units.noise.flatten(2).diagonal(dim1=1, dim2=2)  # (BATCH, outputs)
    off = units.noise.flatten(2) - torch.diag_embed(half)
    assert (off == 0).all(), f"{case.label} parallel: an output hears the noise of another"
    rest = apart(units, xs, eye, values)  # (points, BATCH, outputs)
    size = scale(eye, units, box, sizes(case, box, values))
    assert (rest.abs() <= half.abs() + 1e-12 * size).all(), f"{case.label} parallel: |ν| > 1"
    there = half.abs() > 0
    nu = torch.where(there, rest / torch.where(there, half, torch.ones_like(half)), 0 * rest)
    want = (step.noise.flatten(2) * nu.unsqueeze(2)).sum(-1)
    slack = 1e-11 * scale(A, step, box, sizes(case, box, values) + size.reshape(BATCH, *out))
    got = apart(step, xs, A, values)
    assert ((got - want).abs() <= slack).all(), f"{case.label} parallel: another A needs another ν"


def test_every_parallel_op_is_tried() -> None:
    named = {name for name, op in OPS.items() if op.has_parallel_rule and not op.affine}
    assert {type(case.op).__name__ for case in TRIED} == named
    assert {"Relu", "Gelu", "Multiply", "MatMul", "Attention", "Normalize"} <= named


@each
@pytest.mark.parametrize("kind", KINDS)
def test_one_linear_function_for_both_sides(case: Case, kind: str) -> None:
    check_parallel(case, boxes(case, kind if suits(case, kind) else "positive"))


@pytest.mark.slow
@each
@pytest.mark.parametrize("kind", KINDS)
def test_one_linear_function_over_many_boxes(case: Case, kind: str) -> None:
    for seed in range(1, 9):
        check_parallel(case, boxes(case, kind if suits(case, kind) else "positive", seed), 300, seed)


@each
def test_diagonal_objectives_have_the_same_error(case: Case) -> None:
    """With `diagonal`, error and noise are those of the dense objectives."""
    box = boxes(case, "positive")
    relaxed = case.op.relax(context(box, PARALLEL))
    A = coefficients(case.out, 7)[:, :4]
    for t in range(len(case.out)):
        kept = case.op.carries_diagonal(t, case.out)
        if kept is None or all(k is None for k in kept):
            continue
        step, full = relaxed.backward(A, t), relaxed.backward(Coefficients(A, t).dense())
        if full.error is not None:
            assert step.error is not None
            assert torch.allclose(step.error.flatten(1), full.error, rtol=1e-11, atol=1e-12 * float(full.error.max()))
        if full.noise is not None:
            assert step.noise is not None
            assert torch.allclose(Coefficients(step.noise, t).dense(), full.noise, rtol=1e-12, atol=0)


@pytest.mark.parametrize("attention", [RowRule.LSE, RowRule.VERTEX, RowRule.BETTER])
def test_parallel_goes_with_the_affine_rule_alone(attention: RowRule) -> None:
    with pytest.raises(InvalidValueError, match="affine"):
        Rules(attention=attention, parallel=True)


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_parallel_goes_with_the_plane_at_the_centre_alone(mix: float) -> None:
    with pytest.raises(InvalidValueError, match="product"):
        Rules(attention=RowRule.AFFINE, product=mix, parallel=True)


# What generators make of it


def drawn(seed: int, *shape: int, P: int = 4, scale: float = 1.0) -> Generators:
    g = generator(seed)
    centre = torch.randn(BATCH, *shape, generator=g, dtype=torch.float64)
    columns = scale * torch.randn(BATCH, *shape, P, generator=g, dtype=torch.float64) / P
    error = 0.1 * scale * torch.rand(BATCH, *shape, generator=g, dtype=torch.float64)
    columns[0], error[1] = 0, 0
    return Generators(centre, columns, error)


def members(rows: tuple[Generators, ...], count: int = 120, seed: int = 0, *, corner: bool = False) -> list[Tensor]:
    """Points (points, BATCH, *shape) of several nodes that share one ξ; with `corner` none is far from all ones."""
    g = generator(seed + 61)

    def cube(*dims: int) -> Tensor:
        t = 2 * torch.rand(count, BATCH, *dims, generator=g, dtype=torch.float64) - 1
        if corner:
            return 0.95 + 0.05 * t
        return torch.where(torch.rand(count, BATCH, *[1] * len(dims), generator=g) < 0.6, t.sign(), t)

    xi = cube(rows[0].columns.shape[-1])
    found = []
    for x in rows:
        rest = x.centre.dim() - 1
        moved = (x.columns @ xi.reshape(count, BATCH, *[1] * (rest - 1), -1, 1)).squeeze(-1)
        found.append(x.centre + moved + x.error * cube(*x.centre.shape[1:]))
    return found


def around(xs: Tensor, rows: Generators, tight: bool) -> Interval:
    """The box of the generators, or the hull of the points, which has another centre."""
    return Interval(xs.amin(0), xs.amax(0)) if tight else rows.box()


def summary_of(op: Op, made: tuple[Generators, ...]) -> object:
    """What the op makes of the generators it asks for."""
    assert isinstance(op, Summarising)
    return op.summarise({i: made[i] for i in op.generator_inputs})


def check_summaries(case: Case, tight: bool, scale_: float, seed: int = 0, *, corner: bool = False) -> None:
    """An op with a summary, under the affine rule, plain and parallel; points share ξ."""
    made = tuple(drawn(70 + i + seed, *dims, scale=scale_) for i, dims in enumerate(case.shapes))
    xs = members(made, seed=seed, corner=corner)
    box = tuple(around(x, rows, tight) for x, rows in zip(xs, made, strict=True))
    values = case.evaluate(*xs)
    A = coefficients(case.out, seed)
    summary = summary_of(case.op, made)
    assert summary is not None
    sums = dataclasses.replace(PARALLEL, sums=True)
    affine = Rules(attention=RowRule.AFFINE)
    for rules in (PARALLEL, sums, affine, dataclasses.replace(affine, sums=True), Rules(sums=True)):
        step = case.op.relax(Context(boxes=box, rules=rules, summary=summary)).backward(A)
        slack = TOLERANCE[torch.float64] * scale(A, step, box, sizes(case, box, values))
        gap = apart(step, xs, A, values)
        over = (gap.abs() - reach(step) if rules.parallel else -gap) - slack
        assert (over <= 0).all(), f"{case.label} with generators, {rules}: off by {float(over.max()):.3g}"


SUMMARISING = [
    Case(MatMul(), ((3, 2), (2, 4)), size=torch.matmul),
    Case(MatMul(), ((2, 3, 2), (2, 2, 3)), size=torch.matmul, name="heads"),
    Case(Attention(), ((3, 4), (4, 2)), size=lambda _s, v: v.amax(-2, keepdim=True)),
    Case(Attention(), ((2, 3, 4), (2, 4, 2)), size=lambda _s, v: v.amax(-2, keepdim=True), name="heads"),
    Case(Normalize(1e-5), ((2, 4),)),
    Case(Normalize(1e-2, 2), ((2, 2, 3),), name="over 2"),
    Case(Normalize(0.0), ((2, 3),), name="no eps"),
]


def test_every_summarising_op_is_tried() -> None:
    tried = {type(case.op).__name__ for case in SUMMARISING}
    assert tried == {name for name, op in OPS.items() if issubclass(op, Summarising)}


@pytest.mark.parametrize("case", SUMMARISING, ids=[case.label for case in SUMMARISING])
@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("size", [1.0, 1e-3, 0.1])
def test_summaries_of_generators(case: Case, tight: bool, size: float) -> None:
    if case.name == "no eps":
        size = min(size, 0.1)
    for seed in range(4):
        check_summaries(case, tight, size, seed)


@pytest.mark.parametrize("case", SUMMARISING, ids=[case.label for case in SUMMARISING])
def test_summaries_of_generators_over_boxes_cut_to_a_corner(case: Case) -> None:
    """Half the width of such a box is far less than its reach from the generators' centre."""
    for seed in range(4):
        check_summaries(case, True, 0.1 if case.name == "no eps" else 0.5, seed, corner=True)


@pytest.mark.parametrize("op", [MatMul(), Attention(), Normalize(1e-5)], ids=lambda op: type(op).__name__)
def test_a_summary_is_only_made_of_all_that_is_wanted(op: Summarising) -> None:
    """A product waits for both factors, an attention for its values alone; what is used up is not kept."""
    start = build.source((2, 2))
    count = 1 if isinstance(op, Normalize) else 2
    inputs = [build.apply(Tanh(), start, name=f"x{i}") for i in range(count)]
    user = build.apply(op, *inputs, name="user")
    index = GraphIndex(Graph(start, user))
    boxes_ = Boxes(batch=BATCH, intervals={})
    wanted = [inputs[i] for i in op.generator_inputs]
    assert wanted
    for node in inputs:
        boxes_ = boxes_.with_generators(index, node, drawn(80, 2, 2))
        ready = set(wanted) <= set(inputs[: inputs.index(node) + 1])
        assert (user in boxes_.summaries) == ready
        assert set(boxes_.generators) == (set() if ready else set(inputs[: inputs.index(node) + 1]) & set(wanted))
    with pytest.raises(KeyError):
        op.summarise({})


def test_generators_are_worth_having() -> None:
    """Against the box alone: less error for the product, the functional and the norm, on average."""
    for case in SUMMARISING[::2]:
        made = tuple(drawn(90 + i, *dims, scale=0.3) for i, dims in enumerate(case.shapes))
        box = tuple(rows.box() for rows in made)
        A = coefficients(case.out, 5)[:, :3]
        with_, without = (
            reach(case.op.relax(Context(boxes=box, rules=PARALLEL, summary=summary)).backward(A))
            for summary in (summary_of(case.op, made), None)
        )
        assert (with_ <= without * (1 + 1e-9) + 1e-12).all() or float(with_.sum()) < float(without.sum()), case.label

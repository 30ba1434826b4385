"""Spanned unknowns: blocks that carry few columns for many intervals say the same as those of the intervals."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.ops.test_unknowns import normal, same, through
from vertex_softmax.ops import spans
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.elementwise import Gelu, Relu
from vertex_softmax.ops.linear import Add, LeftLinear, Linear, Scale, Shift, Sum
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.reaches import Care
from vertex_softmax.ops.shape import Permute, Reshape, Slice
from vertex_softmax.ops.unknowns import LocalUnknowns, SpannedUnknowns, Unknowns, spread_numbers
from vertex_softmax.ops.zonotope import Zonotope

MANY, FEW = 11, 3


def drawn(seed: int = 0, rows: tuple[int, ...] = (4,), *, mixed: bool = False) -> Zonotope:
    """Rows of FEW numbers, each a linear function of MANY intervals; mixed: rows have those of other rows too."""
    generator = torch.Generator().manual_seed(seed)
    radius = 0.1 * normal(generator, 2, *rows, MANY).abs()
    radius[:, ..., 2] = 0
    radius[0, ..., 3] = 0
    weight = normal(generator, MANY, FEW)
    slack = 1e-3 * normal(generator, 2, *rows, FEW).abs()
    unknowns, columns = spans.spanned(radius, weight, slack, "patch")
    zero = torch.zeros(2, *rows, FEW, dtype=torch.float64)
    columns = columns @ normal(generator, FEW, FEW)
    if mixed:
        return through(
            LeftLinear(normal(generator, rows[-1], rows[-1])), (Zonotope(zero, {unknowns: columns}, None, zero),)
        )
    other = {Unknowns("other"): 0.1 * normal(generator, 2, 4, 1, *rows, FEW)}
    return Zonotope(normal(generator, 2, *rows, FEW), {unknowns: columns, **other}, None, zero)


def written(x: Zonotope) -> Zonotope:
    """The same in the intervals' own unknowns."""
    return Zonotope(x.centre, dict(spans.written_out(*block) for block in x.blocks.items()), x.own, x.slack)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_block_reaches_as_far_as_its_intervals_and_no_farther(mixed: bool) -> None:
    """By hand: Σ_p |Σ_k S_pk L_k| for every number; signs of the intervals attain it."""
    x = drawn(mixed=mixed).spread
    ((unknowns, columns),) = [block for block in x.blocks.items() if isinstance(block[0], SpannedUnknowns)]
    assert isinstance(unknowns, SpannedUnknowns)
    span = unknowns.span
    for b, i, j in itertools.product(range(2), range(4), range(FEW)):
        size = sum(
            abs(sum(float(span[b, m, p, k] * columns[b, m, k, i, j]) for k in range(FEW)))
            for m, p in itertools.product(range(span.shape[1]), range(span.shape[2]))
        )
        found = float(spans.reach(unknowns, columns)[b, i, j])
        assert abs(found - size) <= 1e-13 * size
        assert float(spans.rough_reach(unknowns, columns)[b, i, j]) >= size * (1 - 1e-14)


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 17])
def test_pieces_make_no_difference(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn()
    monkeypatch.setattr(spans, "PIECE", piece)
    torch.testing.assert_close(x.radius, written(x).radius, rtol=1e-12, atol=0)
    torch.testing.assert_close(x.spread.radius, written(x).radius, rtol=1e-12, atol=0)


def test_the_rough_reach_is_never_below_nor_far_above() -> None:
    for seed in range(20):
        x = drawn(seed)
        for each in (x, x.spread, x.rearranged(lambda y: y.mT)):
            assert bool((each.rough_radius >= each.radius * (1 - 1e-13)).all())
            assert bool((each.rough_radius <= FEW**0.5 * 1.5 * each.radius).all())


def test_the_rough_reach_is_at_least_what_rounding_is_a_share_of() -> None:
    """Columns that cancel: what the coefficients are rounded by is far more than what is left of them."""
    weight = torch.tensor([[1.0, 1.0 + 1e-9]] * MANY, dtype=torch.float64)
    one = torch.ones(1, 1, MANY, dtype=torch.float64)
    unknowns, columns = spans.spanned(one, weight, torch.zeros(1, 1, 2, dtype=torch.float64), "patch")
    gone = columns @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert float(spans.reach(unknowns, gone)) < 1e-7
    assert float(spans.rough_reach(unknowns, gone)) >= 2 * MANY / spans.PARTS


def test_what_was_rounded_is_part_of_the_unknowns() -> None:
    """rows = ξ·radius @ weight + ν·slack: every number of a row reaches farther by its slack."""
    radius, weight = torch.rand(1, 2, MANY, dtype=torch.float64), torch.rand(MANY, FEW, dtype=torch.float64)
    slack = torch.rand(1, 2, FEW, dtype=torch.float64)
    torch.testing.assert_close(spans.reach(*spans.spanned(radius, weight, slack, "patch")), radius @ weight + slack)
    none = torch.zeros_like(slack)
    torch.testing.assert_close(spans.reach(*spans.spanned(radius, weight, none, "patch")), radius @ weight)


W = torch.linspace(-1, 1, FEW * 5, dtype=torch.float64).reshape(FEW, 5)
SINGLE = {
    "linear": (Linear(W, W[0]), (4,)),
    "left": (LeftLinear(torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4)), (4,)),
    "scale": (Scale(torch.linspace(-1, 2, FEW, dtype=torch.float64)), (4,)),
    "shift": (Shift(torch.linspace(-1, 2, FEW, dtype=torch.float64)), (4,)),
    "sum of rows": (Sum((0,), 2, (4,)), (4,)),
    "sum of numbers": (Sum((1,), 2, (FEW,)), (4,)),
    "permute": (Permute((1, 0)), (4,)),
    "reshape": (Reshape((4, FEW), (2, 2 * FEW)), (4,)),
    "slice": (Slice(0, 1, 3, 1, 2, 4), (4,)),
    "relu": (Relu(), (4,)),
    "gelu": (Gelu(), (4,)),
    "norm": (Normalize(1e-5, 1), (4,)),
}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("name", SINGLE)
def test_every_op_says_the_same(name: str, mixed: bool) -> None:
    op, rows = SINGLE[name]
    x = drawn(rows=rows, mixed=mixed)
    if mixed:
        x = Zonotope(x.centre + torch.linspace(-1, 1, 4 * FEW).reshape(4, FEW), x.blocks, x.own, x.slack)
    found, other = through(op, (x,)), through(op, (written(x),))
    same(found, other)
    torch.testing.assert_close(found.radius, other.radius, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.tight_radius, other.tight_radius, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("mixed", [False, True])
def test_ops_of_two_inputs_say_the_same(mixed: bool) -> None:
    x, y = drawn(0, mixed=mixed), drawn(1)
    plain = (written(x), written(y))
    same(through(Add(), (x, x)), through(Add(), (plain[0], plain[0])))
    same(through(Add(), (x, y)), through(Add(), plain))
    same(through(Multiply(), (x, y)), through(Multiply(), plain))
    turned, flat = (z.rearranged(lambda t: t.mT) for z in (x, plain[0]))
    scores, other = through(MatMul(), (x, turned)), through(MatMul(), (plain[0], flat))
    same(scores, other)
    same(through(Attention(), (scores, x)), through(Attention(), (other, plain[0])))


def test_functionals_and_shapes_of_rows_say_the_same() -> None:
    x = drawn(rows=(2, 4))
    eta = normal(torch.Generator().manual_seed(4), 2, 2, 4, FEW)
    for each in (x, x.spread):
        torch.testing.assert_close(each.reach(eta), written(x).reach(eta))
        torch.testing.assert_close(each.row_shape.matrix, written(x).row_shape.matrix, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(each.row_shape.size, written(x).row_shape.size)


def test_a_block_counts_as_the_intervals_it_stands_for() -> None:
    """Two of MANY never move in one input or the other; that of one input of the batch counts."""
    x = drawn()
    unknowns = next(u for u in x.blocks if isinstance(u, LocalUnknowns))
    assert spread_numbers(unknowns, x.blocks[unknowns]) == 2 * 4 * FEW * 4 * (MANY - 1)
    wide = x.spread
    whole = next(u for u in wide.blocks if isinstance(u, SpannedUnknowns))
    assert spread_numbers(whole, wide.blocks[whole]) == 2 * 4 * FEW * 4 * (MANY - 1)


def test_blocks_that_were_changed_are_written_out_anew() -> None:
    x = drawn().spread
    whole = next(u for u in x.blocks if isinstance(u, SpannedUnknowns))
    before, first = x.radius, x.written_out(whole)[1]
    assert x.written_out(whole)[1] is first
    assert x.rearranged(lambda t: t.mT).written_out(whole)[1].data_ptr() == first.data_ptr()
    for columns in x.blocks.values():
        columns.mul_(2)
    torch.testing.assert_close(x.written_out(whole)[1], 2 * first)
    fresh = Zonotope(x.centre, x.blocks, x.own, x.slack, x.reaches)
    torch.testing.assert_close(fresh.radius, 2 * before)
    torch.testing.assert_close(fresh.reach_of_block(whole, Care.TIGHT), fresh.reach_of_block(whole, Care.PLAIN))
    moved: Tensor = x.rearranged(lambda t: t.mT).written_out(whole)[1]
    torch.testing.assert_close(moved, 2 * first.mT)

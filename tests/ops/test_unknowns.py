"""Local unknowns: blocks that do not store zeros say the same as blocks that do, whatever op they go through."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.boxes import by_intervals
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul, Multiply
from vertex_softmax.ops.contract import Propagating
from vertex_softmax.ops.elementwise import Gelu, Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.linear import Add, Convolution, LeftLinear, Linear, Subtract, Sum
from vertex_softmax.ops.normalization import Normalize
from vertex_softmax.ops.shape import Concat, Permute, Reshape, Slice
from vertex_softmax.ops.unknowns import LocalUnknowns, Unknowns, in_numbers, in_rows
from vertex_softmax.ops.zonotope import Zonotope, aligned

KINDS = ("rows", "numbers", "scattered")


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def local(kind: str, shape: tuple[int, ...], generator: torch.Generator, k: int = 2) -> tuple[LocalUnknowns, Tensor]:
    """Unknowns of rows, of single numbers, or several of every number at random, some of them zeros."""
    size = 0.1
    if kind == "numbers":
        radius = size * normal(generator, 2, *shape).abs()
        radius[:, ..., 0] = 0
        return in_numbers("numbers", radius)
    columns = size * normal(generator, 2, 3, k, *shape)
    if kind in ("rows", "alone"):
        columns[:, 1, :, ..., :1, :] = 0
        columns[0, 2, :, ..., :1, :] = 0
        return in_rows(kind, columns, alone=kind == "alone")
    ids = torch.randint(5, (3, *shape), generator=generator)
    return LocalUnknowns("scattered", Unknowns("scattered"), ids, 5), columns


def drawn(kinds: tuple[str, ...], shape: tuple[int, ...], seed: int = 0) -> Zonotope:
    generator = torch.Generator().manual_seed(seed)
    blocks: dict[Unknowns, Tensor] = {Unknowns("everywhere"): 0.1 * normal(generator, 2, 4, 1, *shape)}
    for kind in kinds:
        unknowns, columns = local(kind, shape, generator)
        blocks[unknowns] = columns
    own = 0.01 * normal(generator, 2, *shape).abs()
    return Zonotope(normal(generator, 2, *shape), blocks, own, torch.zeros_like(own))


def same(a: Zonotope, b: Zonotope, *, exact: bool = True) -> None:
    """Both reach as far in every direction tried; or, if not exact, a at least as far as b."""
    torch.testing.assert_close(a.centre, b.centre)
    a, b = a.spread, b.spread
    eta = normal(torch.Generator().manual_seed(1), 30, *a.centre.shape[1:]).expand(2, -1, *a.centre.shape[1:])
    first, second = (zonotopes.lowest(x, eta) for x in (a, b))
    if exact:
        torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)
    else:
        assert bool((first <= second + 1e-12).all())


def through(op: object, inputs: tuple[Zonotope, ...]) -> Zonotope:
    """Through one op as bounds/zonotopes.py does it."""
    sources = [build.source(tuple(x.centre.shape[1:])) for x in inputs]
    node = Node("op", op, tuple(sources), tuple(op.evaluate(*(x.centre for x in inputs)).shape[1:]))  # type: ignore
    boxes = {source: x.spread.box for source, x in zip(sources, inputs, strict=True)}
    boxes[node] = by_intervals(node, boxes)
    return zonotopes.propagated(node, dict(zip(sources, inputs, strict=True)), boxes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_says_the_same_spread(kind: str) -> None:
    """Every number is what its slots say: each adds its columns to the balls that its ids name."""
    generator = torch.Generator().manual_seed(3)
    unknowns, columns = local(kind, (4, 3), generator)
    spread = unknowns.spread(columns)
    assert spread.shape == (2, unknowns.count, columns.shape[2], 4, 3)
    xi = normal(generator, unknowns.count, columns.shape[2])
    value = torch.zeros(2, 4, 3, dtype=torch.float64)
    ids = unknowns.ids.expand(-1, 4, 3)
    for b, slot, i, j in itertools.product(range(2), range(columns.shape[1]), range(4), range(3)):
        value[b, i, j] += columns[b, slot, :, i, j] @ xi[int(ids[slot, i, j])]
    torch.testing.assert_close(torch.einsum("bmkij,mk->bij", spread, xi), value)
    torch.testing.assert_close(
        unknowns.picked(spread)[:, 0], spread.gather(1, ids[None, :1, None].expand_as(columns[:, :1]))[:, 0]
    )


@pytest.mark.parametrize("kind", KINDS)
def test_by_rows_and_moved_say_the_same(kind: str) -> None:
    x = drawn((kind,), (2, 4, 6))
    for made in (x, x.rearranged(lambda y: y.mT), x.rearranged(lambda y: y.reshape(*y.shape[:-3], 4, 12))):
        same(made.by_rows, made)
        assert all(u.in_rows for u in made.by_rows.blocks if isinstance(u, LocalUnknowns))
        whole = made.by_rows
        if kind != "scattered":  # there a ball may stand in two slots of a number
            torch.testing.assert_close(whole.radius, made.spread.radius)
    assert bool((x.radius >= x.spread.radius * (1 - 1e-12)).all())


def test_heads_beside_each_other_keep_their_balls() -> None:
    """Balls of the rows of each head: beside each other in one row they are still balls, and not single numbers."""
    generator = torch.Generator().manual_seed(5)
    unknowns, columns = in_rows("heads", normal(generator, 1, 1, 4, 3, 5, 4))
    zero = torch.zeros(1, 3, 5, 4, dtype=torch.float64)
    x = Zonotope(zero, {unknowns: columns}, None, zero)
    rows = x.rearranged(lambda y: y.movedim(-3, -2).flatten(-2))  # (5, 12)
    (found,) = rows.by_rows.blocks.values()
    assert found.shape == (1, 3, 4, 5, 12)
    same(
        Zonotope(
            *(torch.cat([z, z]) for z in (rows.centre,)),
            {u: torch.cat([c, c]) for u, c in rows.by_rows.blocks.items()},
            None,
            torch.cat([rows.slack] * 2),
        ),
        Zonotope(
            torch.cat([rows.centre] * 2),
            {u: torch.cat([c, c]) for u, c in rows.spread.blocks.items()},
            None,
            torch.cat([rows.slack] * 2),
        ),
    )
    eta = normal(generator, 1, 5, 12)
    torch.testing.assert_close(rows.reach(eta), rows.spread.reach(eta))
    torch.testing.assert_close(
        rows.row_shape.matrix, Zonotope(rows.centre, rows.spread.blocks, None, rows.slack).row_shape.matrix
    )


def test_every_row_and_number_that_moves_has_unknowns_of_its_own() -> None:
    """Also where one input of the batch does not move."""
    columns = normal(torch.Generator().manual_seed(0), 2, 3, 2, 4, 5)
    columns[:, 1, :, 2] = 0
    columns[0, 2, :, 1:] = 0
    unknowns, _ = in_rows("rows", columns)
    live = (columns != 0).any(2).any(-1).any(0)  # (slots, rows)
    assert sorted(unknowns.ids.squeeze(-1)[live].tolist()) == list(range(3 * 4 - 1)) == list(range(unknowns.count))
    radius = torch.tensor([[[0.0, 1.0, 2.0], [0.0, 0.0, 3.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]).double()
    numbers, _ = in_numbers("numbers", radius)
    assert numbers.count == 4
    assert sorted(numbers.ids[0][(radius != 0).any(0)].tolist()) == [0, 1, 2, 3]


def test_moved_reaches_are_those_of_the_columns_as_they_are() -> None:
    x = drawn(("rows",), (4, 3))
    assert x.radius.isfinite().all()
    for columns in x.blocks.values():
        columns.mul_(2)
    moved = Zonotope(x.centre, x.blocks, x.own, x.slack, x.reaches).rearranged(lambda y: y.flip(-2))
    fresh = Zonotope(x.centre, x.blocks, x.own, x.slack).rearranged(lambda y: y.flip(-2))
    torch.testing.assert_close(moved.radius, fresh.radius)


def test_rounded_down_reaches_are_not_taken_over_from_others() -> None:
    """The reach of a spread block is known from the local one, and gone when its columns are changed."""
    x = drawn(("rows",), (4, 3))
    before = x.radius.clone()
    torch.testing.assert_close(x.spread.radius, before)
    wide = x.spread
    for columns in wide.blocks.values():
        columns.mul_(2)
    fresh = Zonotope(wide.centre, wide.blocks, wide.own, wide.slack)
    changed = Zonotope(wide.centre, wide.blocks, wide.own, wide.slack, wide.reaches)
    torch.testing.assert_close(changed.radius, fresh.radius)


def test_aligned_adds_what_belongs_together() -> None:
    """x − x is 0 for local unknowns, in one form or in two."""
    x = drawn(KINDS, (4, 3))
    for other in (x, x.spread, x.by_rows):
        a, b = aligned(x, other)
        assert list(a.blocks) == list(b.blocks)
        found = through(Subtract(), (x, other))
        assert all(float(columns.abs().max()) == 0 for columns in found.blocks.values())
        same(through(Add(), (x, other)), through(Add(), (x.spread, x.spread)))
    flipped = x.rearranged(lambda y: y.flip(-2))  # the same unknowns in other rows
    same(through(Subtract(), (x, flipped)), through(Subtract(), (x.spread, flipped.spread)))


def shared(x: Zonotope) -> Zonotope:
    """The same with unknowns that do not stand alone."""
    blocks = {
        dataclasses.replace(u, in_one_row=False) if isinstance(u, LocalUnknowns) else u: columns
        for u, columns in x.blocks.items()
    }
    return Zonotope(x.centre, blocks, x.own, x.slack)


W = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(3, 5)
V = torch.linspace(-1, 1, 60, dtype=torch.float64).reshape(5, 2, 2, 3)
OPS: dict[str, tuple[object, tuple[tuple[int, ...], ...]]] = {
    "linear": (Linear(W, torch.ones(5, dtype=torch.float64)), ((4, 3),)),
    "left linear": (LeftLinear(W[:, :4]), ((4, 3),)),
    "sum of rows": (Sum((0,), 2, (4,)), ((4, 3),)),
    "sum of numbers": (Sum((1,), 2, (3,)), ((4, 3),)),
    "add": (Add(), ((4, 3), (4, 3))),
    "patches": (
        Convolution(V, None, (4, 6), (2, 3), (0, 0), (1, 1)),
        ((1, 2, 4, 6),),
    ),
    "windows": (Convolution(V, None, (4, 6), (1, 1), (0, 0), (1, 1)), ((1, 2, 4, 6),)),
    "concat": (Concat(0, (4, 2), 2), ((4, 3), (2, 3))),
    "concat numbers": (Concat(1, (3, 2), 2), ((4, 3), (4, 2))),
    "reshape": (Reshape((4, 3), (2, 6)), ((4, 3),)),
    "permute": (Permute((1, 0)), ((4, 3),)),
    "slice": (Slice(0, 1, 3, 1, 2, 4), ((4, 3),)),
    "gelu": (Gelu(), ((4, 3),)),
    "relu": (Relu(), ((4, 3),)),
    "normalize": (Normalize(1e-5), ((4, 3),)),
    "multiply": (Multiply(), ((4, 3), (4, 3))),
    "matmul": (MatMul(), ((2, 4, 3), (2, 3, 5))),
    "attention": (Attention(), ((2, 4, 5), (2, 5, 3))),
}


@pytest.mark.parametrize("kinds", [("rows",), ("numbers",), ("rows", "numbers")], ids="+".join)
@pytest.mark.parametrize("name", OPS)
def test_ops_say_the_same_of_local_unknowns(name: str, kinds: tuple[str, ...]) -> None:
    op, shapes = OPS[name]
    inputs = tuple(drawn(kinds, shape, seed) for seed, shape in enumerate(shapes))
    same(through(op, inputs), through(op, tuple(x.spread for x in inputs)))
    if isinstance(op, Propagating):
        boxes = tuple(x.spread.box for x in inputs)
        for i, x in enumerate(inputs):
            a, b = op.learnt_rows(i, inputs, boxes[i]), op.learnt_rows(i, tuple(y.spread for y in inputs), boxes[i])
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a.box.lower, b.box.lower)
            assert isinstance(x.box, Interval)


@pytest.mark.parametrize("kind", ["scattered", "alone"])
@pytest.mark.parametrize("name", OPS)
def test_ops_are_sound(name: str, kind: str) -> None:
    """Where a ball stands in several slots of a number, or in one row alone, the zonotope is larger, never smaller."""
    op, shapes = OPS[name]
    generator = torch.Generator().manual_seed(9)
    inputs = tuple(drawn((kind,), shape, seed) for seed, shape in enumerate(shapes))
    if kind == "alone":
        same(through(op, inputs), through(op, tuple(shared(x).spread for x in inputs)), exact=False)
    box = through(op, inputs).box
    for _ in range(50):
        xs = []
        for x in inputs:
            value = x.centre
            for columns in x.spread.blocks.values():
                xi = normal(generator, *columns.shape[1:3])
                xi = xi / torch.linalg.vector_norm(xi, dim=-1, keepdim=True)
                value = value + torch.einsum("bmk...,mk->b...", columns, xi)
            xs.append(value + x.loose * normal(generator, *value.shape).sign())
        y = op.evaluate(*xs)  # type: ignore[attr-defined]
        assert bool(((y >= box.lower - 1e-12) & (y <= box.upper + 1e-12)).all())

"""Zonotopes of all nodes: reductions only make them larger, and every value of a network is inside."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.zonotopes import boxes_by_zonotopes, merged, reduced
from vertex_softmax.ops import zonotope
from vertex_softmax.ops.unknowns import LocalUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Segments, Zonotope, error_blocks, times_left, times_right, times_rows
from vertex_softmax.sets.region import BoxRegion

CONFIGS = {
    "pre": Config(depth=2, heads=2, norm="pre", activation="gelu", seed=4),
    "post": Config(depth=2, norm="post", mask="causal", seed=5),
    "gated": Config(gated=True, norm="pre", activation="silu", seed=6),
    "none": Config(depth=2, seed=7),
}


def drawn(seed: int, shape: tuple[int, ...], batch: int = 2) -> Zonotope:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    blocks = {Unknowns(f"block {i}"): normal(batch, m, k, *shape) for i, (m, k) in enumerate([(3, 1), (2, 4), (5, 2)])}
    return Zonotope(normal(batch, *shape), blocks, None, normal(batch, *shape).abs() / 10)


def reach(zonotope: Zonotope, eta: Tensor) -> Tensor:
    """η·y at most, for functionals of all numbers together: (batch, directions)."""
    found = torch.einsum("b...,e...->be", zonotope.centre, eta)
    found = found + torch.einsum("b...,e...->be", zonotope.loose, eta.abs())
    for columns in zonotope.spread.blocks.values():
        found = found + torch.linalg.vector_norm(torch.einsum("bmk...,e...->bemk", columns, eta), dim=-1).sum(-1)
    return found


@pytest.mark.parametrize("most", [0, 100, 400, 10**6])
@pytest.mark.parametrize("reduction", [merged, reduced], ids=["merged", "reduced"])
@pytest.mark.parametrize("seed", range(5))
def test_a_reduction_is_no_smaller_in_any_direction(reduction: object, most: int, seed: int) -> None:
    before = drawn(seed, (3, 4))
    after = merged(before, most, "merged") if reduction is merged else reduced(before, most)
    generator = torch.Generator().manual_seed(seed)
    eta = torch.randn(300, 3, 4, generator=generator, dtype=torch.float64)
    eta[:100] = eta[:100].sign()
    eta[100:112] = torch.eye(12, dtype=torch.float64).reshape(12, 3, 4)
    assert bool((reach(after, eta) >= reach(before, eta) * (1 - 1e-12)).all())
    if most == 10**6:
        assert after is before
    elif reduction is merged:
        assert len(after.blocks) < len(before.blocks)
        assert next(iter(after.blocks)) is next(iter(before.blocks))  # the input's stays as it is
    else:
        assert sum(math.prod(x.shape) for x in after.spread.blocks.values()) <= most


@pytest.mark.parametrize("apart", [True, False])
def test_segments_reach_as_far_as_they_are_long(apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functionals of all rows: exactly Σ |η·segment| where segments stay apart, else no less."""
    if not apart:
        monkeypatch.setattr(zonotope, "MOST_SEGMENT_NUMBERS", 0)
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(2, 3, 8, 4, generator=generator, dtype=torch.float64)
    columns[:, 1] = 0
    columns[1, 2, :5] = 0
    ((unknowns, local),) = error_blocks([Segments(columns)], "here").items()
    block = unknowns.spread(local) if isinstance(unknowns, LocalUnknowns) else local
    eta = torch.randn(200, 3, 4, generator=generator, dtype=torch.float64)
    zero = torch.zeros(2, 3, 4, dtype=torch.float64)
    found = reach(Zonotope(zero, {Unknowns("here"): block}, None, zero), eta)
    exact = torch.einsum("brid,erd->beri", columns, eta).abs().sum((-2, -1))
    assert bool((found >= exact * (1 - 1e-12)).all())
    if apart:
        assert torch.allclose(found, exact, rtol=1e-12)
        assert block.shape[1:3] == (8 + 8, 1)  # none for the row without errors


@pytest.mark.parametrize("middle", [(), (2,), (2, 3)])
def test_products_of_all_unknowns_at_once(middle: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    columns, right, left = normal(2, 5, 3, *middle, 4, 6), normal(2, *middle, 6, 7), normal(2, *middle, 8, 4)
    each = normal(2, *middle, 4, 6, 7)
    assert torch.allclose(times_right(columns, right), columns @ right[:, None, None], atol=1e-12)
    assert torch.allclose(times_left(left, columns), left[:, None, None] @ columns, atol=1e-12)
    rows = (columns.unsqueeze(-2) @ each[:, None, None]).squeeze(-2)
    assert torch.allclose(times_rows(columns, each), rows, atol=1e-12)


@pytest.mark.parametrize("numbers", [None, 200, 0], ids=["all", "some numbers", "rows alone"])
@pytest.mark.parametrize("radius", [1e-3, 0.05, 0.5, 20.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_value_is_in_its_box(name: str, radius: float, numbers: int | None) -> None:
    """Also where blocks become ellipsoids of rows that stand alone."""
    config = CONFIGS[name]
    graph, (lower, upper) = transformer(config), input_box(config, 2, radius)
    question = Question.over(graph, BoxRegion(lower, upper))
    boxes = boxes_by_zonotopes(question if numbers is None else question.to_first_order(numbers))
    generator = torch.Generator().manual_seed(0)
    for i in range(40):
        share = torch.rand(lower.shape, generator=generator, dtype=torch.float64)
        x = lower + (upper - lower) * (share.round() if i % 2 else share)
        for node, value in graph.values(x).items():
            box, slack = boxes[node], 1e-12 * (1 + value.abs())
            assert bool(((value >= box.lower - slack) & (value <= box.upper + slack)).all()), node

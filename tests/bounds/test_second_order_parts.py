"""Zonotopes with products of inputs: their objectives' bounds, their reductions, and where products are kept at all."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.bounds.networks import Config, input_box, transformer
from tests.ops.propagation.second_order_checks import Case, case, errors_alone, known_part, products_at
from vertex_softmax.bounds import zonotopes
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.unknowns import InputUnknowns, Unknowns
from vertex_softmax.ops.zonotope import Zonotope
from vertex_softmax.sets.region import BoxRegion


def values_of(drawn: Case) -> Tensor:
    """The zonotope at many points, (points, *shape)."""
    return torch.cat([drawn.values(drawn.drawn(corner))[1][0] for corner in (True, False) for _ in range(40)])


@pytest.mark.parametrize("only", ["all", "products"])
@pytest.mark.parametrize("seed", range(4))
def test_objectives_are_never_below_their_bound(seed: int, only: str) -> None:
    """Of a few unknowns alone corners come close to the bound, so that half of it would not do."""
    drawn = case([(3, 4)], 1.0, seed, rest=2.0)
    (x,) = drawn.zonotopes
    if only == "products":
        x = Zonotope(x.centre, {drawn.inputs.pairs: x.blocks[drawn.inputs.pairs]}, None, torch.zeros_like(x.slack))
        drawn = dataclasses.replace(drawn, zonotopes=(x,))
    A = torch.randn(1, 6, 3, 4, generator=drawn.generator, dtype=torch.float64)
    bound = zonotopes.lowest(x, A)
    at = torch.einsum("p...,s...->ps", values_of(drawn), A[0]).amin(0)
    middle = torch.einsum("...,s...->s", x.centre[0], A[0])
    assert bool((bound[0] <= at).all())
    assert bool((middle - bound[0] <= (8.0 if only == "all" else 2.0) * (middle - at)).all())


def test_the_radii_of_a_zonotope_hold_its_values_and_stay_known() -> None:
    drawn = case([(3, 4)], 1.0, 3, rest=2.0)
    (x,) = drawn.zonotopes
    away = (values_of(drawn) - x.centre).abs().amax(0)
    for radius in (x.radius, x.tight_radius, x.rough_radius, x.linear.radius + x.rest.radius):
        assert bool((away <= radius[0]).all())
    assert bool((x.tight_radius <= x.radius).all())
    torch.testing.assert_close(x.rest.loose, x.loose, rtol=0, atol=0)
    torch.testing.assert_close(x.linear.radius + x.rest.radius, x.radius)
    moved = x.rearranged(lambda t: t.mT)
    torch.testing.assert_close(moved.radius, x.radius.mT, rtol=0, atol=0)
    torch.testing.assert_close(moved.tight_radius, x.tight_radius.mT, rtol=0, atol=0)
    torch.testing.assert_close(moved.rough_radius, x.rough_radius.mT, rtol=0, atol=0)
    fresh = case([(3, 4)], 1.0, 3, rest=2.0).zonotopes[0].rearranged(lambda t: t.mT)  # nothing was known of it
    torch.testing.assert_close(fresh.radius, x.radius.mT)


def test_a_row_shape_holds_all_parts() -> None:
    for seed in range(3):
        drawn = case([(3, 4)], 1.0, seed, rest=2.0)
        (x,) = drawn.zonotopes
        shape = x.row_shape
        away = values_of(drawn) - x.centre
        # the largest |η·y'|² / ηᵀ C η over all η
        worst = (away * torch.linalg.solve(shape.matrix, away.unsqueeze(-1)).squeeze(-1)).sum(-1)
        assert bool((worst <= shape.size).all())


@pytest.mark.parametrize("most", [0, 60, 90, 10**6])
@pytest.mark.parametrize("reduction", ["merged", "reduced"])
@pytest.mark.parametrize("seed", range(3))
def test_a_reduction_keeps_products_and_holds_every_value(reduction: str, most: int, seed: int) -> None:
    drawn = case([(3, 4)], 0.7, seed, rest=2.0)
    (x,) = drawn.zonotopes
    x = dataclasses.replace(x, blocks={**x.blocks, Unknowns("more"): 0.1 * x.blocks[drawn.inputs.squares]})
    drawn = dataclasses.replace(drawn, zonotopes=(x,))
    inputs = drawn.inputs
    found = zonotopes.merged(x, most, "merged") if reduction == "merged" else zonotopes.reduced(x, most)
    assert inputs.pairs in found.blocks
    assert inputs.squares in found.blocks
    if reduction == "merged":
        assert found.inputs is inputs
    eta = torch.randn(3, 4, generator=drawn.generator, dtype=torch.float64)
    for corner in (True, False):
        values, (points,) = drawn.values(drawn.drawn(corner))
        kept = {u: v for u, v in values.items() if u in found.blocks}
        left, errors = points - known_part(found, kept), errors_alone(found, list(kept))
        assert bool((left.abs() <= errors.radius * (1 + 1e-12)).all())
        assert bool(((left * eta).sum(-1).abs() <= errors.reach(eta[None]) * (1 + 1e-12)).all())


def test_products_are_kept_where_they_are_few() -> None:
    config = Config(norm="pre")
    graph, (lower, upper) = transformer(config), input_box(config, 2, 0.1)
    question = Question.over(graph, BoxRegion(lower, upper))
    start = zonotopes.input_zonotope(question.given, "input")
    found = zonotopes._with_products(start, question)
    assert found.inputs is not None
    assert found.inputs.count == 6
    x = known_part(found, products_at(found.inputs, torch.ones(2, 6, dtype=torch.float64)))
    torch.testing.assert_close(x, upper)


def test_one_unknown_has_no_products() -> None:
    start = build.source((2, 2))
    graph = Graph(start, build.multiply(start, start, "square"))
    lower = torch.tensor([[[0.0, 1.0], [2.0, 3.0]]], dtype=torch.float64)
    upper = lower.clone()
    upper[0, 0, 0] = 0.5
    question = Question.over(graph, BoxRegion(lower, upper))
    found = zonotopes._with_products(zonotopes.input_zonotope(question.given, "input"), question)
    assert not any(isinstance(unknowns, InputUnknowns) for unknowns in found.blocks)
    boxes = zonotopes.boxes_by_zonotopes(question)
    assert float(boxes.intervals[graph.output].upper[0, 0, 0]) >= 0.25


def test_a_moved_node_is_read_by_the_curves_behind_it() -> None:
    start = build.source((2, 3))
    sums = build.affine(start, torch.ones(3, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), "sums")
    turned = build.transpose(sums, 0, 1, "turned")
    product = build.multiply(turned, turned, "product")
    last = build.affine(product, torch.ones(2, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), "last")
    graph = Graph(start, last)
    question = Question.over(graph, BoxRegion(*(torch.full((1, 2, 3), x, dtype=torch.float64) for x in (-1.0, 1.0))))
    read = zonotopes._read_by_curves(question.index)
    assert {sums, turned} == read & {sums, turned, product, last}

"""Masks: −∞ is weight 0; a finite number is one only where the scores' boxes prove it, here and in the checker."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest
import torch
from torch import Tensor, nn

import vertex_softmax as vx
from vertex_softmax.foundation.errors import UnsupportedModelError
from vertex_softmax.graph import build
from vertex_softmax.graph.from_torch.importer import from_torch
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.graph.masks import check_masks, move_masks, split_mask
from vertex_softmax.graph.simplify import simplify
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import linear
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.softmax import NEGLIGIBLE, MaskedSoftmax, Softmax

pytestmark = pytest.mark.usefixtures("exported_once")
LEAST = torch.finfo(torch.float32).min


def const(x: float | list[float]) -> Node:
    return build.constant(torch.tensor(x, dtype=torch.float64))


class Masked(nn.Module):
    """Two logits: softmax of (x · size + mask) · scales, with values that make the masked key decide."""

    def __init__(self, mask: list[float], scales: tuple[float, ...] = (), size: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor(mask, dtype=torch.float64))
        self.scales, self.size = scales, size

    def forward(self, x: Tensor) -> Tensor:
        scores = x * self.size + self.mask
        for scale in self.scales:
            scores = scores * scale
        p = scores.softmax(-1)
        return torch.stack([1 - 4 * p[..., -1], torch.zeros_like(p[..., -1])], -1)


@functools.cache
def masked(*mask: float, scales: tuple[float, ...] = (), size: float = 1.0) -> nn.Module:
    """One for all methods."""
    return Masked([*mask], scales, size).eval()


def listed(t: Tensor | None) -> list[float] | None:
    return None if t is None else t.reshape(-1).tolist()


def softmax_of(graph: Graph) -> MaskedSoftmax:
    return next(node.op for node in graph.nodes() if isinstance(node.op, MaskedSoftmax))


def test_a_mask_taken_apart() -> None:
    added, mask, penalty = split_mask(torch.tensor([0.5, -1e4, -math.inf, LEAST]))
    assert added.tolist() == [0.5, -1e4, 0, 0]
    assert listed(mask) == [False, False, True, True]
    assert listed(penalty) == [0, 0, 0, LEAST]
    plain = split_mask(torch.tensor([True, False]))
    assert listed(plain.mask) == [False, True]
    assert plain.penalty is None
    assert split_mask(torch.tensor([-1e4, 0.0])).mask is None


@pytest.mark.parametrize("method", METHODS)
def test_six_scales_make_an_ordinary_number_of_a_mask(method: str) -> None:
    """−3e34 · (2e-6)^6 = −1.9: read as −∞ it was `verified`, but the key's weight is .13 and up, and 1 − 4 p < .5."""
    model = masked(0.0, -3e34, scales=(2e-6,) * 6)
    x = torch.zeros(1, 2, dtype=torch.float64)
    with pytest.raises(UnsupportedModelError, match="beyond 1e\\+30"):
        vx.certify(model, vx.LinfBall(x, 1e-3), 0, method)


@pytest.mark.parametrize("certificate", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_score_that_beats_a_finite_mask(method: str, certificate: bool) -> None:
    """1e32 − 1e30 is the largest score: the masked key has weight 1.

    There are no bounds then, not even of the centre alone: it is not certain that rounding does not explain the class.
    """
    model = masked(0.0, -1e30, size=1e20)
    x = torch.tensor([[0.0, 1e12]], dtype=torch.float64)
    assert float(model(x)[0, 0]) == -3
    found = vx.certify(model, vx.LinfBall(x, 1e-3), 0, method, certificate=certificate)
    assert found.verdicts[0] is Verdict.UNKNOWN
    assert "the bounds are NaN" in found.reasons[0]
    corner = vx.Box(torch.tensor([[0.0, -2e12]], dtype=torch.float64), x)  # false at one corner only
    wide = vx.certify(model, corner, 0, method, certificate=certificate)
    assert wide.verdicts[0] is Verdict.UNKNOWN


@pytest.mark.parametrize("certificate", [False, True])
@pytest.mark.parametrize("least", [LEAST, -1e30, -math.inf])
@pytest.mark.parametrize("method", METHODS)
def test_an_ordinary_finite_mask_is_a_mask(method: str, least: float, certificate: bool) -> None:
    model = masked(0.0, 0.0, least)
    x = torch.tensor([[0.3, -0.2, 5.0]], dtype=torch.float64)
    found = vx.certify(model, vx.LinfBall(x, 0.1), 0, method, certificate=certificate)
    assert found.verdicts[0] is Verdict.VERIFIED
    assert float(found.lower.min()) == pytest.approx(1.0)


def test_a_mask_is_scaled_by_what_comes_behind_it() -> None:
    graph = simplify(from_torch(Masked([0.0, LEAST], (0.125, 3.0)).eval(), torch.zeros(1, 2, dtype=torch.float64)))
    op = softmax_of(graph)
    assert listed(op.penalty) == [0, LEAST * 0.125 * 3]
    assert listed(op.mask) == [False, True]


@pytest.mark.parametrize("factor", [-1.0, 0.0])
@pytest.mark.parametrize("least", [LEAST, -math.inf])
def test_a_mask_that_is_turned_round_is_refused(factor: float, least: float) -> None:
    x = build.source((1, 2))
    scores = build.multiply(build.add(x, const([0.0, least]), "mask"), const([1.0, factor]), "turned")
    graph = move_masks(Graph(x, build.apply(Softmax(), scores, name="softmax")))
    with pytest.raises(UnsupportedModelError):
        check_masks(graph)


def filled(fill: float) -> Graph:
    """softmax of scores in which the last is replaced, as masked_fill does it."""
    x = build.source((1, 3))
    kept = build.multiply(x, const([1.0, 1.0, 0.0]), "keep")
    scores = build.add(kept, const([0.0, 0.0, fill]), "fill")
    return Graph(x, build.apply(Softmax(), scores, name="softmax"))


def test_a_fill_stands_in_place_of_the_score() -> None:
    """A penalty that were added to the score would count −1e31 − 1e30 as masked where −1e30 beats all others."""
    graph = simplify(move_masks(filled(-1e30)))
    op = softmax_of(graph)
    assert listed(op.replaced) == [False, False, True]
    x = torch.tensor([[-1e32, -1e32, -1e31]], dtype=torch.float64)
    assert graph.evaluate(x).tolist() == [[0, 0, 1]] == filled(-1e30).evaluate(x).tolist()
    assert bool(op.score_box(Interval(x[None], x[None])).lower.isnan().all())
    near = torch.tensor([[0.5, 0.25, 1e35]], dtype=torch.float64)
    assert bool((op.score_box(Interval(near[None], near[None])).upper[..., :2] == near[..., :2]).all())


def test_an_offset_of_masked_scores_is_a_part_of_the_penalty() -> None:
    x = build.source((1, 3))
    scores = build.add(build.add(x, const([0.0, 0.0, 5e30]), "offset"), const([0.0, 0.0, -1e32]), "mask")
    graph = simplify(move_masks(Graph(x, build.apply(Softmax(), scores, name="softmax"))))
    assert listed(softmax_of(graph).penalty) == [0, 0, -1e32 + 5e30]
    assert not any(isinstance(node.op, linear.Shift) for node in graph.nodes())
    back = build.add(build.add(x, const([0.0, 0.0, 1e32]), "offset"), const([0.0, 0.0, -1e32]), "mask")
    kept = simplify(move_masks(Graph(x, build.apply(Softmax(), back, name="softmax"))))
    assert any(isinstance(node.op, linear.Shift) for node in kept.nodes())  # the two cancel: it is no mask


def test_a_second_mask_does_not_reach_what_was_replaced() -> None:
    last = torch.tensor([False, True])
    op = Softmax(last, torch.tensor([0.0, -1e30], dtype=torch.float64), last)
    more = op.also_masked(torch.tensor([False, True]), None)
    assert listed(more.penalty) == listed(op.penalty)
    plain = dataclasses.replace(op, replaced=None).also_masked(torch.tensor([False, True]), None)
    assert plain.penalty is None
    twice = dataclasses.replace(op, replaced=None).also_masked(op.mask, op.penalty)  # type: ignore[arg-type]
    assert op.penalty is not None
    assert listed(twice.penalty) == (2 * op.penalty).tolist()


@pytest.mark.parametrize("gap", [NEGLIGIBLE * 1.01, NEGLIGIBLE * 0.99])
@pytest.mark.parametrize("kind", [Softmax, Attention])
def test_how_far_below_is_enough(kind: type[MaskedSoftmax], gap: float) -> None:
    """Rows are looked at one by one, by the highest end of what is masked and the best lowest end of the others."""
    op = kind(torch.tensor([False, False, True]), torch.tensor([0.0, 0.0, -1e6]).double())
    lower = torch.tensor([[[-5.0, 1.0, 0.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    upper = torch.tensor([[[9.0, 2.0, 1e6 + 1.0 - gap], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    found = op.score_box(Interval(lower, upper))
    assert bool(found.lower[0, 0].isnan().all()) == (gap < NEGLIGIBLE)
    assert found.lower[0, 1].tolist() == [0, 0, -math.inf]


def test_a_masked_key_is_not_what_others_are_compared_with() -> None:
    op = Softmax(torch.tensor([False, False, True]), torch.tensor([0.0, 0.0, -1e6]).double())
    x = torch.tensor([[[0.0, 0.0, 1e7]]], dtype=torch.float64)  # with its penalty 9e6, which is not below its own 1e7
    assert bool(op.score_box(Interval(x, x)).lower.isnan().all())


def test_in_single_precision_too() -> None:
    model = Masked([0.0, 0.0, LEAST]).eval()
    x = torch.tensor([[0.3, -0.2, 5.0]], dtype=torch.float64)
    found = vx.certify(model, vx.LinfBall(x, 0.1), 0, "crown", dtype=torch.float32)
    assert found.verdicts[0] is Verdict.VERIFIED


def test_a_row_without_keys_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="every key of row"):
        from_torch(Masked([LEAST, LEAST]).eval(), torch.zeros(1, 2, dtype=torch.float64))

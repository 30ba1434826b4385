"""The parts of a bound's slack add up exactly, none is negative, and the point is in the set."""

from __future__ import annotations

import pytest
import torch

from tests.bounds.checks import QUICK, asked, objectives, tightened
from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds.ascent import ascend
from vertex_softmax.bounds.choice import DEFAULT
from vertex_softmax.bounds.linear import LinearBound
from vertex_softmax.bounds.slack import attained, row_slack, slack
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion

CONFIGS = {
    "relu": Config(depth=1, activation="relu", norm="none"),
    "pre norm": Config(depth=2, activation="gelu", norm="pre"),
    "gated": Config(depth=1, gated=True),
    "class token": Config(depth=1, class_token=True),
}


@pytest.mark.parametrize("attention", [RowRule.LSE, RowRule.VERTEX, RowRule.AFFINE])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_parts_add_up(name: str, attention: RowRule) -> None:
    config = CONFIGS[name]
    graph, (lower, upper) = transformer(config), input_box(config, 2, 0.2)
    rules = Rules(attention=attention)
    ready, A = tightened(graph, lower, upper, QUICK), objectives(graph, 2)
    question, boxes, objective = ready.question, ready.boxes, ready.on_output(A)
    with torch.no_grad():
        chosen = ascend(question, boxes, objective, rules, QUICK.ascent).choice
        for choice in (DEFAULT, chosen):
            used = rules if choice is DEFAULT else Rules(attention=attention, free=True)
            found = slack(question, boxes, objective, used, choice)
            torch.testing.assert_close(found.bound, ready.bound(A, used, choice))
            total = torch.stack(list(found.parts.values())).sum(0)
            torch.testing.assert_close(found.bound + total, found.value, rtol=1e-9, atol=1e-9)
            for node, part in found.parts.items():
                assert part.min() > -1e-9, f"{node!r} has the slack {float(part.min())}"
            at = graph.evaluate(found.point)
            value = (A * at.transpose(0, 1)).flatten(2).sum(-1)
            torch.testing.assert_close(value, found.value)
            assert (found.point >= lower).all()
            assert (found.point <= upper).all()
            if choice is DEFAULT:
                torch.testing.assert_close(attained(question, boxes, objective, used), found.value)
        for s in (0, A.shape[1] - 1):  # rows alone add up to their attention
            one = ready.on_output(A[:, s : s + 1])
            whole, rows = slack(question, boxes, one, rules), row_slack(question, boxes, one, rules)
            assert list(rows) == [node for node in whole.parts if isinstance(node.op, Attention)]
            for node, each in rows.items():
                assert each.shape == (2, *node.shape[:-1])
                assert each.min() > -1e-9
                torch.testing.assert_close(each.flatten(1).sum(-1), whole.parts[node][:, 0], rtol=1e-9, atol=1e-9)


def test_corners_are_the_boxs_own_ends() -> None:
    """Not the centre plus or minus the radius, which rounding takes out of the box."""
    g = torch.Generator().manual_seed(0)
    lower = torch.randn(2, 40, generator=g, dtype=torch.float64)
    box = Interval(lower, lower + torch.rand(2, 40, generator=g, dtype=torch.float64))
    assert (box.centre - box.radius < box.lower).any()
    slopes = torch.randn(2, 3, 40, generator=g, dtype=torch.float64)
    slopes[:, 1, ::2] = 0
    constant = torch.tensor([[1.0, 2.0, torch.inf], [3.0, 4.0, 5.0]]).double()
    region = BoxRegion(*box)
    value, corner = LinearBound(constant, slopes).minimise(region)
    ends = torch.where(slopes > 0, box.lower[:, None], torch.where(slopes < 0, box.upper[:, None], box.centre[:, None]))
    assert torch.equal(corner, ends)
    least = constant + (slopes * corner).sum(-1)
    assert value[0, 2].isnan()
    torch.testing.assert_close(value.flatten()[[0, 1, 3, 4, 5]], least.flatten()[[0, 1, 3, 4, 5]])
    value, corner = LinearBound(constant[1:].expand(2, 3), None).minimise(region)
    assert torch.equal(value, constant[1:].expand(2, 3))
    assert torch.equal(corner, box.centre[:, None].expand(2, 3, 40))


def test_the_input_of_a_start_whose_arrangement_is_not_its_own_inverse() -> None:
    x = build.source((2, 3, 4))
    turned = build.permute(x, (1, 2, 0), "turned")
    last = build.affine(build.reshape(turned, (24,), "flat"), torch.ones(1, 24, dtype=torch.float64), None, "last")
    graph = Graph(x, last)
    index = asked(graph, -torch.ones(1, 2, 3, 4).double(), torch.ones(1, 2, 3, 4).double()).index
    assert index.start is not graph.input
    start = torch.randn(1, 5, *index.start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = index.as_input(start)
    assert found.shape == (1, 5, 2, 3, 4)
    assert torch.equal(graph.values(found.transpose(0, 1))[index.start].transpose(0, 1), start)

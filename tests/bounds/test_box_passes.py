"""Interval propagation: every node's box holds every value."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bounds.checks import asked, bounded, check_boxes, hard_points
from tests.bounds.networks import input_box, transformer
from tests.bounds.test_backward import CONFIGS, Config, configs, usable
from vertex_softmax.bounds import box_passes
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.ops.rules import RowRule, Rules


@pytest.mark.parametrize("name", CONFIGS)
def test_values_lie_in_their_boxes(name: str) -> None:
    config = CONFIGS[name]
    graph = transformer(config)
    for radius in (0.0, 0.3, 3.0):
        lower, upper = input_box(config, 2, radius)
        boxes = all_boxes(asked(graph, lower, upper))
        check_boxes(graph, boxes, hard_points(graph, lower, upper, count=30))
        assert all((b.lower <= b.upper + 1e-9).all() for b in boxes.intervals.values())


@settings(max_examples=20)
@given(config=configs.filter(usable), radius=st.sampled_from([0.0, 0.1, 5.0]))
def test_random_networks(config: Config, radius: float) -> None:
    lower, upper = input_box(config, 2, radius)
    graph = transformer(config)
    check_boxes(graph, all_boxes(asked(graph, lower, upper)), hard_points(graph, lower, upper, count=30))


def test_ibp_has_the_same_boxes() -> None:
    config = CONFIGS["class token"]
    graph, box = transformer(config), input_box(config, 2, 0.2)
    boxes = bounded(graph, *box, "ibp").boxes
    for node, found in all_boxes(asked(graph, *box)).intervals.items():
        assert torch.equal(boxes[node].lower, found.lower)
        assert torch.equal(boxes[node].upper, found.upper)


def test_a_larger_set_has_larger_boxes() -> None:
    """Unlike linear bounds, intervals are monotone."""
    config = CONFIGS["pre norm"]
    graph = transformer(config)
    lower, upper = input_box(config, 2, 0.1)
    small, large = (all_boxes(asked(graph, *box)) for box in ((lower, upper), (lower - 0.1, upper + 0.05)))
    for node in graph.nodes():
        assert (large[node].lower <= small[node].lower + 1e-9).all()
        assert (large[node].upper >= small[node].upper - 1e-9).all()


@pytest.mark.parametrize("name", ["two blocks", "class token"])
def test_few_entries_have_the_boxes_that_all_have(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One objective for each wanted entry, or one for all along a dimension."""
    config = CONFIGS.get(name, next(iter(CONFIGS.values())))
    graph = transformer(config)
    question = asked(graph, *input_box(config, 2, 0.1))
    boxes = all_boxes(question)
    nodes = [n for n in question.index.nodes if question.index.has_attention(n) and question.index.read_by_someone(n)]
    assert nodes
    for node in nodes:
        made = []
        for few in (0.0, 2.0):
            monkeypatch.setattr(box_passes, "FEW", few)
            made.append(box_passes.box_by_pass(question, boxes, node, Rules(attention=RowRule.AFFINE, exact=False)))
        wanted = box_passes.undecided(question, boxes, node)
        for along, apart in zip(*made, strict=True):
            torch.testing.assert_close(along[:, wanted], apart[:, wanted], rtol=1e-12, atol=1e-12)

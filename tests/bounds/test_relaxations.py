"""A relaxation is made anew for other facts, and shared where the facts are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

from tests.bounds.checks import asked
from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.ir import Node
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import ReluSlope, RowRule, Rules
from vertex_softmax.sets.cut_region import CutRegion
from vertex_softmax.sets.region import BoxRegion

torch.set_num_threads(1)
AFFINE = Rules(attention=RowRule.AFFINE)
Change = Callable[[Boxes, Node], Boxes]


def made(batch: int = 1) -> tuple[Question, Boxes, Node]:
    """A question with its boxes, and its attention."""
    config = Config()
    question = asked(transformer(config), *input_box(config, batch, 0.2, 1))
    attention = next(node for node in question.index.nodes if isinstance(node.op, Attention))
    return question, all_boxes(question), attention


def half(box: Interval) -> Interval:
    """The lower half."""
    return Interval(box.lower, box.centre)


def centred(boxes: Boxes, node: Node) -> Boxes:
    scores = boxes[node.inputs[0]]
    return boxes.with_centred(node.inputs[0], node, CentredRows(scores.lower.softmax(-1), scores))


CHANGES: dict[str, Change] = {
    "scores": lambda boxes, node: boxes.tightened(node.inputs[0], half(boxes[node.inputs[0]])),
    "values": lambda boxes, node: boxes.tightened(node.inputs[1], half(boxes[node.inputs[1]])),
    "centred rows": centred,
    "summary": lambda boxes, node: dataclasses.replace(boxes, summaries={node: object()}),
    "inner range": lambda boxes, node: dataclasses.replace(boxes, inner={node: half(boxes[node])}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_fact_counts(name: str) -> None:
    question, boxes, node = made()
    first = question.relaxations.of(node, boxes, AFFINE)
    assert question.relaxations.of(node, boxes, AFFINE) is first
    after = question.relaxations.of(node, CHANGES[name](boxes, node), AFFINE)
    assert after is not first
    A = torch.ones(1, 1, *node.shape, dtype=torch.float64)
    before = first.backward(A).constant
    again = question.relaxations.of(node, boxes, AFFINE).backward(A).constant
    assert before is not None
    assert again is not None
    assert torch.equal(before, again)


def test_every_rule_has_its_own() -> None:
    question, boxes, node = made()
    found = [question.relaxations.of(node, boxes, Rules(attention=rule)) for rule in RowRule]
    assert len({type(each) for each in found}) == len(RowRule)


def test_rules_of_rows_alone_share_what_is_no_row() -> None:
    question, boxes, _ = made()
    relu = next(each for each in question.index.nodes if isinstance(each.op, Relu))
    found = [question.relaxations.of(relu, boxes, Rules(attention=rule, sums=True)) for rule in RowRule]
    assert all(each is found[0] for each in found)
    other = question.relaxations.of(relu, boxes, Rules(relu=ReluSlope.ONE))
    assert other is not found[0]
    band = question.relaxations.of(relu, boxes, Rules(attention=RowRule.AFFINE, parallel=True))
    assert band is not found[0]


@pytest.mark.parametrize("name", ["scores", "inner range"])
def test_parts_share_what_was_not_cut_and_nothing_else(name: str) -> None:
    question, boxes, node = made()
    relu = next(each for each in question.index.nodes if isinstance(each.op, Relu))
    scores = node.inputs[0]

    def twice(box: Interval) -> Interval:
        return Interval(*(torch.cat([end, end]) for end in half(box)))

    cut = {scores: twice(boxes[scores])} if name == "scores" else {}
    inner = {node: twice(boxes[node])} if name == "inner range" else {}
    parts, over_parts = boxes.parts(2, cut, inner), question.on_parts()
    whole = {each: question.relaxations.of(each, boxes, AFFINE) for each in (node, relu)}
    assert over_parts.relaxations.of(relu, parts, AFFINE) is whole[relu]
    assert over_parts.relaxations.of(node, parts, AFFINE) is not whole[node]
    assert question.relaxations.of(node, boxes, AFFINE) is whole[node]


def test_centred_rows_that_are_not_finite_are_not_known() -> None:
    _, boxes, node = made()
    scores = boxes[node.inputs[0]]
    for end in range(2):
        ends = [x.clone() for x in scores]
        ends[end][0, 0, 0] = (-torch.inf, torch.inf)[end]
        rows = CentredRows(scores.lower.softmax(-1), Interval(*ends))
        assert not boxes.with_centred(node.inputs[0], node, rows).centred
    assert centred(boxes, node).centred


@pytest.mark.parametrize("way", ["interval", "centred"])
def test_the_first_interval_may_not_cross_itself(way: str) -> None:
    question, boxes, node = made(2)
    scores = node.inputs[0]
    good = boxes[scores]
    lower = good.lower.clone()
    lower[1, 0, 0] = good.upper[1, 0, 0] + 1
    bad = Interval(lower, good.upper)
    if way == "interval":
        (problem,) = question.input_boxes().with_interval(scores, bad).problems
    else:
        (problem,) = boxes.with_centred(scores, node, CentredRows(good.lower.softmax(-1), bad)).problems
    assert problem.node is scores
    assert problem.where.tolist() == [False, True]


def test_over_a_cut_box_what_depends_on_the_box_alone_is_used_again() -> None:
    question, boxes, node = made()
    (lower, upper), first = question.given.box, question.relaxations.of(node, boxes, AFFINE)
    slope, limit = torch.ones_like(lower), lower.flatten(1).sum(-1) + 1.0
    cut = question.about(CutRegion(lower.clone(), upper.clone(), slope, limit))
    assert cut.relaxations.of(node, boxes, AFFINE) is first
    narrower = boxes.tightened(node.inputs[0], half(boxes[node.inputs[0]]))
    assert cut.relaxations.of(node, narrower, AFFINE) is not first
    assert question.relaxations.of(node, boxes, AFFINE) is first
    for smaller in (BoxRegion(lower, upper - 1e-9), CutRegion(lower + 1e-9, upper, slope, limit)):
        assert question.about(smaller).relaxations.of(node, boxes, AFFINE) is not first, "forms are of the box"


def test_an_interval_that_nothing_narrows_stays_the_same_object() -> None:
    _, boxes, node = made()
    source = node.inputs[0]
    wider = Interval(boxes[source].lower - 1, boxes[source].upper + 1)
    assert boxes.tightened(source, half(boxes[source]))[source] is not boxes[source]
    inner = half(boxes[source])
    assert boxes.tightened(source, inner)[source] is inner
    assert boxes.tightened(source, wider)[source] is not wider

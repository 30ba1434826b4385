"""Boxes never change: every method returns new ones; and what one method made does not show in another's bounds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import QUICK, Ready, asked, by_method, objectives, tightened
from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds.box_passes import with_centred_rows
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.generate import generate
from vertex_softmax.graph.ir import Node
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules

torch.set_num_threads(1)
CONFIG = Config(depth=2, heads=2, norm="pre", tokens=2, activation="gelu", seed=3)
AFFINE = Rules(attention=RowRule.AFFINE, exact=False)


def ready(batch: int = 1) -> Ready:
    return tightened(transformer(CONFIG), *input_box(CONFIG, batch, 0.2, 1))


Stored = tuple[dict[object, object], list[Tensor]]


def stored(boxes: Boxes) -> Stored:
    """Everything that boxes hold: the objects, and copies of their numbers."""
    kinds = (boxes.intervals, boxes.centred, boxes.generators, boxes.summaries, boxes.inner)
    objects: dict[object, object] = {(i, key): value for i, of in enumerate(kinds) for key, value in of.items()}
    objects["problems"], objects["whole"], objects["batch"] = boxes.problems, boxes.whole, boxes.batch
    tensors = [end.clone() for box in (*boxes.intervals.values(), *boxes.inner.values()) for end in box]
    tensors += [x.clone() for rows in boxes.centred.values() for x in (rows.weights, *rows.box)]
    return objects, tensors


def narrower(box: Interval) -> Interval:
    return Interval(box.lower + 0.25 * (box.upper - box.lower), box.upper)


def infinite(boxes: Boxes, node: Node) -> Boxes:
    return boxes.with_interval(node, Interval(*(x / 0 for x in boxes[node])))


CHANGES: dict[str, Callable[[Ready], Boxes]] = {
    "with_interval": lambda r: r.boxes.with_interval(r.nodes[-1], narrower(r.boxes[r.nodes[-1]])),
    "tightened": lambda r: r.boxes.tightened(r.nodes[5], narrower(r.boxes[r.nodes[5]])),
    "crossed": lambda r: r.boxes.tightened(r.nodes[5], Interval(*(x + 9 for x in r.boxes[r.nodes[5]]))),
    "inspected": lambda r: infinite(r.boxes, r.nodes[-1]).inspected(r.nodes[-1]),
    "with_centred": lambda r: r.boxes.with_centred(
        *next(iter(r.boxes.centred)),
        CentredRows(*(next(iter(r.boxes.centred.values()))[:1]), narrower(next(iter(r.boxes.centred.values())).box)),
    ),
    "parts": lambda r: r.boxes.parts(
        3, {r.nodes[-1]: Interval(*(x.expand(3, *x.shape[1:]) for x in r.boxes[r.nodes[-1]]))}, {}
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_changes_the_receiver(name: str) -> None:
    made = ready()
    objects, tensors = stored(made.boxes)
    found = CHANGES[name](made)
    assert found is not made.boxes
    again, numbers = stored(made.boxes)
    assert list(again) == list(objects)
    assert all(again[key] is objects[key] for key in objects)
    assert all(torch.equal(x, y) for x, y in zip(numbers, tensors, strict=True))
    changed, _ = stored(found)
    assert any(changed.get(key) is not objects.get(key) for key in changed)


def test_generators_and_centred_rows_do_not_change_the_receiver() -> None:
    made = ready()
    question, first = made.question, question_boxes(made)
    node = next(n for n in made.nodes if question.index.wants_generators(n))
    before = stored(first)
    with torch.no_grad():
        found = generate(question, first, node, AFFINE)
        assert found is not None
        more = first.with_generators(question.index, node, found)
        centred = first
        for each in made.nodes:
            centred = with_centred_rows(question, centred, each, AFFINE)
    assert more.generators or more.summaries
    assert centred.centred
    assert stored(first)[0] == before[0]
    assert not first.generators
    assert not first.summaries
    assert not first.centred


def question_boxes(made: Ready) -> Boxes:
    """The intervals alone."""
    return Boxes(made.boxes.batch, dict(made.boxes.intervals))


def test_a_relaxation_is_made_from_the_facts_of_the_given_boxes() -> None:
    """Older boxes give the older bounds, in whatever order they are asked for."""
    made = ready()
    A, rules = objectives(made.graph, 1), Rules(attention=RowRule.AFFINE)
    plain = Ready(made.question, question_boxes(made))
    cut = [n for n in made.nodes if n.inputs and made.question.index.read_by_someone(n)][-1]
    tighter = Ready(made.question, plain.boxes.tightened(cut, narrower(plain.boxes[cut])))
    with torch.no_grad():
        fresh = [Ready(asked(made.graph, *made.box), each.boxes).bound(A, rules) for each in (made, plain, tighter)]
        assert not torch.equal(fresh[0], fresh[1])
        assert not torch.equal(fresh[1], fresh[2])
        for order in itertools.permutations(range(3)):
            for k in (*order, *order):
                assert torch.equal((made, plain, tighter)[k].bound(A, rules), fresh[k])


UNHURRIED = dataclasses.replace(QUICK, search=Search(seconds=None, domains=50))
"""So that no clock decides how far branch and bound goes."""
ORDERS = [list(METHODS), list(METHODS)[::-1], ["joint", "ibp", "hybrid", "joint", "crown", "vertex", "alpha-crown"]]


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_methods_on_one_question_give_what_they_give_on_their_own(batch: int) -> None:
    config = Config(depth=1, heads=2, norm="pre", tokens=2, seed=7)
    graph, box = transformer(config), input_box(config, batch, 0.2, 1)
    fresh = {method: by_method(asked(graph, *box), method, UNHURRIED) for method in METHODS}
    for order in ORDERS:
        question = asked(graph, *box)
        for method in order:
            found = by_method(question, method, UNHURRIED)
            assert torch.equal(found.lower, fresh[method].lower), (order, method)
            for node in graph.nodes():
                for a, b in zip(found.boxes[node], fresh[method].boxes[node], strict=True):
                    assert torch.equal(a, b), (order, method, node)

"""Halving the input: bounds hold over the whole set, whenever it ends; what was closed covers the set."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import CONFIGS, MARGINS, attention, least
from tests.bounds.checks import Ready
from tests.slowly import few
from vertex_softmax.bounds import halving as module
from vertex_softmax.bounds.aims import Aim, Outcome, Stop, Watchers
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.halving import BoundBoxes, Halves, InputHalving, MakeBounds
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record
from vertex_softmax.foundation.errors import OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.build import apply
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.crown import crown
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.elementwise import Square
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.region import BoxRegion

torch.set_num_threads(1)
RULES = Rules(attention=RowRule.LSE)
LIMITS = Halves(width=8, patient=True, domains=200, bytes=1 << 30)
OPTIONS = Options(ascent=None)
RADIUS = 0.1


def by_crown(question: Question, objective: Objective) -> BoundBoxes:
    found = crown(question, objective, OPTIONS)
    return BoundBoxes(found.lower, found.boxes)


def halved(
    question: Question, aim: Aim, limits: Halves = LIMITS, watchers: Watchers | None = None, make: MakeBounds = by_crown
) -> tuple[InputHalving, Outcome]:
    halving = InputHalving(question, aim, RULES, make, limits, watchers or Watchers(accept=lambda *_: False))
    return halving, halving.run(None)


def line(*ends: tuple[float, float]) -> Question:
    """The question about y = x over a box."""
    x = build.source((len(ends),))
    return over(Graph(x, x), *ends)


def over(graph: Graph, *ends: tuple[float, float]) -> Question:
    lower, upper = torch.tensor(ends, dtype=torch.float64).T
    return Question.over(graph, BoxRegion(lower[None], upper[None]))


def square() -> Graph:
    """y = x² of one number."""
    x = build.source((1,))
    return Graph(x, apply(Square(), x, name="square"))


@pytest.mark.parametrize(
    ("name", "distance"),
    few(
        itertools.product(CONFIGS, (1e-3, 1e-2, 0.1)),
        lambda name, distance: (name, distance) in {("norm", 1e-2), ("relu", 0.1)},
    ),
)
def test_no_bound_is_above_a_value_whenever_it_ends(name: str, distance: float) -> None:
    whole: Ready = attention(name, RADIUS)
    lowest, _ = least(whole, MARGINS)
    for domains, goals in itertools.product((1, 40), (lowest - distance, lowest)):
        _, found = halved(whole.question, Aim(MARGINS, goals), dataclasses.replace(LIMITS, domains=domains))
        assert bool((found.bound <= lowest + 1e-12).all())
        assert bool(((found.open > 0) == ~(found.bound > goals)).all())


@pytest.mark.parametrize("at", [1, 3])
def test_an_interruption_loses_nothing(at: int) -> None:
    """Whichever box is being bounded when the time is over, it stays open."""
    whole: Ready = attention("norm", RADIUS)
    lowest, _ = least(whole, MARGINS)
    for behind in (False, True):
        calls = itertools.count(1)

        def late(question: Question, objective: Objective, calls=calls, behind=behind) -> BoundBoxes:  # type: ignore[no-untyped-def]
            number = next(calls)
            if number == at and not behind:
                raise OutOfTimeError("late")
            made = by_crown(question, objective)
            if number == at:  # the pass for the slopes has no boxes then
                return BoundBoxes(made.lower, None)  # type: ignore[arg-type]
            return made

        if behind:
            halving = InputHalving(whole.question, Aim(MARGINS, lowest - 1e-4), RULES, late, LIMITS, Watchers())
            with pytest.raises(AttributeError):
                halving.run(None)
            found = halving._outcome(Stop.SECONDS, 0.0)
        else:
            _, found = halved(whole.question, Aim(MARGINS, lowest - 1e-4), make=late)
            assert found.stopped is Stop.SECONDS
        assert bool((found.bound <= lowest).all())
        assert bool((found.open > 0).any())


def test_what_is_known_is_not_asked_again() -> None:
    whole: Ready = attention("norm", RADIUS)
    lowest, _ = least(whole, MARGINS)
    known = lowest - torch.tensor([1e-3, 1.0, 1e-3])
    _, found = halved(whole.question, Aim(MARGINS, lowest - 0.5, known))
    assert bool((found.bound >= known).all())
    assert float(found.bound[0]) == float(known[0])
    _, nothing = halved(whole.question, Aim(MARGINS, lowest - 2.0, known))
    assert nothing.domains == 0
    assert nothing.stopped is Stop.DONE
    assert nothing.bound.tolist() == known.tolist()


@pytest.mark.parametrize("name", few(CONFIGS, lambda name: name == "norm"))
def test_closed_boxes_cover_the_set_for_each_objective(name: str) -> None:
    whole: Ready = attention(name, RADIUS)
    lowest, values = least(whole, MARGINS)
    watchers = Watchers(accept=lambda *_: False, record=Record())
    goals = lowest - torch.tensor([0.3, 1.0, 0.5])
    halving, found = halved(whole.question, Aim(MARGINS, goals), dataclasses.replace(LIMITS, domains=3000), watchers)
    assert found.stopped is Stop.DONE
    lower, upper = (end[0] for end in whole.question.given.box)
    points = torch.cat([values, *(box.lower[None] for box in halving.noted), lower[None], upper[None]])
    for k in range(len(MARGINS)):
        boxes = [box for box in halving.noted if k in box.objectives]
        ends = [torch.stack([getattr(box, end) for box in boxes]) for end in ("lower", "upper")]
        inside = (points[:, None] >= ends[0]) & (points[:, None] <= ends[1])
        inside = inside.flatten(2).all(-1)
        within = ((points >= lower) & (points <= upper)).flatten(1).all(1)
        assert bool(inside.any(1)[within].all())
        volume = (ends[1] - ends[0]).flatten(1)
        moving = (upper - lower).flatten() > 0
        share = (volume[:, moving] / (upper - lower).flatten()[moving]).prod(1).sum()
        torch.testing.assert_close(share, torch.ones_like(share))  # once each
        values_at = whole.graph.evaluate((ends[0] + ends[1]) / 2).flatten(1) @ MARGINS[k]
        assert bool((values_at > goals[k]).all())


def test_no_bound_is_taken_that_is_none() -> None:
    """NaN and infinite bounds, and boxes that are points, stay open."""

    def none(value: float) -> MakeBounds:
        def make(question: Question, objective: Objective) -> BoundBoxes:
            made = by_crown(question, objective)
            return BoundBoxes(torch.full_like(made.lower, value), made.boxes)

        return make

    for value in (math.nan, math.inf, -math.inf):
        aim = Aim(torch.ones(1, 1).double(), torch.tensor([-5.0]).double())
        _, found = halved(line((0.0, 1.0)), aim, make=none(value))
        assert found.stopped is Stop.DOMAINS
        assert float(found.bound) == -math.inf
        assert int(found.open) > 0


def test_boxes_without_a_middle_stay_open() -> None:
    """y = x over [1, 1 + ulp] and goals at its least value."""
    after = math.nextafter(1.0, 2.0)
    for ends in ((1.0, after), (1.0, math.nextafter(after, 2.0))):
        _, found = halved(line(ends), Aim(torch.ones(1, 1).double(), torch.ones(1).double()))
        assert found.stopped is Stop.EXHAUSTED
        assert int(found.open) >= 1
        assert float(found.bound) <= 1.0


def test_what_is_at_its_goal_is_open() -> None:
    def exact(question: Question, objective: Objective) -> BoundBoxes:
        made = by_crown(question, objective)
        return BoundBoxes(torch.full_like(made.lower, 0.25), made.boxes)

    aim = Aim(torch.ones(1, 1).double(), torch.tensor([0.25]).double())
    _, found = halved(line((0.25, 1.0)), aim, dataclasses.replace(LIMITS, domains=20), make=exact)
    assert found.stopped is Stop.DOMAINS
    assert int(found.open) > 0


def test_all_edges_shrink() -> None:
    """Along the second number the linear bounds have no slope, and the objective turns with it alone."""
    x = build.source((2,))
    graph = Graph(x, apply(Square(), x, name="square"))
    aim = Aim(torch.tensor([[1e-3, 1.0]]).double(), torch.tensor([-1e-3]).double())
    make: MakeBounds = by_crown
    _, found = halved(over(graph, (1.0, 2.0), (-1.0, 1.0)), aim, dataclasses.replace(LIMITS, domains=4000), make=make)
    assert found.stopped is Stop.DONE
    assert -1e-3 < float(found.bound) <= 1e-3


def test_a_witness_is_in_the_set_and_not_above_its_goal() -> None:
    seen: list[float] = []

    def accept(point: Tensor, objective: int) -> bool:
        assert objective == 0
        assert -1.0 <= float(point) <= 2.0
        seen.append(float(point))
        return abs(float(point)) < 0.05

    aim = Aim(torch.ones(1, 1).double(), torch.tensor([0.01]).double())
    _, found = halved(over(square(), (-1.0, 2.0)), aim, watchers=Watchers(accept=accept))
    assert found.stopped is Stop.WITNESS
    assert found.broken == 0
    assert float(found.witness.square()) <= 0.01  # type: ignore[union-attr]
    assert all(point**2 <= 0.01 for point in seen)
    assert int(found.open) > 0


def test_it_is_given_up_where_nothing_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of every box is the same, so that nothing is gained: unless it is patient, that is the end of it."""

    def flat(question: Question, objective: Objective) -> BoundBoxes:
        made = by_crown(question, objective)
        return BoundBoxes(torch.full_like(made.lower, -3.0), made.boxes)

    monkeypatch.setattr(module, "FIRST", 32)
    aim = Aim(torch.ones(1, 1).double(), torch.tensor([-2.0]).double())
    for patient, stopped in ((False, Stop.UNPROMISING), (True, Stop.DOMAINS)):
        _, found = halved(line((0.0, 1.0)), aim, dataclasses.replace(LIMITS, patient=patient), make=flat)
        assert found.stopped is stopped
        assert float(found.bound) == -3.0
    little = dataclasses.replace(LIMITS, bytes=100)
    assert halved(line((0.0, 1.0)), aim, little, make=flat)[1].stopped is Stop.MEMORY


@pytest.mark.parametrize("domains", [1, 2, 3, 5, 9])
def test_no_more_boxes_are_bounded_than_are_allowed(domains: int) -> None:
    """But for the two halves of one box, which are bounded together."""
    question, aim = over(square(), (-1.0, 1.0)), Aim(torch.ones(1, 1).double(), torch.zeros(1).double() - 1e-9)
    _, found = halved(question, aim, dataclasses.replace(LIMITS, domains=domains, width=64))
    assert found.domains <= domains + 1

"""Narrowing: no input at which the objective is as low as the level is left out, exactly; and what it shows is true."""

from __future__ import annotations

import time
from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import CONFIGS, MARGINS, attention, least
from tests.bounds.checks import Ready, check_boxes
from vertex_softmax.bounds import narrowing
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.backward import Wanted, backward
from vertex_softmax.bounds.box_passes import all_boxes
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.narrowing import Narrowed, left_over, narrowed
from vertex_softmax.bounds.question import Question
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.sets.cut_region import CutRegion

torch.set_num_threads(1)
RULES = Rules(attention=RowRule.AFFINE, pieces=2)
RADIUS = 0.02
"""So small that bounds are near the truth: then most of the set is left out."""


class Watched:
    """Makes boxes, and remembers over what."""

    def __init__(self) -> None:
        self.made: list[tuple[CutRegion, Boxes]] = []

    def __call__(self, question: Question, known: Sequence[Boxes]) -> Boxes:
        boxes = tightened_boxes(question, Options(), known)
        assert isinstance(question.given, CutRegion)
        self.made.append((question.given, boxes))
        return boxes


def run(whole: Ready, A: Tensor, level: float, watched: Watched) -> Narrowed:
    objective = Objective.dense(whole.graph.output, A.reshape(1, 1, *whole.graph.output.shape))
    with torch.no_grad():
        return narrowed(whole.question, whole.boxes, objective, level, (watched, RULES, Ascent(steps=8)))


def holds(region: CutRegion, x: Tensor) -> bool:
    """Whether a point (*input shape) lies in the set, in rational numbers."""
    inside = bool(((x >= region.lower[0]) & (x <= region.upper[0])).all())
    terms = zip(region.slope[0].flatten().tolist(), x.flatten().tolist(), strict=True)
    return inside and sum(Fraction(a) * Fraction(b) for a, b in terms) <= Fraction(float(region.limit[0]))


def near_the_least(whole: Ready, A: Tensor) -> tuple[Tensor, Tensor]:
    """Values and points of the whole set, the lowest first: what attacks found, and steps back from the lowest."""
    _, x = least(whole, A[None])
    values = (whole.graph.evaluate(x).flatten(1) @ A).detach()
    lowest = x[values.argsort()[:5]]
    centre = whole.box.centre[0]
    shares = torch.logspace(-9, 0, 40, dtype=torch.float64).reshape(-1, 1, *[1] * (x.dim() - 1))
    steps = lowest + shares * (centre - lowest)
    one = lowest[:1].repeat(centre.numel(), *[1] * (x.dim() - 1)).flatten(1)
    one.fill_diagonal_(0.0)
    one = one + torch.diag(centre.flatten())  # a single number in the middle
    x = torch.cat([x, steps.flatten(0, 1), one.reshape(-1, *x.shape[1:])])
    values = (whole.graph.evaluate(x).flatten(1) @ A).detach()
    order = values.argsort()
    return values[order], x[order]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3])
def test_no_input_at_the_level_or_below_is_ever_left_out(name: str, share: float) -> None:
    whole, watched = attention(name, RADIUS), Watched()
    values, x = near_the_least(whole, MARGINS[0])
    level = float(values[0] + share * (values[-1] - values[0]))
    found = run(whole, MARGINS[0], level, watched)
    assert watched.made, "nothing was left out"
    assert found.bound <= float(values[0]) + 1e-10, "the bound is above a value"
    low = x[values <= level][:200]
    for region, boxes in watched.made:
        assert bool((region.lower >= whole.box.lower).all()), "it is not part of the set"
        assert bool((region.upper <= whole.box.upper).all())
        assert all(holds(region, each) for each in low)
        check_boxes(whole.graph, boxes, low.unsqueeze(1))


@pytest.mark.parametrize("name", ["relu", "gelu", "gated"])
def test_it_shows_what_one_bound_does_not(name: str) -> None:
    """A level so close below the least value that the bound over the whole set does not reach it."""
    whole = attention(name, RADIUS)
    values, _ = near_the_least(whole, MARGINS[1])
    first = run(whole, MARGINS[1], float(values[-1]) + 1e9, Watched())
    assert first.rounds == 0, "far below the level nothing is cut off"
    level = float(values[0]) - 0.3 * (float(values[0]) - first.bound)
    watched = Watched()
    found = run(whole, MARGINS[1], level, watched)
    assert first.bound < level < found.bound
    assert found.rounds == len(watched.made) > 0
    left = found.question.given.box
    assert float((left.upper - left.lower).sum()) <= float((whole.box.upper - whole.box.lower).sum())


def test_rough_boxes_are_made_anew_where_nothing_is_cut_off() -> None:
    """Boxes by intervals alone: so far below the level that the whole set is left."""
    whole = attention("relu", RADIUS)
    values, x = near_the_least(whole, MARGINS[1])
    objective = Objective.dense(whole.graph.output, MARGINS[1].reshape(1, 1, -1))
    level, rough, made = float(values[-1]) + 1e9, all_boxes(whole.question), []

    def make(question: Question, known: Sequence[Boxes]) -> Boxes:
        made.append(tightened_boxes(question, Options(), known))
        return made[-1]

    how = (make, RULES, Ascent(steps=8))
    with torch.no_grad():
        plain, better = (narrowed(whole.question, rough, objective, level, how, rough=again) for again in (False, True))
    assert (plain.rounds, better.rounds, len(made)) == (0, 1, 1)
    assert better.question is whole.question
    assert plain.bound < better.bound <= float(values[0]) + 1e-10
    check_boxes(whole.graph, better.boxes, x[:200].unsqueeze(1))


def test_a_cut_shaped_like_the_input_is_the_one_at_the_start() -> None:
    """Class tokens and reshapes: the start of passes is not the input itself."""
    whole = attention("relu", RADIUS)
    objective = Objective.dense(whole.graph.output, MARGINS[0].reshape(1, 1, *whole.graph.output.shape))
    with torch.no_grad():
        linear = backward(whole.question, whole.boxes, objective, RULES, wanted=Wanted(size=True))
        level = float(linear.least(whole.question.region)) + 1e-3
        cut = left_over(whole.question, linear, level)
    assert cut is not None
    assert cut.lower.shape == whole.box.lower.shape
    again = whole.question.about(cut).region
    assert isinstance(again, CutRegion)
    assert linear.coefficients is not None
    torch.testing.assert_close(again.slope, linear.coefficients[0])


def test_without_time_the_whole_set_is_left() -> None:
    whole, watched = attention("relu", RADIUS), Watched()
    late = Ready(whole.question.until(time.perf_counter() - 1.0), whole.boxes)
    found = run(late, MARGINS[0], 0.0, watched)
    assert not watched.made
    assert found.bound == -torch.inf
    assert found.boxes is whole.boxes


def test_rounds_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "ROUNDS", 1)
    whole, watched = attention("gelu", RADIUS), Watched()
    values, _ = near_the_least(whole, MARGINS[0])
    run(whole, MARGINS[0], float(values[0]), watched)
    assert len(watched.made) == 1

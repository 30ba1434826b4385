"""Branch and bound after narrowing: its bounds hold over the whole set, whatever was left out on the way."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import CONFIGS, MARGINS, QUICK, attention, least
from tests.bounds.checks import Ready
from tests.slowly import few
from vertex_softmax.bounds import narrowed_search, narrowing
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.branch_and_bound import Aim, Outcome, Search, Stop, Watchers
from vertex_softmax.bounds.narrowed_search import branch_narrowed
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.record import Record, RestRecord
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import RowRule, Rules

torch.set_num_threads(1)
RULES = Rules(attention=RowRule.AFFINE, pieces=2)
RADIUS = 0.02
NO_TREE = dataclasses.replace(QUICK, domains=1)


def search(whole: Ready, goals: Tensor, how: Search = QUICK, watchers: Watchers | None = None) -> Outcome:
    aim = Aim(MARGINS, goals)
    return branch_narrowed(whole.question, whole.boxes, aim, RULES, how, watchers or Watchers(), make)


def make(question: Question, known: Sequence[Boxes]) -> Boxes:
    return tightened_boxes(question, Options(), known, again=True)


@pytest.mark.parametrize(
    ("name", "distance"),
    few(
        itertools.product(CONFIGS, (1e-7, 1e-5, 1e-3)),
        lambda name, distance: distance == 1e-5 and name in {"relu", "gelu"},
    ),
)
def test_no_bound_is_above_a_value(name: str, distance: float) -> None:
    """Goals below, at and above the least values: those at and above are never reached, beyond rounding."""
    whole = attention(name, RADIUS)
    lowest, _ = least(whole, MARGINS)
    rounding = narrowed_search._rounding(whole.question, whole.boxes, Aim(MARGINS), RULES)
    assert float(rounding) < 1e-9
    offset = torch.tensor([-distance, 0.0, distance], dtype=torch.float64)
    for goals in (lowest + offset, lowest + offset.roll(1)):
        found = search(whole, goals, NO_TREE, Watchers(accept=lambda *_: False))
        assert bool((found.bound <= lowest + 1e-12).all())
        assert not bool((found.bound > goals + rounding)[goals >= lowest].any())
        assert bool((found.open > 0)[goals > lowest].all())


def test_what_is_narrowed_away_is_not_split() -> None:
    whole = attention("gelu", RADIUS)
    lowest, _ = least(whole, MARGINS)
    found = search(whole, lowest - 1e-5)
    assert found.stopped is Stop.DONE
    assert bool((found.bound > lowest - 1e-5).all())
    assert found.domains == 0
    assert found.open.tolist() == [0, 0, 0]
    tree = search(whole, lowest - 1e-5, dataclasses.replace(QUICK, narrowing=1e-300, seconds=1e-9))
    assert bool((tree.bound <= lowest).all())


def test_a_witness_is_told_by_the_number_of_its_objective() -> None:
    """One objective is open: its tree has a number of its own."""
    whole = attention("relu", RADIUS)
    lowest, _ = least(whole, MARGINS)
    goals = lowest - torch.tensor([1e-4, -1e-3, 1e-4])
    seen: list[int] = []

    def accept(point: Tensor, objective: int) -> bool:
        value = float((MARGINS[objective] * whole.graph.evaluate(point[None])[0]).sum())
        assert value <= float(goals[objective])
        lower, upper = whole.box
        assert bool(((point >= lower[0]) & (point <= upper[0])).all())
        seen.append(objective)
        return True

    found = search(whole, goals, QUICK, Watchers(accept=accept))
    assert found.stopped is Stop.WITNESS
    assert found.broken == 1
    assert seen == [1]
    assert found.open[1] > 0
    assert bool((found.bound > goals)[[0, 2]].all())


def test_the_tree_of_an_objective_that_is_left_alone_grows_over_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no time to narrow parts."""
    monkeypatch.setattr(narrowed_search, "BOXES", math.inf)
    whole, given = attention("gated", RADIUS), []
    lowest, _ = least(whole, MARGINS)
    real = narrowed_search.branch_and_bound

    def watched(question, *rest):  # type: ignore[no-untyped-def]
        given.append(question.given)
        return real(question, *rest)

    monkeypatch.setattr(narrowed_search, "branch_and_bound", watched)
    goals = lowest - torch.tensor([1e-3, -1e-9, 1e-3])
    found = search(whole, goals, dataclasses.replace(NO_TREE, seconds=1e9), Watchers(accept=lambda *_: False))
    (part,) = given
    assert float((part.upper - part.lower).sum()) <= float((whole.box.upper - whole.box.lower).sum())
    assert found.open.tolist()[0] == found.open.tolist()[2] == 0 < found.open.tolist()[1]
    assert float(found.bound[1]) <= float(lowest[1]) + 1e-12


@pytest.mark.parametrize("over", [[1e-6, 1e-6, -1e-3], [1e-3, 1e-6, 1e-3]])
def test_each_open_objective_is_searched_over_what_is_left_of_its_own_set(
    over: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, given = attention("gated", 0.1), []
    lowest, _ = least(whole, MARGINS)
    goals = lowest + torch.tensor(over).double()
    real = narrowed_search.NarrowedParts.run

    def watched(parts, rest):  # type: ignore[no-untyped-def]
        given.append((parts.aim.objectives, rest.question.given))
        return real(parts, rest)

    monkeypatch.setattr(narrowed_search.NarrowedParts, "run", watched)
    found = search(whole, goals, dataclasses.replace(QUICK, domains=12), Watchers(lambda *_: False))
    assert given
    assert all(any(bool((own == row).all()) for row in MARGINS) for own, _ in given)
    assert bool((found.bound <= lowest + 1e-12).all())
    assert bool((found.open > 0)[goals >= lowest].all())
    assert found.stopped is Stop.DOMAINS


@pytest.mark.parametrize("recorded", [False, True])
def test_what_parts_decide_is_decided_without_leaves(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search is the same where somebody records; there is no tree over given boxes before it."""
    monkeypatch.setattr(narrowing, "ROUNDS", 1)
    monkeypatch.setattr(narrowed_search, "branch_and_bound", lambda *_: pytest.fail("a tree over given boxes"))
    whole, record = attention("relu", 0.1), Record()
    lowest, _ = least(whole, MARGINS)
    goals = lowest - torch.tensor([1e-4, 1.0, 1.0]).double()
    how = dataclasses.replace(QUICK, domains=600, seconds=1e6)
    found = search(whole, goals, how, Watchers(lambda *_: False, record=record if recorded else None))
    assert found.stopped is Stop.DONE
    assert found.domains > 0
    assert bool((found.bound > goals).all())
    assert bool((found.bound <= lowest).all())
    assert not record.leaves
    assert not recorded or isinstance(record.narrowed[0], RestRecord)


def test_what_a_recorded_tree_decides_is_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "ROUNDS", 1)
    whole, record = attention("relu", 0.1), Record()
    lowest, _ = least(whole, MARGINS)
    goals = lowest - torch.tensor([1e-2, 1.0, 1.0]).double()
    found = search(whole, goals, dataclasses.replace(QUICK, domains=600), Watchers(lambda *_: False, record=record))
    assert found.stopped is Stop.DONE
    noted = record.narrowed[0]
    assert isinstance(noted, RestRecord)
    assert noted.last


def test_a_share_of_the_seconds_is_a_share() -> None:
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(InvalidValueError, match="narrowing"):
            Search(narrowing=wrong)

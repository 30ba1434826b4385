"""Methods made of others: the larger bounds, the problems of all, and nothing settled that is not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from vertex_softmax.bounds.boxes import Boxes, Problem
from vertex_softmax.graph import build
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.combination import combined, goal_first
from vertex_softmax.methods.options import Options

NODE = build.source((2,))


def bound(*rows: Sequence[float], problem: str = "", hopeless: Sequence[bool] | None = None) -> Bound:
    """One row of bounds for each input."""
    where = torch.ones(len(rows), dtype=torch.bool)
    problems = (Problem(NODE, where, problem),) if problem else ()
    marks = None if hopeless is None else torch.tensor(hopeless)
    return Bound(torch.tensor(rows).double(), Boxes(len(rows), {}, problems=problems), hopeless=marks)


def test_the_larger_bound_counts_and_nan_is_not_overlooked() -> None:
    found = combined(bound([1.0, 2.0, 3.0]), bound([0.0, 5.0, 1.0]), bound([-1.0, 4.0, 2.0]))
    assert found.lower.tolist() == [[1.0, 5.0, 3.0]]
    for rows in ((torch.nan, 1.0), (1.0, torch.nan)):
        assert combined(*(bound([x]) for x in rows)).lower.isnan().all()


def test_the_problems_and_marks_of_all_count() -> None:
    own = bound([1.0], [1.0], problem="own", hopeless=[True, False])
    found = combined(own, bound([1.0], [1.0], problem="other", hopeless=[False, True]), bound([1.0], [1.0]))
    assert [problem.text for problem in found.boxes.problems] == ["own", "other"]
    assert found.hopeless is not None
    assert found.hopeless.tolist() == [True, True]
    assert combined(bound([1.0]), bound([2.0])).hopeless is None


def test_the_same_problem_counts_once_and_boxes_with_nothing_new_are_the_same_object() -> None:
    own = bound([1.0], problem="own")
    assert combined(own, dataclasses.replace(own, lower=own.lower + 1)).boxes is own.boxes
    other = bound([1.0], problem="own")  # another problem of the same name
    found = combined(own, other, own)
    assert found.boxes.problems == (*own.boxes.problems, *other.boxes.problems)


def asked(alone: Bound, goal: float | None) -> tuple[Bound, list[str]]:
    """What `goal_first` gives, and what ran."""
    ran: list[str] = []

    def own(known: Sequence[Boxes]) -> Bound:
        assert not known
        ran.append("own")
        return alone

    def in_full() -> Bound:
        ran.append("in full")
        return dataclasses.replace(alone, lower=torch.full_like(alone.lower, 0.5), hopeless=None)

    return goal_first(own, in_full, dataclasses.replace(Options(), goal=goal)), ran


def test_a_goal_is_reached_by_every_objective_of_every_input_or_all_parts_run() -> None:
    both = ["own", "in full"]
    assert asked(bound([1.0, 2.0], [3.0, 4.0]), 0.0)[1] == ["own"]
    assert asked(bound([1.0, 2.0], [3.0, -1.0]), 0.0)[1] == both
    assert asked(bound([1.0, 0.0]), 0.0)[1] == both  # at the goal is not above it
    assert asked(bound([1.0, torch.nan]), 0.0)[1] == both
    assert asked(bound([1.0, 2.0], [3.0, -1.0], hopeless=[False, True]), 0.0)[1] == ["own"]
    assert asked(bound([-1.0, 2.0], [3.0, -1.0], hopeless=[False, True]), 0.0)[1] == both
    found, ran = asked(bound([1.0]), None)
    assert ran == ["in full"]
    assert found.lower.tolist() == [[0.5]]
    assert asked(bound([-1.0, 2.0]), 0.0)[0].lower.tolist() == [[0.5, 2.0]]

"""Branch and bound by somebody else: what is asked, and that others can make the same root again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import pytest
import torch

from tests.search.cascade_cases import BLIND, QUICK, WHOLE, ask, bent
from tests.search.small import case, conjunction, prop
from vertex_softmax.bounds.branch_and_bound import Accept, Outcome, Stop, Watchers, branch_and_bound
from vertex_softmax.methods.bab import rules_of
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.branching import BranchRequest, are_same_bounds, question_over, root_bounds, root_boxes

ABOVE = prop(2, case(WHOLE, conjunction(({0: 1}, -0.2)), conjunction(({1: 1}, -0.5))))
"""y₀ > −1/5 and y₁ > −1/2, which is so: the least values are −1/8 and −1/4; the first needs a split."""
BELOW = prop(2, case(WHOLE, conjunction(({0: 1}, -0.124))))
"""y₀ > −0.124, which is not so."""


class Here:
    """Does what it is asked to do in this process, and remembers what it was asked."""

    def __init__(self, waits: int = 0) -> None:
        self.prepared: list[int] = []
        self.requests: list[BranchRequest] = []
        self.waits = waits

    def prepare(self, case: int) -> None:
        self.prepared.append(case)

    def branch(self, request: BranchRequest, accept: Accept, meanwhile: Callable[[], None]) -> Outcome:
        self.requests.append(request)
        for _ in range(self.waits):
            meanwhile()
        rules = rules_of(QUICK)
        return branch_and_bound(
            request.question, request.boxes, request.aim, rules, request.search, Watchers(accept=accept)
        )


def test_whoever_does_it_the_answer_is_the_same() -> None:
    for spec, verdict in ((ABOVE, Verdict.VERIFIED), (BELOW, Verdict.FALSIFIED)):
        here = Here()
        answer = ask(bent(), spec, branching=here)
        alone = ask(bent(), spec)
        assert answer.verdict is alone.verdict is verdict
        assert answer.stage == alone.stage
        if verdict is Verdict.VERIFIED:
            assert (answer.stage, here.prepared) == ("bab", [0])
            # alone it narrows the set first, and what it shows so is no more than was asked for
            assert all(0 < mine <= theirs for mine, theirs in zip(alone.bounds[0], answer.bounds[0], strict=True))
            assert [request.case for request in here.requests] == [0]


def test_what_is_left_open_is_not_proved() -> None:
    class Idle(Here):
        def branch(self, request: BranchRequest, accept: Accept, meanwhile: Callable[[], None]) -> Outcome:  # noqa: ARG002
            known = request.aim.known
            assert known is not None
            return Outcome(known, torch.ones(len(known), dtype=torch.long), 0, Stop.EXHAUSTED)

    answer = ask(bent(), ABOVE, branching=Idle())
    assert answer.verdict is Verdict.UNKNOWN
    assert "branch and bound ended: exhausted" in answer.reason


def test_no_other_method_asks_for_it() -> None:
    here = Here()
    for method in ("attack", "crown", "joint", "ibp"):
        ask(bent(), ABOVE, method=method, branching=here)
    assert here.prepared == here.requests == []


def test_the_root_can_be_made_again() -> None:
    here = Here()
    ask(bent(), ABOVE, branching=here)
    (request,) = here.requests
    graph = bent()
    question = question_over(graph, ABOVE.cases[0], QUICK)
    boxes = root_boxes(question, QUICK)
    rows = request.aim.objectives
    assert torch.equal(root_bounds(question, boxes, rows), root_bounds(request.question, request.boxes, rows))
    for mine, theirs in zip(graph.nodes(), request.question.graph.nodes(), strict=True):
        if mine in boxes:
            assert all(torch.equal(a, b) for a, b in zip(boxes[mine], request.boxes[theirs], strict=True))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([1.0, -200.0], True),
        ([1.0 + 1e-12, -200.0 - 1e-10], True),
        ([1.0 + 1e-6, -200.0], False),
        ([1.0, -200.0 + 1e-5], False),
        ([1.0], False),
        ([float("nan"), -200.0], False),
        ([1.0, float("-inf")], False),
    ],
)
def test_bounds_of_the_same_root_differ_by_rounding_alone(other: list[float], same: bool) -> None:
    first = torch.tensor([1.0, -200.0]).double()
    assert are_same_bounds(first, torch.tensor(other).double()) is same
    assert are_same_bounds(torch.tensor(other).double(), first) is same


def test_the_second_attack_comes_in_pieces_while_others_work() -> None:
    """It begins when its time has come, goes on when it is called again, and ends with its share."""
    said: list[str] = []
    budget = Budget(seconds=60, first=0, second=0.02, after=0)
    harmless = dataclasses.replace(ABOVE)
    begin = time.perf_counter()
    answer = ask(
        bent(), harmless, budget=budget, branching=Here(40), report=lambda stage, text: said.append(f"{stage}: {text}")
    )
    assert answer.verdict is Verdict.VERIFIED
    assert answer.seconds["attack again"] > 0
    assert sum(text.startswith("attack again") for text in said) == 1
    assert time.perf_counter() > begin
    assert ask(bent(), BELOW, budget=dataclasses.replace(BLIND, second=0.1, after=0), branching=Here(3)).verdict is (
        Verdict.FALSIFIED
    )

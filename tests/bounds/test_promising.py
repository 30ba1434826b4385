"""A tree that is given up where it promises nothing: its bounds are true whenever it ends."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tests.bounds.branching_cases import MARGINS, QUICK, attention, least
from vertex_softmax.bounds import promising
from vertex_softmax.bounds.aims import Aim, Stop, Watchers
from vertex_softmax.bounds.branch_and_bound import branch_and_bound
from vertex_softmax.bounds.promising import branch_while_promising, promises
from vertex_softmax.ops.rules import RowRule, Rules

torch.set_num_threads(1)
RULES = Rules(attention=RowRule.AFFINE, pieces=2)
BLIND = Watchers(accept=lambda *_: False)


@pytest.mark.parametrize(
    ("before", "now", "doublings", "expected"),
    [
        (-4.0, -2.0, 1.0, True),
        (-4.0, -2.0, 0.9, False),
        (-4.0, -3.0, 3.0, True),
        (-2.0, -2.0, 100.0, False),
        (-2.0, -3.0, 100.0, False),
        (-math.inf, -3.0, 1.0, True),
        (-3.0, math.inf, 1.0, True),
    ],
)
def test_the_last_doubling_foretells_the_next_ones(before: float, now: float, doublings: float, expected: bool) -> None:
    assert promises(before, now, doublings) is expected


def test_bounds_hold_wherever_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goals out of reach are given up, when they are asked about first; those within reach are shown as ever."""
    monkeypatch.setattr(promising, "FIRST", 6)
    monkeypatch.setattr(promising, "MOST", 24)
    whole, search = attention("relu"), dataclasses.replace(QUICK, domains=400, width=1)
    lowest, _ = least(whole, MARGINS)
    hopeless = Aim(MARGINS[:1], goals=lowest[:1] + 10)
    outcome = branch_while_promising(whole.question, whole.boxes, hopeless, RULES, search, BLIND)
    assert outcome.stopped is Stop.UNPROMISING
    assert 6 <= outcome.domains < 24
    assert bool(outcome.bound <= lowest[:1] + 1e-9)
    easy = Aim(MARGINS[:1], goals=lowest[:1] - 0.5)
    found = [
        way(whole.question, whole.boxes, easy, RULES, search, BLIND)
        for way in (branch_while_promising, branch_and_bound)
    ]
    assert [each.stopped for each in found] == [Stop.DONE, Stop.DONE]
    assert torch.equal(found[0].bound, found[1].bound)
    assert bool((easy.goals < found[0].bound).all() and (found[0].bound <= lowest[:1] + 1e-9).all())

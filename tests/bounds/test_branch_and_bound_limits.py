"""Witnesses, goals, limits of time and domains, and bad arguments of branch and bound."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time

import pytest
import torch
from torch import Tensor

from tests.bounds.branching_cases import (
    CONFIGS,
    MARGINS,
    QUICK,
    Tree,
    attention,
    check_witness,
    grown,
    least,
    mlp,
    slack,
)
from tests.bounds.checks import Ready, asked, by_method, tightened
from tests.bounds.networks import input_box, transformer
from vertex_softmax.bounds import backward, branch_and_bound
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.frontier import Part
from vertex_softmax.foundation.errors import InvalidValueError, OutOfTimeError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.elementwise import Relu

torch.set_num_threads(1)


def line(slope: float, shift: float) -> Ready:
    """y = slope·x + shift on [1, 2]."""
    x = build.source((1,))
    graph = Graph(x, build.affine(x, torch.full((1, 1), slope).double(), torch.full((1,), shift).double(), "y"))
    return tightened(graph, torch.ones(1, 1).double(), torch.full((1, 1), 2.0).double())


def test_a_witness_has_the_inputs_own_arrangement() -> None:
    _, graph = mlp((4, 6, 2), 1, turned=True)
    lower = torch.randn(1, 2, 2, generator=torch.Generator().manual_seed(3)).double()
    whole = tightened(graph, lower, lower + torch.tensor([[0.1, 0.5], [1.0, 2.0]]).double())
    assert whole.question.index.start is not graph.input
    A = torch.tensor([[1.0, -2.0], [-1.0, 0.5]]).double()
    best, _ = least(whole, A)
    out = grown(whole, A, goals=torch.stack([best[0] - 5, best[1] + 0.1]))
    assert (out.stopped, out.broken) == ("witness", 1)
    check_witness(whole, A, torch.stack([best[0] - 5, best[1] + 0.1]), out)


def test_a_witness_lies_in_the_set_in_spite_of_rounding() -> None:
    g = torch.Generator().manual_seed(0)
    x = build.source((40,))
    graph = Graph(x, build.affine(x, torch.randn(1, 40, generator=g).double(), torch.zeros(1).double(), "y"))
    lower = torch.randn(1, 40, generator=g, dtype=torch.float64)
    whole = tightened(graph, lower, lower + torch.rand(1, 40, generator=g, dtype=torch.float64))
    A, goals = torch.ones(1, 1).double(), torch.full((1,), 1e3).double()
    check_witness(whole, A, goals, grown(whole, A, goals=goals))


def test_the_input_itself_is_not_split() -> None:
    """A ReLU on the input: its kink is where the bound bends most, and nothing is left to split."""
    x = build.source((2,))
    graph = Graph(x, build.affine(build.apply(Relu(), x, name="relu"), -torch.ones(1, 2).double(), None, "y"))
    whole = tightened(graph, torch.full((1, 2), -1.0).double(), torch.ones(1, 2).double())
    out = grown(whole, -torch.ones(1, 1).double(), goals=torch.ones(1).double(), accept=lambda *_: False)
    assert (out.stopped, out.open.tolist(), float(out.bound) <= 0) == ("exhausted", [1], True)


def test_goals_are_each_objectives_own() -> None:
    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    A = MARGINS[[0, 0, 1, 0]]
    goals = torch.stack([best[0] - 3, best[0] + 3, best[1] - 4, best[0] - 5])
    out = grown(whole, A, goals=goals, accept=lambda *_: False)
    assert (out.open > 0).tolist() == [False, True, False, False]
    assert ((out.bound > goals) == (out.open == 0)).all()
    assert (out.bound <= best[[0, 0, 1, 0]] + slack(best[0])).all()
    few = dataclasses.replace(QUICK, domains=8)
    default = grown(whole, A, few, accept=lambda *_: False)
    zero = grown(whole, A, few, accept=lambda *_: False, goals=torch.zeros(4).double())
    assert torch.equal(default.bound, zero.bound)  # and two runs are the same


def test_a_bound_at_the_goal_is_not_above_it() -> None:
    """y = x on [1, 2]: the bound is 1 exactly."""
    whole, A, one = line(1.0, 0.0), torch.ones(1, 1).double(), torch.ones(1).double()
    out = grown(whole, A, goals=one)
    assert (float(out.bound), out.stopped, out.broken) == (1.0, "witness", 0)
    assert out.witness.tolist() == [1.0]
    out = grown(whole, A, goals=one, accept=lambda *_: False)
    assert (float(out.bound), out.stopped, out.open.tolist(), out.domains) == (1.0, "exhausted", [1], 1)
    assert grown(whole, A, goals=one - 1e-15).stopped == "done"
    for known in (one, one - 1e-15, one + torch.nan):
        assert grown(whole, A, goals=one, known=known, accept=lambda *_: False).stopped == "exhausted"
    assert grown(whole, A, goals=one, known=one + 1e-15).stopped == "done"


def test_what_is_known_to_be_above_is_not_looked_at(monkeypatch) -> None:
    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    goals = best + 1
    for where in (branch_and_bound, backward):
        monkeypatch.setattr(where, "backward", lambda *_, **__: pytest.fail("a pass for nothing"))
    out = grown(whole, MARGINS, known=goals + 0.5, goals=goals)
    assert (out.stopped, out.domains, out.open.tolist(), out.witness) == ("done", 0, [0, 0, 0], None)
    assert torch.equal(out.bound, goals + 0.5)
    monkeypatch.undo()
    some = torch.stack([goals[0] + 0.5, best[1] - 50, best[2] + torch.nan])
    out = grown(whole, MARGINS, known=some, goals=goals, accept=lambda *_: False)
    assert (out.bound[0], out.open[0], (out.open[1:] > 0).all()) == (some[0], 0, True)
    assert (out.bound[1:] <= best[1:] + slack(best[1:])).all()


def test_no_objective_is_done() -> None:
    out = grown(attention("relu"), MARGINS[:0])
    assert (len(out.bound), len(out.open), out.domains, out.stopped) == (0, 0, 0, "done")


def test_accept_sees_inputs_that_break_and_decides() -> None:
    whole, seen = attention("relu"), []
    best, _ = least(whole, MARGINS)
    goals = torch.stack([best[0] - 1, best[1] + 0.05, best[2] + 0.3])

    def accept(point: Tensor, objective: int) -> bool:
        seen.append((point, objective))
        return len(seen) == 3

    out = grown(whole, MARGINS, goals=goals, accept=accept)
    assert (out.stopped, len(seen)) == ("witness", 3)
    assert out.witness is seen[-1][0]
    assert out.broken == seen[-1][1]
    for point, objective in seen:
        assert float(whole.graph.evaluate(point[None])[0] @ MARGINS[objective]) <= float(goals[objective])
    assert grown(whole, MARGINS, goals=best - 1e-6).stopped != "witness"


def test_what_is_no_number_is_no_bound() -> None:
    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    for bad in (torch.nan, torch.inf):
        A = MARGINS.clone()
        A[1, 0] = bad
        out = grown(whole, A, goals=best - 4, accept=lambda *_: False)
        assert out.bound[1] == -torch.inf
        assert (out.open > 0).tolist() == [False, True, False]
        assert out.stopped != "done"
        assert ((out.bound > best - 4) & (out.bound <= best + slack(best))).tolist() == [True, False, True]
    out = grown(line(0.0, 10.0), torch.full((1, 1), 1e308, dtype=torch.float64))  # 1e309 is none
    assert (float(out.bound), out.open.tolist()) == (-math.inf, [1])


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_the_time_is_kept_and_the_questions_own_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention(name)
    best, _ = least(whole, MARGINS)
    known = best - torch.tensor([7.0, 8.0, 9.0])

    def until(deadline: float | None) -> Ready:
        return Ready(whole.question.until(deadline), whole.boxes)

    for before in (None, time.perf_counter() + 1000):
        mine = until(before)
        out = grown(mine, MARGINS, dataclasses.replace(QUICK, seconds=0.0), known=known)
        assert (out.stopped, out.open.tolist()) == ("seconds", [1, 1, 1])
        assert torch.equal(out.bound, known)
        assert mine.question.clock.deadline == before
        assert grown(mine, MARGINS, dataclasses.replace(QUICK, seconds=900.0)).stopped != "seconds"
        assert mine.question.clock.deadline == before
        with pytest.raises(ZeroDivisionError):
            grown(mine, MARGINS, goals=best + 1, accept=lambda *_: 1 / 0)
        assert mine.question.clock.deadline == before
    for seconds in (None, 900.0):  # long ago: more seconds of its own do not help
        assert grown(until(0.0), MARGINS, dataclasses.replace(QUICK, seconds=seconds)).stopped == "seconds"
    # in the middle: what was found before stays
    goals, count = best - 0.02, itertools.count()
    seen, said, real = Tree(monkeypatch), [], branch_and_bound.BranchAndBound._survey

    def survey(tree: branch_and_bound.BranchAndBound, parts: list[Part]) -> list[branch_and_bound._Surveyed]:
        if next(count) == 4:
            raise OutOfTimeError("now")
        return real(tree, parts)

    monkeypatch.setattr(branch_and_bound.BranchAndBound, "_survey", survey)
    out = grown(whole, MARGINS, goals=goals, accept=lambda *_: False, progress=lambda *now: said.append(now))
    assert out.stopped == "seconds"
    assert whole.question.clock.deadline is None
    assert int(out.open.sum()) == said[-1][1]
    assert (out.bound <= best + slack(best)).all()
    for k in range(3):
        assert float(out.bound[k]) == min(d.bound for d in seen.leaves if d.objective == k)


def test_limits_end_it() -> None:
    whole = attention("relu")
    best, _ = least(whole, MARGINS)
    goals, no = best - 1e-3, {"accept": lambda *_: False}
    root = grown(whole, MARGINS, dataclasses.replace(QUICK, domains=1), goals=goals, **no)
    assert (root.stopped, root.domains, root.open.tolist()) == ("domains", 3, [1, 1, 1])
    full = grown(whole, MARGINS, dataclasses.replace(QUICK, memory=1), goals=goals, **no)
    assert (full.stopped, full.domains, torch.equal(full.bound, root.bound)) == ("memory", 3, True)


def test_the_method_is_at_least_joint_and_sound() -> None:
    config, A = CONFIGS["relu"], torch.cat([MARGINS, -MARGINS])
    graph, box, quick = transformer(config), input_box(config, 1, 0.3, 1), Ascent(steps=3)
    best, _ = least(attention("relu"), A)
    two = tuple(x.expand(2, *x.shape[1:]) for x in box)  # several inputs are not branched

    def found(ends: tuple[Tensor, Tensor], method: str, **more: object) -> Tensor:
        return by_method(asked(graph, *ends), method, Options(ascent=quick, **more), A.expand(len(ends[0]), 6, 3)).lower

    for goal in (None, float(best.min()) - 0.02):
        joint, bab = found(box, "joint", goal=goal), found(box, "bab", goal=goal, search=QUICK)
        assert ((bab >= joint) & (bab <= best + slack(best))).all()
    assert (bab > joint).any()
    for ends in (box, two):
        none = found(ends, "bab", search=Search(seconds=0.0))
        assert torch.allclose(none, found(box, "joint").expand_as(none))


WRONG = [
    {"seconds": -1.0},
    {"seconds": math.nan},
    *({name: 0} for name in ("domains", "memory", "width", "tried", "every")),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_bad_arguments_are_named(wrong: dict) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        Search(**wrong)

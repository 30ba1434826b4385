"""The ascent: never below its start, as sound at every step, and objectives that do not meddle with each other."""

from __future__ import annotations

import dataclasses
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import check_bounds, check_boxes, hard_points, objectives
from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds.backward import Walk
from vertex_softmax.bounds.coefficients import Part
from vertex_softmax.bounds.ascent import LET_GO, Ascent, _better, ascended_box, optimized_bound, parameters
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.bounding import make_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.rules import Rules

CONFIGS = {
    "plain": Config(seed=2),
    "two blocks": Config(depth=2, heads=2, activation="gelu", seed=3),
    "norm": Config(norm="pre", activation="relu", class_token=True, pooling="token", seed=4),
    "gated": Config(gated=True, activation="silu", mask="causal", seed=5),
}
RULES = {
    "lse": Rules(attention="lse"),
    "affine": Rules(attention="affine", pieces=2),
    "coupled": Rules(attention="affine", coupled=True),
}
each = pytest.mark.parametrize("name", CONFIGS)
every = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def ready(name: str, radius: float = 0.3) -> tuple[Walk, Tensor]:
    """A walk with all boxes, and objectives (batch, S, classes)."""
    config = CONFIGS[name]
    walk = Walk(transformer(config), *input_box(config, 2, radius, 1))
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    return walk, objectives(walk.graph, 2)


def at_start(walk: Walk, A: Tensor, rules: Rules) -> Tensor:
    with torch.no_grad():
        return walk.bound(walk.graph.output, Part(A), rules)


def ascend(walk: Walk, A: Tensor, rules: Rules, steps: int = 6, **options: object) -> Tensor:
    seconds = options.pop("seconds", None)
    return optimized_bound(walk, walk.graph.output, A, rules, Ascent(steps=steps, seconds=seconds), **options)


class Counted:
    """walk.bound with a count of its calls, and of the objectives in each."""

    def __init__(self, walk: Walk) -> None:
        self.walk, self.real, self.calls = walk, walk.bound, []

    def __enter__(self) -> list[int]:
        def bound(node, part, rules, chosen=None):
            self.calls.append(part.A.shape[1])
            for at, values in (chosen or {}).items():
                for key, value in values.items():
                    low, high, _ = at.op.ranges[key]
                    assert (value >= low).all(), f"{key} of {at!r} left its range"
                    assert (value <= high).all(), f"{key} of {at!r} left its range"
            return self.real(node, part, rules, chosen)

        self.patch = mock.patch.object(self.walk, "bound", bound)
        self.patch.start()
        return self.calls

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


@each
@every
def test_never_below_the_start_and_as_sound(name: str, rule: str) -> None:
    walk, A = ready(name)
    start = at_start(walk, A, RULES[rule])
    with Counted(walk) as calls:
        found = ascend(walk, A, RULES[rule], 8)
    assert calls == [A.shape[1]] * 10  # the start, eight steps, the end
    assert (found >= start).all()
    assert (found > start + 1e-6).any(), "nothing was gained"
    check_bounds(walk.graph, found, A, hard_points(walk.graph, *walk.boxes[walk.graph.input]))


@every
def test_every_step_is_sound(rule: str) -> None:
    """Large steps into all corners of the ranges."""
    walk, A = ready("norm")
    x = hard_points(walk.graph, *walk.boxes[walk.graph.input])
    for size in (3.0, 50.0):
        found = optimized_bound(walk, walk.graph.output, A, RULES[rule], Ascent(steps=4, step_size=size, decay=1.0))
        check_bounds(walk.graph, found, A, x)


@every
def test_every_step_is_never_below_the_start(rule: str) -> None:
    """Steps so large that the last bound is worse than the first."""
    walk, A = ready("plain")
    start = at_start(walk, A, RULES[rule])
    found = optimized_bound(walk, walk.graph.output, A, RULES[rule], Ascent(steps=3, step_size=50.0, decay=1.0))
    assert (found >= start).all()


@every
def test_parameters_without_guidance_are_sound(rule: str) -> None:
    """Random values of all parameters of all nodes at once."""
    walk, A = ready("two blocks")
    x = hard_points(walk.graph, *walk.boxes[walk.graph.input])
    g = torch.Generator().manual_seed(1)
    rules = dataclasses.replace(RULES[rule], free=True)
    free = parameters(walk, walk.graph.output, A.shape[1], rules)
    assert {p.name for p in free} >= {"corner", "below", "above"}
    for kind in range(4):
        chosen: dict = {}
        for p in free:
            low, high, _ = p.range
            t = torch.rand(p.value.shape, generator=g, dtype=torch.float64)
            t = t.round() if kind == 0 else t if kind < 3 else 0.5 + 0.1 * (t - 0.5)
            chosen.setdefault(p.node, {})[p.name] = low + t * (high - low)
        with torch.no_grad():
            found = walk.bound(walk.graph.output, Part(A), rules, chosen)
        check_bounds(walk.graph, found, A, x)


@each
def test_at_least_what_is_known(name: str) -> None:
    walk, A = ready(name)
    rules = RULES["affine"]
    start = at_start(walk, A, rules)
    known = torch.where(torch.arange(A.shape[1]) % 2 == 0, start + 100, start - 100)
    found = ascend(walk, A, rules, 3, known=known)
    assert (found >= known).all()
    assert (found[:, 1::2] >= start[:, 1::2]).all()
    assert torch.equal(found[:, ::2], known[:, ::2])


def test_all_above_the_goal_is_the_end() -> None:
    walk, A = ready("plain")
    start = at_start(walk, A, RULES["affine"])
    with Counted(walk) as calls:
        found = ascend(walk, A, RULES["affine"], 20, goal=float(start.min()) - 1)
    assert calls == [A.shape[1]]
    assert torch.equal(found, start)


def test_goals_are_looked_at_every_few_steps() -> None:
    """With a goal that the ascent reaches on the way it stops before its steps are done."""
    walk, A = ready("plain", 0.1)
    one = A[:1, :1]
    single = Walk(walk.graph, *(x[:1] for x in walk.boxes[walk.graph.input]))
    with torch.no_grad():
        make_boxes(single, ("affine",), Options(), True)
    start, far = at_start(single, one, RULES["affine"]), ascend(single, one, RULES["affine"], 2 * LET_GO)
    goal = float(start + 0.5 * (far - start))
    with Counted(single) as calls:
        found = ascend(single, one, RULES["affine"], 40, goal=goal)
    assert float(found) > goal
    assert len(calls) <= 1 + 2 * LET_GO
    assert (len(calls) - 1) % LET_GO == 0


@pytest.mark.parametrize("name", ["plain", "two blocks", "norm"])
@pytest.mark.parametrize("rule", ["lse", "affine"])
def test_those_let_go_do_not_change_the_others(name: str, rule: str) -> None:
    """Parameters are each objective's own.

    Where a gradient is nothing but rounding (1e-18 for a cut of the second block), Adam's steps are full all the same,
    and follow the order of summation: there the results agree to a part of what is gained only.
    """
    walk, A = ready(name)
    near = 5e-3 if name == "two blocks" else 1e-9
    rules, steps = RULES[rule], 2 * LET_GO + 1
    start, full = at_start(walk, A, rules), ascend(walk, A, rules, steps)
    goal = float(start.median())
    found = ascend(walk, A, rules, steps, goal=goal)
    assert (found >= start).all()
    above = start > goal
    assert (found[above] > goal).all()
    stay = full <= goal  # never let go, so as many steps as without a goal
    assert stay.any()
    assert torch.allclose(found[stay], full[stay], rtol=near, atol=near)
    for s in range(A.shape[1]):
        if bool(stay[:, s].all()):
            alone = ascend(walk, A[:, s : s + 1], rules, steps)
            assert torch.allclose(alone[:, 0], found[:, s], rtol=near, atol=near)


def test_the_hopeless_are_let_go() -> None:
    """A value that is not above the goal is known: no step is spent on that objective, its bound is the start's."""
    walk, A = ready("plain")
    rules, steps = RULES["affine"], LET_GO + 1
    start, full = at_start(walk, A, rules), ascend(walk, A, rules, steps)
    goal = float(full.max()) + 1  # nobody gets there
    ceiling = torch.full_like(start, goal + 1)
    ceiling[:, ::2] = goal
    with Counted(walk) as calls:
        found = ascend(walk, A, rules, steps, goal=goal, ceiling=ceiling)
    assert max(calls[1:]) == A.shape[1] // 2
    assert torch.equal(found[:, ::2], start[:, ::2])
    assert torch.allclose(found[:, 1::2], full[:, 1::2], rtol=1e-9, atol=1e-9)
    with Counted(walk) as calls:
        found = ascend(walk, A, rules, steps, goal=goal, ceiling=torch.full_like(start, goal))
    assert calls == [A.shape[1]]
    assert torch.equal(found, start)


@each
@every
def test_no_time_gives_the_start(name: str, rule: str) -> None:
    walk, A = ready(name)
    start = at_start(walk, A, RULES[rule])
    with Counted(walk) as calls:
        found = ascend(walk, A, RULES[rule], 50, seconds=0.0)
    assert len(calls) <= 2
    exact = torch.maximum(start, at_start(walk, A, dataclasses.replace(RULES[rule], sums=True)))  # as the end has it
    assert (found >= start).all()
    assert (found <= exact + 1e-9 * (1 + exact.abs())).all()
    assert torch.allclose(ascend(walk, A, RULES[rule], 0), found, rtol=0, atol=0)


@each
def test_two_runs_are_the_same_bit_for_bit(name: str) -> None:
    for rules in RULES.values():
        first, second = (ascend(*ready(name), rules, 4, goal=0.0) for _ in range(2))
        assert torch.equal(first, second)


@every
def test_what_starts_at_nan_stays_there(rule: str) -> None:
    walk, A = ready("two blocks")
    rules = RULES[rule]
    bad = A.clone()
    bad[0, 1, 0] = torch.nan
    want, found = ascend(walk, A, rules, 4), ascend(walk, bad, rules, 4)
    assert found[0, 1].isnan()
    others = torch.ones_like(want, dtype=torch.bool)
    others[0, 1] = False
    assert torch.allclose(found[others], want[others], rtol=1e-9, atol=1e-9)
    known = torch.zeros_like(want)
    assert ascend(walk, bad, rules, 2, known=known)[0, 1].isnan()
    assert ascend(walk, bad, rules, 2, goal=1e9)[0, 1].isnan()


def test_a_step_that_is_no_number_gives_nothing_and_no_step_makes_nan_a_number() -> None:
    best = torch.tensor([[1.0, torch.nan, 2.0, -torch.inf, 5.0]])
    found = torch.tensor([[torch.nan, 7.0, 3.0, 4.0]])
    here = torch.tensor([[0, 1, 2, 3]])
    assert torch.equal(_better(best, found, here).nan_to_num(-9.0), torch.tensor([[1.0, -9.0, 3.0, 4.0, 5.0]]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"step_size": 0.0},
        {"step_size": -1.0},
        {"decay": 0.0},
        {"decay": 1.1},
        {"decay": float("nan")},
        {"step_size": float("nan")},
        {"seconds": -1.0},
        {"seconds": float("nan")},
    ],
    ids=str,
)
def test_bad_arguments_are_named(wrong: dict) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        Ascent(**wrong)


@each
def test_an_ascended_box_is_never_wider_and_holds_all_values(name: str) -> None:
    walk, _ = ready(name)
    x = hard_points(walk.graph, *walk.boxes[walk.graph.input], count=40)
    last = [n for n in walk.nodes if n in walk.refined][-2:]
    for node in last:
        old = walk.boxes[node]
        with torch.no_grad():
            new = ascended_box(walk, node, Rules(attention="affine"), Ascent(steps=3))
        assert (new.lower >= old.lower).all()
        assert (new.upper <= old.upper).all()
        walk.tighten(node, new)
    assert not walk.problems
    check_boxes(walk.graph, walk.boxes, x)

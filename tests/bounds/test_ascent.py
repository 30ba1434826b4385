"""The ascent: never below its start, as sound at every step, and objectives that do not meddle with each other."""

from __future__ import annotations

import dataclasses
import functools
from unittest import mock

import pytest
import torch
from torch import Tensor

from tests.bounds.checks import Ready, asked, check_bounds, check_boxes, hard_points, objectives, tightened
from tests.bounds.networks import Config, input_box, transformer
from vertex_softmax.bounds import ascent as module
from vertex_softmax.bounds.ascent import DROP_EVERY, Ascent, Beginning, Goal, _better, ascended_box, free_parameters
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.choice import DEFAULT, Choice
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.units import undecided
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.ops.rules import RowRule, Rules

CONFIGS = {
    "plain": Config(seed=2),
    "two blocks": Config(depth=2, heads=2, activation="gelu", seed=3),
    "norm": Config(norm="pre", activation="relu", class_token=True, pooling="token", seed=4),
    "gated": Config(gated=True, activation="silu", mask="causal", seed=5),
}
RULES = {
    "lse": Rules(attention=RowRule.LSE),
    "affine": Rules(attention=RowRule.AFFINE, pieces=2),
    "coupled": Rules(attention=RowRule.AFFINE, coupled=True),
}
each = pytest.mark.parametrize("name", CONFIGS)
every = pytest.mark.parametrize("rule", RULES)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def boxed(name: str, radius: float) -> Ready:
    config = CONFIGS[name]
    return tightened(transformer(config), *input_box(config, 2, radius, 1))


def ready(name: str, radius: float = 0.3) -> tuple[Ready, Tensor]:
    """A question of its own, with boxes that are made once, and objectives (batch, S, classes)."""
    made = boxed(name, radius)
    return Ready(asked(made.graph, *made.box), made.boxes), objectives(made.graph, 2)


def at_start(made: Ready, A: Tensor, rules: Rules) -> Tensor:
    with torch.no_grad():
        return made.bound(A, rules)


def ascended(
    made: Ready,
    A: Tensor,
    rules: Rules,
    ascent: Ascent | int = 6,
    goal: Goal | None = None,
    known: Tensor | None = None,
) -> Tensor:
    ascent = Ascent(steps=ascent) if isinstance(ascent, int) else ascent
    begin = None if known is None else Beginning(known=known)
    return module.ascend(made.question, made.boxes, made.on_output(A), rules, ascent, goal, begin).bound


class Counted:
    """lower_bound as the ascent calls it, with a count of its calls, and of the objectives in each."""

    def __init__(self) -> None:
        self.real, self.calls = module.lower_bound, []

    def __enter__(self) -> list[int]:
        def bound(
            question: Question, boxes: Boxes, objective: Objective, rules: Rules, choice: Choice = DEFAULT
        ) -> Tensor:
            self.calls.append(objective.coefficients.A.shape[1])
            for at, values in choice.parameters.items():
                ranges = question.relaxations.of(at, boxes, rules).ranges
                for key, value in values.items():
                    low, high, _ = ranges[key]
                    assert (value >= low).all(), f"{key} of {at!r} left its range"
                    assert (value <= high).all(), f"{key} of {at!r} left its range"
            return self.real(question, boxes, objective, rules, choice)

        self.patch = mock.patch.object(module, "lower_bound", bound)
        self.patch.start()
        return self.calls

    def __exit__(self, *_: object) -> None:
        self.patch.stop()


@each
@every
def test_never_below_the_start_and_as_sound(name: str, rule: str) -> None:
    made, A = ready(name)
    start = at_start(made, A, RULES[rule])
    with Counted() as calls:
        found = ascended(made, A, RULES[rule], 8)
    assert calls == [A.shape[1]] * 10  # the start, eight steps, the end
    assert (found >= start).all()
    assert (found > start + 1e-6).any(), "nothing was gained"
    check_bounds(made.graph, found, A, hard_points(made.graph, *made.box))


@every
def test_every_step_is_sound(rule: str) -> None:
    """Large steps into all corners of the ranges."""
    made, A = ready("norm")
    x = hard_points(made.graph, *made.box)
    for size in (3.0, 50.0):
        found = ascended(made, A, RULES[rule], Ascent(steps=4, step_size=size, decay=1.0))
        check_bounds(made.graph, found, A, x)


@every
def test_every_step_is_never_below_the_start(rule: str) -> None:
    """Steps so large that the last bound is worse than the first."""
    made, A = ready("plain")
    start = at_start(made, A, RULES[rule])
    found = ascended(made, A, RULES[rule], Ascent(steps=3, step_size=50.0, decay=1.0))
    assert (found >= start).all()


@every
def test_parameters_without_guidance_are_sound(rule: str) -> None:
    """Random values of all parameters of all nodes at once."""
    made, A = ready("two blocks")
    x = hard_points(made.graph, *made.box)
    g = torch.Generator().manual_seed(1)
    rules = dataclasses.replace(RULES[rule], free=True)
    free = free_parameters(made.question, made.boxes, made.on_output(A), rules, Beginning())
    assert {p.name for p in free} >= {"corner", "below", "above"}
    for kind in range(4):
        chosen: dict = {}
        for p in free:
            low, high, _ = p.range
            t = torch.rand(p.value.shape, generator=g, dtype=torch.float64)
            t = t.round() if kind == 0 else t if kind < 3 else 0.5 + 0.1 * (t - 0.5)
            chosen.setdefault(p.node, {})[p.name] = low + t * (high - low)
        with torch.no_grad():
            found = made.bound(A, rules, Choice(chosen))
        check_bounds(made.graph, found, A, x)


@each
def test_at_least_what_is_known(name: str) -> None:
    made, A = ready(name)
    rules = RULES["affine"]
    start = at_start(made, A, rules)
    known = torch.where(torch.arange(A.shape[1]) % 2 == 0, start + 100, start - 100)
    found = ascended(made, A, rules, 3, known=known)
    assert (found >= known).all()
    assert (found[:, 1::2] >= start[:, 1::2]).all()
    assert torch.equal(found[:, ::2], known[:, ::2])


def test_all_above_the_goal_is_the_end() -> None:
    made, A = ready("plain")
    start = at_start(made, A, RULES["affine"])
    with Counted() as calls:
        found = ascended(made, A, RULES["affine"], 20, goal=Goal(float(start.min()) - 1))
    assert calls == [A.shape[1]]
    assert torch.equal(found, start)


def test_goals_are_looked_at_every_few_steps() -> None:
    """With a goal that the ascent reaches on the way it stops before its steps are done."""
    made, A = ready("plain", 0.1)
    one = A[:1, :1]
    single = tightened(made.graph, *(x[:1] for x in made.box))
    start, far = at_start(single, one, RULES["affine"]), ascended(single, one, RULES["affine"], 2 * DROP_EVERY)
    goal = float(start + 0.5 * (far - start))
    with Counted() as calls:
        found = ascended(single, one, RULES["affine"], 40, goal=Goal(goal))
    assert float(found) > goal
    assert len(calls) <= 1 + 2 * DROP_EVERY
    assert (len(calls) - 1) % DROP_EVERY == 0


@pytest.mark.parametrize("name", ["plain", "two blocks", "norm"])
@pytest.mark.parametrize("rule", ["lse", "affine"])
def test_those_let_go_do_not_change_the_others(name: str, rule: str) -> None:
    """Parameters are each objective's own.

    Where a gradient is nothing but rounding (1e-18 for a cut of the second block), Adam's steps are full all the same,
    and follow the order of summation: there the results agree to a part of what is gained only.
    """
    made, A = ready(name)
    near = 5e-3 if name == "two blocks" else 1e-9
    rules, steps = RULES[rule], 2 * DROP_EVERY + 1
    start, full = at_start(made, A, rules), ascended(made, A, rules, steps)
    goal = float(start.median())
    found = ascended(made, A, rules, steps, goal=Goal(goal))
    assert (found >= start).all()
    above = start > goal
    assert (found[above] > goal).all()
    stay = full <= goal  # never let go, so as many steps as without a goal
    assert stay.any()
    assert torch.allclose(found[stay], full[stay], rtol=near, atol=near)
    for s in range(A.shape[1]):
        if bool(stay[:, s].all()):
            alone = ascended(made, A[:, s : s + 1], rules, steps)
            assert torch.allclose(alone[:, 0], found[:, s], rtol=near, atol=near)


def test_the_hopeless_are_let_go() -> None:
    """A value that is not above the goal is known: no step is spent on that objective, its bound is the start's."""
    made, A = ready("plain")
    rules, steps = RULES["affine"], DROP_EVERY + 1
    start, full = at_start(made, A, rules), ascended(made, A, rules, steps)
    goal = float(full.max()) + 1  # nobody gets there
    ceiling = torch.full_like(start, goal + 1)
    ceiling[:, ::2] = goal
    with Counted() as calls:
        found = ascended(made, A, rules, steps, goal=Goal(goal, ceiling))
    assert max(calls[1:]) == A.shape[1] // 2
    assert torch.equal(found[:, ::2], start[:, ::2])
    assert torch.allclose(found[:, 1::2], full[:, 1::2], rtol=1e-9, atol=1e-9)
    with Counted() as calls:
        found = ascended(made, A, rules, steps, goal=Goal(goal, torch.full_like(start, goal)))
    assert calls == [A.shape[1]]
    assert torch.equal(found, start)


def test_an_ascent_without_a_future_ends() -> None:
    """Half of the steps where what is known is out of reach; all of them where it is not."""
    made, A = ready("plain")
    start = at_start(made, A, RULES["affine"])
    for known, steps in ((start + 100, 10), (start - 100, 20)):
        with Counted() as calls:
            found = module.ascend(
                made.question,
                made.boxes,
                made.on_output(A),
                RULES["affine"],
                Ascent(steps=20, trend=True),
                None,
                Beginning(known=known),
            ).bound
        assert len(calls) == steps + 2  # the start and the end
        assert (found >= torch.maximum(known, start)).all()


def test_patience_says_when_the_trend_is_first_asked() -> None:
    made, A = ready("plain")
    known = at_start(made, A, RULES["affine"]) + 100
    for patience, steps in ((0.0, 2 * DROP_EVERY), (0.75, 15), (1.0, 20)):
        ascent = Ascent(steps=20, trend=True, patience=patience)
        with Counted() as calls:
            module.ascend(
                made.question,
                made.boxes,
                made.on_output(A),
                RULES["affine"],
                ascent,
                None,
                Beginning(known=known),
            )
        assert len(calls) == steps + 2
    with pytest.raises(InvalidValueError, match="patience"):
        Ascent(patience=1.5)


@each
@every
def test_no_time_gives_the_start(name: str, rule: str) -> None:
    made, A = ready(name)
    start = at_start(made, A, RULES[rule])
    with Counted() as calls:
        found = ascended(made, A, RULES[rule], Ascent(steps=50, seconds=0.0))
    assert len(calls) <= 2
    exact = torch.maximum(start, at_start(made, A, dataclasses.replace(RULES[rule], sums=True)))  # as the end has it
    assert (found >= start).all()
    assert (found <= exact + 1e-9 * (1 + exact.abs())).all()
    assert torch.allclose(ascended(made, A, RULES[rule], 0), found, rtol=0, atol=0)


@each
def test_two_runs_are_the_same_bit_for_bit(name: str) -> None:
    for rules in RULES.values():
        first, second = (ascended(*ready(name), rules, 4, goal=Goal(0.0)) for _ in range(2))
        assert torch.equal(first, second)


@every
def test_what_starts_at_nan_stays_there(rule: str) -> None:
    made, A = ready("two blocks")
    rules = RULES[rule]
    bad = A.clone()
    bad[0, 1, 0] = torch.nan
    want, found = ascended(made, A, rules, 4), ascended(made, bad, rules, 4)
    assert found[0, 1].isnan()
    others = torch.ones_like(want, dtype=torch.bool)
    others[0, 1] = False
    assert torch.allclose(found[others], want[others], rtol=1e-9, atol=1e-9)
    known = torch.zeros_like(want)
    assert ascended(made, bad, rules, 2, known=known)[0, 1].isnan()
    assert ascended(made, bad, rules, 2, goal=Goal(1e9))[0, 1].isnan()


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
    made, _ = ready(name)
    question, boxes = made.question, made.boxes
    x = hard_points(made.graph, *made.box, count=40)
    refined = [n for n in made.nodes if n.inputs and question.index.read_by_someone(n)]
    tighter = 0
    for node in refined[-2:]:
        old = boxes[node]
        with torch.no_grad():
            new = ascended_box(question, boxes, node, Rules(attention=RowRule.AFFINE), Ascent(steps=3))
        assert (new.lower >= old.lower).all()
        assert (new.upper <= old.upper).all()
        open_ = undecided(question, boxes, node)
        assert torch.equal(new.lower[:, ~open_], old.lower.expand_as(new.lower)[:, ~open_])
        tighter += int((new.lower > old.lower).sum() + (new.upper < old.upper).sum())
        boxes = boxes.tightened(node, new)
    assert tighter
    assert not boxes.problems
    check_boxes(made.graph, boxes, x)


@each
def test_the_last_objectives_keep_their_parameters(name: str) -> None:
    """Where all are above the goal the choice is that of a bound above it, and it is no worse than what is said."""
    made, A = ready(name)
    question, rules = made.question, RULES["affine"]
    start = at_start(made, A[:, :1], rules)
    objective = Objective.dense(made.graph.output, A[:, :1])
    goal = Goal(start + 1e-3)
    done = module.ascend(question, made.boxes, objective, rules, Ascent(), goal, Beginning(best=True))
    assert (done.bound > goal.above).all()
    free = dataclasses.replace(rules, free=True)
    with torch.no_grad():
        again = module.lower_bound(question, made.boxes, objective, free, done.choice)
    assert again.shape == done.bound.shape
    assert (again > goal.above).all()
    assert torch.allclose(again, done.bound, atol=1e-9)


@each
def test_the_parameters_of_an_ascended_box_prove_it(name: str) -> None:
    made, _ = ready(name)
    question, boxes = made.question, made.boxes
    node = [n for n in made.nodes if n.inputs and question.index.read_by_someone(n)][-1]
    kept, rules = module.AscendedEntries(node), Rules(attention=RowRule.AFFINE)
    with torch.no_grad():
        new = ascended_box(question, boxes, node, rules, Ascent(steps=3, sums=False), kept)
        assert sum(len(rows) for rows, _ in kept.parts) == int(undecided(question, boxes, node).sum())
        for rows, choice in kept.parts:
            units = torch.zeros(1, len(rows), new.lower[0].numel(), dtype=torch.float64)
            units[0, torch.arange(len(rows)), rows] = 1
            A = units.reshape(1, len(rows), *node.shape).expand(question.batch, -1, *node.shape)
            objective = Objective.dense(node, torch.cat([A, -A], 1))
            free = dataclasses.replace(rules, free=True)
            found = module.lower_bound(question, boxes, objective, free, choice)
            low, high = found[:, : len(rows)], -found[:, len(rows) :]
            assert (torch.maximum(low, boxes[node].lower.flatten(1)[:, rows]) >= new.lower.flatten(1)[:, rows]).all()
            assert (torch.minimum(high, boxes[node].upper.flatten(1)[:, rows]) <= new.upper.flatten(1)[:, rows]).all()

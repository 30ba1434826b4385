"""The cascade where time is short, numbers are none, or only rounding decides."""

from __future__ import annotations

import dataclasses
import math
import random
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bounds.checks import tightened
from tests.bounds.networks import Config, input_box, samples, transformer
from tests.search.cascade_cases import BLIND, QUICK, WHOLE, affine, ask, bent, graph_of, tensor
from tests.search.small import UNIT, case, conjunction, prop
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.boxes import Boxes, Problem
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import PROPERTY
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods import boxes as box_recipes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.elementwise import Exp, Reciprocal, Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.search import branching, guards
from vertex_softmax.search.answers import Budget
from vertex_softmax.search.branching import question_over
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.mixing import mix
from vertex_softmax.search.replay import Replay
from vertex_softmax.search.targets import Target
from vertex_softmax.sets.region import Region
from vertex_softmax.specs.property import Case

torch.set_num_threads(1)


@pytest.mark.parametrize("method", ["bab", "joint", "crown", "attack"])
def test_no_time_is_a_timeout(method: str) -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, -5))))
    answer = ask(bent(), spec, budget=Budget(seconds=1e-9), method=method)
    assert answer.verdict == "timeout"
    assert answer.bounds == ((-math.inf,),)


def test_time_that_ends_in_a_search_is_a_timeout() -> None:
    config = Config(depth=2, activation="gelu", tokens=4, seed=1)
    lower, upper = (x.flatten().tolist() for x in input_box(config, 1, 0.5, 1))
    graph = transformer(config)
    spec = prop(3, case(list(zip(lower, upper, strict=True)), conjunction(({0: 1, 1: -1}, -3))))
    answer = ask(graph, spec, budget=Budget(seconds=0.3, first=0, second=0), options=Options())
    assert answer.verdict == "timeout"


@pytest.mark.parametrize(
    ("op", "ends"), [(Reciprocal(), (-1, 1)), (Exp(), (700, 1000)), (Exp(), (-1e308, 1e308))], ids=str
)
def test_bounds_that_are_no_numbers_exclude_nothing(op: object, ends: tuple[float, float]) -> None:
    x = affine([[1.0]], [0.0])
    graph = graph_of(affine([[1.0], [-1.0]], [0, 0], build.apply(op, x, name="op"), "out"))
    for row in ({0: 1}, {1: 1}, {0: 1, 1: 1}):
        answer = verify(
            graph, prop(2, case([ends], conjunction((row, -7)))), lambda _: None, budget=BLIND, options=QUICK
        )
        assert answer.verdict == "unknown"
        assert not answer.bounds[0][0] > 0


def test_boxes_with_a_problem_exclude_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = box_recipes.all_boxes

    def broken(question: Question, *more: Any) -> Boxes:
        boxes = real(question, *more)
        problem = Problem(question.graph.output, torch.ones(1, dtype=torch.bool), "two bounds cross")
        return dataclasses.replace(boxes, problems=(*boxes.problems, problem))

    monkeypatch.setattr(box_recipes, "all_boxes", broken)
    for method in ("crown", "joint", "bab"):
        answer = ask(bent(), prop(2, case(WHOLE, conjunction(({0: 1}, -5)))), method=method)
        assert (answer.verdict, answer.bounds) == ("unknown", ((-math.inf,),))
        assert "two bounds cross" in answer.reason


def test_tiny_coefficients_are_not_zero() -> None:
    """1e-330·y ≤ -1e-320 is y ≤ -1e10, and true of y = x in [-1e11, 0]."""
    graph = graph_of(affine([[1.0]], [0.0]))
    tiny = conjunction(({0: Fraction(1, 10**330)}, Fraction(-1, 10**320)))
    for ends, verdict in (((-1e11, 0), "falsified"), ((-1e9, 0), "verified")):
        for row in (tiny, conjunction(({0: 1}, -(10**10)))):
            assert ask(graph, prop(1, case([ends], row))).verdict == verdict


@pytest.mark.parametrize("seed", range(30))
def test_rows_that_cancel_exclude_nothing(seed: int) -> None:
    """ε y ≤ ε a and -δ y ≤ -δ a are true of y = a: no mix of the two may be found to be positive by its rounding."""
    rng = random.Random(seed)
    first, second = (Fraction(rng.randrange(1, 10**6), 10 ** rng.randrange(12, 16)) for _ in range(2))
    a = Fraction(rng.randrange(-(10**6), 10**6), 1_000_003)
    spec = prop(1, case([(-1, 1)], conjunction(({0: first}, first * a), ({0: -second}, -second * a))))
    answer = verify(graph_of(affine([[1.0]], [0.0])), spec, lambda _: None, budget=BLIND, options=QUICK)
    assert answer.verdict == "unknown"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_guard_by_hand(dtype: torch.dtype) -> None:
    """y = x₀ − 2 x₁ + 1/4 on [0, 1]²: |y| ≤ 7/4, and its terms are at most 1 and 2."""
    graph = graph_of(affine([[1, -2]], [0.25])).to(dtype)
    ready = tightened(graph, torch.zeros(1, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype))

    def guard(C: torch.Tensor, d: torch.Tensor) -> float:
        return guards.guard(guards.row_terms(ready.question, ready.boxes, Target(0, 0, C, d)))

    rows, limits = torch.tensor([[1.0], [-3.0], [0.0]], dtype=dtype), torch.tensor([-7.0, 5.0, 0.5], dtype=dtype)
    for C, d, size in ((rows[:1], limits[:1], 11.75), (rows, limits, 19.25), (rows[2:], limits[2:], 0.5)):
        assert guard(C, d) == pytest.approx(PROPERTY[dtype] * size, rel=1e-5)
    assert guard(rows, limits * math.inf) == math.inf
    assert guard(rows, limits * math.nan) == math.inf
    assert guard(rows * math.inf, limits) == math.inf


def test_a_mix_is_one() -> None:
    graph = graph_of(affine([[1.0], [-3.0], [0.0]], [0, 1, 0]))
    ready = tightened(graph, tensor([[-1.0]]), tensor([[1.0]]))
    C, d = tensor([[2.0, 0, 0], [0, 1.0, 0], [0, 0, 0]]), tensor([0.1, 0.2, 0.3])
    weights = mix(ready.question, ready.boxes, C, d)
    assert (weights >= 0).all()
    assert float(weights @ tensor([2.0, 1.0, 1.0])) == pytest.approx(1)


@given(st.integers(0, 2**32), st.integers(-9, 9), st.sampled_from([0, 1e-16, 1e-14, 1e-12, 1e-9]), st.booleans())
@settings(max_examples=40)
def test_nothing_within_rounding_is_verified(seed: int, power: int, delta: float, deep: bool) -> None:
    """Two affine maps in exact arithmetic: the limit is at the true minimum, or above it by less than it is worth."""
    g = np.random.default_rng(seed)
    n, scale = int(g.integers(1, 6)), 10.0**power
    W, b = g.normal(size=(3, n)), g.normal(size=3)
    V, e = scale * g.normal(size=(2, 3)), scale * g.normal(size=2)
    hidden = affine(W, b)
    shift = 3 * float(np.abs(W).sum() + np.abs(b).sum())  # every ReLU is on: affine in truth
    if deep:
        hidden = build.apply(Relu(), affine(np.eye(3), np.full(3, shift), hidden, "up"), name="relu")
        hidden = affine(np.eye(3), np.full(3, -shift), hidden, "down")
    graph = graph_of(affine(V, e, hidden, "out"))
    exact = np.vectorize(Fraction, otypes=[object])
    a = exact(g.normal(size=2)) if seed % 2 else np.array([Fraction(1), Fraction(0)])
    slopes = a @ exact(V) @ exact(W)
    least = a @ (exact(V) @ exact(b) + exact(e)) - sum(abs(s) for s in slopes)
    size = float(abs(least)) + float(sum(abs(s) for s in slopes))
    limit = least + Fraction(delta * size)
    spec = prop(2, case([(-1, 1)] * n, conjunction(({0: a[0], 1: a[1]}, limit))))
    answer = ask(graph, spec)
    assert answer.verdict != "verified"
    assert Fraction(answer.bounds[0][0]) <= least - limit + Fraction(1e-10 * size) or answer.bounds[0][0] == -math.inf
    spec = prop(2, case([(-1, 1)] * n, conjunction(({0: a[0], 1: a[1]}, least - Fraction(1e-6 * size)))))
    assert ask(graph, spec).verdict == "verified"


@given(st.integers(0, 2**32), st.sampled_from([-1e-2, -1e-9, -1e-12, 0.0, 1e-12, 1e-9, 1e-3]), st.integers(0, 3))
@settings(max_examples=20)
def test_nothing_is_verified_at_a_sampled_minimum(seed: int, delta: float, kind: int) -> None:
    """ReLU networks and attentions, limits right at the least value a dense search found."""
    activation, mask = ("relu", "gelu", "relu", "none")[kind], "causal" if kind == 2 else "none"
    config = Config(tokens=2, inputs=1, width=2, classes=2, activation=activation, mask=mask, seed=seed % 1000)
    graph = transformer(config)
    lower, upper = input_box(config, 1, 0.05 if seed % 2 else 0.3, seed % 1000)
    y = graph.evaluate(samples(lower, upper, 2000)[:, 0])
    a = y.new_tensor([1.0, -1.0]) if seed % 3 else y.new_tensor([1.0, 0.0])
    values = y @ a
    limit = float(values.min()) + delta * float(y.abs().max())
    ends = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    rows = [({0: float(a[0]), 1: float(a[1])}, limit)]
    if seed % 5 == 0:  # a second row that is true where the first is
        rows.append(({1: 1.0}, float(y[values.argmin(), 1]) + abs(delta)))
    short = Ascent(steps=2, sums=False)
    few = dataclasses.replace(QUICK, search=Search(domains=12, halving=0.0, root=short, ascent=short))
    answer = ask(graph, prop(2, case(ends, conjunction(*rows))), options=few)
    if delta >= 0:
        assert answer.verdict != "verified"
    if len(rows) == 1 and answer.verdict != "falsified":
        assert answer.bounds[0][0] <= float(values.min()) - limit + 1e-12 * (1 + abs(limit))


def test_a_mix_of_rows_with_small_coefficients_is_guarded() -> None:
    """y = (x + b, −x − b): c₀ y₀ ≤ c₀ t and c₁ y₁ ≤ −c₁ t are both true where y₀ = t, exactly; t is in reach."""
    said = []
    for seed in range(30):
        g = np.random.default_rng(seed)
        c, b = g.uniform(0.5e-8, 2e-8, 2).tolist(), float(g.uniform(0.5, 1))
        graph = graph_of(affine([[1.0], [-1.0]], [b, -b]))
        t = Fraction(b + float(g.uniform(0.1, 0.9)))
        rows = ({0: c[0]}, Fraction(c[0]) * t), ({1: c[1]}, -Fraction(c[1]) * t)
        spec = prop(2, case([UNIT], conjunction(*rows)))
        said.append(verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).verdict)
    assert "verified" not in said


def test_what_inner_values_cancel_is_guarded() -> None:
    """y = −3 (x + b) + 1e10 with b = 1e10/3 rounded: at x = 0 it is 1e10 − 3 b = −4.8e-7 and not 0."""
    big = 1e10
    graph = graph_of(affine([[-3.0]], [big], affine([[1.0]], [big / 3]), "out"))
    at_zero = Fraction(big) - 3 * Fraction(big / 3)
    assert at_zero < 0
    spec = prop(1, case([(-1, 0)], conjunction(({0: 1}, at_zero / 2))))  # true at x = 0
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).verdict != "verified"


def cancelled(kind: str) -> Node:
    """z = 3 (x + b) − 1e10 with b = 1e10/3 rounded: 4.8e-7 at x = 0, and 0 in float64."""
    if kind == "affine":
        return affine([[3.0]], [-1e10], affine([[1.0]], [1e10 / 3]), "z")
    x, (b, three, big) = build.source((1,)), (build.constant(tensor([v])) for v in (1e10 / 3, 3.0, -1e10))
    if kind == "product":
        three = build.add(build.multiply(x, build.constant(tensor([0.0])), "none"), three, "three")
    return build.add(build.multiply(build.add(x, b, "sum"), three, "times"), big, "z")


@pytest.mark.parametrize("kind", ["affine", "constants", "product"])
def test_a_relu_that_only_rounding_turns_off_is_guarded(kind: str) -> None:
    """y = −1e6 z⁺ is −0.48 at x = 0."""
    assert -(10**6) * (3 * Fraction(1e10 / 3) - Fraction(1e10)) < Fraction("-0.2")
    graph = graph_of(affine([[-1e6]], [0.0], build.apply(Relu(), cancelled(kind), name="relu"), "y"))
    spec = prop(1, case([(-1, 0)], conjunction(({0: 1}, "-0.2"))))
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).verdict != "verified"


@pytest.mark.parametrize("one", [False, True], ids=["two arrays", "one array"])
def test_ends_are_rounded_outward_for_a_graph_in_single_precision(one: bool) -> None:
    single = graph_of(affine([[1.0]], [0.0])).to(torch.float32)
    for point in (0.1, 0.3, 0.7, -0.1, -0.7):
        lower = np.array([point])
        upper = lower if one else lower.copy()
        box = Case(lower, upper, lower, upper, (conjunction(({0: 1}, 0)),))
        low, high = (end.double().item() for end in question_over(single, box, QUICK).given.box)
        assert low <= point <= high
        assert high - low < 1e-7


def test_the_question_in_single_precision_is_over_the_whole_box(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Interval] = []

    def over(graph: Graph, region: Region, **options: Any) -> Question:
        seen.append(region.box)
        return Question.over(graph, region, **options)

    monkeypatch.setattr(branching, "Question", SimpleNamespace(over=over))
    single = graph_of(affine([[1.0, 1.0]], [0.0])).to(torch.float32)
    spec = prop(1, case([("0.1", "0.3"), ("-0.7", "0.7")], conjunction(({0: 1}, -5))))
    assert verify(single, spec, lambda _: None, budget=BLIND, options=QUICK).verdict == "verified"
    assert seen
    for lower, upper in seen:
        assert bool((lower.double().numpy() <= spec.cases[0].lower).all())
        assert bool((upper.double().numpy() >= spec.cases[0].upper).all())


def test_single_precision_is_guarded_for_its_own_rounding() -> None:
    graph = bent().to(torch.float32)
    replay = Replay.of_function(graph.evaluate, graph.input.shape)
    for limit, verdict in ((-5, "verified"), ("-0.1251", "unknown"), (0, "falsified")):
        spec = prop(2, case(WHOLE, conjunction(({0: 1}, limit))))
        answer = verify(graph, spec, lambda x, s=spec: replay.confirms(s, x), budget=BLIND, options=QUICK)
        assert answer.verdict == verdict, limit


def test_an_index_before_the_weights_does_not_decide_the_precision() -> None:
    x = build.source((3,))
    graph = graph_of(affine([[1.0, 1.0]], [0.0], build.take(x, 0, torch.tensor([2, 0]), "some"))).to(torch.float32)
    spec = prop(1, case([(0, 1)] * 3, conjunction(({0: 1}, -1))))
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).verdict == "verified"


def test_options_reach_the_search() -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, "-0.126"))))
    few = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, domains=1))
    answer = ask(bent(), spec, options=few)
    assert answer.verdict == "unknown"
    assert "domains" in answer.reason

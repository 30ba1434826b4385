"""The cascade: unsat only where every conjunction is excluded by more than rounding, sat only with a counterexample."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.search.small import UNIT, case, conjunction, prop

from bounds.networks import Config, input_box, samples, transformer
from vertex_softmax.bounds.backward import Problem, Walk
from vertex_softmax.bounds.optimize import Ascent
from vertex_softmax.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.methods.bounding import METHODS, Options, make_boxes
from vertex_softmax.ops.elementwise import Exp, Reciprocal, Relu
from vertex_softmax.search import cascade as module
from vertex_softmax.search.branch_and_bound import Search
from vertex_softmax.search.cascade import CASCADE, GUARD, Answer, Budget, Status, _Cascade, _Target, guard, mix, verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

torch.set_num_threads(1)
BLIND = Budget(seconds=60, first=0, second=0)
"""Attacks see little more than centres: what is said comes of bounds."""
QUICK = Options(
    ascent=Ascent(steps=3),
    search=Search(domains=60, every=1, root=Ascent(steps=5), ascent=Ascent(steps=20, step_size=0.03, sums=False)),
)


def tensor(x: object) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def affine(W: object, b: object, x: Node | None = None, name: str = "affine") -> Node:
    W = tensor(W)
    return build.affine(build.source((W.shape[1],)) if x is None else x, W, tensor(b), name)


def graph_of(output: Node) -> Graph:
    at = output
    while at.inputs:
        at = at.inputs[0]
    return Graph(at, output)


def bent() -> Graph:
    """y = (f(x₀) + |x₁|/2 + 1/8, |x₀| + 3/4 − x₁) with f(x) = x⁺ − (x + 1/2)⁺/2, whose least value is f(0) = −1/4.

    Lines under x⁺ and over (x + 1/2)⁺ give no more than −3/8: the least y₀ is −1/8, and without a split −1/4.
    """
    inner = affine([[1, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], [0, 0.5, 0, 0, 0])
    hidden = build.apply(Relu(), inner, name="relu")
    return graph_of(affine([[1, -0.5, 0, 0.5, 0.5], [1, 0, 1, -1, 1]], [0.125, 0.75], hidden, "out"))


WHOLE = [(-1, 1), (-1, 1)]


def ask(graph: Graph, spec: Property, **more: object) -> Answer:
    """verify, and an independent look at what it says."""
    replay = Replay.of_function(graph.evaluate, graph.input.shape, dtype=torch.float64)
    more = {"budget": BLIND, "options": QUICK, **more}
    answer = verify(graph, spec, lambda x: replay.confirms(spec, x), **more)
    assert [len(c) for c in answer.bounds] == [len(c.conjunctions) for c in spec.cases]
    if answer.status == Status.SAT:
        found = answer.counterexample
        y = graph.evaluate(torch.from_numpy(found.x).reshape(graph.input.shape)).numpy()
        assert spec.broken_by(found.x, y)
        assert answer.stage in ("attack", "attack again", "bab")
    else:
        assert answer.counterexample is None
    check_bounds(graph, spec, answer)
    if answer.status == Status.UNSAT:
        assert answer.stage in (*CASCADE[1:], *METHODS)
        assert all(bound > 0 for bounds in answer.bounds for bound in bounds)
        for each in spec.cases:
            for y in outputs(graph, each):
                assert not any(c.holds(y) for c in each.conjunctions), "unsat, and here is a counterexample"
    else:
        assert answer.stage == "" or answer.status == Status.SAT
    return answer


def check_bounds(graph: Graph, spec: Property, answer: Answer) -> None:
    """What is said of a conjunction of one row is no more than a value of it."""
    for each, bounds in zip(spec.cases, answer.bounds, strict=True):
        y = tensor(outputs(graph, each))
        for one, bound in zip(each.conjunctions, bounds, strict=True):
            C, d = one.matrix(spec.outputs)
            if len(d) == 1 and bool(y.isfinite().all()):
                value = float((y @ C[0] - d[0]).min())
                assert bound <= value + 1e-9 * (1 + float(y.abs().max() * C.abs().sum() + d.abs()))


def outputs(graph: Graph, each: Case, count: int = 400) -> list[list[float]]:
    """At random points, corners and the centre of a case's box."""
    lower, upper = (torch.from_numpy(x).reshape(1, *graph.input.shape) for x in (each.inner_lower, each.inner_upper))
    return graph.evaluate(samples(lower, upper, count)[:, 0]).flatten(1).tolist()


# one row


def test_a_row_by_hand() -> None:
    """y = x₀ − 2 x₁ + 1/4 on [0, 1]²: the least is −7/4."""
    graph = graph_of(affine([[1, -2]], [0.25]))
    ends = [UNIT, UNIT]
    least = Fraction(-7, 4)
    for limit, status in (
        (least - 1, "unsat"),
        (least - Fraction("1e-8"), "unsat"),
        (least - Fraction("1e-13"), "unknown"),  # less than rounding is worth
        (least, "sat"),
        (least + Fraction("1e-9"), "sat"),
        (least + 1, "sat"),
    ):
        answer = ask(graph, prop(1, case(ends, conjunction(({0: 1}, limit)))))
        assert answer.status == status, limit
        if status != "sat":
            assert answer.bounds[0][0] == pytest.approx(float(least - limit), abs=1e-12)
    below = Conjunction((Inequality({0: Fraction(1)}, least, strict=True),))
    assert ask(graph, prop(1, case(ends, below))).status == "unknown"  # true, and bounds cannot tell
    below = Conjunction((Inequality({0: Fraction(1)}, least - Fraction("1e-6"), strict=True),))
    assert ask(graph, prop(1, case(ends, below))).status == "unsat"
    upward = conjunction(({0: -1}, Fraction(-5, 4)))  # y ≥ 5/4, at the other corner
    assert ask(graph, prop(1, case(ends, upward))).status == "sat"
    assert ask(graph, prop(1, case(ends, conjunction(({0: -1}, "-1.251"))))).status == "unsat"


def test_a_split_decides() -> None:
    graph = bent()
    for limit, status in (("-0.126", "unsat"), ("-0.2", "unsat"), ("-0.125", "sat"), ("0.5", "sat")):
        answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, limit)))))
        assert answer.status == status, limit
        if status == "unsat":
            assert answer.stage == "bab"
            assert answer.domains > 1
    for method in ("crown", "joint"):
        assert ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "-0.126")))), method=method).status == "unknown"


def test_five_relus_are_decided_by_default() -> None:
    """The least y₀ is −1/8: half of what the root's bound is."""
    answer = ask(bent(), prop(2, case(WHOLE, conjunction(({0: 1}, "-0.2")))), options=Options())
    assert answer.status == "unsat", answer.reason


def test_a_counterexample_that_only_branching_meets() -> None:
    """The centre is none; the corner at which the bound is least is."""
    graph = bent()
    spec = prop(2, case(WHOLE, conjunction(({1: 1}, "-0.2"))))
    said: list[tuple[str, str]] = []
    answer = ask(graph, spec, report=lambda *now: said.append(now))
    assert (answer.status, answer.stage) == ("sat", "bab")
    assert [stage for stage, _ in said][:3] == ["attack", "crown", "joint"]
    assert answer.nearest > 0
    blind = verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK)  # no replay agrees
    assert blind.status == "unknown"
    assert blind.counterexample is None
    assert blind.bounds[0][0] <= 0
    assert "witness" not in blind.reason  # it goes on


def test_bounds_go_to_their_own_conjunctions() -> None:
    """Which are of different rows: y₀ ≤ −5 is never true, y₁ ≥ 2 and 2.7 somewhere, y₀ ≤ −0.13 never, after splits."""
    graph, no = bent(), {"budget": BLIND, "options": QUICK}
    never, deep = conjunction(({0: 1}, -5)), conjunction(({0: 1}, "-0.13"))
    for some in (conjunction(({1: -1}, -2)), conjunction(({1: -1}, "-2.7"))):
        for order in ((never, some), (some, never), (deep, some), (some, deep), (deep, some, never)):
            spec = prop(2, case(WHOLE, *order))
            assert ask(graph, spec).status == "sat"
            for method in ("crown", "joint", "bab"):
                blind = verify(graph, spec, lambda _: None, method=method, **no)
                assert blind.status == "unknown"
                check_bounds(graph, spec, blind)


@pytest.mark.parametrize("method", dict.fromkeys((*CASCADE, *METHODS)))
def test_every_method_says_what_is_easy(method: str) -> None:
    graph = bent()
    far = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, -5)))), method=method)
    assert far.status == ("unknown" if method == "attack" else "unsat")
    assert far.domains == 0
    assert ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, 0)))), method=method).status == "sat"  # the centre
    hard = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "-0.13")))), method=method)
    assert hard.status == ("unsat" if method == "bab" else "unknown")


# several rows, several conjunctions, several cases


@pytest.mark.parametrize("scale", [1, 1000, Fraction(1, 8)])
def test_only_a_mix_of_rows_excludes(scale: Fraction) -> None:
    """y₀ + y₁ = 1 always, so not both are ≤ 0; each alone may be −1."""
    graph = graph_of(affine([[1.0], [-1.0]], [0, 1]))
    both = conjunction(({0: scale}, 0), ({1: 1}, 0))
    assert ask(graph, prop(2, case([(-1, 2)], both))).status == "unsat"
    for method in ("crown", "joint"):
        assert ask(graph, prop(2, case([(-1, 2)], both)), method=method).status == "unknown"
    for row in ({0: scale}, {1: 1}):
        assert ask(graph, prop(2, case([(-1, 2)], conjunction((row, 0))))).status == "sat"
    near = conjunction(({0: scale}, Fraction(scale) / 2), ({1: 1}, "0.5"))  # y₀ = y₁ = 1/2 is one, the centre
    assert ask(graph, prop(2, case([(-1, 2)], near))).status == "sat"
    off = conjunction(({0: scale}, Fraction(scale) / 4), ({1: 1}, "0.75"))  # x = 1/4 alone
    assert ask(graph, prop(2, case([(-1, 2)], off))).status in ("sat", "unknown")


def test_a_mix_that_is_split() -> None:
    """y = (f(x) + 3/8 + t, −t): the sum of both rows is excluded, and after splits only."""
    inner = affine([[1, 0], [1, 0], [0, 1], [0, -1]], [0, 0.5, 0, 0])
    hidden = build.apply(Relu(), inner, name="relu")
    graph = graph_of(affine([[1, -0.5, 1, -1], [0, 0, -1, 1]], [0.375, 0.0], hidden, "out"))
    answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "0"), ({1: 1}, "0.05")))))  # f + 3/8 ≤ 0.05
    assert (answer.status, answer.stage) == ("unsat", "bab")
    assert answer.domains > 1
    answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "0.1"), ({1: 1}, "0.03")))))  # 1/8 ≤ 0.13: x = 0
    assert answer.status != "unsat"


def test_every_conjunction_of_every_case_counts() -> None:
    graph = bent()
    never, deep, there = (conjunction(({0: 1}, limit)) for limit in (-5, "-0.13", "0.05"))
    left, right = [("-1", "-0.5"), ("-1", "1")], [("0.5", "1"), ("-1", "1")]
    assert ask(graph, prop(2, case(left, never, deep), case(right, deep))).status == "unsat"
    assert ask(graph, prop(2, case(left, there), case(right, there))).status == "unsat"  # |x₀| ≥ 1/2
    assert ask(graph, prop(2, case(left, never), case(right, never), case(WHOLE, deep))).status == "unsat"
    both = conjunction(({0: 1}, "0.05"), ({1: 1}, 1))
    cases = ((left, there), (WHOLE, there)), ((WHOLE, never, there),), ((WHOLE, there, never), (left, never))
    for spec in (prop(2, *(case(*each) for each in some)) for some in (*cases, ((WHOLE, both),))):
        assert ask(graph, spec).status == "sat"
        found = verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK)
        assert found.status == "unknown"
        assert "open" in found.reason


@pytest.mark.parametrize("method", CASCADE)
def test_no_inequality_is_true_of_every_output(method: str) -> None:
    graph, true = bent(), conjunction()
    for spec in (
        prop(2, case(WHOLE, true)),
        prop(2, case(WHOLE, conjunction(({0: 1}, -5)), true)),
        prop(2, case(WHOLE, conjunction(({0: 1}, -5))), case([(0, 0), (0, 0)], true)),
    ):
        assert ask(graph, spec, method=method).status == "sat"
        assert verify(graph, spec, lambda _: None, budget=BLIND, method=method).status == "unknown"


def test_a_row_of_zeros_is_true_or_not_and_never_excluded_by_rounding() -> None:
    """0 ≤ 0 holds of every output, 0 ≤ −1 of none."""
    graph = bent()
    for row in ({}, {0: 0}, {0: 0, 1: 0}):
        spec = prop(2, case(WHOLE, conjunction((row, 0))))
        assert ask(graph, spec).status == "sat"
        assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).status == "unknown"
        assert ask(graph, prop(2, case(WHOLE, conjunction((row, -1))))).status == "unsat"


def test_a_case_without_a_conjunction_breaks_nothing() -> None:
    graph = bent()
    assert ask(graph, prop(2, case(WHOLE), case(WHOLE, conjunction(({0: 1}, -5))))).status == "unsat"
    assert ask(graph, prop(2, case(WHOLE))).status in ("unsat", "unknown")


# what is refused, and time


def test_what_does_not_fit_is_refused() -> None:
    graph, never = bent(), conjunction(({0: 1}, -5))
    with pytest.raises(InvalidValueError, match=r"2 inputs.* 3"):
        verify(graph, prop(2, case([UNIT] * 3, never)), lambda _: None)
    with pytest.raises(InvalidValueError, match=r"2 outputs.* 1"):
        verify(graph, prop(1, case(WHOLE, never)), lambda _: None)
    with pytest.raises(InvalidValueError, match=r"'magic'.*attack.*hybrid"):
        verify(graph, prop(2, case(WHOLE, never)), lambda _: None, method="magic")
    wrong = ({"seconds": 0}, {"seconds": math.inf}, {"seconds": math.nan}, {"first": -0.1}, {"second": 1.5})
    for bad in (*wrong, {"most": -1}, {"first": math.nan}):
        with pytest.raises(InvalidValueError, match=next(iter(bad))):
            Budget(**bad)


@pytest.mark.parametrize("method", ["bab", "joint", "crown", "attack"])
def test_no_time_is_a_timeout(method: str) -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, -5))))
    answer = ask(bent(), spec, budget=Budget(seconds=1e-9), method=method)
    assert answer.status == "timeout"
    assert answer.bounds == ((-math.inf,),)


def test_time_that_ends_in_a_search_is_a_timeout() -> None:
    config = Config(depth=2, activation="gelu", tokens=4, seed=1)
    lower, upper = (x.flatten().tolist() for x in input_box(config, 1, 0.5, 1))
    graph = transformer(config)
    spec = prop(3, case(list(zip(lower, upper, strict=True)), conjunction(({0: 1, 1: -1}, -3))))
    answer = ask(graph, spec, budget=Budget(seconds=0.3, first=0, second=0), options=Options())
    assert answer.status == "timeout"


# what no bound may be drawn from


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
        assert answer.status == "unknown"
        assert not answer.bounds[0][0] > 0


def test_a_walk_with_a_problem_excludes_nothing(monkeypatch) -> None:
    real = Walk.run

    def run(walk: Walk, refine: object) -> None:
        real(walk, refine)
        walk.problems.append(Problem(walk.graph.output, torch.ones(1, dtype=torch.bool), "two bounds cross"))

    monkeypatch.setattr(Walk, "run", run)
    for method in ("crown", "joint", "bab"):
        answer = ask(bent(), prop(2, case(WHOLE, conjunction(({0: 1}, -5)))), method=method)
        assert (answer.status, answer.bounds) == ("unknown", ((-math.inf,),))
        assert "two bounds cross" in answer.reason


# the guard


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_guard_by_hand(dtype: torch.dtype) -> None:
    """y = x₀ − 2 x₁ + 1/4 on [0, 1]²: |y| ≤ 7/4, and its terms are at most 1 and 2."""
    graph = graph_of(affine([[1, -2]], [0.25])).to(dtype)
    walk = Walk(graph, torch.zeros(1, 2, dtype=dtype), torch.ones(1, 2, dtype=dtype))
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    rows, limits = torch.tensor([[1.0], [-3.0], [0.0]], dtype=dtype), torch.tensor([-7.0, 5.0, 0.5], dtype=dtype)
    for C, d, size in ((rows[:1], limits[:1], 11.75), (rows, limits, 19.25), (rows[2:], limits[2:], 0.5)):
        assert guard(walk, C, d) == pytest.approx(GUARD[dtype] * size, rel=1e-5)
    assert guard(walk, rows, limits * math.inf) == math.inf
    assert guard(walk, rows, limits * math.nan) == math.inf
    assert guard(walk, rows * math.inf, limits) == math.inf


def test_a_mix_is_one() -> None:
    graph = graph_of(affine([[1.0], [-3.0], [0.0]], [0, 1, 0]))
    walk = Walk(graph, tensor([[-1.0]]), tensor([[1.0]]))
    with torch.no_grad():
        make_boxes(walk, ("affine",), Options(), True)
    C, d = tensor([[2.0, 0, 0], [0, 1.0, 0], [0, 0, 0]]), tensor([0.1, 0.2, 0.3])
    weights = mix(walk, C, d)
    assert (weights >= 0).all()
    assert float(weights @ tensor([2.0, 1.0, 1.0])) == pytest.approx(1)


@given(st.integers(0, 2**32), st.integers(-9, 9), st.sampled_from([0, 1e-16, 1e-14, 1e-12, 1e-9]), st.booleans())
@settings(max_examples=40)
def test_nothing_within_rounding_is_unsat(seed: int, power: int, delta: float, deep: bool) -> None:
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
    assert answer.status != "unsat"
    assert Fraction(answer.bounds[0][0]) <= least - limit + Fraction(1e-10 * size) or answer.bounds[0][0] == -math.inf
    spec = prop(2, case([(-1, 1)] * n, conjunction(({0: a[0], 1: a[1]}, least - Fraction(1e-6 * size)))))
    assert ask(graph, spec).status == "unsat"


@given(st.integers(0, 2**32), st.sampled_from([-1e-2, -1e-9, -1e-12, 0.0, 1e-12, 1e-9, 1e-3]), st.integers(0, 3))
@settings(max_examples=20)
def test_no_unsat_at_a_sampled_minimum(seed: int, delta: float, kind: int) -> None:
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
    few = dataclasses.replace(QUICK, search=Search(domains=12, root=short, ascent=short))
    answer = ask(graph, prop(2, case(ends, conjunction(*rows))), options=few)
    if delta >= 0:
        assert answer.status != "unsat"
    if len(rows) == 1 and answer.status != "sat":
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
        said.append(verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).status)
    assert "unsat" not in said


def test_what_inner_values_cancel_is_guarded() -> None:
    """y = −3 (x + b) + 1e10 with b = 1e10/3 rounded: at x = 0 it is 1e10 − 3 b = −4.8e-7 and not 0."""
    big = 1e10
    graph = graph_of(affine([[-3.0]], [big], affine([[1.0]], [big / 3]), "out"))
    at_zero = Fraction(big) - 3 * Fraction(big / 3)
    assert at_zero < 0
    spec = prop(1, case([(-1, 0)], conjunction(({0: 1}, at_zero / 2))))  # true at x = 0
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).status != "unsat"


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
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).status != "unsat"


@pytest.mark.parametrize("one", [False, True], ids=["two arrays", "one array"])
def test_ends_are_rounded_outward_for_a_graph_in_single_precision(one: bool) -> None:
    single = graph_of(affine([[1.0]], [0.0])).to(torch.float32)
    for point in (0.1, 0.3, 0.7, -0.1, -0.7):
        lower = np.array([point])
        upper = lower if one else lower.copy()
        box = Case(lower, upper, lower, upper, (conjunction(({0: 1}, 0)),))
        cascade = _Cascade(single, Property((box,), 1, 1), lambda _: None, BLIND, "bab", QUICK, 0, None)
        low, high = (
            cascade._placed(x, out).double().item() for x, out in ((box.lower, -torch.inf), (box.upper, torch.inf))
        )
        assert low <= point <= high
        assert high - low < 1e-7


def test_the_walk_in_single_precision_is_over_the_whole_box(monkeypatch) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def walk(graph: Graph, lower: torch.Tensor, upper: torch.Tensor, **options: object) -> Walk:
        seen.append((lower, upper))
        return Walk(graph, lower, upper, **options)

    monkeypatch.setattr(module, "Walk", walk)
    single = graph_of(affine([[1.0, 1.0]], [0.0])).to(torch.float32)
    spec = prop(1, case([("0.1", "0.3"), ("-0.7", "0.7")], conjunction(({0: 1}, -5))))
    assert verify(single, spec, lambda _: None, budget=BLIND, options=QUICK).status == "unsat"
    assert seen
    for lower, upper in seen:
        assert bool((lower.double().numpy() <= spec.cases[0].lower).all())
        assert bool((upper.double().numpy() >= spec.cases[0].upper).all())


def test_a_bound_that_is_no_number_teaches_nothing() -> None:
    rows = torch.full((3,), -torch.inf, dtype=torch.float64)
    target = _Target(0, 0, torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), rows)
    target.learn(torch.tensor([torch.nan, torch.inf, -1.0], dtype=torch.float64))
    assert not target.excluded
    assert target.best == -1.0
    target.learn(torch.tensor([torch.nan, 2.0, torch.nan], dtype=torch.float64))
    assert target.rows.tolist() == [-torch.inf, 2.0, -1.0]
    assert target.excluded


def test_single_precision_is_guarded_for_its_own_rounding() -> None:
    graph = bent().to(torch.float32)
    replay = Replay.of_function(graph.evaluate, graph.input.shape)
    for limit, status in ((-5, "unsat"), ("-0.1251", "unknown"), (0, "sat")):
        spec = prop(2, case(WHOLE, conjunction(({0: 1}, limit))))
        answer = verify(graph, spec, lambda x, s=spec: replay.confirms(s, x), budget=BLIND, options=QUICK)
        assert answer.status == status, limit


def test_an_index_before_the_weights_does_not_decide_the_precision() -> None:
    x = build.source((3,))
    graph = graph_of(affine([[1.0, 1.0]], [0.0], build.take(x, 0, torch.tensor([2, 0]), "some"))).to(torch.float32)
    spec = prop(1, case([(0, 1)] * 3, conjunction(({0: 1}, -1))))
    assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).status == "unsat"


def test_options_reach_the_search() -> None:
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, "-0.126"))))
    few = dataclasses.replace(QUICK, search=dataclasses.replace(QUICK.search, domains=1))
    answer = ask(bent(), spec, options=few)
    assert answer.status == "unknown"
    assert "domains" in answer.reason

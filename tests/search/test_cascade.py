"""The cascade: verified only if every conjunction is excluded by more than rounding, falsified only by an input."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from tests.search.cascade_cases import BLIND, QUICK, WHOLE, affine, ask, bent, check_bounds, graph_of
from tests.search.small import UNIT, case, conjunction, prop
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.graph import build
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.search import cascade as module
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.stages import CASCADE
from vertex_softmax.specs.property import Conjunction, Inequality, Property

torch.set_num_threads(1)


def test_a_row_by_hand() -> None:
    """y = x₀ − 2 x₁ + 1/4 on [0, 1]²: the least is −7/4."""
    graph = graph_of(affine([[1, -2]], [0.25]))
    ends = [UNIT, UNIT]
    least = Fraction(-7, 4)
    for limit, verdict in (
        (least - 1, "verified"),
        (least - Fraction("1e-8"), "verified"),
        (least - Fraction("1e-13"), "unknown"),  # less than rounding is worth
        (least, "falsified"),
        (least + Fraction("1e-9"), "falsified"),
        (least + 1, "falsified"),
    ):
        answer = ask(graph, prop(1, case(ends, conjunction(({0: 1}, limit)))))
        assert answer.verdict == verdict, limit
        if verdict != "falsified":
            assert answer.bounds[0][0] == pytest.approx(float(least - limit), abs=1e-12)
    below = Conjunction((Inequality({0: Fraction(1)}, least, strict=True),))
    assert ask(graph, prop(1, case(ends, below))).verdict == "unknown"  # true, and bounds cannot tell
    below = Conjunction((Inequality({0: Fraction(1)}, least - Fraction("1e-6"), strict=True),))
    assert ask(graph, prop(1, case(ends, below))).verdict == "verified"
    upward = conjunction(({0: -1}, Fraction(-5, 4)))  # y ≥ 5/4, at the other corner
    assert ask(graph, prop(1, case(ends, upward))).verdict == "falsified"
    assert ask(graph, prop(1, case(ends, conjunction(({0: -1}, "-1.251"))))).verdict == "verified"


def test_a_split_decides() -> None:
    graph = bent()
    for limit, verdict in (("-0.126", "verified"), ("-0.2", "verified"), ("-0.125", "falsified"), ("0.5", "falsified")):
        answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, limit)))))
        assert answer.verdict == verdict, limit
        if verdict == "verified":
            assert answer.stage == "bab"
            assert answer.domains > 1
            assert answer.rates["bounds_per_second"] >= answer.rates["parts_per_second"] > 0
    for method in ("crown", "joint"):
        assert ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "-0.126")))), method=method).verdict == "unknown"


def test_five_relus_are_decided_by_default() -> None:
    """The least y₀ is −1/8: half of what the root's bound is."""
    answer = ask(bent(), prop(2, case(WHOLE, conjunction(({0: 1}, "-0.2")))), options=Options())
    assert answer.verdict == "verified", answer.reason


def test_a_counterexample_that_only_branching_meets() -> None:
    """The centre is none; the corner at which the bound is least is."""
    graph = bent()
    spec = prop(2, case(WHOLE, conjunction(({1: 1}, "-0.2"))))
    said: list[tuple[str, str]] = []
    answer = ask(graph, spec, report=lambda *now: said.append(now))
    assert (answer.verdict, answer.stage) == ("falsified", "bab")
    assert [stage for stage, _ in said][:3] == ["attack", "crown", "joint"]
    assert answer.nearest > 0
    blind = verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK)  # no replay agrees
    assert blind.verdict == "unknown"
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
            assert ask(graph, spec).verdict == "falsified"
            for method in ("crown", "joint", "bab"):
                blind = verify(graph, spec, lambda _: None, method=method, **no)
                assert blind.verdict == "unknown"
                check_bounds(graph, spec, blind)


@pytest.mark.parametrize("method", dict.fromkeys((*CASCADE, *METHODS)))
def test_every_method_says_what_is_easy(method: str) -> None:
    graph = bent()
    far = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, -5)))), method=method)
    assert far.verdict == ("unknown" if method == "attack" else "verified")
    assert (far.domains, far.rates) == (0, {})
    assert (
        ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, 0)))), method=method).verdict == "falsified"
    )  # the centre
    hard = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "-0.13")))), method=method)
    assert hard.verdict == ("verified" if method == "bab" else "unknown")


@pytest.mark.parametrize("scale", [1, 1000, Fraction(1, 8)])
def test_only_a_mix_of_rows_excludes(scale: Fraction) -> None:
    """y₀ + y₁ = 1 always, so not both are ≤ 0; each alone may be −1."""
    graph = graph_of(affine([[1.0], [-1.0]], [0, 1]))
    both = conjunction(({0: scale}, 0), ({1: 1}, 0))
    assert ask(graph, prop(2, case([(-1, 2)], both))).verdict == "verified"
    for method in ("crown", "joint"):
        assert ask(graph, prop(2, case([(-1, 2)], both)), method=method).verdict == "unknown"
    for row in ({0: scale}, {1: 1}):
        assert ask(graph, prop(2, case([(-1, 2)], conjunction((row, 0))))).verdict == "falsified"
    near = conjunction(({0: scale}, Fraction(scale) / 2), ({1: 1}, "0.5"))  # y₀ = y₁ = 1/2 is one, the centre
    assert ask(graph, prop(2, case([(-1, 2)], near))).verdict == "falsified"
    off = conjunction(({0: scale}, Fraction(scale) / 4), ({1: 1}, "0.75"))  # x = 1/4 alone
    assert ask(graph, prop(2, case([(-1, 2)], off))).verdict in ("falsified", "unknown")


def test_a_mix_that_is_split() -> None:
    """y = (f(x) + 3/8 + t, −t): the sum of both rows is excluded, and after splits only."""
    inner = affine([[1, 0], [1, 0], [0, 1], [0, -1]], [0, 0.5, 0, 0])
    hidden = build.apply(Relu(), inner, name="relu")
    graph = graph_of(affine([[1, -0.5, 1, -1], [0, 0, -1, 1]], [0.375, 0.0], hidden, "out"))
    answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "0"), ({1: 1}, "0.05")))))  # f + 3/8 ≤ 0.05
    assert (answer.verdict, answer.stage) == ("verified", "bab")
    assert answer.domains > 1
    answer = ask(graph, prop(2, case(WHOLE, conjunction(({0: 1}, "0.1"), ({1: 1}, "0.03")))))  # 1/8 ≤ 0.13: x = 0
    assert answer.verdict != "verified"


def test_every_conjunction_of_every_case_counts() -> None:
    graph = bent()
    never, deep, there = (conjunction(({0: 1}, limit)) for limit in (-5, "-0.13", "0.05"))
    left, right = [("-1", "-0.5"), ("-1", "1")], [("0.5", "1"), ("-1", "1")]
    assert ask(graph, prop(2, case(left, never, deep), case(right, deep))).verdict == "verified"
    assert ask(graph, prop(2, case(left, there), case(right, there))).verdict == "verified"  # |x₀| ≥ 1/2
    assert ask(graph, prop(2, case(left, never), case(right, never), case(WHOLE, deep))).verdict == "verified"
    both = conjunction(({0: 1}, "0.05"), ({1: 1}, 1))
    cases = ((left, there), (WHOLE, there)), ((WHOLE, never, there),), ((WHOLE, there, never), (left, never))
    for spec in (prop(2, *(case(*each) for each in some)) for some in (*cases, ((WHOLE, both),))):
        assert ask(graph, spec).verdict == "falsified"
        found = verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK)
        assert found.verdict == "unknown"
        assert "open" in found.reason


@pytest.mark.parametrize("method", CASCADE)
def test_no_inequality_is_true_of_every_output(method: str) -> None:
    graph, true = bent(), conjunction()
    for spec in (
        prop(2, case(WHOLE, true)),
        prop(2, case(WHOLE, conjunction(({0: 1}, -5)), true)),
        prop(2, case(WHOLE, conjunction(({0: 1}, -5))), case([(0, 0), (0, 0)], true)),
    ):
        assert ask(graph, spec, method=method).verdict == "falsified"
        assert verify(graph, spec, lambda _: None, budget=BLIND, method=method).verdict == "unknown"


def test_a_row_of_zeros_is_true_or_not_and_never_excluded_by_rounding() -> None:
    """0 ≤ 0 holds of every output, 0 ≤ −1 of none."""
    graph = bent()
    for row in ({}, {0: 0}, {0: 0, 1: 0}):
        spec = prop(2, case(WHOLE, conjunction((row, 0))))
        assert ask(graph, spec).verdict == "falsified"
        assert verify(graph, spec, lambda _: None, budget=BLIND, options=QUICK).verdict == "unknown"
        assert ask(graph, prop(2, case(WHOLE, conjunction((row, -1))))).verdict == "verified"


def test_a_case_without_a_conjunction_breaks_nothing() -> None:
    graph = bent()
    assert ask(graph, prop(2, case(WHOLE), case(WHOLE, conjunction(({0: 1}, -5))))).verdict == "verified"
    assert ask(graph, prop(2, case(WHOLE))).verdict in ("verified", "unknown")


def order(monkeypatch: pytest.MonkeyPatch, spec: Property, method: str = "bab") -> tuple[Answer, list[str]]:
    """The answer, and what was done for it, in this order."""
    done: list[str] = []
    for name in ("_begin_attack", "_continue_attack", "_attack_again", "_bound", "_branch"):
        real = getattr(module._Cascade, name)

        def noted(self: module._Cascade, *given: object, name: str = name, real=real, **more: bool) -> object:
            done.append(f"{name} {given[-1]}" if name == "_bound" else name)
            return real(self, *given, **more)

        monkeypatch.setattr(module._Cascade, name, noted)
    return ask(bent(), spec, method=method, budget=Budget(seconds=60, first=0.002, second=0.002)), done


def test_the_cheap_comes_first_and_what_decides_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    easy = prop(2, case(WHOLE, conjunction(({0: 1}, -1))))
    with monkeypatch.context() as patch:
        answer, done = order(patch, easy)
    assert (answer.verdict, answer.stage) == ("verified", "crown")
    assert done == ["_begin_attack", "_bound crown"]  # nothing after the bound that decides
    hard = prop(2, case(WHOLE, conjunction(({0: 1}, Fraction(-3, 16)))))
    with monkeypatch.context() as patch:
        answer, done = order(patch, hard)
    assert (answer.verdict, answer.stage) == ("verified", "bab")
    before = ["_begin_attack", "_bound crown", "_continue_attack", "_bound joint", "_continue_attack", "_branch"]
    assert done[: len(before)] == before
    false = prop(2, case(WHOLE, conjunction(({0: 1}, 1))))
    with monkeypatch.context() as patch:
        answer, done = order(patch, false)
    assert (answer.verdict, done) == ("falsified", ["_begin_attack"])


@pytest.mark.parametrize("method", ["attack", "crown", "joint", "ibp"])
def test_what_stays_open_is_attacked_for_the_whole_share(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the method: bounds that do not decide do not shorten the attack."""
    spec = prop(2, case(WHOLE, conjunction(({0: 1}, Fraction(-3, 16)))))
    monkeypatch.setattr(module, "FIRST_BATCHES", 1)
    answer = ask(bent(), spec, method=method, budget=Budget(seconds=60, first=0.005, second=0.0))
    assert answer.verdict == "unknown"
    assert 0.3 <= answer.seconds["attack"] < 3


def test_every_conjunction_has_the_guard_of_its_own_rows() -> None:
    """The terms of all are computed at once; each is given those of its rows, also after some are excluded."""
    graph = bent()
    many = [conjunction(({0: 1}, -1)), conjunction(({0: 1000}, -90), ({1: 1}, 7)), conjunction(({1: 3}, 2))]
    together = verify_guards(graph, many)
    for alone, guard in zip(many, together, strict=True):
        assert verify_guards(graph, [alone]) == [pytest.approx(guard, rel=1e-9)]
    assert len(set(together)) == 3


def verify_guards(graph: Graph, conjunctions: list[Conjunction]) -> list[float]:
    """The guards of a case's conjunctions after crown."""
    spec = prop(2, case(WHOLE, *conjunctions))
    task = module._Task(graph, spec, lambda _: None, "crown", QUICK, 0, lambda *_: None)
    cascade = module._Cascade(task, BLIND)
    cascade.run()
    return [target.guard for target in cascade.targets]


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

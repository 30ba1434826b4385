"""Stages that may not fit into the memory are left out before they begin, with a sentence; the others run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.search.cascade_cases import BLIND, QUICK, WHOLE, ask, bent
from tests.search.small import case, conjunction, prop
from vertex_softmax.bounds.memory import LEAST, Memory
from vertex_softmax.methods import sizing
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS, Method
from vertex_softmax.search import answers, cascade
from vertex_softmax.search.branching import question_over
from vertex_softmax.search.stages import fitting_stages

torch.set_num_threads(1)
SPEC = prop(2, case(WHOLE, conjunction(({0: 1}, "-1.5"))))
"""Intervals exclude it."""
HARDER = prop(2, case(WHOLE, conjunction(({0: 1}, "-0.2"))))
"""Branch and bound does."""


def limited(total: int) -> Options:
    return dataclasses.replace(QUICK, memory=Memory(total=total))


def needing(monkeypatch: pytest.MonkeyPatch, **bytes_of: int) -> None:
    """Let the methods need so many bytes, the others nothing."""

    def need(_graph: object, method: Method, *_rest: object) -> sizing.Need:
        return sizing.Need(bytes_of.get(method.name.lower(), 0), 0)

    monkeypatch.setattr(sizing, "_needed", need)


def test_all_fit_without_a_limit() -> None:
    question = question_over(bent(), SPEC.cases[0], Options())
    stages = ("crown", "joint", "bab")
    assert fitting_stages(question, stages, Options(), cheapest=True) == (stages, {})
    assert fitting_stages(question, stages, limited(1 << 40), cheapest=True) == (stages, {})


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    question, options = question_over(bent(), SPEC.cases[0], Options()), limited(1000)
    stages = ("crown", "joint", "bab")
    needing(monkeypatch, bab=2000)
    assert fitting_stages(question, stages, options, cheapest=True)[0] == ("crown", "joint")
    needing(monkeypatch, joint=2000)  # with whose boxes branch and bound would begin
    found, refused = fitting_stages(question, stages, options, cheapest=True)
    assert (found, set(refused)) == (("crown",), {"joint"})
    needing(monkeypatch, crown=2000, joint=2000, bab=2000)
    assert fitting_stages(question, stages, options, cheapest=True)[0] == ("ibp",)
    found, refused = fitting_stages(question, ("crown",), options, cheapest=False)
    assert found == ()
    assert "crown on one input may need" in refused["crown"]
    assert "or take a method that fits: ibp, alpha-crown, vertex, hybrid" in refused["crown"]
    needing(monkeypatch, **{method.name.lower(): 2000 for method in METHODS})
    assert fitting_stages(question, stages, options, cheapest=True)[0] == ()


def test_nothing_is_computed_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_arguments: object) -> None:
        raise AssertionError("a bound was computed")

    monkeypatch.setattr(cascade, "lower_bounds", never)
    for method in ("crown", "bab", *METHODS):
        answer = ask(bent(), SPEC, options=limited(100), method=method)
        assert (answer.verdict, answer.stage) == ("unknown", "")
        assert "an attack on one point may need" in answer.reason
        assert f"{method} on one input may need" in answer.reason
        assert "GiB more" in answer.reason


def test_a_stage_that_fits_still_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    needing(monkeypatch, crown=1 << 40, joint=1 << 40, bab=1 << 40)
    said: list[tuple[str, str]] = []
    answer = ask(bent(), SPEC, options=limited(LEAST), report=lambda *now: said.append(now))
    assert (answer.verdict, answer.stage) == ("verified", "ibp")
    assert [stage for stage, text in said if "GiB more" in text] == ["crown", "joint", "bab"]
    answer = ask(bent(), HARDER, options=limited(LEAST))
    assert answer.verdict == "unknown"
    assert "joint on one input may need 1024.00 GiB" in answer.reason
    broken = prop(2, case(WHOLE, conjunction(({0: 1}, "0.5"))))
    assert ask(bent(), broken, options=limited(LEAST), budget=answers.Budget(60)).verdict == "falsified"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory")])
@pytest.mark.parametrize("fails", ["crown", "joint"])
def test_a_stage_whose_memory_is_exhausted_ends_alone(
    monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception
) -> None:
    real = cascade.lower_bounds

    def sometimes(question: object, objective: object, method: Method, options: object) -> object:
        if method == fails:
            raise error
        return real(question, objective, method, options)  # type: ignore[arg-type]

    monkeypatch.setattr(cascade, "lower_bounds", sometimes)
    answer = ask(bent(), HARDER)
    assert answer.verdict == ("verified" if fails == "crown" else "unknown")
    if fails == "joint":
        assert "joint ended as there was not enough memory" in answer.reason


def test_another_error_is_none_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(cascade, "lower_bounds", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        ask(bent(), SPEC, budget=BLIND)


def test_an_attack_takes_fewer_points_at_once() -> None:
    graph = bent()
    found = cascade.paused_search(graph, SPEC, lambda _: None, memory=Memory(total=4096))._search
    free = cascade.paused_search(graph, SPEC, lambda _: None)._search
    most = found.pace[True].most
    assert 1 <= most < free.pace[True].most
    assert most * found.numbers * 4 <= 4096

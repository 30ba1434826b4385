from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from tests.runs.made import inputs, network, subject_of
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.methods.options import Options
from vertex_softmax.runs import radius
from vertex_softmax.runs.bisection import Bisection
from vertex_softmax.runs.certify import certify
from vertex_softmax.runs.radius import radii
from vertex_softmax.runs.run import Run, read
from vertex_softmax.runs.subject import Subject
from vertex_softmax.search.attack import pgd

pytestmark = pytest.mark.usefixtures("exported_once")
HOW = Bisection(least=1e-3, most=0.6, precision=0.1)
STEPS = Options(ascent=Ascent(steps=5))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    some = inputs()
    return radii(subject_of(some), some, ("ibp", "crown", "joint"), tmp_path_factory.mktemp("radius"), HOW, STEPS)


def test_every_radius_was_certified_itself_and_the_next_was_not(run: Run) -> None:
    some = inputs()
    for found in run.radii:
        one = some.at([found.input])
        for eps, expected in ((found.certified, True), (found.refused, False)):
            if eps:
                how = dataclasses.replace(STEPS, goal=0.0)
                again = certify(subject_of(some).graph, one.ball(eps), one.labels, found.method, options=how)
                assert bool(again.certified) is expected, (found, eps)
        if found.certified and found.refused is not None and found.refused != found.attacked:
            assert found.certified < found.refused <= found.certified * 1.1 * (1 + 1e-12)


def test_no_point_of_a_certified_ball_is_misclassified(run: Run) -> None:
    some = inputs()
    generator = torch.Generator().manual_seed(0)
    for found in run.radii:
        if found.certified == 0:
            continue
        one = some.at([found.input])
        ball = one.ball(found.certified)
        t = torch.rand(4000, *ball.shape[1:], generator=generator, dtype=torch.float64)
        t[2000:] = (t[2000:] < 0.5).double()
        points = ball.lower + (ball.upper - ball.lower) * t
        assert bool((network()(points).argmax(1) == one.labels).all())
        assert float(pgd(network(), ball, one.labels).worst) > 0


def test_the_attack_lies_above_and_weaker_methods_below(run: Run) -> None:
    by = {(r.method, r.input): r for r in run.radii}
    for i in range(len(run.inputs)):
        assert by["ibp", i].certified <= by["crown", i].certified * 1.1 + 1e-12
        assert by["crown", i].certified <= by["joint", i].certified
        for method in run.methods:
            found = by[method, i]
            assert found.attacked is None or found.certified < found.attacked or found.certified == 0
    assert any(by["joint", i].certified > by["crown", i].certified for i in range(len(run.inputs)))


def test_a_misclassified_input_has_no_radius(run: Run) -> None:
    last = [r for r in run.radii if r.input == len(run.inputs) - 1]
    assert all(r.certified == 0 for r in last)
    assert all(run.certified_accuracy(method, 1e-9) <= 0.8 for method in run.methods)  # type: ignore[operator]


def test_a_second_run_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = inputs(3)
    first = radii(subject_of(some), some, ("crown",), tmp_path, HOW)
    monkeypatch.setattr(radius, "certify", None)
    monkeypatch.setattr(Subject, "attack", None)
    again = radii(subject_of(some), some, ("crown",), tmp_path, HOW)
    assert again.radii == first.radii
    assert read(tmp_path).radii == first.radii


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = inputs(3)
    whole = radii(subject_of(some), some, ("crown",), tmp_path / "whole", HOW)
    real, left = certify, [2]

    def dying(*args: object, **options: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(radius, "certify", dying)
    with pytest.raises(KeyboardInterrupt):
        radii(subject_of(some), some, ("crown",), tmp_path / "cut", HOW)
    monkeypatch.setattr(radius, "certify", real)
    again = radii(subject_of(some), some, ("crown",), tmp_path / "cut", HOW)
    drop = [(r.input, r.certified, r.refused, r.attacked) for r in whole.radii]
    assert [(r.input, r.certified, r.refused, r.attacked) for r in again.radii] == drop


def test_everything_certified_up_to_the_most(tmp_path: Path) -> None:
    some = inputs(2).at([0])
    found = radii(subject_of(some), some, ("crown",), tmp_path, Bisection(least=1e-6, most=2e-6)).radii[0]
    assert found.certified == 2e-6
    assert found.refused is None
    assert found.attacked is None


def test_nothing_certified_at_the_least(tmp_path: Path) -> None:
    some = inputs(2).at([0])
    found = radii(subject_of(some), some, ("ibp",), tmp_path, Bisection(least=0.9, most=1.0)).radii[0]
    assert found.certified == 0
    assert found.refused == pytest.approx(0.9) or found.attacked == pytest.approx(0.9)


@pytest.mark.parametrize(
    "how", [{"least": 0.0}, {"least": 0.6}, {"most": math.inf}, {"precision": 0.0}, {"precision": math.nan}]
)
def test_brackets_that_make_no_sense(how: dict[str, float]) -> None:
    with pytest.raises(VertexError):
        Bisection(**how)


def test_methods_are_checked(tmp_path: Path) -> None:
    some = inputs(2)
    with pytest.raises(VertexError, match="magic"):
        radii(subject_of(some), some, ("magic",), tmp_path)
    with pytest.raises(VertexError, match="at least one"):
        radii(subject_of(some), some, (), tmp_path)


@pytest.fixture(scope="module")
def by_ibp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody changes."""
    out = tmp_path_factory.mktemp("ibp")
    radii(subject_of(inputs()), inputs(), ("ibp",), out, HOW)
    return out


@pytest.mark.parametrize(
    "found", [None, {"holds": [1], "seconds": 1.0}, {"holds": [], "seconds": 1.0}, {"holds": True}]
)
def test_a_journal_is_nobodys_word(tmp_path: Path, found: object, by_ibp: Path) -> None:
    some = inputs()
    lines = [json.loads(line) for line in (by_ibp / "journal.jsonl").read_text().splitlines()]
    lines[0]["found"] = found
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(VertexError, match="has an answer that is not about"):
        radii(subject_of(some), some, ("ibp",), tmp_path, HOW)

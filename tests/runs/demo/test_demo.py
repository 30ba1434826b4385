"""The demo's transformer: trained once, certified by every method, and consistent with the attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertex_softmax.runs.demo import demo, training
from vertex_softmax.runs.run import Run, read


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """A demo of seconds: hardly trained, few ε, few steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 6})
        patch.setattr(demo, "EPS", (0.005, 0.01))
        patch.setattr(demo, "BOUNDS_AT", 0.01)
        patch.setattr(demo, "STEPS", 4)
        yield


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("demo")
    seen: list[tuple[str, int, int]] = []
    demo.model(place, lambda *step: seen.append(step))
    assert {what for what, _, _ in seen} == {"training"}
    return place


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return demo.certification(folder, lambda _part: None, 3)


def test_every_method_stays_below_the_attack(run: Run, folder: Path) -> None:
    assert demo.trouble(run) == []
    assert run.methods == ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint")
    for eps in run.eps:
        for method in run.methods:
            rate, ceiling = run.rate(method, eps), run.ceiling(eps)
            assert rate is not None
            assert ceiling is not None
            assert 0 <= rate <= ceiling <= 1
    assert run.slack is not None
    assert read(folder) == run


def test_the_model_is_kept(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (folder / "model.safetensors").exists()
    monkeypatch.setattr(training, "train", lambda *_, **__: pytest.fail("trained again"))
    demo.model(folder, lambda *_: None)
    assert demo.certification(folder, lambda _part: None, 3).answers == run.answers


@pytest.mark.parametrize(("method", "error"), [("ibp", 1e6), ("hybrid", -1e-3)])
def test_bounds_that_contradict_are_noticed(run: Run, method: str, error: float) -> None:
    changed = tuple(
        dataclasses.replace(a, bound=a.bound + error) if a.method == method and a.bound is not None else a
        for a in run.answers
    )
    assert demo.trouble(dataclasses.replace(run, answers=changed))


def test_the_theorem_at_work() -> None:
    facts = demo.theorem()
    bounds = {method["name"]: method["bound"] for method in facts["methods"]}
    assert bounds["IBP"] <= bounds["simplex"] <= bounds["Vertex"]
    assert bounds["Wei-LSE"] <= bounds["Vertex"]
    assert bounds["Vertex"] == pytest.approx(facts["exhaustive"], abs=1e-12)
    assert facts["proved"] is True
    assert min(facts["sampled"]) >= facts["outward"]
    assert facts["enclosure"][0] <= facts["exhaustive"] <= facts["enclosure"][1] + 1e-15

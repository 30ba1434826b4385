"""The family `tree`: its truths are true, its judge says what is wrong, and a search that is wrong is found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vertex_lab.soundness import bent_judge
from vertex_lab.soundness.bench import names_of
from vertex_lab.soundness.bent import KINDS, TURNS, Instance, bent, names
from vertex_softmax.bounds.frontier import Frontier, Part
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.attack import pgd

torch.set_num_threads(1)


def margin(made: Instance, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = made.module(x)
    return y[:, 0] - y[:, 1]


@pytest.mark.parametrize("kind", ["side", "deep"])
@pytest.mark.parametrize("seed", range(0, 44, 4))
def test_the_least_margin_is_attained_and_no_attack_is_below_it(seed: int, kind: str) -> None:
    made = bent(kind, seed)
    assert float(margin(made, made.witness)) == pytest.approx(made.least, abs=1e-9)
    assert made.robust == (made.least > 0)
    found = pgd(made.graph, made.box, 0, steps=20, restarts=6, targets=1)
    assert float(found.worst[0]) >= made.least - 1e-9
    again = bent(kind, seed)
    assert (again.least, torch.equal(again.witness, made.witness)) == (made.least, True)


@pytest.mark.parametrize("kind", ["hat", "valley"])
def test_attacks_miss_what_is_planted(kind: str) -> None:
    missed = 0
    for seed in range(6):
        made = bent(kind, seed)
        assert not made.robust
        assert float(margin(made, made.witness)) == made.least < 0
        assert bool(made.box.contains(made.witness).all())
        missed += float(pgd(made.graph, made.box, 0, steps=10, restarts=2, targets=1).worst[0]) > 0
    assert missed >= 5


def test_names_are_a_side_for_every_seed_and_few_hats() -> None:
    found = names(40, 3)
    for kind in ("side", "deep"):
        assert [name for name in found if name.startswith(kind)] == [f"{kind}-{seed}" for seed in range(3, 43)]
    assert sum(name.startswith("hat") for name in found) == sum(name.startswith("valley") for name in found) == 8
    assert names_of(("tree",), 40, 3, quick=False) == [f"tree-{name}" for name in found]
    assert len(names_of(("tree",), 40, 3, quick=True)) == len(KINDS)
    assert len(set(TURNS)) == 3


@pytest.mark.parametrize(("kind", "seed"), [("side", 0), ("side", 7), ("deep", 1), ("valley", 13), ("hat", 1)])
def test_answers_are_judged(kind: str, seed: int) -> None:
    row = bent_judge.judged(kind, seed, 2.0)
    assert row["truth"] == ("robust" if bent(kind, seed).robust else "broken")
    said = [answer["method"] for answer in row["answers"]]
    assert said[0] == "verify"
    assert (bent_judge.BLIND in said) == (row["answers"][0]["verdict"] == "falsified")
    assert [answer["wrong"] for answer in row["answers"]] == [""] * len(said)


def test_a_mistake_is_named() -> None:
    robust, broken = bent("side", 0), bent("side", 4)
    assert (robust.robust, broken.robust) == (True, False)
    judge = bent_judge.mistake
    assert judge(broken, Verdict.VERIFIED, -9.0, None) == "verified, and there is a counterexample"
    assert "above the margin of the witness" in judge(robust, Verdict.UNKNOWN, robust.least + 1e-6, None)
    assert judge(robust, Verdict.VERIFIED, robust.least, None) == ""
    assert "it is robust" in judge(robust, Verdict.FALSIFIED, -9.0, robust.witness.numpy())
    assert judge(broken, Verdict.FALSIFIED, -9.0, broken.witness.numpy()) == ""
    outside = broken.witness.numpy() + 2 * np.float64(broken.facts["radius"])
    for point in (None, outside, broken.box.centre.numpy() * np.nan):
        assert judge(broken, Verdict.FALSIFIED, -9.0, point) == "the counterexample does not hold"


def test_a_search_that_closes_parts_too_soon_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broken network no search may close every part, and bounds that are too high are seen even if none closes."""
    real = Frontier.replace

    def raised(self: Frontier, taken: list[Part], made: list[Part]) -> None:
        for part in made:
            object.__setattr__(part, "bound", part.bound + 2.0)
        real(self, taken, made)

    monkeypatch.setattr(Frontier, "replace", raised)
    row = bent_judge.judged("side", 7, 2.0)
    assert row["truth"] == "broken"
    last = row["answers"][-1]  # blind, if an attack came first
    assert last["verdict"] == "verified"
    assert "verified, and there is a counterexample" in last["wrong"]

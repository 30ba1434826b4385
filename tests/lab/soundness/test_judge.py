"""The judge has eyes: a verifier that is wrong on purpose is told so, and ours is not."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from vertex_lab.soundness import files, judge
from vertex_lab.soundness.hats import Hatted
from vertex_lab.soundness.networks import Key
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification

torch.set_num_threads(1)
BROKEN = Key("exact", "tokens", "silu", 1, 2)
ROBUST = Key("exact", "vision", "square", 2, 2)
HAT = Key("hat", "tokens", "activation-relu", 1, 0)
METHODS = ("ibp", "crown", "vertex", "joint")


def test_ours_is_not_wrong() -> None:
    for key, truth in ((BROKEN, "broken"), (ROBUST, "robust"), (HAT, "broken")):
        row = judge.judged(key, METHODS)
        assert row["truth"] == truth
        assert [answer["wrong"] for answer in row["answers"]] == [""] * len(METHODS)
        assert [answer["method"] for answer in row["answers"]] == list(METHODS)


@pytest.mark.parametrize(
    ("key", "verdict"), [(BROKEN, Verdict.VERIFIED), (HAT, Verdict.VERIFIED), (ROBUST, Verdict.FALSIFIED)]
)
def test_a_wrong_verdict_is_told(key: Key, verdict: Verdict, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = judge.certify

    def lying(*given: Any, **more: Any) -> Certification:
        return dataclasses.replace(honest(*given, **more), verdicts=(verdict,))

    monkeypatch.setattr(judge, "certify", lying)
    answer = judge.judged(key, ("crown",))["answers"][0]
    assert answer["wrong"].startswith(str(verdict))


@pytest.mark.parametrize("key", [BROKEN, ROBUST])
def test_a_bound_just_above_the_minimum_is_told(key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = judge.certify

    def lying(*given: Any, **more: Any) -> Certification:
        found = honest(*given, **more)
        least = torch.tensor([torch.inf, judge.made(key).margins[1] + 1e-7, -torch.inf], dtype=torch.float64)
        return dataclasses.replace(found, lower=least[None])

    monkeypatch.setattr(judge, "certify", lying)
    assert "above a margin of the witness" in judge.judged(key, ("crown",))["answers"][0]["wrong"]


def test_a_verifier_that_loses_the_hat_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = judge.read

    def losing(module: Hatted, *given: Any) -> Any:
        flat = copy.deepcopy(module)
        flat.height = 0.0
        return honest(flat, *given)

    monkeypatch.setattr(judge, "read", losing)
    assert "verified" in judge.judged(HAT, ("hybrid",))["answers"][0]["wrong"]


@pytest.mark.parametrize("name", ["hull-1-plain-4", "corner-1-plain-0"])
def test_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = files.judged_file(name, 2.0)["answers"][0]
    assert answer["wrong"] == ""
    honest = files._asked

    def lying(*given: Any) -> Any:
        found = honest(*given)
        wrong = Verdict.VERIFIED if name.startswith("corner") else Verdict.FALSIFIED
        return dataclasses.replace(found, verdict=wrong, counterexample=None)

    monkeypatch.setattr(files, "_asked", lying)
    assert files.judged_file(name, 2.0)["answers"][0]["wrong"] != ""

"""Kinds of cases: a number draws one recipe, plain JSON; each kind runs, finds what is planted, and is made small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vertex_lab.fuzz import constants, kinds, swaps
from vertex_lab.fuzz.certificates import FORGERIES
from vertex_lab.fuzz.minimise import minimised
from vertex_lab.fuzz.programs import program_of
from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs import certify

LINEAR = [{"op": "linear", "seed": 5}]


@pytest.mark.parametrize("name", kinds.KINDS)
def test_a_number_is_a_recipe(name: str) -> None:
    for number in range(20):
        once, again = (kinds.draw(number, [name]) for _ in range(2))
        assert once == again == json.loads(json.dumps(once))
        assert kinds.kind_of(once) == name
        assert once["seed"] == number


def test_all_kinds_are_drawn() -> None:
    assert {kinds.kind_of(kinds.draw(number, kinds.chosen(None))) for number in range(200)} == set(kinds.KINDS)


def test_kinds_are_chosen_by_name() -> None:
    assert kinds.chosen(["tokens", "network"]) == ("network", "tokens")
    with pytest.raises(InvalidValueError, match="choose from network"):
        kinds.chosen(["nothing"])


def careless(margins: Any, *_: Any) -> Any:
    return tuple(Verdict.VERIFIED for _ in margins.clean), tuple("" for _ in margins.clean)


ASKED: dict[str, dict[str, Any]] = {
    "constants": {
        **constants.draw(1),
        "blocks": LINEAR,
        "route": "module",
        "certificate": False,
        "method": "ibp",
        "third": 0.0,
    },
    "modules": {**kinds.draw(3, ["modules"]), "trick": "none", "eps": 3.0, "certificate": False, "method": "ibp"},
    "styles": {
        **kinds.draw(3, ["styles"]),
        "blocks": LINEAR,
        "styles": ["plain"],
        "cascade": False,
        "certificate": False,
    },
}


@pytest.mark.parametrize("name", ASKED)
def test_a_careless_verdict_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every input `verified`, as if the bounds were not looked at."""
    found = kinds.check(ASKED[name], folder=tmp_path).findings
    assert not found
    monkeypatch.setattr(certify, "verdicts_of", careless)
    found = kinds.check(ASKED[name], folder=tmp_path).findings
    assert {f.kind for f in found} & {"refuted exactly", "verified but fooled"}


def test_plain_recipes_are_made_small() -> None:
    recipe = {**constants.draw(7), "blocks": [*LINEAR, {"op": "cancel", "big": 4.0}, *LINEAR], "eps": 0.1}

    def judge(smaller: dict[str, Any]) -> bool:
        return any(block["op"] == "cancel" for block in smaller["blocks"])

    found = minimised(recipe, judge)
    assert [block["op"] for block in found["blocks"]] == ["cancel"]
    assert (found["eps"], found["method"], found["certificate"]) == (0.0, "crown", False)


@pytest.mark.parametrize("change", swaps.CHANGES)
def test_a_changed_program_is_another_of_the_same_size(change: str) -> None:
    recipe = {"seed": 1, "tokens": 1, "d": 2, "classes": 2, "eps": 0.1, "blocks": [{"op": "norm"}]}
    recipe["blocks"] = [{"op": "norm"}, {"op": "difference", "kind": "relu", "first": "x"}]
    program = program_of(recipe)
    models = [p.onnx().SerializeToString() for p in (program, swaps.changed(program, change))]
    assert models[0] != models[1]
    assert len(models[0]) == len(models[1])


@pytest.mark.slow
def test_forgeries_are_made_and_judged(tmp_path: Path) -> None:
    recipe = kinds.draw(3, ["certificates"])  # of number 4 the property is false
    report = kinds.check({**recipe, "blocks": [*LINEAR, {"op": "activation", "kind": "relu"}]}, folder=tmp_path)
    assert not report.findings
    assert report.notes["rejected"] > 0
    assert len(FORGERIES) == 8

"""The fuzzer has teeth: bugs that are planted are found, by their kind, and made small."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from tests.ops.mutants import altered, fields, halved, replaced, unmasked, upper_as_lower
from tests.slowly import few
from vertex_lab.fuzz import case, check
from vertex_lab.fuzz.minimise import minimised
from vertex_softmax.methods import combination
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops import attention, bilinear, elementwise, normalization, softmax
from vertex_softmax.runs import certify

BASE: dict[str, Any] = {
    "seed": 1,
    "input": [3, 4],
    "layers": [],
    "pool": "mean",
    "head": True,
    "classes": 3,
    "set": {"kind": "linf", "eps": 0.3, "spread": 1.0, "same_tokens": False, "seed": 3},
    "batch": 2,
    "steps": 1,
    "onnx": {"style": "legacy", "opset": 14},
    "options": {"pieces": 1},
    "extras": [],
}
WEIGHTS = {"seed": 7, "scale": 1.0}
ATTENTION = {"op": "attention", "style": "hand", "heads": 1, "mask": "none", "loud": 1.0, "residual": True, **WEIGHTS}
NORM = {"op": "norm", "kind": "layer", "eps": 0.125, "affine": True, **WEIGHTS}
RELU = {"op": "activation", "kind": "relu"}
GATE = {"op": "gate", "kind": "none", **WEIGHTS}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and the quick methods: a bug that is planted is in them too."""
    torch.set_num_threads(1)
    monkeypatch.setattr(check, "METHODS", {name: METHODS[name] for name in ("ibp", "crown", "hybrid")})


def recipe(*layers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), "layers": list(copy.deepcopy(layers)), **changes}


def kinds(case: dict[str, Any]) -> set[str]:
    return {finding.kind for finding in check.check(case).findings}


def raised(found: Any, *_: Any) -> Any:
    return dataclasses.replace(found, lower=found.lower + 0.01)


def careless(found: Any, *_: Any) -> Any:
    verdicts, reasons = found
    return tuple(Verdict.VERIFIED for _ in verdicts), reasons


def broken_call(*_: Any, **__: Any) -> Any:
    raise KeyError("planted")


Plant = tuple[str, Callable[[], AbstractContextManager[Any]], dict[str, Any]]
PLANTS: dict[str, Plant] = {
    "ReLU: the chord is not raised": (
        "unsound",
        lambda: fields(elementwise.Relu, "lines", upper_intercept=lambda f: 0 * f.upper_intercept),
        recipe(RELU, set={**BASE["set"], "eps": 1.0}),
    ),
    "softmax: p^L and p^U swapped": (
        "unsound",
        lambda: altered(softmax, "softmax_box_probabilities", upper_as_lower),
        recipe({"op": "safe", "kind": "softmax", **WEIGHTS}),
    ),
    "products: half their box": (
        "outside its box",
        lambda: altered(bilinear, "product_interval", halved),
        recipe(ATTENTION, extras=["boxes"], seed=14),
    ),
    "matmul: the error dropped": (
        "unsound",
        lambda: fields(bilinear.MatMul, "relax", error=lambda f: 0 * f.error),
        recipe({"op": "move", "kind": "gram", **WEIGHTS}),
    ),
    "every bound is raised": (
        "unsound",
        lambda: altered(certify, "lower_bounds", raised),
        recipe(NORM, set={**BASE["set"], "eps": 1e-4}),
    ),
    "every input is verified": (
        "verified but fooled",
        lambda: altered(certify, "verdicts_of", careless),
        recipe(RELU, set={**BASE["set"], "eps": 3.0}),
    ),
    "joint forgets its parts": (
        "order",
        lambda: replaced(combination, "larger", lambda *bounds: bounds[-1] - 1.0),
        recipe(ATTENTION),
    ),
    "an exception": (
        "error",
        lambda: replaced(normalization.Normalize, "interval", broken_call),
        recipe(NORM),
    ),
    "attention: the mask forgotten": (
        "unsound",
        lambda: unmasked(attention.Attention),
        recipe({**ATTENTION, "mask": "one_key"}, set={**BASE["set"], "eps": 0.01}),
    ),
}


NOW = ("ReLU: the chord is not raised", "softmax: p^L and p^U swapped", "products: half their box", "an exception")


@pytest.mark.parametrize("name", few(PLANTS, lambda name: name in NOW))
def test_a_planted_bug_is_found(name: str) -> None:
    kind, plant, what = PLANTS[name]
    assert not kinds(what)
    with plant():
        assert kind in kinds(what)


def test_what_is_not_needed_goes() -> None:
    whole = recipe(NORM, {"op": "residual", "layers": [GATE, ATTENTION]}, RELU, extras=["chunk", "onnx"], batch=3)

    def judge(smaller: dict[str, Any]) -> bool:
        text = str(smaller["layers"])
        return "gate" in text and "relu" in text and smaller["input"][0] > 1

    found = minimised(whole, judge)
    assert judge(found)
    assert [layer["op"] for layer in found["layers"]] == ["gate", "activation"]
    assert (found["batch"], found["classes"], found["input"], found["extras"]) == (1, 2, [2, 1], [])


@pytest.mark.slow
def test_a_planted_bug_is_made_small() -> None:
    whole = recipe(GATE, {"op": "residual", "layers": [RELU]}, extras=["chunk"], batch=3)
    with fields(elementwise.Relu, "lines", upper_intercept=lambda f: 0 * f.upper_intercept):
        found = minimised(whole, lambda smaller: "unsound" in kinds(smaller), seconds=300.0, tries=30)
        assert "unsound" in kinds(found)
    assert [layer["op"] for layer in found["layers"]] == ["activation"]
    assert found["batch"] == 1
    assert found["classes"] == 2
    assert not found["extras"]
    assert not kinds(found)


def test_a_refusal_is_no_finding() -> None:
    report = check.check(recipe({"op": "safe", "kind": "logsoftmax", **WEIGHTS}, set={**BASE["set"], "spread": 1e5}))
    assert not report.findings
    assert any(note.startswith("refused import: UnsupportedModelError") for note in report.notes)


def test_tolerances_are_not_wide() -> None:
    """Of outputs near 1, a bound may be a billionth above a sample, and a float32 one a thousandth."""
    made = check._Case(recipe(RELU), case.Report(), "cpu", None)
    made.run()
    assert float(made.seen.allowed(*case.FLOAT64).max()) < 1e-8
    assert float(made.seen.allowed(*case.FLOAT32).max()) < 1e-2

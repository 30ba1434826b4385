"""Past finds, and recipes that together have every layer: none of them has a finding."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slowly import few
from vertex_lab.fuzz import layers, recipe
from vertex_lab.fuzz.check import check

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))


pytestmark = pytest.mark.usefixtures("one_quiet_thread")


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("name", few([path.stem for path in CORPUS], lambda name: not name.startswith("slow")))
def test_no_finding(name: str, tmp_path: Path) -> None:
    case = read(Path(__file__).parent / "corpus" / f"{name}.json")
    report = check(case["recipe"], folder=tmp_path)
    assert not report.findings
    for note in case.get("notes", []):
        assert any(found.startswith(note) for found in report.notes), report.notes


def test_another_device() -> None:
    """What `--device cuda` does, with another name for the CPU."""
    case = read(Path(__file__).parent / "corpus" / "seed-909279.json")["recipe"]
    report = check({**case, "extras": []}, device="cpu:0")
    assert not report.findings
    assert any(note.endswith("cpu:0 float32 joint") for note in report.notes)


def inside(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for layer in parts:
        yield layer
        yield from inside(layer.get("layers", []))


def test_the_corpus_has_every_layer() -> None:
    cases = [read(path)["recipe"] for path in CORPUS]
    parts = [layer for case in cases for layer in inside(case["layers"])]
    assert set(recipe.ATTENTIONS) <= {part.get("style") for part in parts}
    assert {*recipe.NORMS, *recipe.SAFE, *recipe.MOVES, *recipe.ACTIVATIONS} <= {part.get("kind") for part in parts}
    assert {"encoder", "patches", "split", "residual", "gate"} <= {part["op"] for part in parts}
    assert set(recipe.MASKS) <= {part.get("mask") for part in parts}
    assert set(recipe.EXTRAS) <= {name for case in cases for name in case["extras"]}
    assert set(recipe.POOLS) <= {case["pool"] for case in cases}
    assert {"linf", "clip", "box", "token"} <= {case["set"]["kind"] for case in cases}


def test_every_name_has_its_layer() -> None:
    assert set(recipe.ACTIVATIONS) <= set(layers.ACTIVATION)
    assert set(recipe.SAFE) == set(layers.SAFE)


def test_a_seed_is_a_recipe() -> None:
    for seed in range(50):
        once, again = recipe.random_recipe(seed), recipe.random_recipe(seed)
        assert once == again == json.loads(json.dumps(once))

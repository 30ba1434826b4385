"""The kinds of cases: each a module that draws recipes and checks them.

Invariant: a number draws one recipe of one kind, whichever kinds are chosen with it as long as they are the same; a
recipe says its kind, and one that does not is of the kind `network`.

A module of a kind has `draw(seed)`, a recipe as plain JSON; `check(recipe, device=, folder=)`, a report; and `SIMPLE`,
what keys of a recipe become when it is made small (see minimise.py).
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vertex_lab.fuzz.asking import Report
from vertex_lab.fuzz.recipe import Recipe
from vertex_softmax.foundation.errors import InvalidValueError


class Kind(NamedTuple):
    """How often it is drawn, relatively; the module; what it looks for."""

    weight: float
    module: str
    about: str


KINDS = {
    "network": Kind(2.0, "networks", "random networks by every import, method and precision"),
    "tokens": Kind(2.0, "tokens", "models of token ids, padded batches, scaled and shared tables"),
    "modules": Kind(1.0, "modules", "modules that are not the function their export is"),
    "styles": Kind(2.0, "styles", "one network in many ONNX spellings, functions and files"),
    "properties": Kind(2.0, "properties", "VNNLIB properties through the cascade"),
    "constants": Kind(2.0, "constants", "masks, near-misses and cancellation, judged in exact arithmetic"),
    "precision": Kind(1.0, "precision", "float32, and another device if there is one"),
    "certificates": Kind(1.5, "certificates", "proofs with many leaves, and tampered ones"),
    "swaps": Kind(1.0, "swaps", "files that change under way, folders used twice, sweeps that are killed"),
    "routes": Kind(1.5, "routes", "one question asked in several ways"),
}


def chosen(names: Sequence[str] | None) -> tuple[str, ...]:
    """The kinds of these names, in the table's order; None: all."""
    unknown = [name for name in names or () if name not in KINDS]
    if unknown:
        raise InvalidValueError(f"--kinds names {unknown[0]!r}; choose from {', '.join(KINDS)}")
    return tuple(name for name in KINDS if names is None or name in names) or tuple(KINDS)


def draw(number: int, names: Sequence[str]) -> Recipe:
    """The recipe of a number."""
    rng = random.Random(f"kind {number}")  # noqa: S311 - no secret
    name = rng.choices(list(names), [KINDS[n].weight for n in names])[0]
    recipe: Recipe = _module(name).draw(number)
    return recipe


def kind_of(recipe: Recipe) -> str:
    """Its name."""
    return str(recipe.get("kind", "network"))


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:
    """What came of a recipe of any kind; `folder` is empty, and may be written to."""
    report: Report = _module(kind_of(recipe)).check(recipe, device=device, folder=folder)
    return report


def simple(recipe: Recipe) -> dict[str, Any]:
    """What the keys of such a recipe become when it is made small."""
    found: dict[str, Any] = _module(kind_of(recipe)).SIMPLE
    return found


def _module(name: str) -> Any:
    return importlib.import_module(f"vertex_lab.fuzz.{KINDS[name].module}")

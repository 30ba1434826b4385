"""Smaller recipes with the same finding: layers go, sizes and scales fall, one after the other, as long as it stays.

Invariant: what is returned has a finding of the same signature as what was given, by the same judge.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from typing import Any

from vertex_lab.fuzz.kinds import kind_of, simple
from vertex_lab.fuzz.recipe import Layer, Recipe

Judge = Callable[[Recipe], bool]
SIMPLE: dict[str, Any] = {
    "scale": 1.0,
    "loud": 1.0,
    "mask": "none",
    "residual": False,
    "affine": False,
    "heads": 1,
    "bias": False,
    "norm": False,
    "eps": 2.0**-10,
    "hidden": 1,
    "style": "hand",
}


def minimised(recipe: Recipe, judge: Judge, seconds: float = 90.0, tries: int = 100) -> Recipe:
    """The smallest recipe found with `judge` true, within the limits."""
    best, end = copy.deepcopy(recipe), time.monotonic() + seconds
    progress = True
    while progress:
        progress = False
        for smaller in list(_smaller(best)):
            if tries <= 0 or time.monotonic() > end:
                return best
            if smaller == best:
                continue
            tries -= 1
            if judge(smaller):
                best, progress = smaller, True
                break
    return best


def _smaller(recipe: Recipe) -> Iterator[Recipe]:
    """One change each, the largest first."""
    return _smaller_plain(recipe, simple(recipe)) if kind_of(recipe) != "network" else _smaller_network(recipe)


def _smaller_plain(value: Any, known: dict[str, Any]) -> Iterator[Any]:
    """Of a recipe of any other kind: entries of lists go, and keys become what is simple for them, one at a time."""
    if isinstance(value, list):
        for i in range(len(value)):
            yield value[:i] + value[i + 1 :]
        for i, entry in enumerate(value):
            for other in _smaller_plain(entry, known):
                yield [*value[:i], other, *value[i + 1 :]]
    if isinstance(value, dict):
        for key, entry in value.items():
            if key in known and entry != known[key]:
                yield {**value, key: copy.deepcopy(known[key])}
        for key, entry in value.items():
            for other in _smaller_plain(entry, known):
                yield {**value, key: other}


def _smaller_network(recipe: Recipe) -> Iterator[Recipe]:
    """Layers go first, then sizes and scales fall."""

    def changed(**new: Any) -> Recipe:
        return {**copy.deepcopy(recipe), **copy.deepcopy(new)}

    for name in recipe["extras"]:
        yield changed(extras=[other for other in recipe["extras"] if other != name])
    layers = recipe["layers"]
    for i in range(len(layers)):
        yield changed(layers=layers[:i] + layers[i + 1 :])
    for i, layer in enumerate(layers):
        for other in _smaller_layer(layer):
            yield changed(layers=[*layers[:i], *other, *layers[i + 1 :]])
    if recipe["batch"] > 1:
        yield changed(batch=1)
    if recipe["classes"] > 2:
        yield changed(classes=2)
    shape = recipe["input"]
    for i, n in enumerate(shape):
        for less in {1, 2, n - 1}:
            if 0 < less < n:
                yield changed(input=[*shape[:i], less, *shape[i + 1 :]])
    for key, value in (("pool", "first"), ("head", False), ("steps", 1)):
        if recipe[key] != value:
            yield changed(**{key: value})
    how = recipe["set"]
    for key, plain in (("kind", "linf"), ("spread", 1.0), ("same_tokens", False), ("eps", 0.1)):
        if how[key] != plain:
            yield changed(set={**how, key: plain})
    for key in recipe["options"]:
        if len(recipe["options"]) > 1:
            yield changed(options={k: v for k, v in recipe["options"].items() if k != key})


def _smaller_layer(layer: Layer) -> Iterator[list[Layer]]:
    if layer["op"] == "residual":
        inner = layer["layers"]
        yield inner
        for i in range(len(inner)):
            if len(inner) > 1:
                yield [{**layer, "layers": inner[:i] + inner[i + 1 :]}]
            for other in _smaller_layer(inner[i]):
                yield [{**layer, "layers": [*inner[:i], *other, *inner[i + 1 :]]}]
        return
    for key, value in SIMPLE.items():
        if key in layer and layer[key] != value:
            yield [{**layer, key: value}]
    if layer.get("out", 1) > 2:
        yield [{**layer, "out": 2}]

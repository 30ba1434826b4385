"""The kind `precision`: float32, and another device where there is one, by every method, on networks of every layer.

Truth is the module in float64 at points of the set; float32 bounds are held to what float32 may cost (case.py), and a
verdict is held to the truth as every other one is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vertex_lab.fuzz.asking import Report, Stop, reported
from vertex_lab.fuzz.case import FLOAT32, FLOAT64, Case
from vertex_lab.fuzz.points import seen
from vertex_lab.fuzz.recipe import Recipe, random_recipe
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.runs.certify import load

SIMPLE: dict[str, Any] = {"batch": 1, "classes": 2, "steps": 1, "pool": "first", "scale": 1.0, "loud": 1.0}


def draw(seed: int) -> Recipe:
    """The network of a seed."""
    return {**random_recipe(seed), "kind": "precision", "extras": []}


def check(recipe: Recipe, *, device: str = "cpu", folder: Path) -> Report:
    """All findings of a recipe."""
    return reported(lambda report: _Case(recipe, report, device, folder).run())


class _Case(Case):
    def run(self) -> None:
        """Both precisions, on every device."""
        torch.manual_seed(0)
        with torch.no_grad():
            out = self.double(self.set.centre)
        if out.dim() != 2 or out.shape[1] < 2 or not bool(out.isfinite().all()):
            raise Stop
        self.labels = out.argmax(1)
        self.graph = self.must(lambda: load(self.double, self.set), "import torch")
        self.points = self.sampled()
        self.seen = seen(self.double, self.single, self.points)
        places = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        if self.device not in places:
            places.append(self.device)
        for place in places:
            for method in METHODS:
                single = self.certified(self.graph, method, self.options, device=place, dtype=torch.float32)
                if single is not None:
                    self.judge(single, self.seen, FLOAT32, f"{place} float32 {method}")
                if place != "cpu":
                    double = self.certified(self.graph, method, self.options, device=place)
                    if double is not None:
                        self.judge(double, self.seen, FLOAT64, f"{place} {method}")

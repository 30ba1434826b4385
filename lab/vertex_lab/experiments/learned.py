"""Trained classifiers, certified image by image: the trials behind the tables patch, block, strong and their kin.

Invariant: a trial is one image of one model at one ε; every method bounds the same trials, and an attack is kept beside
each. No bound may lie above what the attack reached (`violations`).

The methods of a trial are those of `certify`; published.py adds the paper's CROWN and Hybrid.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vertex_lab.experiments.request import Request
from vertex_lab.experiments.result import machine
from vertex_lab.journals import journal_of
from vertex_lab.zoo import places
from vertex_lab.zoo.datasets import dataset, restricted, source_of
from vertex_softmax.graph.ir import Graph
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.demo.digits import Dataset
from vertex_softmax.runs.demo.model import Architecture, PatchTransformer
from vertex_softmax.runs.demo.training import prepared
from vertex_softmax.runs.journal import Journal, Trial
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall

METHODS = ("vertex", "crown", "alpha-crown", "hybrid", "joint")
PROTOCOL_ATTACK = {"steps": 40, "step_size": 0.005, "restarts": 2}
STRONG_ATTACK = {"steps": 40, "restarts": 4}
TOGETHER = {"cpu": 16, "cuda": 128}
ROUNDING = 1e-9
TRAINING = {"batch": 256, "lr": 1e-3, "weight_decay": 1e-4, "gradient_clip": 1.0}


@dataclass(frozen=True)
class Setting:
    """One kind of model on one data set, and the trials to be made of it."""

    name: str
    """as the tables call it"""
    data: str
    architecture: Architecture
    epsilons: tuple[float, ...]
    epochs: int
    seeds: int
    images: int
    """per seed"""
    clean_correct: bool
    """count the first correctly classified images; else the first images, misclassified ones as uncertified"""
    classes: tuple[int, ...] | None = None
    """the classes kept, if not all"""
    methods: tuple[str, ...] = METHODS
    training: Mapping[str, Any] = field(default_factory=lambda: dict(TRAINING))
    """what `train` is given besides epochs and seed"""
    published: dict[float, dict[str, float]] = field(default_factory=dict)
    """by ε"""

    @property
    def denominator(self) -> str:
        """What rates are shares of, in words."""
        return "clean-correct images" if self.clean_correct else "all images (end to end)"


@dataclass(frozen=True, eq=False)
class Case:
    """A trained model and its images."""

    setting: Setting
    seed: int
    model: PatchTransformer
    record: dict[str, Any]
    data: Dataset

    @property
    def chosen(self) -> list[int]:
        """The evaluation images that count."""
        if not self.setting.clean_correct:
            return list(range(min(self.setting.images, len(self.data.eval_labels))))
        with torch.no_grad():
            found = self.model(self.data.eval_images).argmax(-1)
        right = (found == self.data.eval_labels).nonzero().flatten()
        return [int(i) for i in right[: self.setting.images]]

    def key(self, epsilon: float, image: int) -> str:
        """Which trial; the checksums are those of the weights and of the data."""
        made = f"{self.record['sha256']} {self.record['checksum']}"
        return f"{self.setting.name} | {made} | seed {self.seed} | ε {epsilon!r} | image {image}"


@dataclass
class Found:
    """The trials of some settings, and what tables have to say of their data."""

    trials: list[Trial] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """by setting: why it was not run"""
    notes: dict[str, str] = field(default_factory=dict)
    """by data set: another split than the usual, files that are not official"""

    def of(self, setting: str, epsilon: float | None = None) -> list[Trial]:
        """The trials of a setting, at one ε if it is given."""
        return [
            trial
            for trial in self.trials
            if trial["setting"] == setting and (epsilon is None or trial["epsilon"] == epsilon)
        ]


def trials(name: str, settings: Sequence[Setting], request: Request) -> Found:
    """Every trial of the settings, from OUT/journals/NAME.jsonl where it is there.

    A setting whose data is not in the data folder is left out and said to be missing; data that is there and damaged is
    an error.
    """
    found = Found()
    folder = request.data_dir or places.default_folder()
    with journal_of(name, request.out, "experiments/learned.py") as journal:
        for setting in settings:
            if setting.data != "digits" and places.find(source_of(setting.data), folder) is None:
                found.missing[setting.name] = f"no files of {setting.data} in {folder}: " + places.remedy(
                    source_of(setting.data), folder
                )
                continue
            data = dataset(setting.data, folder)
            if data.note:
                found.notes[data.name] = data.note
            data = data if setting.classes is None else restricted(data, setting.classes)
            for seed in request.chosen(setting.seeds):
                found.trials += _case(case(setting, data, seed, request), journal, request)
    return found


def case(setting: Setting, data: Dataset, seed: int, request: Request) -> Case:
    """The setting's model of a seed, loaded from OUT/models or trained."""
    settings = {"epochs": setting.epochs, "seed": seed, **setting.training}
    path = request.out / "models" / _slug(f"{setting.data}-{setting.name}-{seed}")

    def progress(done: int, total: int) -> None:
        request.progress(f"training {setting.name}, seed {seed}", done, total)

    model, record = prepared(path, setting.architecture, data, settings, progress)
    return Case(setting, seed, model.double().eval().requires_grad_(requires_grad=False), record, data)


def _case(case: Case, journal: Journal, request: Request) -> list[Trial]:
    """The trials of one model."""
    setting, chosen, found = case.setting, case.chosen, []
    total = len(chosen) * len(setting.epsilons)
    size = TOGETHER["cuda" if request.device.startswith("cuda") else "cpu"]
    graph: Graph | None = None
    for at, epsilon in enumerate(setting.epsilons):
        for start in range(0, len(chosen), size):
            part = chosen[start : start + size]
            request.progress(f"{setting.name}, seed {case.seed}", at * len(chosen) + start, total)
            keys = [case.key(epsilon, image) for image in part]
            if not all(_complete(journal.known.get(key), setting.methods) for key in keys):
                if graph is None:
                    graph = load(case.model, LinfBall(case.data.eval_images[:1], 0.0))
                known = [journal.known.get(key, {}) for key in keys]
                journal.add(_measure(case, graph, epsilon, part, known, request.device))
            found += [journal.known[key] for key in keys]
    request.progress(f"{setting.name}, seed {case.seed}", total, total)
    return found


def _complete(trial: Trial | None, methods: Sequence[str]) -> bool:
    return trial is not None and (not trial["correct"] or all(method in trial["bounds"] for method in methods))


def _measure(
    case: Case, graph: Graph, epsilon: float, images: list[int], known: list[Trial], device: str
) -> list[Trial]:
    """New lines for some images; methods that are all known stay as they are."""
    labels = case.data.eval_labels[images]
    pictures = case.data.eval_images[images]
    with torch.no_grad():
        logits = case.model(pictures)
    correct = logits.argmax(-1) == labels
    which = correct.nonzero().flatten().tolist()
    lines: list[Trial] = [
        {
            "key": case.key(epsilon, image),
            "setting": case.setting.name,
            "data": case.data.name,
            "seed": case.seed,
            "epsilon": epsilon,
            "image": image,
            "label": int(label),
            "correct": bool(right),
            "accuracy": case.record["accuracy"],
            "device": device,
            "machine": machine(device),
            "torch": torch.__version__,
        }
        for image, label, right in zip(images, labels, correct, strict=True)
    ]
    if not which:
        return lines
    ball = LinfBall(pictures[which].to(device), epsilon, clip=(0, 1))
    which_labels = labels[which].to(device)
    attacks = {
        name: pgd(graph, ball, which_labels, **how).worst.cpu()
        for name, how in (("protocol", PROTOCOL_ATTACK), ("strong", STRONG_ATTACK))
    }
    done = [set(known[i].get("bounds", {})) for i in which]
    bounds = bound_all(graph, ball, which_labels, [m for m in case.setting.methods if not all(m in d for d in done)])
    for n, i in enumerate(which):
        lines[i]["attack"] = {name: float(worst[n]) for name, worst in attacks.items()}
        lines[i]["bounds"] = {**known[i].get("bounds", {}), **{m: found[n] for m, found in bounds.items()}}
    return lines


def bound_all(graph: Graph, ball: LinfBall, labels: Tensor, methods: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Per method, for each image of the ball: worst (None if not finite), certified, seconds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for method in methods:
        begin = time.perf_counter()
        answer = certify(graph, ball, labels, method, device=ball.lower.device, attack=None)
        worst, sure = answer.worst.tolist(), answer.certified.tolist()
        seconds = (time.perf_counter() - begin) / len(labels)
        found[method] = [
            {"worst": w if math.isfinite(w) else None, "certified": c, "seconds": seconds}
            for w, c in zip(worst, sure, strict=True)
        ]
    return found


def violations(found: Sequence[Trial]) -> list[str]:
    """Bounds that are above a margin an attack reached."""
    broken = []
    for trial in found:
        if trial["correct"]:
            lowest = best_attack(trial)
            for method, bound in trial["bounds"].items():
                if bound["worst"] is not None and bound["worst"] > lowest + ROUNDING * (1 + abs(lowest)):
                    broken.append(f"{trial['key']}: {method} {bound['worst']} above the attack's {lowest}")
    return broken


def best_attack(trial: Trial) -> float:
    """The lowest margin any attack reached in the trial."""
    return float(min(trial["attack"].values()))


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower())

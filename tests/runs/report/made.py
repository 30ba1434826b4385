"""Runs as an evaluation might leave them: real digits, invented numbers that obey the order of the methods."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from vertex_softmax.runs.records import packed, unpacked
from vertex_softmax.runs.run import (
    Attacked,
    AttentionHeads,
    Data,
    Model,
    OtherSlack,
    Radius,
    Run,
    RunAnswer,
    RunInput,
    SlackMap,
)
from vertex_softmax.runs.sweep import sweep
from vertex_softmax.runs.sweep.instances import SweepInstance
from vertex_softmax.runs.sweep.runner import Finished, Settings

METHODS = ("ibp", "crown", "alpha-crown", "vertex", "hybrid", "joint")
EPS = (0.01, 0.02, 0.04, 0.06, 0.08)
LOSS = {"ibp": 900.0, "crown": 62.0, "alpha-crown": 52.0, "vertex": 56.0, "hybrid": 46.0, "joint": 27.0}
SECONDS = {"ibp": 0.0012, "crown": 0.011, "alpha-crown": 0.24, "vertex": 0.016, "hybrid": 0.034, "joint": 0.31}
SHARE = {"ibp": 1e-5, "crown": 0.3, "alpha-crown": 0.36, "vertex": 0.33, "hybrid": 0.4, "joint": 0.6}
REASONS = {"verified": "", "unknown": "the bound is not above 0", "falsified": "the attack found a wrong answer"}


@cache
def images() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images / 16.0, found.target


def run(inputs: int = 60, methods: tuple[str, ...] = METHODS, **changes: Any) -> Run:
    """A run over every method and ε; the same each time."""
    rng = np.random.default_rng(0)
    pictures, labels = images()
    chosen = rng.permutation(len(pictures))[:inputs]
    entries, answers, attacks = [], [], []
    for i, k in enumerate(chosen):
        label, other = int(labels[k]), int((labels[k] + 1 + rng.integers(9)) % 10)
        wrong = rng.random() < 0.04
        clean = float(-abs(rng.normal(0.6, 0.3)) if wrong else abs(rng.normal(4.2, 1.6)) + 0.05)
        entries.append(RunInput(int(k), label, other if wrong else label, clean, packed(pictures[k][None])))
        kept, slope = False, float(rng.uniform(8, 26))
        for eps in EPS:
            margin = clean - slope * eps
            example = None
            if margin <= 0 and not kept:
                kept = True
                example = packed(np.clip(pictures[k] + eps * np.sign(rng.normal(size=(8, 8))), 0, 1)[None])
            attacks.append(Attacked(i, eps, margin, other, example))
            for method in methods:
                loss = LOSS.get(method, 40.0) * eps * float(rng.uniform(0.85, 1.15)) * (1 + 6 * eps)
                bound = margin - max(0.0, loss - slope * eps * 0.6)
                verdict = "verified" if bound > 0 else "falsified" if margin <= 0 else "unknown"
                seconds = SECONDS.get(method, 0.1) * float(rng.uniform(0.8, 1.3))
                infinite = method == "ibp" and eps > 0.07 and rng.random() < 0.2
                answers.append(
                    RunAnswer(i, method, eps, verdict, None if infinite else bound, other, seconds, REASONS[verdict])
                )
    parts: dict[str, Any] = {
        "title": "Digits, a small vision transformer",
        "version": "0.1.0",
        "created": "2026-03-01T12:00:00Z",
        "model": Model("digits-vit", "9f2c" * 16, 0.965, {"blocks": 1, "heads": 2, "width": 16, "tokens": 16}),
        "data": Data("digits", (1, 8, 8), (0.0, 1.0), tuple("0123456789")),
        "methods": methods,
        "eps": EPS,
        "inputs": tuple(entries),
        "answers": tuple(answers),
        "attacks": tuple(attacks),
        "slack": slack(),
        "settings": {"seed": 0, "attack": "PGD, 40 steps, 5 restarts", "threads": 1, "rigorous": False},
        "seconds": 71.25,
    }
    return Run(**(parts | changes))


def slack(heads: int = 4, rows: int = 17, blocks: int = 2) -> SlackMap:
    """Slack in two attentions and some other ops."""
    rng = np.random.default_rng(1)
    attentions, total = [], 0.0
    for b in range(blocks):
        near = np.exp(-0.15 * np.abs(np.arange(rows)[:, None] - np.arange(rows)[None]))
        width = near[None] * rng.uniform(0.3, 1.4, (heads, 1, 1)) + rng.uniform(0, 0.4, (heads, rows, rows))
        lost = 0.03 * (b + 1) * width.mean(-1) ** 3 * rng.uniform(0.5, 1.5, (heads, rows))
        attentions.append(AttentionHeads(f"block {b + 1} attention", lost.tolist(), width.tolist()))
        total += float(lost.sum())
    others = (
        OtherSlack("block 1 norm", "LayerNorm", 0.21),
        OtherSlack("block 1 mlp", "Relu", 0.34),
        OtherSlack("block 2 mlp", "Relu", 0.12),
    )
    return SlackMap(0.04, "joint", 20, total + sum(o.slack for o in others), tuple(attentions), others)


def radius_run(inputs: int = 60) -> Run:
    """A search for radii."""
    found = run(inputs)
    rng = np.random.default_rng(2)
    radii = []
    for i, x in enumerate(found.inputs):
        limit = max(0.0, x.clean / 18)
        for method in METHODS:
            certified = limit * SHARE[method] * float(rng.uniform(0.8, 1.2))
            radii.append(Radius(i, method, certified, 1.07 * certified + 1e-6, limit or None, 12 * SECONDS[method]))
    return run(
        inputs, eps=(), answers=(), attacks=(), radii=tuple(radii), title="How far digits are certified", slack=None
    )


class _Told:
    """A runner that has every answer at once."""

    def __init__(self, reason: str) -> None:
        self.note, self.reason, self.done = "", reason, []
        self.rng = np.random.default_rng(0)

    def has_room(self) -> bool:
        return True

    def start(self, key: str, instance: SweepInstance, files: Mapping[str, str]) -> None:  # noqa: ARG002
        low, seconds = float(self.rng.normal(0.1, 0.3)), float(self.rng.lognormal(1.5, 1.2))
        status = "unsat" if low > 0 else "sat" if low < -0.5 else "timeout" if low < -0.2 else "unknown"
        answer = {"status": status, "reason": self.reason, "stage": "joint", "bounds": [[low, low + 1], [0.5]]}
        example = "((X_0 0.5))\n" if status == "sat" else None
        self.done.append((key, Finished(answer, example, 100.0 if status == "timeout" else seconds)))

    def poll(self, wait: float) -> list[tuple[str, Finished]]:  # noqa: ARG002
        found, self.done = self.done, []
        return found

    def stop(self) -> None:
        pass


def sweep_folder(out: Path, count: int = 40, reason: str = "every conjunction is excluded over its whole box") -> Path:
    """The folder of a sweep, written by the sweep itself."""
    files = out / "benchmark"
    files.mkdir(parents=True)
    names = ("pgd_2_3_16.onnx", "ibp_3_3_8.onnx")
    for name in names:
        (files / name).write_bytes(b"a model")
    instances = []
    for i in range(count):
        (files / f"p_{i}.vnnlib").write_text("a property")
        paths = files / names[i % 2], files / f"p_{i}.vnnlib"
        instances.append(SweepInstance(f"onnx/{names[i % 2]}", f"vnnlib/p_{i}.vnnlib", 100.0, *paths, "vit"))
    sweep.run(instances, out, Settings(threads=1), begin=lambda _settings, _places: _Told(reason))
    return out


def shifted(pixels: str) -> str:
    """A picture of digits as numbers around 0, tokens × width."""
    return packed(unpacked(pixels, (8, 8)) * 2 - 1)

"""Instances of planted.py as files, a model and a property, through the path of `vertex verify`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from vertex_lab.soundness.planted import KINDS, Planted, planted
from vertex_lab.soundness.planted_nets import values
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.verify_files import load_instance, verify_instance

PLACES = (*((depth, norm) for depth in (1, 2, 3) for norm in (False, True)), (4, True), (6, True))
"""Blocks, and whether there are norms; the deep ones all have norms."""


def names(seeds: int, first: int = 0) -> list[str]:
    """KIND-DEPTH-NORM-SEED of every kind, for as many seeds."""
    return [
        f"{kind}-{depth}-{'norm' if norm else 'plain'}-{seed}"
        for seed in range(first, first + seeds)
        for depth, norm in PLACES
        for kind in KINDS
    ]


def judged_file(name: str, seconds: float = 5.0) -> dict[str, Any]:
    """The instance of a name, the verifier's answer, and what is wrong with it, as plain JSON."""
    kind, depth, norm, seed = name.rsplit("-", 3)
    instance = planted(kind, int(depth), norm == "norm", int(seed))
    row = {"key": name, "family": "file", "op": kind, "depth": int(depth), "seed": int(seed), **instance.facts}
    row["truth"] = "broken" if instance.truth == "sat" else "robust"
    begin = time.perf_counter()
    found: dict[str, Any] = {"method": "verify"}
    try:
        with tempfile.TemporaryDirectory() as folder:
            answer = _asked(instance, Path(folder), seconds)
    except VertexError as error:
        found |= {"verdict": "error", "wrong": "", "reason": str(error)}
    else:
        verdict = str(Verdict.UNKNOWN if answer.verdict is Verdict.TIMEOUT else answer.verdict)
        found |= {"verdict": verdict, "stage": answer.stage, "wrong": _mistake(instance, answer)}
    found["seconds"] = time.perf_counter() - begin
    return {**row, "answers": [found]}


def _asked(instance: Planted, folder: Path, seconds: float) -> Answer:
    model, spec = folder / "model.onnx", folder / "property.vnnlib"
    model.write_bytes(instance.model)
    spec.write_text(instance.text, encoding="utf-8")
    return verify_instance(load_instance(model, spec), Budget(seconds))


def _mistake(instance: Planted, answer: Answer) -> str:
    """What is wrong with an answer, in words; empty if nothing is."""
    status, faults = answer.verdict.competition, []
    if instance.wrong(status):
        faults.append(f"{status}, and the truth is {instance.truth}")
    if status == "sat":
        x = answer.counterexample.x if answer.counterexample is not None else None
        if x is None or instance.breach(x, values(instance.model, x)) is None:
            faults.append("the counterexample does not hold")
    return "; ".join(faults)

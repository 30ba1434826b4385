"""Every instance that `joint` verifies, proved: how many certificates check, their sizes, and what checking costs.

python lab/benchmarks/certificates.py [--sets anchors digits vit] [--data DIR] [--part K/N] [--out FILE]
python lab/benchmarks/certificates.py --join FILE... --out FILE

For each instance `joint` is timed on its own (one input at a time, one thread), then a certificate is made, and checked
as a reader would, from its bytes alone. Conditions (exit status 1 if one fails): every instance that `joint` verifies
with a margin above 1e-4 has a certificate that is accepted; no proved margin is above what an attack reached; checking
takes at most 20 times the time of bounding. --part K/N takes every N-th instance, from K on; --join joins parts.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import anchors

from vertex_lab.experiments.result import versions
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.certificate.certificate import CertificatePart, Effort, prove
from vertex_softmax.certificate.checker import check
from vertex_softmax.certificate.prove import ForbiddenCase
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import Method, lower_bounds
from vertex_softmax.runs.certify import load
from vertex_softmax.sets import LinfBall
from vertex_softmax.sets.region import BoxRegion

SHARED = Path(__file__).parents[3] / "shared"
SETS = ("anchors", "digits", "vit")
LEAST = 1e-4
MOST_RATIO = 20.0


class Task(NamedTuple):
    """One input box and its cases: rows C (m, outputs) of which each must be above its limit (m,)."""

    group: str
    name: str
    graph: Graph
    lower: np.ndarray
    upper: np.ndarray
    C: np.ndarray
    d: np.ndarray


def margins(label: int, classes: int) -> np.ndarray:
    """The label less every other class."""
    eye = np.eye(classes)
    return np.stack([eye[label] - eye[k] for k in range(classes) if k != label])


def tasks(sets: list[str], shared: Path) -> Iterator[Task]:
    """All instances, in order."""
    if "anchors" in sets:
        for name in anchors.FILES:
            model, images, labels, anchor = anchors.read(shared / "anchors", name)
            yield from balls(name, model, images, labels, float(anchor["epsilon"]))
    if "digits" in sets:
        from vertex_lab.zoo.datasets import digits
        from vertex_softmax.runs.demo import demo
        from vertex_softmax.runs.demo.training import prepared

        data = digits()
        with tempfile.TemporaryDirectory() as folder:
            model, _ = prepared(Path(folder) / "model", demo.ARCHITECTURE, data, demo.TRAINING)
        images, labels = data.eval_images[: demo.IMAGES], data.eval_labels[: demo.IMAGES]
        yield from balls(f"digits_eps{demo.EPS:g}", model.double(), images, labels, demo.EPS)
    if "vit" in sets:
        yield from vit(shared / "data" / "vit")


def balls(group: str, model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, eps: float) -> Iterator[Task]:
    """The ℓ∞ balls around images."""
    ball = LinfBall(images, eps, clip=(0.0, 1.0))
    graph = load(model, ball).to(torch.float64, torch.device("cpu"))
    classes = math.prod(graph.output.shape)
    for i, label in enumerate(labels.tolist()):
        ends = [x[i].double().reshape(graph.input.shape).numpy() for x in (ball.lower, ball.upper)]
        C = margins(label, classes)
        yield Task(group, str(i), graph, *ends, C, np.zeros(len(C)))


def vit(folder: Path) -> Iterator[Task]:
    """The instances of VNN-COMP; each of their conjunctions is one row."""
    from vertex_softmax.search.verify_files import load_instance

    for model in ("pgd_2_3_16", "ibp_3_3_8"):
        for spec in sorted((folder / "vnnlib").glob(f"{model}_*")):
            instance = load_instance(folder / "onnx" / f"{model}.onnx.gz", spec)
            case = instance.prop.cases[0]
            rows = [conjunction.matrix(instance.prop.outputs) for conjunction in case.conjunctions]
            C, d = (torch.cat(parts).numpy() for parts in zip(*rows, strict=True))
            ends = [np.array(x).reshape(instance.graph.input.shape) for x in (case.lower, case.upper)]
            yield Task(model, spec.name.split(".")[0], instance.graph, *ends, C, d)


def measure(task: Task) -> dict[str, Any]:
    """joint, and if that verifies the proof and its check."""
    ends = [torch.from_numpy(x).unsqueeze(0) for x in (task.lower, task.upper)]
    begin = time.perf_counter()
    question = Question.over(task.graph, BoxRegion(*ends))
    A = torch.from_numpy(task.C).reshape(1, len(task.C), *task.graph.output.shape)
    with torch.no_grad():
        bound = lower_bounds(question, Objective.dense(task.graph.output, A), Method.JOINT, Options(goal=0.0))
    found = bound.lower[0].numpy() - task.d
    row: dict[str, Any] = {"group": task.group, "name": task.name, "joint_s": time.perf_counter() - begin}
    row["joint"] = float(found.min())
    if not row["joint"] > 0 or bound.boxes.problems:
        return row
    cases = [ForbiddenCase(c[None], limit[None], np.ones(1)) for c, limit in zip(task.C, task.d, strict=True)]
    proof = prove(task.graph, [CertificatePart(task.lower, task.upper, cases)], Effort())
    row |= {"proved": proof.certificate is not None, "proof": proof.margin, "prove_s": proof.seconds["prove"]}
    if proof.certificate is not None:
        verdict = check(proof.certificate.data)
        row |= {"accepted": verdict.accepted, "margin": verdict.margin, "check_s": verdict.seconds}
        row["bytes"] = len(proof.certificate.data)
    return row


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per group."""
    found = []
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        verified = [row for row in mine if row["joint"] > 0]
        done = [row for row in verified if row.get("accepted")]
        ratios = [row["check_s"] / row["joint_s"] for row in done]
        line: dict[str, Any] = {
            "group": group,
            "instances": len(mine),
            "verified": len(verified),
            "accepted": len(done),
        }
        line["due"] = sum(row["joint"] > LEAST for row in verified)
        line["missing"] = [row["name"] for row in verified if row["joint"] > LEAST and not row.get("accepted")]
        if done:
            line |= {"least_margin": min(row["margin"] for row in done)}
            line |= {"check_over_joint_median": statistics.median(ratios), "check_over_joint_most": max(ratios)}
            for name in ("joint_s", "prove_s", "check_s", "bytes"):
                line[name] = statistics.median(row[name] for row in done)
        found.append(line)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure or join, and save."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--join", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("out/certificates.json"))
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.join:
        rows = [row for path in chosen.join for row in json.loads(path.read_text())["rows"]]
    else:
        first, every = map(int, chosen.part.split("/"))
        rows = []
        for k, task in enumerate(tasks(chosen.sets, chosen.data)):
            if k % every == first:
                rows.append(measure(task))
                print(json.dumps(rows[-1]), flush=True)
    lines = summary(rows)
    content = {
        "command": "python lab/benchmarks/certificates.py",
        "versions": versions(),
        "summary": lines,
        "rows": rows,
    }
    write_whole(chosen.out, json.dumps(content, indent=1).encode())
    for line in lines:
        print(json.dumps(line))
    fine = not any(line["missing"] for line in lines)
    return 0 if fine and all(line.get("check_over_joint_most", 0) <= MOST_RATIO for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())

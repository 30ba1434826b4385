"""What is left between joint and the attack on the one-block models, and which op it belongs to.

python lab/benchmarks/slack.py [--images N] [--files ...] [--out FILE]

For the worst target of each image, at the corner where the optimised linear bound is least: the slack of the score
products, of the attention rows and of the ReLUs adds up to (value there − bound). Our attack reaches a little less than
that value, the recorded one far more.

Then what tighter boxes could give at most, which is not a bound but an estimate: the same ascent with the boxes of
scores (and of scores less their means), or of pre-activations, replaced by what SAMPLES random and corner inputs reach.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from anchors import DATA, FILES, ROOT, facts, read
from rich.console import Console
from rich.table import Table
from torch import Tensor

from vertex_softmax.bounds.ascent import Ascent, Optimised, ascend
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.bounds.slack import slack
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.methods.boxes import tightened_boxes
from vertex_softmax.methods.options import Options
from vertex_softmax.ops.attention import Attention
from vertex_softmax.ops.bilinear import MatMul
from vertex_softmax.ops.contract import CentredRows
from vertex_softmax.ops.elementwise import Relu
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.runs.certify import load
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import LinfBall
from vertex_softmax.sets.region import BoxRegion

SAMPLES = 4000
KINDS = {MatMul: "products", Attention: "rows", Relu: "relus"}
RULES = Rules(attention=RowRule.AFFINE, pieces=2)


def margins(label: int, classes: int) -> Tensor:
    """(1, classes − 1, classes)"""
    C = -torch.eye(classes, dtype=torch.float64)[[j for j in range(classes) if j != label]]
    C[:, label] = 1
    return C.unsqueeze(0)


def sampled(question: Question, boxes: Boxes, kinds: tuple[str, ...]) -> Boxes:
    """Boxes replaced by the ranges of sampled values: an estimate, and not sound."""
    lower, upper = question.given.box
    t = torch.rand(SAMPLES, *lower.shape, generator=torch.Generator().manual_seed(0), dtype=lower.dtype)
    t[SAMPLES // 2 :] = (t[SAMPLES // 2 :] < 0.5).to(t.dtype)
    values = question.graph.values(lower + (upper - lower) * t)
    intervals, centred = dict(boxes.intervals), dict(boxes.centred)
    for node in question.index.nodes:
        users = question.index.users(node)
        if "scores" in kinds and any(isinstance(u.op, Attention) and u.inputs[0] is node for u in users):
            intervals[node] = Interval(values[node].amin(0), values[node].amax(0))
            for (of, user), known in boxes.centred.items():
                if of is node:
                    off = values[node] - (values[node] * known.weights).sum(-1, keepdim=True)
                    centred[of, user] = CentredRows(known.weights, Interval(off.amin(0), off.amax(0)))
        if "pre-activations" in kinds and any(isinstance(u.op, Relu) for u in users):
            intervals[node] = Interval(values[node].amin(0), values[node].amax(0))
    return dataclasses.replace(boxes, intervals=intervals, centred=centred)


def one(graph: Any, ball: LinfBall, label: int, classes: int, options: Options) -> dict[str, float]:
    """The parts for the worst target of one image."""
    C = margins(label, classes).reshape(1, classes - 1, *graph.output.shape)
    objective = Objective.dense(graph.output, C)
    ends = (end.reshape(1, *graph.input.shape) for end in (ball.lower, ball.upper))
    question = Question.over(graph, BoxRegion(*ends))

    def bounded(kinds: tuple[str, ...]) -> tuple[Boxes, Optimised]:
        boxes = tightened_boxes(question, options)
        if kinds:
            boxes = sampled(question, boxes, kinds)
        return boxes, ascend(question, boxes, objective, RULES, Ascent())

    with torch.no_grad():
        boxes, found = bounded(())
        worst = int(found.bound.argmin())
        parts = slack(question, boxes, objective, RULES, found.choice)
        answer = {"bound": float(parts.bound[0, worst]), "value": float(parts.value[0, worst])}
        for kind, name in KINDS.items():
            answer[name] = sum(float(part[0, worst]) for at, part in parts.parts.items() if isinstance(at.op, kind))
        for name in ("scores", "pre-activations"):
            answer[f"sampled {name}"] = float(bounded((name,))[1].bound.min())
    return answer


def run_file(name: str, images: int | None) -> dict[str, Any]:
    """All images of one file, and their means."""
    model, pictures, labels, anchor = read(DATA, name)
    everything = LinfBall(pictures, anchor["epsilon"], clip=(0, 1))
    graph = load(model, everything[:1])
    rows = []
    for recorded in anchor["rows"][:images]:
        i = recorded["image"]
        found = one(graph, everything[i], int(labels[i]), model.cls.out_features, Options())
        attack = pgd(model, everything[i], int(labels[i])).worst.item()
        rows.append({"image": i, **found, "attack": attack, "recorded": recorded["pgd"]})
    mean = {key: statistics.fmean(row[key] for row in rows) for key in rows[0] if key != "image"}
    return {"file": name, "images": len(rows), "mean": mean, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, metavar="N", help="only the first N of each file")
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    parser.add_argument("--out", type=Path, default=ROOT / "lab" / "benchmarks" / "runs" / "slack.json")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console = Console()
    with Console(stderr=True).status("slack"):
        results = [run_file(name, asked.images) for name in asked.files]
    keys = list(results[0]["mean"])
    table = Table(title="joint's slack, means over the images", title_justify="left")
    for heading in ("", *keys):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(result["file"], *(f"{result['mean'][key]:.3f}" for key in keys))
    console.print(table)
    whole = {"benchmark": "slack", "versions": facts(), "files": results}
    console.print(f"saved {write_whole(asked.out, json.dumps(whole, indent=1).encode())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

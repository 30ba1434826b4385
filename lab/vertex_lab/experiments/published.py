"""The paper's CROWN baseline as auto_LiRPA computes it, and Hybrid over it: our own implementation of the same choices.

Attention is taken apart into exp, sum, reciprocal and products (graph/decompose.py); products by McCormick's corner
planes; eˣ from below by its tangent at min(middle, l + 0.99); every box by a backward pass of its own, never met with
what interval arithmetic gives. The last costs much: a weight's box may leave [0, 1]. On the given models and images the
bounds equal auto_LiRPA's recorded ones to six digits (tests/lab/experiments/test_published.py).

Hybrid is the larger of this and Vertex, per target. Both are kept in a journal of their own beside the other trials.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vertex_lab.experiments.learned import Case, Found, Setting, case
from vertex_lab.experiments.request import Request
from vertex_lab.journals import journal_of
from vertex_lab.zoo import places
from vertex_lab.zoo.datasets import dataset, restricted
from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.box_passes import all_boxes, box_by_pass
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.question import Question
from vertex_softmax.graph.decompose import decompose
from vertex_softmax.graph.ir import Graph, Node
from vertex_softmax.ops.elementwise import Exp
from vertex_softmax.ops.interval import Interval
from vertex_softmax.ops.lines import Lines, convex_lines
from vertex_softmax.ops.rules import RowRule, Rules
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.runs.journal import Journal, Trial
from vertex_softmax.sets import LinfBall
from vertex_softmax.sets.region import BoxRegion

CROWN, HYBRID = "crown-published", "hybrid-published"
STEP = 0.99
TOGETHER = 16


@dataclasses.dataclass(frozen=True)
class NearExp(Exp):
    """eˣ with the tangent at most STEP from the lower end: its minimum over the box stays positive."""

    def lines(self, box: Interval, rules: Rules) -> Lines:  # noqa: ARG002
        """Convex."""
        touch = torch.minimum((box.lower + box.upper) / 2, box.lower + STEP)
        return convex_lines(self.evaluate, self.derivative, *box, touch=touch)


BOXES = Rules(attention=RowRule.LSE, product=1.0, exact=False)
LAST = Rules(attention=RowRule.LSE, product=1.0, sums=True)


def boxes_of_passes_alone(question: Question) -> Boxes:
    """Boxes in which a pass replaces what interval arithmetic gives, instead of being met with it."""

    def refine(boxes: Boxes, node: Node) -> Boxes:
        passed = box_by_pass(question, boxes, node, BOXES)
        return dataclasses.replace(boxes, intervals={**boxes.intervals, node: passed})

    return all_boxes(question, refine)


def crown_published(graph: Graph, ball: LinfBall, labels: Tensor) -> Tensor:
    """Lower bounds of the margins, (batch, classes), +inf at the label, NaN where there is none; one image at a time.

    Which score is subtracted in a row of attention is the image's own, so images do not share a graph.
    """
    graph = graph.to(torch.float64, "cpu")
    classes = graph.output.shape[-1]
    found = torch.full((len(ball), classes), torch.inf, dtype=torch.float64)
    for i in range(len(ball)):
        one, label = ball[i], int(labels[i])
        apart = decompose(graph, one.centre.cpu().reshape(graph.input.shape)).map(_near)
        ends = (end.cpu().reshape(1, *graph.input.shape) for end in (one.lower, one.upper))
        others = torch.tensor([target for target in range(classes) if target != label])
        C = torch.eye(classes, dtype=torch.float64)
        question = Question.over(apart, BoxRegion(*ends))
        with torch.no_grad():
            margins = (C[label] - C[others]).reshape(1, classes - 1, *graph.output.shape)
            boxes = boxes_of_passes_alone(question)
            bound = lower_bound(question, boxes, Objective.dense(apart.output, margins), LAST)[0]
        found[i, others] = torch.full_like(bound, torch.nan) if boxes.problems else bound
    return found


def _near(node: Node, inputs: tuple[Node, ...]) -> Node:
    return Node(node.name, NearExp() if isinstance(node.op, Exp) else node.op, inputs, node.shape)


def published_bounds(graph: Graph, ball: LinfBall, labels: Tensor) -> list[dict[str, dict[str, Any]]]:
    """Per image, CROWN and HYBRID: worst (None if not finite), certified, seconds."""
    begin = time.perf_counter()
    crown = crown_published(graph, ball, labels)
    middle = time.perf_counter()
    vertex = certify(graph, ball, labels, "vertex", attack=None).lower.cpu()
    spent = {CROWN: middle - begin, HYBRID: time.perf_counter() - begin}
    best = torch.where(crown.isnan(), vertex, torch.maximum(crown, vertex))
    found = []
    for i in range(len(ball)):
        worst = {CROWN: float(crown[i].amin()), HYBRID: float(best[i].amin())}
        found.append(
            {
                method: {
                    "worst": number if math.isfinite(number) else None,
                    "certified": math.isfinite(number) and number > 0,
                    "seconds": spent[method] / len(ball),
                }
                for method, number in worst.items()
            }
        )
    return found


def published_journal(name: str, request: Request, *files: str) -> Journal:
    """OUT/journals/NAME-published.jsonl; `files`: sources of what is bounded."""
    return journal_of(f"{name}-published", request.out, "experiments/published.py", *files)


def with_published(name: str, settings: Sequence[Setting], found: Found, request: Request) -> Found:
    """The trials with the paper's CROWN and Hybrid among their bounds."""
    trials: list[Trial] = []
    folder = request.data_dir or places.default_folder()
    with published_journal(name, request, "experiments/learned.py") as journal:
        for setting in settings:
            here = found.of(setting.name)
            if not here:
                continue
            data = dataset(setting.data, folder)
            data = data if setting.classes is None else restricted(data, setting.classes)
            for seed in dict.fromkeys(trial["seed"] for trial in here):
                mine = [trial for trial in here if trial["seed"] == seed]
                if any(trial["correct"] and trial["key"] not in journal.known for trial in mine):
                    measure(case(setting, data, seed, request), mine, journal, request)
                trials += [_joined(trial, journal) for trial in mine]
    return dataclasses.replace(found, trials=trials)


def measure(of: Case, trials: Sequence[Trial], journal: Journal, request: Request) -> None:
    """Write what the journal does not have of one model's trials."""
    graph = load(of.model, LinfBall(of.data.eval_images[:1], 0.0))
    left = [trial for trial in trials if trial["correct"] and trial["key"] not in journal.known]
    for epsilon in dict.fromkeys(trial["epsilon"] for trial in left):
        here = [trial for trial in left if trial["epsilon"] == epsilon]
        for start in range(0, len(here), TOGETHER):
            request.progress(f"{of.setting.name}, seed {of.seed}, ε {epsilon:g}: CROWN", start, len(here))
            part = here[start : start + TOGETHER]
            images = [trial["image"] for trial in part]
            ball = LinfBall(of.data.eval_images[images], epsilon, clip=(0, 1))
            bounds = published_bounds(graph, ball, of.data.eval_labels[images])
            journal.add({"key": t["key"], "bounds": b} for t, b in zip(part, bounds, strict=True))


def _joined(trial: Trial, journal: Journal) -> Trial:
    if not trial["correct"]:
        return trial
    return {**trial, "bounds": {**trial["bounds"], **journal.known[trial["key"]]["bounds"]}}

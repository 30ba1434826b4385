"""A case in the making: its module, set, points, and how the library is asked and judged.

Invariant: a finding is something that the library promises not to do. What it may do (refuse a model by a VertexError,
have no bound, not decide) is counted in the notes.

Tolerances, of 1 + the outputs' size, plus a part of `noise` (points.py): values and bounds in float64 1e-9 and 1e-6 of
the noise, that is 500 times what rounding alone is expected to cost; float32 1e-4 and 30 times; ONNX, whose constants
are float32, 1e-5 and 30 times; proofs 1e-13 and 1e-8, which is for the sampled values alone: a proof has no tolerance.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vertex_lab.fuzz.asking import Asking, Finding, Report, Stop
from vertex_lab.fuzz.build import module_of, set_of
from vertex_lab.fuzz.points import Seen, linear_corners, samples
from vertex_lab.fuzz.recipe import Recipe
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify
from vertex_softmax.search.attack import pgd

POINTS = 45
FLOAT64, FLOAT32, ONNX, PROOF = (1e-9, 1e-6), (1e-4, 30.0), (1e-5, 30.0), (1e-13, 1e-8)


__all__ = ["FLOAT32", "FLOAT64", "ONNX", "PROOF", "Case", "Finding", "Report", "Stop"]


class Case(Asking):
    """What all checks of one recipe share."""

    labels: Tensor
    graph: Graph
    points: Tensor
    seen: Seen

    def __init__(self, recipe: Recipe, report: Report, device: str, folder: Path | None) -> None:
        self.recipe, self.report, self.device, self.folder = recipe, report, device, folder
        self.single = module_of(recipe)
        self.double = copy.deepcopy(self.single).double()
        self.set = set_of(recipe)
        self.options = Options(
            ascent=Ascent(steps=recipe["steps"]),
            search=Search(
                seconds=None, domains=4, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)
            ),
        )
        self.found: dict[str, Certification] = {}

    # What is asked ---------------------------------------------------------------------------------------------------

    def certified(self, graph: Graph, method: str, options: Options, **more: Any) -> Certification | None:
        """certify on the whole set; by `bab`, which takes its time and inputs one by one, on the first input."""
        some, labels = (self.set.at(0), self.labels[:1]) if method == "bab" else (self.set, self.labels)
        return self.ask(lambda: certify(graph, some, labels, method, options=options, **more), f"certify {method}")

    def judge(self, found: Certification, at: Seen, allowed: tuple[float, float], where: str) -> None:
        """No bound above a sampled margin, and no `verified` or `falsified` that is not true."""
        count = len(found.verdicts)
        slack = at.allowed(*allowed)[:count]
        lower, least = found.lower.double().cpu(), at.least(self.labels)[:count]
        over = lower - least - slack[:, None]
        over = torch.where(lower.isfinite() & (least < torch.inf), over, -torch.inf)
        if bool((over > 0).any()):
            b, k = (int(i) for i in (over == over.max()).nonzero()[0])
            self.find(
                "unsound",
                where,
                f"input {b}, class {k}: bound {float(lower[b, k])!r} > sampled margin {float(least[b, k])!r}, "
                f"allowed {float(slack[b]):.3g}",
            )
        for b, verdict in enumerate(found.verdicts):
            self.note(f"{verdict.value} {where}")
            worst = float(least[b].min())
            bad = lower[b][torch.arange(lower.shape[1]) != self.labels[b]]
            if verdict is Verdict.VERIFIED and worst < -float(slack[b]):
                self.find("verified but fooled", where, f"input {b} is verified, and a point has margin {worst!r}")
            if verdict is Verdict.VERIFIED and not bool((bad > 0).all() and bad.isfinite().all()):
                self.find("verified without a bound", where, f"input {b}: {bad.tolist()}")
            if verdict is Verdict.FALSIFIED:
                self._refuted(found.counterexamples[b : b + 1].cpu(), b, where)
            if bool(bad.isnan().any()):
                self.note(f"nan bound {where}")

    def _refuted(self, point: Tensor, b: int, where: str) -> None:
        """A counterexample is in its set, and the network misclassifies it."""
        if not bool(self.set.at(b).contains(point)):
            self.find("counterexample outside", where, f"input {b}")
        with torch.no_grad():
            logits = self.double(point)[0]
        other = logits[torch.arange(len(logits)) != self.labels[b]].max()
        if not float(other) > float(logits[self.labels[b]]):
            self.find("falsified without a point", where, f"input {b}: {logits.tolist()}")

    def equal(self, a: Tensor, b: Tensor, kind: str, where: str, relative: float = 1e-7) -> None:
        """Two bounds (batch, …) that have to be the same to rounding; NaN and −inf are the same as each other."""
        a, b = a.double().cpu(), b.double().cpu()
        same = (a == b) | (~a.isfinite() & ~b.isfinite())
        slack = self.seen.allowed(relative, 1e-5)[: len(a)].reshape(-1, *[1] * (a.dim() - 1))
        far = (a - b).abs() - slack - relative * (a.abs() + b.abs())
        far = torch.where(same, -torch.inf, far.nan_to_num(nan=torch.inf))
        if bool((far > 0).any()):
            i = tuple(int(k) for k in (far == far.max()).nonzero()[0])
            self.find(kind, where, f"at {i}: {float(a[i])!r} and {float(b[i])!r}")

    # What is known ---------------------------------------------------------------------------------------------------

    def sampled(self) -> Tensor:
        """Points of the set: samples, the attack's, and the corners where linear bounds are least."""
        found = [samples(self.set, POINTS, self.recipe["seed"])]
        attack = self.ask(lambda: pgd(self.double, self.set, self.labels, steps=6, restarts=3), "attack")
        if attack is not None:
            inside = (attack.inputs >= self.set.lower[:, None]) & (attack.inputs <= self.set.upper[:, None])
            if not bool(inside.all()):
                self.find("outside", "attack", "an input of the attack is not in the set")
            found.append(attack.inputs.transpose(0, 1))
        classes = int(self.labels.max()) + 1
        with torch.no_grad():
            classes = self.double(self.set.centre).shape[1]
        eye = torch.eye(classes, dtype=torch.float64)
        objectives = (eye[self.labels][:, None] - eye).reshape(len(self.set), classes, *self.graph.output.shape)
        corners = self.ask(lambda: linear_corners(self.graph, self.set, objectives), "corners")
        if corners is not None:
            found.append(corners)
        return torch.cat(found)

    def values(self, graph: Graph) -> Tensor:
        """The graph's outputs at the points, (P, batch, classes)."""
        flat = self.points.reshape(-1, *graph.input.shape)
        with torch.no_grad():
            return graph.evaluate(flat).reshape(*self.points.shape[:2], -1)

    def agree(self, values: Tensor, allowed: tuple[float, float], where: str) -> None:
        """Note values at the points that are not the module's."""
        slack = self.seen.allowed(*allowed)
        there = self.seen.outputs
        far = (values - there).abs().amax(2) - slack
        far = torch.where((values - there).isfinite().all(2), far, -torch.inf)
        odd = values.isfinite().all(2) != there.isfinite().all(2)
        if bool((far > 0).any()) or bool(odd.any()):
            self.find("values differ", where, f"by {float((values - there).abs().max()):.3g} at a point of the set")

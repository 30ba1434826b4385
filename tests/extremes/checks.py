"""What has to hold of every certification, however extreme the numbers.

- No bound is above a margin that was seen: at corners, random points, points of an attack, and the corners where the
  linear bounds are least.
- NaN is never a verdict: `verified` has finite bounds above 0, and no point that says otherwise.
- hybrid ≥ crown and vertex, alpha-crown ≥ crown, joint ≥ hybrid and alpha-crown, bab ≥ joint.
All to rounding, measured as fuzz/points.py does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vertex_lab.fuzz.case import FLOAT32, FLOAT64
from vertex_lab.fuzz.check import ORDER
from vertex_lab.fuzz.points import Seen, linear_corners, samples, seen
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.graph.ir import Graph
from vertex_softmax.methods.options import Options
from vertex_softmax.methods.registry import METHODS
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.certify import certify, load
from vertex_softmax.search.attack import pgd
from vertex_softmax.sets import InputSet

QUICK = Options(
    ascent=Ascent(steps=3),
    search=Search(seconds=None, domains=6, tried=2, root=Ascent(steps=2), ascent=Ascent(steps=2, step_size=0.01)),
)
"""Few steps and few parts, counted and not timed."""


def labels_of(module: nn.Module, input_set: InputSet) -> Tensor:
    """What the module says at the centres."""
    with torch.no_grad():
        return module(input_set.centre).argmax(-1)


def watched(module: nn.Module, graph: Graph, input_set: InputSet, labels: Tensor) -> Seen:
    """What the module does at the points."""
    with torch.no_grad():
        classes = module(input_set.centre).shape[1]
    eye = torch.eye(classes, dtype=torch.float64)
    objectives = (eye[labels][:, None] - eye).reshape(len(input_set), classes, *graph.output.shape)
    points = [
        samples(input_set, 30, 0),
        pgd(module, input_set, labels, steps=6, restarts=3).inputs.transpose(0, 1),
        linear_corners(graph, input_set, objectives),
    ]
    return seen(module, copy.deepcopy(module).float(), torch.cat(points))


def check_sound(
    module: nn.Module, found: Certification, at: Seen, labels: Tensor, allowed: tuple[float, float] = FLOAT64
) -> None:
    """No bound above a margin that was seen, no verdict without its reason, and a counterexample that is one."""
    count = len(found.verdicts)
    slack, least = at.allowed(*allowed)[:count], at.least(labels)[:count]
    lower = found.lower.double()
    over = torch.where(lower.isfinite(), lower - least - slack[:, None], -torch.inf)
    assert not (over > 0).any(), f"{found.method}: a bound is {float(over.max()):.3g} above a margin"
    for b, verdict in enumerate(found.verdicts):
        others = lower[b][torch.arange(lower.shape[1]) != labels[b]]
        if verdict is Verdict.VERIFIED:
            assert bool((others > 0).all() and others.isfinite().all()), others
            assert float(least[b].min()) >= -float(slack[b])
        else:
            assert found.reasons[b]
        if verdict is Verdict.FALSIFIED:
            with torch.no_grad():
                assert int(module(found.counterexamples[b : b + 1])[0].argmax()) != int(labels[b])
        if not bool(others.isfinite().all()):
            assert verdict is not Verdict.VERIFIED


def check_order(found: dict[str, Certification], at: Seen) -> None:
    """No method is below one that it is made of; a method has a bound where a part of it has one."""
    for more, less in ORDER:
        if more in found and less in found:
            a, b = found[more].lower, found[less].lower
            slack = at.allowed(*FLOAT64)[:, None] + 1e-9 * b.abs()
            under = torch.where(a.isfinite() & b.isfinite(), b - a - slack, -torch.inf)
            assert not (under > 0).any(), f"{more} is {float(under.max()):.3g} below {less}"
            lost = b.isfinite() & ~a.isfinite()
            assert not lost.any(), f"{more} has no bound where {less} has one"


def check_all(
    module: nn.Module,
    input_set: InputSet,
    labels: Tensor | None = None,
    *,
    methods: Iterable[str] = METHODS,
    finite: bool = True,
    single: Iterable[str] = (),
    options: Options = QUICK,
) -> dict[str, Certification]:
    """Every method on a module over a set; `finite`: there is a bound everywhere; `single`: methods in float32 too."""
    labels = labels_of(module, input_set) if labels is None else labels
    graph = load(module, input_set)
    at = watched(module, graph, input_set, labels)
    alone = Options(**{**vars(options), "batch": 1})  # as branch and bound has them: inputs one by one
    found = {}
    for method in methods:
        found[method] = certify(graph, input_set, labels, method, options=alone, attack=None)
        check_sound(module, found[method], at, labels)
        if finite:
            assert not found[method].lower.isnan().any(), (method, found[method].reasons)
            assert not found[method].lower.isneginf().any(), (method, found[method].reasons)
    check_order(found, at)
    for method in single:
        rough = certify(graph, input_set, labels, method, options=options, dtype=torch.float32, attack=None)
        check_sound(module, rough, at, labels, FLOAT32)
    return found

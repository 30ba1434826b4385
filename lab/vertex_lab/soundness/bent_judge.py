"""Instances of bent.py through branch and bound, with all that it has learnt switched on, and what is wrong.

Invariant: an answer is wrong if it is `verified` and there is a counterexample, `falsified` and it is robust or its
counterexample is none, or if a bound is above the margin of the witness by more than rounding. Unknown is never wrong.

What is falsified is asked about again, blindly, with a replay that confirms nothing: then no attack ends the search,
and its bounds have to hold all the way. How the search goes is the seed's.
"""

from __future__ import annotations

import dataclasses
import time
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from vertex_lab.soundness.bent import Instance, bent
from vertex_softmax.bounds import branch_and_bound
from vertex_softmax.bounds.ascent import Ascent
from vertex_softmax.bounds.branch_and_bound import Search
from vertex_softmax.foundation.errors import VertexError
from vertex_softmax.methods.options import JointParts, Options
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.certify import certify
from vertex_softmax.search.answers import Answer, Budget
from vertex_softmax.search.attack import pgd
from vertex_softmax.search.cascade import verify
from vertex_softmax.search.replay import Replay
from vertex_softmax.specs.property import Case, Conjunction, Inequality, Property

BLIND, CERTIFIED = "verify, blind", "bab"
EVERY = 8
"""Every so many seeds `certify` is asked too."""
ROUNDING = 1e-9


def options_of(seed: int, seconds: float) -> Options:
    """The search of a seed: boxes of last ReLUs soon, gains relied on soon, and few or many parts at once.

    Some seeds have most of their time for an early tree over the boxes of `crown`, or for narrowing the set.
    """
    search = Search(
        seconds=seconds,
        domains=(16, 32, 64, 256)[seed % 4],
        width=(8, 16, None)[seed // 3 % 3],
        tried=(2, 4)[seed // 2 % 2],
        reliable=(1, 3)[seed // 5 % 2],
        every=(1, 4, 16)[seed // 7 % 3],
        late=(4, 16)[seed // 11 % 2],
        root=Ascent(steps=6),
        ascent=Ascent(steps=3, step_size=0.05, sums=False),
        boxes=Ascent(steps=3, step_size=0.2),
        narrowing=(0.3, 0.8, 0.1)[seed // 3 % 3],
        early=(0.15, 0.6, 0.0)[seed // 13 % 3],
        attack=0.1,
    )
    return Options(search=search, parts=JointParts.OWN, ascent=None)


def judged(kind: str, seed: int, seconds: float = 2.0) -> dict[str, Any]:
    """The instance and the answers to it, as plain JSON. `seconds`: of each answer, at most."""
    made = bent(kind, seed)
    attack = pgd(made.graph, made.box, 0, steps=10, restarts=2, seed=seed)
    row: dict[str, Any] = {"key": f"tree-{made.name}", "family": "tree", "op": kind, "seed": seed, **made.facts}
    row |= {"truth": "robust" if made.robust else "broken", "attack": float(attack.worst[0])}
    row |= {"least" if not len(made.module.places) else "witness": made.least, "answers": []}
    before = branch_and_bound.SMALL
    branch_and_bound.SMALL = 0 if seed % 2 else before  # parts share parameters with the whole set, or do not
    try:
        methods = ["verify", *([CERTIFIED] if seed % EVERY == 0 else [])]
        for method in methods:
            row["answers"].append(_answered(made, method, options_of(seed, seconds), seconds))
            if method == "verify" and row["answers"][0]["verdict"] == "falsified":
                methods.append(BLIND)
    finally:
        branch_and_bound.SMALL = before
    return row


def _answered(made: Instance, method: str, options: Options, seconds: float) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        answer = (
            _certified(made, options) if method == CERTIFIED else _verified(made, method == BLIND, options, seconds)
        )
    except VertexError as error:
        answer = {"verdict": "error", "lower": None, "wrong": "", "parts": 0, "reason": str(error)}
    return {"method": method, **answer, "seconds": time.perf_counter() - begin}


def _verified(made: Instance, blind: bool, options: Options, seconds: float) -> dict[str, Any]:
    low, high = (end.flatten().numpy() for end in (made.box.lower, made.box.upper))
    row = Inequality({0: Fraction(1), 1: Fraction(-1)}, Fraction(0), strict=True)  # as certify: a tie is no breach
    prop = Property((Case(low, high, low, high, (Conjunction((row,)),)),), low.size, 3)
    replay = Replay.of_function(made.module, made.box.shape, dtype=torch.float64)
    budget = Budget(seconds, first=0, second=0) if blind else Budget(seconds, second=0.02)
    answer = verify(
        made.graph,
        prop,
        (lambda _: None) if blind else (lambda x: replay.confirms(prop, x)),
        budget=budget,
        options=options,
    )
    verdict = Verdict.UNKNOWN if answer.verdict is Verdict.TIMEOUT else answer.verdict
    lower = answer.bounds[0][0]
    wrong = mistake(made, verdict, lower, None if answer.counterexample is None else answer.counterexample.x)
    return {**_told(verdict, lower, wrong), "parts": answer.domains, "stage": str(answer.stage), **_inside(answer)}


def _inside(answer: Answer) -> dict[str, Any]:
    return {"inside": True} if "attack inside" in answer.seconds else {}


def _certified(made: Instance, options: Options) -> dict[str, Any]:
    found = certify(made.graph, made.box, 0, "bab", options=dataclasses.replace(options, goal=0.0), targets=1)
    verdict, lower = found.verdicts[0], float(found.lower[0].amin())
    point = None if bool(found.counterexamples.isnan().any()) else found.counterexamples[0].numpy()
    return {**_told(verdict, lower, mistake(made, verdict, lower, point)), "parts": found.effort.get("parts", 0)}


def _told(verdict: Verdict, lower: float, wrong: str) -> dict[str, Any]:
    return {"verdict": str(verdict), "lower": lower if np.isfinite(lower) else None, "wrong": wrong}


def mistake(made: Instance, verdict: Verdict, lower: float, point: Any) -> str:
    """What is wrong with an answer, in words; empty if nothing is."""
    faults = []
    if verdict is Verdict.VERIFIED and not made.robust:
        faults.append("verified, and there is a counterexample")
    if verdict is Verdict.FALSIFIED:
        if made.robust:
            faults.append("falsified, and it is robust")
        if point is None or not _breaks(made, torch.from_numpy(np.asarray(point)).double()):
            faults.append("the counterexample does not hold")
    if lower > made.least + ROUNDING:
        faults.append(f"a bound is {lower - made.least:.3g} above the margin of the witness")
    return "; ".join(faults)


def _breaks(made: Instance, point: torch.Tensor) -> bool:
    """Whether a point lies in the box and is misclassified there."""
    x = point.reshape(made.box.shape)
    with torch.no_grad():
        y = made.module(x)[0]
    return bool(made.box.contains(x).all()) and float(y[0]) < float(y[1])

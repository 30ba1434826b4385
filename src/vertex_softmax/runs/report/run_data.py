"""What the page of a run shows, as plain JSON: columns instead of objects, six digits instead of seventeen.

Invariant: nothing here is an opinion: every figure follows from the run by the formula its docstring states. Rounding
never changes a sign, and `certified` is exactly what the run calls verified.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertex_softmax.runs.report.pictures import pictures
from vertex_softmax.runs.run import Attacked, Run, RunAnswer, SlackMap

STATUSES = ("certified", "not certified", "fooled", "misclassified")
ROUNDING = 1e-9
"""By how much, relative to 1 or to the margin, a bound may lie above an attack's margin: both are floating point."""
SLOTS = {"joint": 0, "vertex": 1, "hybrid": 2, "crown": 3, "alpha-crown": 4, "ibp": 5, "bab": 6}
COLOURS = 8
"""Colours (and marks) that the style sheet has for methods."""


@dataclass(frozen=True)
class Facts:
    """Everything that sections share, looked up once."""

    run: Run
    answers: dict[tuple[str, float], list[RunAnswer]]
    attacks: dict[tuple[int, float], Attacked]
    rates: dict[str, list[float | None]]
    """per method, at every ε"""
    ceiling: list[float | None]
    fooled: dict[int, float]
    """the least ε at which a search for radii saw an input fooled"""

    @staticmethod
    def of(run: Run) -> Facts:
        """The facts of a run."""
        answers: dict[tuple[str, float], list[RunAnswer]] = {}
        for a in run.answers:
            answers.setdefault((a.method, a.eps), []).append(a)
        whole = len(run.inputs)

        def rate(said: Sequence[bool]) -> float | None:
            return sum(said) / whole if whole and len(said) == whole else None

        margins: dict[float, list[bool]] = {}
        for b in run.attacks:
            margins.setdefault(b.eps, []).append(b.margin > 0)
        fooled: dict[int, float] = {}
        for r in run.radii:
            if r.attacked is not None:
                fooled[r.input] = min(fooled.get(r.input, math.inf), r.attacked)
        return Facts(
            run,
            answers,
            {(b.input, b.eps): b for b in run.attacks},
            {
                m: [rate([a.verdict == "verified" for a in answers.get((m, e), ())]) for e in run.eps]
                for m in run.methods
            },
            [rate(margins.get(e, [])) for e in run.eps],
            fooled,
        )

    def misclassified(self, i: int) -> bool:
        """Whether the network is wrong on input i itself."""
        x = self.run.inputs[i]
        return x.predicted != x.label or x.clean < 0

    def status(self, a: RunAnswer) -> str:
        """Of an answer, in words: what is verified is certified; the rest says why it cannot be, if that is known."""
        if a.verdict == "verified":
            return STATUSES[0]
        if self.misclassified(a.input):
            return STATUSES[3]
        attack = self.attacks.get((a.input, a.eps))
        return STATUSES[2] if a.verdict == "falsified" or (attack is not None and attack.margin < 0) else STATUSES[1]

    def telling(self) -> int | None:
        """The ε (its place) where the best method's rate lies furthest above the middle one's; the first of equals."""
        if not self.run.eps or not self.run.answers:
            return None

        def apart(k: int) -> float:
            found = [x for rates in self.rates.values() if (x := rates[k]) is not None]
            return max(found) - statistics.median_low(found) if found else 0.0

        return max(range(len(self.run.eps)), key=lambda k: (round(apart(k), 9), -k))

    def contradictions(self) -> list[str]:
        """Where the run contradicts itself, in words; each would be an error of Vertex."""
        above = wrong = 0
        for a in self.run.answers:
            attack = self.attacks.get((a.input, a.eps))
            if attack is not None and a.bound is not None:
                above += a.bound > attack.margin + ROUNDING * max(1.0, abs(attack.margin))
            fooled = attack is not None and attack.margin < 0
            wrong += a.verdict == "verified" and (fooled or self.misclassified(a.input))
        beyond = sum(0 < r.certified >= self.fooled.get(r.input, math.inf) for r in self.run.radii)
        wrong += sum(r.certified > 0 and self.misclassified(r.input) for r in self.run.radii)
        said = (
            (above, "bounds lie above a margin that the attack reached"),
            (wrong, "answers certify an input that is misclassified or was fooled"),
            (beyond, "certified radii reach beyond an ε at which the input was fooled"),
        )
        return [f"{count} {text}" for count, text in said if count]


def page_data(facts: Facts) -> dict[str, Any]:
    """All that the page's script needs."""
    run, drawn = facts.run, pictures(facts.run)
    place = {e: k for k, e in enumerate(run.eps)}
    margins: list[list[float]] = [[] for _ in run.eps]
    for a in run.attacks:
        margins[place[a.eps]].append(a.margin)
    return {
        "methods": [{"name": m, "slot": s} for m, s in zip(run.methods, slots(run.methods), strict=True)],
        "eps": list(run.eps),
        "chosen": facts.telling(),
        "classes": list(run.data.classes) if run.data.classes is not None else None,
        "statuses": list(STATUSES),
        "picture": drawn.about,
        "inputs": {
            "index": [x.index for x in run.inputs],
            "label": [x.label for x in run.inputs],
            "predicted": [x.predicted for x in run.inputs],
            "clean": [short(x.clean) for x in run.inputs],
            "wrong": [facts.misclassified(i) for i in range(len(run.inputs))],
            "pixels": drawn.inputs,
        },
        "rates": [facts.rates[m] for m in run.methods],
        "ceiling": facts.ceiling,
        "answers": _answers(facts),
        "tightness": [[tightness(facts.answers.get((m, e), [])) for e in run.eps] for m in run.methods],
        "attack_margin": [_margins(found) for found in margins],
        "attacks": {
            "input": [a.input for a in run.attacks],
            "eps": [place[a.eps] for a in run.attacks],
            "margin": [short(a.margin) for a in run.attacks],
            "target": [a.target for a in run.attacks],
            "change": drawn.changes,
        },
        "radii": _radii(facts),
        "slack": None if run.slack is None else _slack(run.slack),
    }


def slots(methods: Sequence[str]) -> list[int]:
    """The colour of every method: its own if it is known, else one that is left; they repeat only if they must."""
    taken = {SLOTS[m] for m in methods if m in SLOTS}
    left = [s for s in range(COLOURS) if s not in taken] or list(range(COLOURS))
    others = iter(range(len(methods)))
    return [SLOTS[m] if m in SLOTS else left[next(others) % len(left)] for m in methods]


def short(x: float | None) -> float | None:
    """Six digits of a number; its sign stays."""
    return None if x is None else float(f"{x:.6g}")


def tightness(said: Sequence[RunAnswer]) -> dict[str, Any] | None:
    """Of a method at an ε: median and mean bound, mean seconds; a bound that is not finite counts as −∞."""
    if not said:
        return None
    bounds = [-math.inf if a.bound is None else a.bound for a in said]
    found = _margins(bounds)
    seconds = short(math.fsum(a.seconds / len(said) for a in said))
    return {**found, "seconds": seconds, "asked": len(said), "infinite": bounds.count(-math.inf)}


def _margins(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"median": None, "mean": None}
    middle, mean = statistics.median_low(values), math.fsum(x / len(values) for x in values)
    return {name: short(x) if math.isfinite(x) else None for name, x in (("median", middle), ("mean", mean))}


def _answers(facts: Facts) -> dict[str, Any]:
    run = facts.run
    method = {m: i for i, m in enumerate(run.methods)}
    place = {e: i for i, e in enumerate(run.eps)}
    reasons: dict[str, int] = {}
    return {
        "input": [a.input for a in run.answers],
        "method": [method[a.method] for a in run.answers],
        "eps": [place[a.eps] for a in run.answers],
        "status": [STATUSES.index(facts.status(a)) for a in run.answers],
        "bound": [short(a.bound) for a in run.answers],
        "target": [a.target for a in run.answers],
        "seconds": [short(a.seconds) for a in run.answers],
        "reason": [reasons.setdefault(a.reason, len(reasons)) for a in run.answers],
        "reasons": list(reasons),
    }


def _radii(facts: Facts) -> dict[str, Any] | None:
    run = facts.run
    if not run.radii:
        return None
    method = {m: i for i, m in enumerate(run.methods)}
    of_method = {m: [r for r in run.radii if r.method == m] for m in run.methods}
    return {
        "input": [r.input for r in run.radii],
        "method": [method[r.method] for r in run.radii],
        "certified": [short(r.certified) for r in run.radii],
        "refused": [short(r.refused) for r in run.radii],
        "seconds": [short(r.seconds) for r in run.radii],
        "fooled": [short(facts.fooled.get(i)) for i in range(len(run.inputs))],
        "summary": [radius_summary([(r.certified, r.seconds) for r in rs]) for rs in of_method.values()],
        "whole": [len(rs) == len(run.inputs) for rs in of_method.values()],
    }


def radius_summary(found: Iterable[tuple[float, float]]) -> dict[str, float | None] | None:
    """Median and mean of certified radii, and mean seconds."""
    pairs = list(found)
    if not pairs:
        return None
    radii, seconds = zip(*pairs, strict=True)
    return {**_margins(radii), "seconds": short(math.fsum(x / len(seconds) for x in seconds))}


def _slack(slack: SlackMap) -> dict[str, Any]:
    return {
        "eps": slack.eps,
        "method": slack.method,
        "inputs": slack.inputs,
        "total": short(slack.total),
        "attentions": [
            {
                "name": part.name,
                "sum": short(math.fsum(x for row in part.row_slack for x in row)),
                "heads": len(part.row_slack),
                "rows": len(part.row_slack[0]),
                "keys": len(part.score_width[0][0]),
                "row_slack": _floats(part.row_slack),
                "score_width": _floats(part.score_width),
            }
            for part in slack.attentions
        ],
        "others": [{"name": part.name, "op": part.op, "slack": short(part.slack)} for part in slack.others],
    }


def _floats(values: Any) -> str:
    """base64 of little-endian float32, the largest instead of what is larger."""
    most = float(np.finfo(np.float32).max)
    return base64.b64encode(np.clip(np.asarray(values, dtype=np.float64), -most, most).astype("<f4").tobytes()).decode()

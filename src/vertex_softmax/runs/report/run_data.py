"""The data of a run's page as plain JSON: columns instead of objects, six digits instead of seventeen.

Invariant: every figure follows from the run by the formula that its docstring states. Rounding never changes a sign,
and `certified` is exactly what the run calls verified.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertex_softmax.runs.report.numbers import at_least, at_most, short
from vertex_softmax.runs.report.part_data import attention_data, parts_data, sentences_data
from vertex_softmax.runs.report.pictures import pictures
from vertex_softmax.runs.report.sentence_view import best_radii, breaks_alone
from vertex_softmax.runs.run import Attacked, Run, RunAnswer, SlackMap

STATUSES = ("certified", "not certified", "fooled", "misclassified")
ROUNDING = 1e-9
"""By how much, relative to 1 or to the margin, a bound may exceed an attack's margin: both are floating point."""
SLOTS = {"joint": 0, "vertex": 1, "hybrid": 2, "crown": 3, "alpha-crown": 4, "ibp": 5, "bab": 6}
"""The colours of known methods, as numbers in the style sheet."""
COLOURS = 8
"""How many colours (and marks) the style sheet has for methods."""


@dataclass(frozen=True)
class Facts:
    """A run with the tables that several sections of its page need."""

    run: Run
    answers: dict[tuple[str, float], list[RunAnswer]]
    """by method and ε"""
    attacks: dict[tuple[int, float], Attacked]
    """by input and ε"""
    rates: dict[str, list[float | None]]
    """for each method, the certified share at every ε; None unless every input has an answer"""
    ceiling: list[float | None]
    """at every ε, the share of inputs that the attack did not fool; None unless every input was attacked"""
    fooled: dict[int, float]
    """for each input, the least ε at which the attack fooled it in a search for radii"""

    @staticmethod
    def of(run: Run) -> Facts:
        """Compute the tables of a run."""
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
            run=run,
            answers=answers,
            attacks={(b.input, b.eps): b for b in run.attacks},
            rates={
                m: [rate([a.verdict == "verified" for a in answers.get((m, e), ())]) for e in run.eps]
                for m in run.methods
            },
            ceiling=[rate(margins.get(e, [])) for e in run.eps],
            fooled=fooled,
        )

    def misclassified(self, i: int) -> bool:
        """Whether the network is wrong on input i itself."""
        x = self.run.inputs[i]
        return x.predicted != x.label or x.clean < 0

    def status(self, a: RunAnswer) -> str:
        """The status of an answer, one of STATUSES: certified, or else why it is not, as far as that is known."""
        if a.verdict == "verified":
            return STATUSES[0]
        if self.misclassified(a.input):
            return STATUSES[3]
        attack = self.attacks.get((a.input, a.eps))
        return STATUSES[2] if a.verdict == "falsified" or (attack is not None and attack.margin < 0) else STATUSES[1]

    def telling(self) -> int | None:
        """The index of the ε at which the best rate is furthest above the median rate of all methods; None if none."""
        if not self.run.eps or not self.run.answers:
            return None

        def apart(k: int) -> float:
            found = [x for rates in self.rates.values() if (x := rates[k]) is not None]
            return max(found) - statistics.median_low(found) if found else 0.0

        return max(range(len(self.run.eps)), key=lambda k: (round(apart(k), 9), -k))

    def contradictions(self) -> list[str]:
        """The contradictions within the run, in words; each would be a bug in Vertex."""
        above = wrong = 0
        for a in self.run.answers:
            attack = self.attacks.get((a.input, a.eps))
            if attack is not None and a.bound is not None:
                above += a.bound > attack.margin + ROUNDING * max(1.0, abs(attack.margin))
            fooled = attack is not None and attack.margin < 0
            wrong += a.verdict == "verified" and (fooled or self.misclassified(a.input))
        beyond = sum(0 < r.certified >= self.fooled.get(r.input, math.inf) for r in self.run.radii)
        wrong += sum(r.certified > 0 and self.misclassified(r.input) for r in self.run.radii)
        parts = best_radii(self.run)
        beyond += sum(fooled is not None and 0 < certified >= fooled for certified, fooled in parts.values())
        wrong += sum(certified > 0 and self.misclassified(i) for (i, _), (certified, _) in parts.items())
        broken = {
            s.number for s in self.run.sentences if s.counterexample is not None or breaks_alone(s) or s.clean < 0
        }
        sentences = sum(s.verdict == "verified" and s.number in broken for s in self.run.sentences)
        said = (
            (above, "bounds lie above a margin that the attack reached"),
            (wrong, "answers certify an input that is misclassified or was fooled"),
            (beyond, "certified radii reach beyond an ε at which the input was fooled"),
            (sentences, "sentences are called verified, of which a combination of words is wrong"),
        )
        return [f"{count} {text}" for count, text in said if count]


def page_data(facts: Facts) -> dict[str, Any]:
    """The data that the page's script needs."""
    run, drawn = facts.run, pictures(facts.run)
    index = {e: k for k, e in enumerate(run.eps)}
    margins: list[list[float]] = [[] for _ in run.eps]
    for a in run.attacks:
        margins[index[a.eps]].append(a.margin)
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
            "text": sentences_data(run),
        },
        "rates": [facts.rates[m] for m in run.methods],
        "ceiling": facts.ceiling,
        "answers": _answers(facts),
        "tightness": [[tightness(facts.answers.get((m, e), [])) for e in run.eps] for m in run.methods],
        "attack_margin": [_margins(found) for found in margins],
        "attacks": {
            "input": [a.input for a in run.attacks],
            "eps": [index[a.eps] for a in run.attacks],
            "margin": [short(a.margin) for a in run.attacks],
            "target": [a.target for a in run.attacks],
            "change": drawn.changes,
        },
        "radii": _radii(facts),
        "slack": None if run.slack is None else _slack(run.slack),
        "parts": parts_data(run),
        "attention": attention_data(run),
    }


def slots(methods: Sequence[str]) -> list[int]:
    """The colour of every method: its own if it is known, else an unused one; colours repeat if there are too few."""
    taken = {SLOTS[m] for m in methods if m in SLOTS}
    left = [s for s in range(COLOURS) if s not in taken] or list(range(COLOURS))
    others = iter(range(len(methods)))
    return [SLOTS[m] if m in SLOTS else left[next(others) % len(left)] for m in methods]


def tightness(answers: Sequence[RunAnswer]) -> dict[str, Any] | None:
    """The median and mean bound and the mean seconds of some answers; a bound that is not finite counts as −∞."""
    if not answers:
        return None
    bounds = [-math.inf if a.bound is None else a.bound for a in answers]
    found = _margins(bounds)
    seconds = short(math.fsum(a.seconds / len(answers) for a in answers))
    return {**found, "seconds": seconds, "asked": len(answers), "infinite": bounds.count(-math.inf)}


def _margins(values: Sequence[float]) -> dict[str, float | None]:
    """The median (the lower one of two) and the mean; None where they are not finite."""
    if not values:
        return {"median": None, "mean": None}
    middle, mean = statistics.median_low(values), math.fsum(x / len(values) for x in values)
    return {name: short(x) if math.isfinite(x) else None for name, x in (("median", middle), ("mean", mean))}


def _answers(facts: Facts) -> dict[str, Any]:
    run = facts.run
    method = {m: i for i, m in enumerate(run.methods)}
    index = {e: i for i, e in enumerate(run.eps)}
    reasons: dict[str, int] = {}
    return {
        "input": [a.input for a in run.answers],
        "method": [method[a.method] for a in run.answers],
        "eps": [index[a.eps] for a in run.answers],
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
        "certified": [at_most(r.certified) for r in run.radii],
        "refused": [at_least(r.refused) for r in run.radii],
        "seconds": [short(r.seconds) for r in run.radii],
        "fooled": [at_least(facts.fooled.get(i)) for i in range(len(run.inputs))],
        "summary": [radius_summary([(r.certified, r.seconds) for r in rs]) for rs in of_method.values()],
        "whole": [len(rs) == len(run.inputs) for rs in of_method.values()],
    }


def radius_summary(found: Iterable[tuple[float, float]]) -> dict[str, float | None] | None:
    """The median and the mean of certified radii and the mean seconds, from pairs (radius, seconds)."""
    pairs = list(found)
    if not pairs:
        return None
    radii, seconds = zip(*pairs, strict=True)
    rounded = {name: at_most(x) for name, x in _margins(radii).items()}
    return {**rounded, "seconds": short(math.fsum(x / len(seconds) for x in seconds))}


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
    """base64 of little-endian float32 numbers; numbers that are too large are clipped."""
    most = float(np.finfo(np.float32).max)
    return base64.b64encode(np.clip(np.asarray(values, dtype=np.float64), -most, most).astype("<f4").tobytes()).decode()

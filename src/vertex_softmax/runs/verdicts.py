"""Verdicts and reasons from bounds and the margins at the centres of sets; and contradictions, which are errors.

Invariant: `verified` is said only if every bound of a class that counts is above what rounding can have added and no
bound on the way was a problem. A bound that a point of the set refutes raises an `InternalError`.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InternalError
from vertex_softmax.foundation.tolerances import TIE
from vertex_softmax.methods.bound import Bound
from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.runs.causes import cause
from vertex_softmax.runs.certification import Certification
from vertex_softmax.runs.classes import Classes

CENTRE = "the centre of the set is itself misclassified"


@dataclasses.dataclass(frozen=True, eq=False)
class Margins:
    """What is known of the margins of some inputs to their targets."""

    found: Bound
    """bounds over the sets, (batch, T)"""
    clean: Tensor
    """the margins at the centres, (batch, T)"""
    guard: Tensor | None
    """how far above 0 a bound must be, (batch,); None if no bound is positive"""
    wrong: Tensor
    """whether the centre is misclassified, beyond doubt; (batch,) bool"""

    def troubles(self) -> list[str]:
        """For each input the first problem on the way to its bounds, in words; empty if there was none."""
        found = ["" for _ in range(self.clean.shape[0])]
        for problem in self.found.boxes.problems:
            for b in problem.where.nonzero().flatten().tolist():
                found[b] = found[b] or f"{problem.text} at {problem.node.name!r}"
        return found


def require_consistent(margins: Margins, classes: Classes, reached: Tensor, where: Tensor) -> None:
    """Raise if a bound that is positive beyond rounding is refuted by a point of the set.

    reached: the margins (batch, classes) at points of the sets, of which those at `where` (batch,) bool are below 0
    for their least, beyond doubt.
    """
    if margins.guard is None:
        return
    target = reached.argmin(1, keepdim=True)
    bound = classes.spread(margins.found.lower).gather(1, target)[:, 0]
    sound = torch.tensor([not text for text in margins.troubles()], device=where.device)
    contrary = where & sound & bound.isfinite() & (bound > margins.guard)
    if bool(contrary.any()):
        b = int(contrary.nonzero()[0])
        raise InternalError(
            f"a contradiction: the margin of an input (number {b} of those bounded together) to class {int(target[b])} "
            f"was bounded by {float(bound[b]):.6g}, and a point of its set has {float(reached[b].amin()):.6g}. "
            "This is an error of Vertex: please report it, with the model and the set"
        )


def verdicts_of(margins: Margins, classes: Classes) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """Verdicts and reasons, one for each input; what they need is read from the device at once, not input by input."""
    verdicts, reasons = [], []
    bounds, clean = margins.found.lower.cpu(), margins.clean.cpu()
    guard = None if margins.guard is None else margins.guard.tolist()
    leasts, centres, wrong = bounds.amin(1).tolist(), clean.amin(1).tolist(), margins.wrong.tolist()
    numbers = (bounds.isfinite().all(1) & ~(clean.isposinf() | clean.isnan()).any(1)).tolist()
    targets = classes.targets.cpu().gather(1, bounds.argmin(1, keepdim=True))[:, 0].tolist()
    for b, text in enumerate(margins.troubles()):
        least, centre, known, target = leasts[b], centres[b], numbers[b], targets[b]
        if wrong[b]:
            verdicts.append(Verdict.FALSIFIED)
            reasons.append(f"{CENTRE} (margin {centre:.6g})")
        elif text or not known:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(f"{text or 'the final bound is not finite'}; a smaller set may help")
        elif centre < 0:
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(
                f"the margin at the centre of the set is {centre:.6g}, but it is not certain that the model itself "
                "misclassifies it there: rounding may explain it"
            )
        elif least > 0 and guard is not None and least > guard[b]:
            verdicts.append(Verdict.VERIFIED)
            reasons.append("")
        elif least > 0:
            needed = math.inf if guard is None else guard[b]
            verdicts.append(Verdict.UNKNOWN)
            reasons.append(
                f"the margin bound {least:.6g} to class {target} is positive, but rounding may have "
                f"taken more: it has to be above {needed:.6g}; a smaller set, or another method, may help"
            )
        else:
            verdicts.append(Verdict.UNKNOWN)
            why = cause(margins.found.boxes, b, classes.first + int(classes.labels[b]), classes.first + target)
            reasons.append(f"the margin bound {least:.6g} to class {target} is not positive{why}")
    return tuple(verdicts), tuple(reasons)


def with_ties(outcome: Certification, reached: Tensor) -> Certification:
    """The outcome with a reason of its own where outputs are known to tie at a point of the set, to TIE.

    reached: margins at points of the sets, (batch, classes); inf at the label and at classes that do not count.
    """
    reasons = list(outcome.reasons)
    least, nearest = outcome.lower.double().amin(1).tolist(), reached.amin(1).tolist()
    for b, verdict in enumerate(outcome.verdicts):
        if verdict is not Verdict.UNKNOWN or not abs(nearest[b]) <= TIE:
            continue
        if least[b] >= -TIE:
            said = f"the margin is within {TIE:g} of 0: the largest outputs tie, to rounding"
        else:
            said = (
                f"at a point of the set the margin is within {TIE:g} of 0: outputs tie there, and no method verifies it"
            )
        reasons[b] = f"{said}; {reasons[b]}"
    return dataclasses.replace(outcome, reasons=tuple(reasons))

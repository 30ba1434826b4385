"""Answers for unions of sets, from the answers for their members.

Invariant: an input is `verified` only if it is for every member, and `falsified` only with a point of a member; an
interval or a bound holds for all members.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from vertex_softmax.methods.verdict import Verdict
from vertex_softmax.ops.interval import Interval
from vertex_softmax.runs.certification import Certification, summed, summed_effort
from vertex_softmax.search.attack import Attack
from vertex_softmax.sets import InputSet, Union


def members_of(input_set: InputSet) -> tuple[InputSet, ...]:
    """The members of a union; the set itself if it is none."""
    return input_set.members if isinstance(input_set, Union) else (input_set,)


def united(parts: Sequence[Certification]) -> Certification:
    """The answers of the members of a union, about the same inputs, as those of the union; no certificates."""
    if len(parts) == 1:
        return parts[0]
    chosen = [_deciding(verdicts) for verdicts in zip(*(part.verdicts for part in parts), strict=True)]
    return dataclasses.replace(
        parts[0],
        lower=torch.stack([part.lower for part in parts]).amin(0),
        verdicts=tuple(parts[k].verdicts[i] for i, k in enumerate(chosen)),
        reasons=tuple(_reason(parts[k], i, k) for i, k in enumerate(chosen)),
        counterexamples=torch.stack([parts[k].counterexamples[i] for i, k in enumerate(chosen)]),
        seconds=summed([part.seconds for part in parts]),
        effort=summed_effort([part.effort for part in parts]),
    )


def _deciding(verdicts: Sequence[Verdict]) -> int:
    """The first member that is falsified, else the first that is not verified, else the first."""
    for wanted in (Verdict.FALSIFIED, Verdict.UNKNOWN):
        if wanted in verdicts:
            return verdicts.index(wanted)
    return 0


def _reason(part: Certification, i: int, k: int) -> str:
    return f"set {k} of the union: {part.reasons[i]}" if part.reasons[i] else ""


def hull(parts: Sequence[Interval]) -> Interval:
    """The interval around those of the members; NaN where one has no bound."""
    lower = torch.stack([part.lower for part in parts]).amin(0)
    return Interval(lower, torch.stack([part.upper for part in parts]).amax(0))


def best_of(parts: Sequence[Attack]) -> Attack:
    """The lowest margins that were reached in any member, and where."""
    margins = torch.stack([part.margins for part in parts])
    least, which = margins.min(0)
    return Attack(least, _chosen(torch.stack([part.inputs for part in parts]), which))


def _chosen(x: Tensor, which: Tensor) -> Tensor:
    """x[which[i, t], i, t] of x (members, batch, classes, ...)."""
    index = which.reshape(1, *which.shape, *[1] * (x.dim() - 3)).expand(1, *x.shape[1:])
    return x.gather(0, index).squeeze(0)

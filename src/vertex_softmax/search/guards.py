"""How far above its limit the bound of a conjunction's rows has to be, for single rows and for mixes of rows.

Invariant: a guard is more than rounding can have added to the bound of the rows, or of the mix, that it belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from vertex_softmax.bounds.backward import lower_bound
from vertex_softmax.bounds.boxes import Boxes
from vertex_softmax.bounds.coefficients import Objective
from vertex_softmax.bounds.guard import terms
from vertex_softmax.bounds.question import Question
from vertex_softmax.foundation.tolerances import PROPERTY
from vertex_softmax.search.branching import AFFINE
from vertex_softmax.search.mixing import mix
from vertex_softmax.search.targets import Target

ROWS = 1000
"""The share PROPERTY allows for mixes of this many rows of a conjunction; with more rows it is increased in
proportion."""


def guard(sizes: Tensor) -> float:
    """How far above its limit the bound of a target's rows has to be, given the sizes of their terms (m,).

    A share PROPERTY of the terms of a row, Σ |C_k|·|y_k| + |d| and those further back in the pass, covers the rounding
    of the pass, and the rounding before it: a coefficient is off by 2^-53 of itself (2^-24 in float32), so C y by
    2^-53·Σ |C_k|·|y_k|, a ten-thousandth of that share; limits are rounded up, and need nothing (`Inequality.scaled`).
    A mix λ·C, λ·d of m rows is off by (m + 1)·2^-53·Σ λ_i·(Σ_k |C_ik|·|y_k| + |d_i|). If the rows cancel, that may be
    far more than a share of the mix's own terms; so the guard of a mix is a share of the rows' terms, mixed
    (`bound_mixes`).
    """
    largest = float(sizes.max())
    return PROPERTY[sizes.dtype] * largest if math.isfinite(largest) else math.inf


def row_terms(question: Question, boxes: Boxes, target: Target) -> Tensor:
    """For each row of a target, the sum of the absolute values of all terms of a pass, and of its limit: (m,)."""
    return terms(question, boxes, _objective(question, target), AFFINE)[0] + target.d.abs()


def bound_mixes(question: Question, boxes: Boxes, targets: Iterable[Target]) -> None:
    """Add to every target with several rows the mix of them that promises most, as a row of its own, and bound it."""
    for target in targets:
        if len(target.d) > 1:
            weights = mix(question, boxes, target.C, target.d)
            lost = float(weights @ row_terms(question, boxes, target))
            target.add_mix(weights)
            lost *= max(1.0, len(weights) / ROWS)
            mixed = PROPERTY[question.dtype] * lost if math.isfinite(lost) else math.inf
            target.require(max(mixed, guard(row_terms(question, boxes, target))))
            with torch.no_grad():
                target.learn(lower_bound(question, boxes, _objective(question, target), AFFINE)[0])


def _objective(question: Question, target: Target) -> Objective:
    return Objective.dense(question.graph.output, target.C.unsqueeze(0))

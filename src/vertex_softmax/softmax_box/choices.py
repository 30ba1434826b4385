"""The exact minimum of Σ_j p_j v_j where every key chooses one of finitely many pairs (score, value).

Key j has the choices c = 0 … C − 1, each with a score s_jc and a value v_jc; a *combination* is one choice c_j for each
key, and its value is the softmax row

    R(c_1, …, c_K) = Σ_j e^{s_{j c_j}} v_{j c_j} / Σ_j e^{s_{j c_j}}.

There are C^K combinations, and their minimum costs O(K C) operations a step: with y_jc = e^{s_jc},

    φ(t) = Σ_j min_c (v_jc − t) y_jc = min over all combinations of Σ_j (v_{j c_j} − t) y_{j c_j},

because every key chooses on its own. So R ≥ t for every combination if and only if φ(t) ≥ 0 (reference.choices_phi).
The root of φ is the minimum, and Newton's method finds it: t ← R(the combination that attains φ(t)). The score box of
`softmax_box_min` is the case of two choices, lower and upper end, with the same value. Here the score and the value of
a choice stay together: nothing is lost by bounding them apart.

The functions in this file are batched; choices_rigorous.py has the same questions in ball arithmetic.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.softmax_box.arguments import Array
from vertex_softmax.softmax_box.choices_arguments import LARGEST, Allowed, ScoredChoices, choice_rows
from vertex_softmax.softmax_box.choices_outward import choice_terms, least_choices, least_sum, lower_bound
from vertex_softmax.softmax_box.outward import gradual_underflow


class ChoiceMinimum(NamedTuple):
    """The combination of choices that minimises a softmax row."""

    value: Array
    """The minimum, float64, (...)."""
    choice: Array
    """The chosen index of every key, integer, (..., K)."""


@gradual_underflow()
def softmax_choices_min(
    values: Array, scores: Array, allowed: Allowed | None = None, *, outward: bool = False
) -> Array:
    """The exact minimum (to rounding) of Σ_j p_j v_j over every combination of choices; with `outward`, never above it.

    Two keys. The first is fixed; the second is either a weak key of value −1 or a strong one of value 0:

    >>> import numpy as np
    >>> values, scores = np.array([[1.0, 1.0], [-1.0, 0.0]]), np.array([[0.0, 0.0], [-1.0, 2.0]])
    >>> softmax_choices_min(values, scores).round(6)
    np.float64(0.119203)

    Arguments: values and scores (..., K, C), numpy arrays or torch tensors, float32 or float64, finite, that broadcast;
    allowed, bool, that broadcasts to them: which choices there are (None: all). Every key needs one.

    Result: float64 (...). It is not differentiable. `outward=True` subtracts a proved rounding term: the result is then
    never above the exact minimum for these very numbers (choices_outward.py has the proof).
    """
    rows, back = choice_rows(values, scores, allowed)
    value, _ = _newton(rows)
    return back(lower_bound(*rows, value) if outward else value)


@gradual_underflow()
def softmax_choices_argmin(values: Array, scores: Array, allowed: Allowed | None = None) -> ChoiceMinimum:
    """The minimum of Σ_j p_j v_j over every combination, and the combination. See `softmax_choices_min`."""
    rows, back = choice_rows(values, scores, allowed)
    value, choice = _newton(rows)
    return ChoiceMinimum(back(value), back(choice))


@gradual_underflow()
def softmax_choices_terms(values: Array, scores: Array, t: float = 0.0) -> Array:
    """Lower bounds of the terms (v_jc − t) e^{s_jc − a} of φ(t), float64 (..., K, C); a is a row's largest score.

    A combination whose terms have a positive sum has a value above t, and so has every combination of a product of
    choice sets S_1 × … × S_K with Σ_j min over S_j of the terms > 0. One array of terms thus decides any number of
    products: `softmax_choices_decide` does the sum.
    """
    if not math.isfinite(t) or abs(t) > LARGEST:
        raise InvalidValueError(f"t is {t!r}; pass a finite number of size 2^500 at most")
    (v, s, _), back = choice_rows(values, scores, None)
    a = s.amax((-2, -1), keepdim=True)
    return back(choice_terms(v, s, torch.full_like(a, t), a))


@gradual_underflow()
def softmax_choices_decide(terms: Array, allowed: Allowed | None = None) -> Array:
    """A lower bound of Σ_j min over the allowed c of terms_jc, float64 (...), for terms of `softmax_choices_terms`.

    If it is positive, every combination of the allowed choices has a value above t. If it is not, some combination has
    a value of at most t, up to the rounding error that the bound takes away.
    """
    (given, _, there), back = choice_rows(terms, terms, allowed, names=("terms", "terms"))
    return back(least_sum(given, there))


def _newton(rows: ScoredChoices) -> tuple[Tensor, Tensor]:
    """(value (...), choice (..., K)) of the best combination that Newton's method meets.

    In every step the combination is taken at t and at probes below t by more than R's rounding error, for the reason
    that reference.newton_min gives: at most K + 4 ulps of the mean of |v| at this combination, or, as sizes at the next
    one may be larger, of the row's largest |v|. If the minimum is below the lowest probe, R comes out below t there.
    A row's value falls strictly until its combination no longer changes.
    """
    band = (rows.values.shape[-2] + 10) * torch.finfo(torch.float64).eps / 2
    start = rows.values.masked_fill(~rows.allowed, torch.inf).amin((-2, -1))
    largest = rows.values.masked_fill(~rows.allowed, 0.0).abs().amax((-2, -1))
    value, size, choice = _at(rows, start)
    while True:
        moved = False
        for t in (value - band * largest, value - band * size, value):
            better, next_size, next_choice = _at(rows, t)
            less = better < value
            if bool(less.any()):
                moved = True
                value, size = torch.where(less, better, value), torch.where(less, next_size, size)
                choice = torch.where(less[..., None], next_choice, choice)
        if not moved:
            return value, choice


def _at(rows: ScoredChoices, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R, the mean of |v|, and the choices (..., K) of the combination that attains φ(t) to rounding."""
    choice = least_choices(*rows, t[..., None, None])
    score, value = (x.gather(-1, choice[..., None])[..., 0] for x in (rows.scores, rows.values))
    p = score.softmax(-1)
    return (p * value).sum(-1), (p * value.abs()).sum(-1), choice

"""Proofs about choices in ball arithmetic (Arb through python-flint): the invariant of rigorous.py holds here too.

What is returned as proved is true of the given floating-point numbers read as exact reals. Not a hot path: rows, keys
and choices are taken one at a time in Python.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.softmax_box.arguments import Array
from vertex_softmax.softmax_box.choices import softmax_choices_argmin
from vertex_softmax.softmax_box.choices_arguments import Allowed, choice_rows
from vertex_softmax.softmax_box.outward import gradual_underflow
from vertex_softmax.softmax_box.rigorous import (
    MOST_PRECISION,
    PRECISION,
    Decision,
    imported_flint,
    is_lower_bound,
    softmax_box_enclosure,
)

Pair: TypeAlias = tuple[float, float]
"""(score, value)."""
Row: TypeAlias = list[list[Pair]]
"""The allowed choices of every key."""


@gradual_underflow()
def is_lower_bound_of_choices(t: float, values: Array, scores: Array, allowed: Allowed | None = None) -> Decision:
    """Whether t ≤ Σ_j p_j v_j for every combination of choices: True (proved), False (refuted), None (undecided).

    Arguments as for `softmax_choices_min`. One row gives a bool or None; a batch gives an object array (...).

    Every key's least term (v − t) e^s is found exactly: terms of different choices are different numbers unless both
    are 0 (Lindemann–Weierstrass), so a precision tells them apart. What remains is one combination, which is a score
    box of one point: `is_lower_bound` decides it, exact ties included.
    """
    if math.isnan(t):
        raise InvalidValueError("t is NaN; it cannot be a bound of anything")
    batch, rows = _rows(values, scores, allowed)
    answers = np.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):
        answers[i] = _decide(t, row)
    answer: Decision = answers.reshape(batch)[()]
    return answer


@gradual_underflow()
def softmax_choices_enclosure(
    values: Array, scores: Array, allowed: Allowed | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Floats (lo, hi) that certainly contain the exact real minimum over every combination of choices, each (...).

    hi is above the value of one combination, evaluated in ball arithmetic; lo passed `is_lower_bound_of_choices`. They
    are usually a few ulps apart.
    """
    batch, rows = _rows(values, scores, allowed)
    pairs = [_enclose(row) for row in rows]
    lo, hi = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return lo.reshape(batch)[()], hi.reshape(batch)[()]


def _rows(values: Array, scores: Array, allowed: Allowed | None) -> tuple[tuple[int, ...], list[Row]]:
    """The batch shape, and the rows in exact Python floats."""
    checked, _ = choice_rows(values, scores, allowed)
    batch = tuple(checked.values.shape[:-2])
    v, s, there = (x.cpu().numpy().reshape(-1, *checked.values.shape[-2:]) for x in checked)
    return batch, [
        [
            list(zip(key_s[use].tolist(), key_v[use].tolist(), strict=True))
            for key_v, key_s, use in zip(*row, strict=True)
        ]
        for row in zip(v, s, there, strict=True)
    ]


def _decide(t: float, row: Row) -> bool | None:
    """Whether t is a lower bound of one row; None if MOST_PRECISION does not decide it."""
    if t <= min(value for key in row for _, value in key):
        return True
    if t > max(value for key in row for _, value in key):
        return False
    chosen = [_least(key, t) for key in row]
    if any(choice is None for choice in chosen):
        return None
    score, value = np.array(chosen, dtype=np.float64).T
    answer = is_lower_bound(t, value, score, score)
    return answer if isinstance(answer, bool) else None  # of one row it is no array


def _least(key: list[Pair], t: float) -> Pair | None:
    """The choice of the least (v − t) e^s; None if MOST_PRECISION does not tell it from another.

    Only negative terms matter if there is one, and a term that is 0 otherwise: signs are exact on floats.
    """
    distinct = list(dict.fromkeys(key))
    negative = [choice for choice in distinct if choice[1] < t]
    if not negative:
        for choice in distinct:
            if choice[1] == t:
                return choice
    flint, precision = imported_flint(), PRECISION
    open_ = negative or distinct
    while precision <= MOST_PRECISION:
        with flint.ctx.workprec(precision):
            top = flint.arb(max(score for score, _ in open_))
            terms = [(flint.arb(v) - flint.arb(t)) * (flint.arb(s) - top).exp() for s, v in open_]
            open_ = [c for c, term in zip(open_, terms, strict=True) if not any(other < term for other in terms)]
        if len(open_) == 1:
            return open_[0]
        precision *= 2
    return None


def _enclose(row: Row) -> tuple[float, float]:
    """(lo, hi) around the exact minimum of one row."""
    most = max(map(len, row))
    padded = np.array([key + key[-1:] * (most - len(key)) for key in row], dtype=np.float64)  # (K, C, 2)
    near = softmax_choices_argmin(padded[..., 1], padded[..., 0])
    score, value = np.take_along_axis(padded, np.asarray(near.choice)[:, None, None], 1)[:, 0].T
    below, above = softmax_box_enclosure(value, score, score)  # of this combination
    least, step, t = float(padded[..., 1].min()), 0.0, float(below)
    while t > least and _decide(t, row) is not True:
        step = max(2 * step, math.ulp(t))
        t = t - step
    return max(t, least), float(above)

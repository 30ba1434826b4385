"""Softmax rows of a sentence's attentions as a run records them: at the sentence itself, and how far each can move.

Invariant: lower ≤ weight ≤ upper ≤ 1 for every weight of a record that was checked, as far as there are ranges; all
three have the shape (heads, rows, keys).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vertex_softmax.foundation.errors import InvalidValueError
from vertex_softmax.runs.records import Floats, unpacked

MOST_WEIGHTS = 1 << 18
"""The most weights of all sentences of a run together."""
ROUNDING = 1e-9
"""By how much a weight may lie outside of its range: it is rounded, and the range is not."""


@dataclass(frozen=True)
class AttentionLayer:
    """The rows of one attention."""

    name: str
    shape: tuple[int, int, int]
    """heads, rows, keys"""
    weights: str
    """softmax of the scores at the sentence itself, (heads, rows, keys), as text (`packed`)"""
    lower: str | None = None
    """no weight is less while the sentence moves; None: no range is known"""
    upper: str | None = None
    """no weight is more"""


@dataclass(frozen=True)
class AttentionRows:
    """The rows of every attention of one sentence."""

    input: int
    """its position in `Run.inputs`; for a run over choices of words the sentence's number"""
    about: str
    """what moves while the weights are in their ranges, in words; empty: there are no ranges"""
    layers: tuple[AttentionLayer, ...]


def require_rows(attention: Sequence[AttentionRows], numbers: Sequence[int]) -> None:
    """Raise unless every record is of one of these sentences, once each, and its arrays are weights in their ranges."""
    if unknown := [rows.input for rows in attention if rows.input not in set(numbers)]:
        raise InvalidValueError(f"it has the attention of sentence {unknown[0]}, which is not there")
    if len({rows.input for rows in attention}) < len(attention):
        raise InvalidValueError("attention has the same sentence twice")
    total = 0
    for rows in attention:
        for layer in rows.layers:
            if min(layer.shape) < 1:
                raise InvalidValueError(f"the attention {layer.name[:40]!r} has the shape {list(layer.shape)}")
            total += layer.shape[0] * layer.shape[1] * layer.shape[2]
            if total > MOST_WEIGHTS:
                raise InvalidValueError(f"it has more than {MOST_WEIGHTS} weights of attention, which are not read")
            _require_layer(layer)


def _require_layer(layer: AttentionLayer) -> None:
    """Raise unless weights are between 0 and 1, and in their ranges."""
    weights, where = unpacked(layer.weights, layer.shape), f"the attention {layer.name[:40]!r}"
    if (layer.lower is None) != (layer.upper is None):
        raise InvalidValueError(f"{where} has one end of its ranges and not the other")
    if bool((weights < 0).any()) or bool((weights > 1 + ROUNDING).any()):
        raise InvalidValueError(f"{where} has a weight that is not between 0 and 1")
    lower, upper = ends(layer)
    if bool((lower > weights + ROUNDING).any()) or bool((upper < weights - ROUNDING).any()):
        raise InvalidValueError(f"{where} has a weight outside of its range")
    if bool((lower < 0).any()) or bool((upper > 1 + ROUNDING).any()):
        raise InvalidValueError(f"{where} has a range that is not between 0 and 1")


def ends(layer: AttentionLayer) -> tuple[Floats, Floats]:
    """The ends of the ranges, (heads, rows, keys); the weights themselves if there are none."""
    found = [
        np.clip(unpacked(layer.weights if end is None else end, layer.shape), -1.0, 2.0)
        for end in (layer.lower, layer.upper)
    ]
    return found[0], found[1]

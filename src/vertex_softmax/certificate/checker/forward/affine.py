"""Affine ops: the image of a form is exact but for rounding, which goes into slack (the lemma of forms.py).

What numbers have for themselves becomes unknowns where a weight mixes them: Σ_i own_i ν_i W_i, |ν_i| ≤ 1. If there are
many, it becomes one ball for each row.
A stored number stands for all reals within 2⁻⁴⁶ of it: that counts as STORED roundings more.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..rounding import MORE, Array, rounding
from .choices import Pick
from .ellipsoids import APART, LEAST, MOST_APART, MOST_SHAPES, ErrorEllipsoid, raised, with_columns, with_error
from .forms import LOST, Blocks, Form, grown, image

STORED = 128
"""The relative error of a stored number, 2⁻⁴⁶, counted in roundings of 2⁻⁵³."""

MEAN = math.sqrt(2 / math.pi)
"""The mean of |η_k| over directions, relative to √(mean η_k²): to compare a box with an ellipsoid."""
NEGLIGIBLE = 1e-10
"""Errors of a row below this share of its numbers stay errors of single numbers: balls of them would only be many."""


def scaled(x: Form, factor: Array) -> Form:
    """x times stored numbers of the same shape."""
    size = np.abs(factor)
    return image(x, lambda y: y * factor, lambda y: y * size, 2 + STORED)


def linear(x: Form, weight: Array, key: int, pick: Pick) -> Form:
    """x @ weight, (*rows, i) and (i, o). What the numbers of a row have for themselves becomes a ball under `key`.

    So does slack that has grown: as |weight| · slack it would grow on with every op, as boxes do. A weight that only
    adds up some numbers each, as a mean over tokens does, has less error number by number.
    """
    size, roundings = np.abs(weight), weight.shape[0] + STORED
    found = image(x, lambda y: y @ weight, lambda y: y @ size, roundings)
    large = x.loose.max(-1) > NEGLIGIBLE * x.size.max(-1)
    if not large.any() or found.centre.size * weight.shape[1] > MOST_SHAPES:
        return found
    error = mixed(x.loose, weight)
    round_ = pick("round", large & (error.length < MEAN * (found.own + found.slack).sum(-1)))[..., None]
    bare = (rounding(roundings) * (x.size @ size) * grown(roundings) + LOST) * MORE
    rest = replace(found, own=np.where(round_, 0.0, found.own), slack=np.where(round_, bare, found.slack))
    few = x.centre.size * found.centre.size <= MOST_APART
    together = pick("together", np.full(large.shape, not few)) | (not few)
    if not together.all():
        own = np.where(round_ & ~together[..., None], x.loose, 0.0)
        rest = with_columns(rest, own[..., None] * weight, key + APART)  # rounded as often as `bare` counts
    return with_error(rest, [ErrorEllipsoid(error.matrix, np.where(round_[..., 0] & together, error.scale, 0.0))], key)


def mixed(own: Array, weight: Array) -> ErrorEllipsoid:
    """Of Σ_i own_i ν_i weight_i with |ν_i| ≤ 1: own (*rows, i), weight (i, o). That weights are stored is in slack."""
    length = np.sqrt(np.square(weight).sum(1)) + LEAST  # u_i = own_i · length_i, so that own_i²/u_i = own_i/length_i
    share = own / length
    matrix = np.swapaxes(share[..., None] * weight, -1, -2) @ weight
    return ErrorEllipsoid(raised(matrix, len(weight) + 8), np.sqrt((own * length).sum(-1) * grown(len(weight))) * MORE)


def moved(inputs: list[Form], index: NDArray[np.int64]) -> Form:
    """A gather from the numbers of all inputs, flattened and beside each other: exact."""
    if len(inputs) == 1:
        dims = inputs[0].centre.ndim
        flat = index.reshape(-1)

        def take(x: Array) -> Array:
            lead = x.shape[: x.ndim - dims]
            return np.ascontiguousarray(x.reshape(*lead, -1)[..., flat]).reshape(*lead, *index.shape)

        return inputs[0].moved(take)
    blocks: Blocks = {}
    keys = dict.fromkeys(key for x in inputs for key in x.blocks)
    for key in keys:
        lead = next(x.blocks[key] for x in inputs if key in x.blocks).shape[:2]
        parts = [
            x.blocks[key].reshape(*lead, -1) if key in x.blocks else np.zeros((*lead, x.centre.size)) for x in inputs
        ]
        blocks[key] = np.concatenate(parts, -1)[..., index]
    centre, own, slack = (
        np.concatenate([part.ravel() for part in parts])[index]
        for parts in zip(*((x.centre, x.own, x.slack) for x in inputs), strict=True)
    )
    return Form(centre=centre, blocks=blocks, own=own, slack=slack)

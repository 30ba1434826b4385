"""Inputs as small pictures for a page: 8 bits per number, in base64.

Invariant: all pictures of a run have the same range of values, so that they can be compared; the difference of two
inputs has a range of its own, so that eight bits are enough for it, however small it is.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vertex_softmax.runs.records import Floats, unpacked
from vertex_softmax.runs.run import Run

MOST = 24 << 20
"""The most bytes of pictures in a page; if there are more, only every second, third, … pixel is shown."""


@dataclass(frozen=True)
class Layout:
    """How an input is drawn as a picture."""

    kind: str
    """grey, rgb, or heat: numbers around 0"""
    arrange: Callable[[Floats], Floats]
    """maps an input to (height, width) or (height, width, 3)"""


@dataclass(frozen=True)
class Pictures:
    """All pictures of a run."""

    about: dict[str, Any]
    """how to draw them: kind, size and range"""
    inputs: list[str]
    """the inputs: base64 of 8-bit levels"""
    changes: list[dict[str, Any] | None]
    """for each attack, the difference of its adversarial input from the input, and the largest size of an entry"""


def pictures(run: Run) -> Pictures:
    """The pictures of the inputs, and of the difference that each attack makes."""
    shape = run.data.shape
    inputs = [unpacked(x.pixels, shape) for x in run.inputs]
    found = [None if a.adversarial is None else unpacked(a.adversarial, shape) for a in run.attacks]
    with np.errstate(over="ignore"):  # `_signed` clips infinite differences
        changes = [None if x is None else x - inputs[a.input] for a, x in zip(run.attacks, found, strict=True)]
    layout = layout_of(shape, run.data.clip is not None or all(bool((x >= 0).all()) for x in inputs))
    low, high = _range([*inputs, *(x for x in found if x is not None)], run.data.clip, layout.kind)
    step = _step(len(inputs) + sum(x is not None for x in changes), shape)
    first = layout.arrange(np.zeros(shape))[::step, ::step]
    about = {"kind": layout.kind, "height": first.shape[0], "width": first.shape[1], "low": low, "high": high}
    return Pictures(
        {**about, "step": step},
        [_levels(layout.arrange(x)[::step, ::step], low, high) for x in inputs],
        [None if x is None else _signed(layout.arrange(x)[::step, ::step]) for x in changes],
    )


def layout_of(shape: tuple[int, ...], picture: bool) -> Layout:
    """How inputs of this shape are drawn; `picture`: whether their numbers seem to be brightnesses."""
    if len(shape) == 3 and shape[0] in (1, 3):
        return Layout("rgb" if shape[0] == 3 else "grey", lambda x: x.transpose(1, 2, 0) if len(x) == 3 else x[0])
    if len(shape) == 3 and shape[2] in (1, 3):
        return Layout("rgb" if shape[2] == 3 else "grey", lambda x: x if x.shape[2] == 3 else x[..., 0])
    if len(shape) == 2 and picture:
        return Layout("grey", lambda x: x)
    side = math.isqrt(math.prod(shape))
    if len(shape) == 1 and picture and side * side == shape[0] and side > 3:
        return Layout("grey", lambda x: x.reshape(side, side))
    width = shape[-1] if len(shape) > 1 else min(math.prod(shape), 32)
    return Layout("heat", lambda x: _rows(x.reshape(-1), width))


def _rows(x: Floats, width: int) -> Floats:
    whole = np.zeros(-(-len(x) // width) * width)
    whole[: len(x)] = x
    return whole.reshape(-1, width)


def _range(arrays: list[Floats], clip: tuple[float, float] | None, kind: str) -> tuple[float, float]:
    if clip is not None and clip[0] < clip[1] and kind != "heat":
        return clip
    low, high = (float(f([f(x) for x in arrays])) if arrays else 0.0 for f in (np.min, np.max))
    if kind == "heat":
        high = max(abs(low), abs(high))
        low = -high
    return (low, high) if low < high else (low, low + 1.0)


def _step(count: int, shape: tuple[int, ...]) -> int:
    return max(1, math.ceil(math.sqrt(count * math.prod(shape) / MOST)))


def _levels(x: Floats, low: float, high: float) -> str:
    share = (x / 2 - low / 2) / (high / 2 - low / 2)  # halves: the difference of two finite numbers may overflow
    return _base64(np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8))


def _signed(change: Floats) -> dict[str, Any]:
    most = min(float(np.abs(change).max(initial=0.0)), 1e300)
    return {"most": most, "levels": _base64(np.rint(127 * np.clip(change / (most or 1.0), -1, 1)).astype(np.int8))}


def _base64(x: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(x).tobytes()).decode()

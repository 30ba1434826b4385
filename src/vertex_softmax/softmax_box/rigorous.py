"""Proofs in ball arithmetic (Arb through python-flint): enclosures of the exact minimum, and tests of claimed bounds.

Invariant: what is returned as proved is true of the given floating-point numbers read as exact reals, whatever the
rounding. Converting a ball to a float rounds to nearest, so every conversion here steps outward until Arb confirms it.

Not a hot path: rows are taken one at a time in Python, about a microsecond per key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from vertex_softmax.foundation.errors import InvalidTypeError, InvalidValueError, MissingDependencyError
from vertex_softmax.softmax_box.arguments import Array, diagnose, tensors
from vertex_softmax.softmax_box.outward import gradual_underflow
from vertex_softmax.softmax_box.reference import newton_min

if TYPE_CHECKING:
    from flint import arb

    Ball: TypeAlias = arb

Floats: TypeAlias = list[float]
Decision: TypeAlias = bool | NDArray[np.object_] | None
"""Of one row: proved, refuted or undecided (None); of a batch: an object array of these."""
PRECISION = 128
MOST_PRECISION = 1 << 13


@gradual_underflow()
def softmax_box_enclosure(c: Array, lower: Array, upper: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Floats (lo, hi) that certainly contain the exact real minimum of c · softmax(s) over the box.

    hi is above the value of one vertex of the box, evaluated in ball arithmetic; lo passed the test φ(lo) ≥ 0; they are
    usually 1 to 3 ulps apart. Arrays or tensors (..., K) that broadcast; float64 results of shape (...). Needs the
    extra `proof`. An enclosure of the maximum is (−hi, −lo) for −c.
    """
    flint = imported_flint()
    batch, rows = _rows(c, lower, upper)
    with flint.ctx.workprec(PRECISION):
        pairs = [_enclose(flint, *row) for row in rows]
    lo, hi = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return lo.reshape(batch)[()], hi.reshape(batch)[()]


@gradual_underflow()
def is_lower_bound(t: float | Array, c: Array, lower: Array, upper: Array) -> Decision:
    """Whether t ≤ c · softmax(s) for every s in the box: True (proved), False (refuted), or None (undecided).

    By the test φ(t) ≥ 0, O(K) at each precision. φ(t) is a sum of rational multiples of e^{score}, so it is zero only
    if the multiples of each distinct score cancel exactly (Lindemann–Weierstrass); that is checked in rationals,
    and any other sign shows at a high enough precision. None means MOST_PRECISION bits were not enough.

    One row gives a bool or None; a batch gives an object array. `t` broadcasts against the batch.
    """
    flint = imported_flint()
    batch, rows = _rows(c, lower, upper)
    values = _exact_floats(t)
    if np.isnan(values).any():
        raise InvalidValueError("t is NaN; it cannot be a bound of anything")
    try:
        values = np.broadcast_to(values, batch)
    except ValueError:
        raise InvalidValueError(f"t of shape {values.shape} does not broadcast to the batch shape {batch}") from None
    answers = np.empty(batch, dtype=object)
    for index, value, row in zip(np.ndindex(*batch), values.ravel().tolist(), rows, strict=True):
        answers[index] = _decide(flint, value, *row)
    answer: Decision = answers[()]
    return answer


def _exact_floats(t: object) -> NDArray[np.float64]:
    """t as float64; an error if the conversion would change its value."""
    array = t.detach().cpu().numpy() if isinstance(t, torch.Tensor) else np.asarray(t)
    if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
        raise InvalidTypeError(f"t has dtype {array.dtype}; pass a float, or an array of float64, float32 or integers")
    values = array.astype(np.float64)
    if array.dtype.kind in "iu" and any(int(v) != int(n) for v, n in zip(values.flat, array.flat, strict=True)):
        raise InvalidValueError("t is an integer that float64 does not hold exactly; pass the float that is meant")
    return values


def imported_flint() -> Any:
    """The module `flint`, or an error that says how to install it."""
    try:
        import flint
    except ImportError as error:
        raise MissingDependencyError(
            "rigorous arithmetic needs python-flint, which is not installed: pip install 'vertex-softmax[proof]'"
        ) from error
    return flint


def _rows(c: Array, lower: Array, upper: Array) -> tuple[tuple[int, ...], Iterator[tuple[Floats, Floats, Floats]]]:
    """The batch shape, and the rows as exact Python floats without their masked keys (weight 0)."""
    checked, _ = tensors(c=c, lower=lower, upper=upper)
    diagnose(checked["lower"], checked["upper"], checked["c"])
    shape = np.broadcast_shapes(*(x.shape for x in checked.values()))
    views = [checked[name].detach().cpu().double().expand(shape).numpy() for name in ("c", "lower", "upper")]

    def rows() -> Iterator[tuple[Floats, Floats, Floats]]:
        for index in np.ndindex(*shape[:-1]):
            unmasked = views[2][index] > -math.inf
            yield tuple(view[index][unmasked].tolist() for view in views)

    return tuple(shape[:-1]), rows()


def _phi(flint: Any, t: float, c: Floats, lower: Floats, upper: Floats) -> Ball:
    """A ball around φ(t) times a positive factor. Which end a key takes is decided exactly, on floats."""
    active = [(cj, uj if cj < t else lj) for cj, lj, uj in zip(c, lower, upper, strict=True) if cj != t]
    shift, t_ball = flint.arb(max((score for _, score in active), default=0.0)), flint.arb(t)
    total: Ball = flint.arb(0)
    for cj, score in active:
        total += (flint.arb(cj) - t_ball) * (flint.arb(score) - shift).exp()
    return total


def _decide(flint: Any, t: float, c: Floats, lower: Floats, upper: Floats) -> bool | None:
    """Whether t is a lower bound of one row, at increasing precision; None if MOST_PRECISION does not decide it."""
    if t <= min(c):
        return True
    if t > max(c):
        return False
    precision = PRECISION
    while precision <= MOST_PRECISION:
        with flint.ctx.workprec(precision):
            value = _phi(flint, t, c, lower, upper)
            if value >= 0:
                return True
            if value < 0:
                return False
        if precision == PRECISION and _is_zero(t, c, lower, upper):
            return True
        precision *= 2
    return None


def _is_zero(t: float, c: Floats, lower: Floats, upper: Floats) -> bool:
    """Whether φ(t) is exactly zero: only if, for each distinct score, the rational multiples of e^{score} cancel."""
    multiples: dict[float, Fraction] = {}
    for cj, lj, uj in zip(c, lower, upper, strict=True):
        score = uj if cj < t else lj
        multiples[score] = multiples.get(score, Fraction(0)) + (Fraction(cj) - Fraction(t))
    return not any(multiples.values())


def _enclose(flint: Any, c: Floats, lower: Floats, upper: Floats) -> tuple[float, float]:
    """(lo, hi) around the exact minimum of one row."""
    with np.errstate(all="ignore"):  # any starting vertex will do, even one from an overflow
        near = newton_min(np.array(c), np.array(lower), np.array(upper))
    start = flint.arb(near) if math.isfinite(near) else flint.arb(c[0])
    best = min(_vertices(flint, start, c, lower, upper), key=_upper_end)
    while True:  # Newton's method on balls; every `best` is the value of a vertex
        better = min(_vertices(flint, best, c, lower, upper), key=_upper_end)
        if not better < best:
            break
        best = better
    nearest = float(best.mid())
    if best.overlaps(flint.arb(nearest)) and _is_zero(nearest, c, lower, upper):
        return nearest, nearest  # φ(nearest) = 0 exactly: the minimum is this float
    hi = _up(flint, best)
    lo, step = _down(flint, best), 0.0
    least = min(c)
    while lo > least and _decide_once(flint, lo, c, lower, upper) is not True:
        step = max(2 * step, math.ulp(lo))
        lo = lo - step
    return max(lo, least), min(hi, max(c))


def _vertices(flint: Any, t: Ball, c: Floats, lower: Floats, upper: Floats) -> list[Ball]:
    """The values of two vertices y(t): keys whose c overlaps the ball t are once at their lower, once at upper ends."""
    down, up = [], []
    for cj, lj, uj in zip(c, lower, upper, strict=True):
        key = flint.arb(cj)
        down.append(uj if key < t else lj)
        up.append(lj if key > t else uj)
    return [_ratio(flint, down, c), _ratio(flint, up, c)]


def _upper_end(ball: Ball) -> float:
    return float(ball.upper())


def _decide_once(flint: Any, t: float, c: Floats, lower: Floats, upper: Floats) -> bool:
    """Whether φ(t) ≥ 0 is proved at the current precision."""
    return bool(_phi(flint, t, c, lower, upper) >= 0) or _is_zero(t, c, lower, upper)


def _ratio(flint: Any, scores: Floats, c: Floats) -> Ball:
    """A ball around c · softmax(scores)."""
    a = flint.arb(max(scores))
    weights = [(flint.arb(s) - a).exp() for s in scores]
    top: Ball = sum((flint.arb(cj) * y for cj, y in zip(c, weights, strict=True)), flint.arb(0))
    mass: Ball = sum(weights, flint.arb(0))
    return top / mass


def _down(flint: Any, ball: Ball) -> float:
    """A float below the ball: float() rounds to nearest, so step down until Arb confirms it."""
    value = min(float(ball.lower()), math.nextafter(math.inf, 0))
    while not flint.arb(value) <= ball:
        value = math.nextafter(value, -math.inf)
    return value


def _up(flint: Any, ball: Ball) -> float:
    """A float above the ball."""
    return -_down(flint, -ball)

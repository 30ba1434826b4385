"""Parabolas of max(x, 0): what is left, D(x) = max(x, 0) − slope·x − bow·x² with bow ≥ 0, is in a range over a box.

Where the sign of x is not known, low < 0 < up, D is concave on each side of 0, and 0 at 0. So D is least at 0, at low
or at up; and on a side it is below its tangent at any point t of it, which is largest at 0 or where the side ends.
Hence every slope, every bow ≥ 0 and every t are sound. Good ones: let far and near be the larger and the smaller of
−low and up, and 2 D = |x| − g x² − b x. The error is least if D is 0 at the far end, b = ±(1 − g·far), and as high at
the turning point of the far side, far/2, as on the near side: at its own turning point (g = 1/far), or at its end if
near < far/2,
  g far²/4 = near (2 − g (near + far)).
What is not linear of x² becomes an error, so that less curvature may be better: a share of the way from the chord.
Where the sign is known, max(x, 0) is x or 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..rounding import MORE, Array, ProvedInterval
from .choices import Pick
from .forms import Bools, Form

BITS = ("four sevenths", "two sevenths", "one seventh")
"""The choices that add up to a share of curvature, each half as much as the one before."""
EXPECTED = 0.5
"""What of x² is not linear is expected to add this part of its size: over a row it adds up with both signs."""
LEAST, MOST = 2.0**-210, 2.0**26
"""The curvatures that are used; else a line is. So that what underflows in x² and is multiplied by one of them is, in
whatever is made of it, below the 2⁻⁹⁷⁰ that every op counts as lost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProvedParabola:
    """f(c + x') is within own + lost of value + slope·x' + bow·x'², number by number; floats that count as exact."""

    value: Array
    slope: Array
    bow: Array
    own: Array
    """≥ 0: of the parabola itself"""
    lost: Array
    """≥ 0: of the rounding of its coefficients"""


def parabola(x: Form, box: ProvedInterval, h: Array, pick: Pick) -> ProvedParabola:
    """Of max(c + x', 0) for |x'| ≤ h and c + x' in the box, each number with its own share of curvature."""
    c, on, off = x.centre, box.lo >= 0, box.hi <= 0
    known = on | off
    low, up = np.where(known, -1.0, box.lo), np.where(known, 1.0, box.hi)
    line, rest = x.linear.radius, x.rest.tight
    share = shares(low, up, (2 * line + rest) * rest, known, pick)
    slope, bow = between(low, up, share)
    left = deviation(low, up, slope, bow)
    middle = left.middle()
    value = ProvedInterval(middle) + ProvedInterval(slope) * c + ProvedInterval(bow) * ProvedInterval(c).square()
    steep = ProvedInterval(slope) + ProvedInterval(2 * bow) * c
    lost = (value.reach(value.middle()) + steep.reach(steep.middle()) * h) * MORE
    zero = np.zeros_like(c)
    return ProvedParabola(
        value=np.where(known, np.where(on, c, zero), value.middle()),
        slope=np.where(known, np.where(on, 1.0, zero), steep.middle()),
        bow=np.where(known, zero, bow),
        own=np.where(known, zero, left.reach(middle)),
        lost=np.where(known, zero, lost),
    )


def shares(low: Array, up: Array, mixed: Array, known: Bools, pick: Pick) -> Array:
    """The share of curvature of each number: 0, 1/7, …, 1. `mixed`: how large the part of x² is that is an error."""
    tried = np.arange(1 << len(BITS)).reshape(-1, *[1] * low.ndim)
    slope, bow = between(low, up, tried / (len(tried) - 1))
    left = deviation(low, up, slope, bow)
    cost = (left.hi - left.lo) / 2 + EXPECTED * np.where(bow > 0, bow * mixed, 0.0)
    best = np.where(known, len(tried) - 1, np.nan_to_num(cost, nan=np.inf).argmin(0))
    found = np.zeros_like(best)
    for i, name in enumerate(BITS):
        one = 1 << (len(BITS) - 1 - i)
        found = found + one * pick(name, (best & one) > 0)
    return np.asarray(found / (len(tried) - 1))


def between(low: Array, up: Array, share: Array) -> tuple[Array, Array]:
    """Slope and bow of a parabola, a share of the way from the chord to the best one: arrays that broadcast."""
    far, near = np.maximum(-low, up), np.minimum(-low, up)
    g = np.where(2 * near < far, 2 * near / (far * far / 4 + near * (near + far)), 1 / far)
    chord = up / (up - low)
    usual = (g / 2 >= LEAST) & (g / 2 <= MOST)
    tilt = np.where(up >= -low, 1 - g * far, g * far - 1)
    slope = (1 - share) * chord + share * np.where(usual, (1 + tilt) / 2, chord)
    return np.asarray(slope), np.asarray(share * np.where(usual, g / 2, 0.0))


def deviation(low: Array, up: Array, slope: Array, bow: Array) -> ProvedInterval:
    """A range of max(x, 0) − slope·x − bow·x² over low ≤ x ≤ up: low < 0 < up, bow ≥ 0."""
    least, most = np.zeros_like(bow), np.zeros_like(bow)
    for tilt, length in ((1 - ProvedInterval(slope), up), (ProvedInterval(slope), -low)):  # of |x|, right and left of 0
        end = tilt * length - ProvedInterval(bow) * ProvedInterval(length).square()
        least = np.minimum(least, end.lo)
        turn = np.where(bow > 0, tilt.middle() / np.where(bow > 0, 2 * bow, 1.0), length)
        t = ProvedInterval(np.clip(turn, 0.0, length))
        rises = (tilt - ProvedInterval(2 * bow) * t) * length  # of the tangent at t, from 0 to the end
        most = np.maximum(most, (ProvedInterval(bow) * t.square() + np.maximum(rises.hi, 0)).hi)
    return ProvedInterval(least, most)

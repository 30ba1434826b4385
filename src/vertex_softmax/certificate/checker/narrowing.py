"""Narrowing: what is left of a box where a linear bound allows an objective to be at most a level.

Invariant: every input of a box at which the objective is at most the level satisfies Σ slope·x ≤ limit (`half_space`),
and lies in the box that `needed` returns; in exact arithmetic. So a proof over the inputs of any box around that one
that satisfy Σ slope·x ≤ limit (`CheckedCut`), and the level for all others, are a proof over the whole box.

Nothing of this is read from a file but the narrower box, which must hold the one that is needed. A larger one is sound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .file import Rejected
from .input_sets import CheckedBox, CheckedSet
from .rounding import MORE, TINY, Array, ProvedInterval, down, rounding, up

LEAST_REACH = 2.0**-500
"""Of a number that moves less than this, what a corner of the box adds to a bound is taken at its worst."""


class ProvedBound(NamedTuple):
    """Σ A·x + Σ deviation·ξ + constant, a lower bound of an objective at every input x = centre + reach·ξ of a box."""

    A: Array
    """(n,)"""
    deviation: Array
    """(n,)"""
    constant: float


class HalfSpace(NamedTuple):
    """All x with Σ slope·x ≤ limit."""

    slope: Array
    """(n,)"""
    limit: float


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedCut(CheckedBox):
    """A box, lower ≤ x ≤ upper, cut by a half-space. All but `lowest` is the box's own."""

    half: HalfSpace

    @property
    def kind(self) -> str:
        """No set that a part of a certificate may have."""
        return "cut box"

    @property
    def work(self) -> int:
        """Sorting for a multiplier."""
        return 64 * self.lower.size

    def lowest(self, A: Array, deviation: Array) -> Array:
        """The better of the box's own and −λ·limit + that of A + λ·slope: a lower bound for every λ ≥ 0."""
        found = super().lowest(A, deviation)
        price = self._price(A, deviation)
        some = np.flatnonzero(price > 0)
        if not len(some):
            return found
        slope, size, n = self.half.slope, self.box.size.ravel(), self.lower.size
        each, of = price[some], A[some]
        mixed = of + each[:, None] * slope
        cost = ProvedInterval(each) * self.half.limit
        terms = np.abs(of) @ size + each * (np.abs(slope) @ size)
        lost = rounding(n + 4) * terms * MORE + TINY * (4 * n + 4 * size.sum())  # of A + λ·slope, times |x| ≤ size
        by_cut = down(down(super().lowest(mixed, deviation[some]) - cost.hi) - up(lost))
        found[some] = np.fmax(found[some], by_cut)
        return found

    def _price(self, A: Array, deviation: Array) -> Array:
        """Multipliers λ ≥ 0 that are about the best, (S,): rounding of these costs tightness and never soundness.

        The dual value, with ξ in [−1, 1] for each number, is λ (slope·centre − limit) − Σ |b + λ·g|: concave, with
        bends at −b/g.
        """
        g, price = self.half.slope * self.reach, np.zeros(len(A))
        if not g.any():
            return price
        inverse = np.where(g != 0, -1 / np.where(g != 0, g, 1.0), 0.0)
        bends = A * (self.reach * inverse) + deviation * inverse
        ahead, size = bends > 0, np.abs(g)
        offset = self.half.slope @ self.centre - self.half.limit
        rise = offset - size.sum() + 2 * (ahead @ size)  # at the least λ > 0
        some = np.flatnonzero(rise > 0)
        if not len(some):
            return price
        bends = np.where(ahead[some], bends[some], np.inf)
        order = np.argsort(bends, -1)
        rises = rise[some, None] - np.cumsum((2 * size)[order], -1)
        count = np.minimum((rises > 0).sum(-1), np.maximum(ahead[some].sum(-1) - 1, 0))
        best = bends[np.arange(len(some)), order[np.arange(len(some)), count]]
        price[some] = np.where(np.isfinite(best), best, 0.0)
        return price


def half_space(given: CheckedSet, bound: ProvedBound, level: float) -> HalfSpace:
    """Where a linear bound over a box allows at most the level.

    deviation·ξ is deviation/reach · (x − centre); where reach is tiny it is at least −|deviation|.
    """
    if not isinstance(given, CheckedBox):
        raise Rejected("a set is to be narrowed that is no box")
    box = ProvedInterval(given.lower.ravel(), given.upper.ravel())
    A, deviation = bound.A, bound.deviation
    moves = given.reach > LEAST_REACH
    turned = ProvedInterval(np.where(moves, deviation, 0.0)) / np.where(moves, given.reach, 1.0)
    slope = A + turned.middle()
    rest = (turned + A - slope) * box - turned * given.centre - np.where(moves, 0.0, np.abs(deviation))
    constant = ProvedInterval(rest.sum().lo) + bound.constant
    limit = (ProvedInterval(level) - constant).hi
    if not (np.isfinite(slope).all() and np.isfinite(limit)):
        raise Rejected("a linear bound by which a box is to be narrowed is not finite")
    return HalfSpace(slope, float(limit))


def needed(given: CheckedSet, half: HalfSpace) -> ProvedInterval:
    """A box around all inputs of the given set's box that are in the half-space, (*shape).

    slope_j·x_j ≤ limit − the least of the other terms; if no input is left at all, any box is one.
    """
    lower, upper, slope = given.box.lo.ravel(), given.box.hi.ravel(), half.slope
    least = (ProvedInterval(slope) * ProvedInterval(lower, upper)).sum().lo
    budget = np.maximum(0.0, up(np.asarray(half.limit - least)))
    reach = np.where(slope != 0, up(budget / np.where(slope != 0, np.abs(slope), 1.0)), np.inf)
    above, below = np.minimum(upper, up(lower + reach)), np.maximum(lower, down(upper - reach))
    ends = np.where(slope < 0, below, lower), np.where(slope > 0, above, upper)
    return ProvedInterval(*(end.reshape(given.lower.shape) for end in ends))


def narrower(given: CheckedSet, half: HalfSpace, lower: Array, upper: Array) -> CheckedCut:
    """The part of a claimed box in the half-space; rejected unless the box holds the one that is needed."""
    box = needed(given, half)
    if not ((lower <= box.lo) & (box.hi <= upper)).all():
        raise Rejected("a narrower box leaves out inputs at which the objective may be at most the level")
    return CheckedCut(lower=lower, upper=upper, half=half)

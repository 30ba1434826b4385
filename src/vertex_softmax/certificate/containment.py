"""Whether one set of inputs lies in another, in exact arithmetic, without any tolerance.

Invariant: `contains` returns an empty text, and `contains_box` and `are_covering` True, only if every real point of the
inner set is a point of the outer one, or of one of the outer ones. They may miss it: sets of different kinds are
compared by the box around the inner one, and covers that are too many pieces are given up.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vertex_softmax.certificate.checker.input_sets import CheckedBalls, CheckedChoices, CheckedSet

Floats = NDArray[np.float64]
PIECES = 64
"""Into so many times as many pieces as there are boxes a box is cut at most, to see whether these cover it."""


def contains_box(outer: CheckedSet, lower: Floats, upper: Floats) -> bool:
    """Whether the box from lower to upper, (inputs,) each or of the input's shape, lies in the set."""
    low, high = lower.reshape(-1), upper.reshape(-1)
    if not ((outer.lower.reshape(-1) <= low).all() and (high <= outer.upper.reshape(-1)).all()):
        return False
    if isinstance(outer, CheckedBalls):
        return _in_balls(outer, low, high)
    if isinstance(outer, CheckedChoices):
        return all(
            (low[numbers] == high[numbers]).all() and (vectors == low[numbers]).all(1).any()
            for numbers, vectors in zip(outer.numbers, outer.vectors, strict=True)
        )
    return outer.kind == "box"


def _in_balls(outer: CheckedBalls, low: Floats, high: Floats) -> bool:
    """Whether the farthest corner of a box is in every ball."""
    middle, radius, members = (x.reshape(-1) for x in (outer.middle, outer.radius, outer.members))
    sums: dict[int, Fraction] = {}
    for i, k in enumerate(map(int, members)):
        c, r = Fraction(float(middle[i])), Fraction(float(radius[i]))
        off = max(abs(Fraction(float(end[i])) - c) for end in (low, high))
        if off and not r:
            return False
        sums[k] = sums.get(k, Fraction(0)) + ((off / r) ** outer.norm if off else 0)
    return all(total <= 1 for total in sums.values())


def are_covering(lower: Floats, upper: Floats, lowers: Floats, uppers: Floats) -> bool:
    """Whether boxes from lowers to uppers, (boxes, inputs), cover the box from lower to upper, (inputs,).

    The box is cut along faces of the boxes until one of them holds each piece. Boxes are closed, and so are pieces:
    both pieces of a cut have the points of its plane.
    """
    waiting = [(lower, upper, np.arange(len(lowers)))]
    left = PIECES * (len(lowers) + 1)
    while waiting:
        low, high, which = waiting.pop()
        meets = np.where(low < high, (lowers[which] < high) & (uppers[which] > low), True)
        meets &= (lowers[which] <= high) & (uppers[which] >= low)
        which = which[meets.all(1)]
        if ((lowers[which] <= low) & (high <= uppers[which])).all(1).any():
            continue
        cut = _cut(low, high, lowers[which], uppers[which])
        left -= 1
        if cut is None or left <= 0:
            return False
        number, at = cut
        below, above = high.copy(), low.copy()
        below[number] = above[number] = at
        waiting += [(low, below, which), (above, high, which)]
    return True


def _cut(low: Floats, high: Floats, lowers: Floats, uppers: Floats) -> tuple[int, float] | None:
    """A face strictly inside a box that goes through the fewest of the other boxes, and then halves them best.

    (number, place); None if no box has a face there: then none of them holds all of the box, or one does.
    """
    best: tuple[int, int, int, float] | None = None
    for number in np.flatnonzero(low < high):
        starts, ends = np.sort(lowers[:, number]), np.sort(uppers[:, number])
        faces = np.unique(np.concatenate([starts, ends]))
        faces = faces[(low[number] < faces) & (faces < high[number])]
        if not len(faces):
            continue
        before = np.searchsorted(ends, faces, "right")  # boxes that end at the face or before it
        through = np.searchsorted(starts, faces, "left") - before
        after = len(starts) - before - through
        k = int(np.lexsort((np.abs(before - after), through))[0])
        found = (int(through[k]), int(abs(before[k] - after[k])), int(number), float(faces[k]))
        best = found if best is None or found < best else best
    return None if best is None else best[2:]


def contains(outer: CheckedSet, inner: CheckedSet) -> str:
    """Why one set is not, or not certainly, in another of the same shape; empty if it is."""
    if isinstance(outer, CheckedBalls) and isinstance(inner, CheckedBalls):
        return _balls_in_balls(outer, inner)
    if isinstance(outer, CheckedChoices) and isinstance(inner, CheckedChoices):
        return _choices_in_choices(outer, inner)
    box = inner.box
    if contains_box(outer, box.lo, box.hi):
        return ""
    return f"it is about {_named(outer)}, and asked about is {_named(inner)}"


def _named(given: CheckedSet) -> str:
    return {"box": "a box", "choices": "a product of choices"}.get(given.kind, f"an {given.kind} ball")


def _balls_in_balls(outer: CheckedBalls, inner: CheckedBalls) -> str:
    """If the norm is not larger inside, a ball is in one around the same centre whose radii are not smaller.

    And so it is in a product of such balls for parts of its numbers.
    """
    if inner.norm > outer.norm:
        return f"its balls are in the {outer.kind} norm, and asked about is one in the {inner.kind} norm"
    moves = inner.radius > 0
    off = np.where(moves, inner.middle != outer.middle, False)
    if off.any():
        k = _first(off)
        ours, theirs = (float(x.flat[k]) for x in (inner.middle, outer.middle))
        return f"its centre is elsewhere: number {k} is {theirs!r} there and {ours!r} in the set"
    still = ~moves & (inner.middle != outer.middle)
    if still.any():
        return f"number {_first(still)} is fixed in the set, and is not the centre's number in the certificate"
    short = outer.radius < inner.radius
    if short.any():
        k = _first(short)
        ours, theirs = (float(x.flat[k]) for x in (inner.radius, outer.radius))
        return f"a radius is smaller: that of number {k} is {theirs!r} there and {ours!r} in the set"
    for k in np.unique(outer.members[moves]):
        if len(np.unique(inner.members[moves & (outer.members == k)])) > 1:
            return "numbers that move in balls of their own in the set are in one ball there"
    box = inner.box
    out = (box.lo < outer.lower) | (box.hi > outer.upper)
    return f"its box cuts off number {_first(out)} of the set" if out.any() else ""


def _choices_in_choices(outer: CheckedChoices, inner: CheckedChoices) -> str:
    """Block by block, each list is in the other's; blocks of one vector may be divided in another way."""
    place = {tuple(numbers.tolist()): k for k, numbers in enumerate(outer.numbers)}
    fixed = inner.lower.reshape(-1)
    done: set[int] = set()
    for numbers, vectors in zip(inner.numbers, inner.vectors, strict=True):
        if len(vectors) == 1:
            continue
        k = place.get(tuple(numbers.tolist()))
        if k is None:
            return "its blocks of numbers are others"
        done.add(k)
        known = {row.tobytes() for row in outer.vectors[k] + 0.0}
        for j, row in enumerate(vectors + 0.0):
            if row.tobytes() not in known:
                return f"vector {j} of the block that begins with number {numbers[0]} is no choice there"
    for k, (numbers, vectors) in enumerate(zip(outer.numbers, outer.vectors, strict=True)):
        if k not in done:
            still = inner.lower.reshape(-1)[numbers] == inner.upper.reshape(-1)[numbers]
            if not still.all() or not (vectors == fixed[numbers]).all(1).any():
                return f"the numbers of the block that begins with number {numbers[0]} are no choice there"
    return ""


def _first(where: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(where)[0])

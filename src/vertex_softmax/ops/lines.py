"""Linear bounds of a function of one number over an interval, exact where they touch.

Invariant: for every x in [l, u], lower_slope·x + lower_intercept ≤ f(x) ≤ upper_slope·x + upper_intercept, to the
rounding of f itself. Every slope is sound, because each intercept is computed from its slope as the minimum of
f(x) − slope·x over the interval: on a concave piece at the ends, on a convex piece where f' = slope, bracketed by
bisection and bounded from below by the tangent at the bracket's left end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]
BISECTIONS = 46


@dataclasses.dataclass(frozen=True, eq=False)
class Lines:
    """Slopes and intercepts of the two bounds, each shaped like the box."""

    lower_slope: Tensor
    lower_intercept: Tensor
    upper_slope: Tensor
    upper_intercept: Tensor

    def map(self, change: Function) -> Lines:
        """The same change made to all four tensors."""
        return Lines(
            lower_slope=change(self.lower_slope),
            lower_intercept=change(self.lower_intercept),
            upper_slope=change(self.upper_slope),
            upper_intercept=change(self.upper_intercept),
        )

    def where(self, condition: Tensor, other: Lines) -> Lines:
        """These lines where the condition holds, the others elsewhere."""
        return Lines(
            lower_slope=torch.where(condition, self.lower_slope, other.lower_slope),
            lower_intercept=torch.where(condition, self.lower_intercept, other.lower_intercept),
            upper_slope=torch.where(condition, self.upper_slope, other.upper_slope),
            upper_intercept=torch.where(condition, self.upper_intercept, other.upper_intercept),
        )


class Fan(NamedTuple):
    """Lines to mix: the lines of the middle, and those with the slopes of f at the left and at the right end.

    A convex combination of bounds is a bound.
    """

    middle: Lines
    left: Lines
    right: Lines

    def mixed(self, below: Tensor, above: Tensor) -> Lines:
        """The lines mixed with shares in [−1, 1] for the lower and upper side: −1 the left lines, 0 the middle, 1 the
        right ones.
        """

        def mix(share: Tensor, middle: Tensor, left: Tensor, right: Tensor) -> Tensor:
            return middle + share.abs() * (torch.where(share < 0, left, right) - middle)

        middle, left, right = self
        return Lines(
            lower_slope=mix(below, middle.lower_slope, left.lower_slope, right.lower_slope),
            lower_intercept=mix(below, middle.lower_intercept, left.lower_intercept, right.lower_intercept),
            upper_slope=mix(above, middle.upper_slope, left.upper_slope, right.upper_slope),
            upper_intercept=mix(above, middle.upper_intercept, left.upper_intercept, right.upper_intercept),
        )


class Band(NamedTuple):
    """f(x) = slope·x + middle ± half."""

    slope: Tensor
    middle: Tensor
    half: Tensor


def band(slope: Tensor, lines: Lines, box: tuple[Tensor, Tensor]) -> Band:
    """The band of a given slope around two lines over [l, u]."""
    low = torch.minimum(*((lines.lower_slope - slope) * end for end in box)) + lines.lower_intercept
    high = torch.maximum(*((lines.upper_slope - slope) * end for end in box)) + lines.upper_intercept
    return Band(slope, (low + high) / 2, (high - low) / 2)


def chord_slope(f: Function, derivative: Function, lower: Tensor, upper: Tensor) -> Tensor:
    """(f(u) − f(l)) / (u − l), and f'(l) where the interval is a point."""
    width = upper - lower
    point = width <= 0
    return torch.where(
        point, derivative(lower), (f(upper) - f(lower)) / torch.where(point, torch.ones_like(width), width)
    )


def convex_lines(f: Function, derivative: Function, lower: Tensor, upper: Tensor, touch: Tensor | None = None) -> Lines:
    """f convex on [l, u]: the tangent at `touch` (the middle) below, the chord above."""
    at = (lower + upper) / 2 if touch is None else touch
    slope = derivative(at)
    chord = chord_slope(f, derivative, lower, upper)
    left, right = f(lower), f(upper)
    above = torch.maximum(left - chord * lower, right - chord * upper)
    # the ends matter only where the derivative underflowed: then the tangent is too flat to stay below f
    below_ends = torch.minimum(left - slope * lower, right - slope * upper)
    below = torch.minimum(f(at) - slope * at, below_ends)
    return Lines(lower_slope=slope, lower_intercept=below, upper_slope=chord, upper_intercept=above)


def concave_lines(f: Function, derivative: Function, lower: Tensor, upper: Tensor) -> Lines:
    """f concave on [l, u]: the chord below, the tangent at the middle above."""
    flipped = convex_lines(lambda x: -f(x), lambda x: -derivative(x), lower, upper)
    return negated(flipped)


def negated(lines: Lines) -> Lines:
    """The bounds of −f, from those of f."""
    return Lines(
        lower_slope=-lines.upper_slope,
        lower_intercept=-lines.upper_intercept,
        upper_slope=-lines.lower_slope,
        upper_intercept=-lines.lower_intercept,
    )


def curved_lines(
    f: Function, derivative: Function, convex: Sequence[tuple[float, float]], concave: Sequence[tuple[float, float]],
    lower: Tensor, upper: Tensor,
) -> Lines:  # fmt: skip
    """f convex on some intervals and concave on the others, which together are the real line."""
    low_slope, low = _best_below(f, derivative, convex, lower, upper)
    high_slope, high = _best_below(lambda x: -f(x), lambda x: -derivative(x), concave, lower, upper)
    return Lines(lower_slope=low_slope, lower_intercept=low, upper_slope=-high_slope, upper_intercept=-high)


def _best_below(
    f: Function, derivative: Function, convex: Sequence[tuple[float, float]], lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor]:
    """Of a few slopes, the one whose line under f is highest in the middle of the interval."""
    middle = (lower + upper) / 2
    pieces = _within(convex, lower, upper)
    slopes = [derivative(middle), chord_slope(f, derivative, lower, upper)]
    ends = torch.stack([lower, upper])
    for left, right in pieces:
        slopes += _touching(f, derivative, ends, left, right)
    # all slopes at once: the boxes are small, and every call on them costs more than its numbers
    intercepts = below(f, derivative, pieces, torch.stack(slopes), lower, upper)
    best_slope, best = slopes[0], intercepts[0]
    for slope, intercept in zip(slopes[1:], intercepts[1:], strict=True):
        better = slope * middle + intercept > best_slope * middle + best
        best_slope, best = torch.where(better, slope, best_slope), torch.where(better, intercept, best)
    return best_slope, best


def curved_band(
    f: Function, derivative: Function, convex: Sequence[tuple[float, float]], concave: Sequence[tuple[float, float]],
    lower: Tensor, upper: Tensor,
) -> Band:  # fmt: skip
    """The band along the chord of a function that is convex on some intervals and concave on the others."""
    slope = chord_slope(f, derivative, lower, upper)
    low = below(f, derivative, _within(convex, lower, upper), slope, lower, upper)
    turned = _within(concave, lower, upper)
    high = -below(lambda x: -f(x), lambda x: -derivative(x), turned, -slope, lower, upper)
    return Band(slope, (low + high) / 2, (high - low) / 2)


def end_lines(
    f: Function, derivative: Function, convex: Sequence[tuple[float, float]], concave: Sequence[tuple[float, float]],
    lower: Tensor, upper: Tensor,
) -> tuple[Lines, Lines]:  # fmt: skip
    """The lines below and above with the slope of f at the left end, and with that at the right end."""
    found = []
    for end in (lower, upper):
        slope = derivative(end)
        low = below(f, derivative, _within(convex, lower, upper), slope, lower, upper)
        turned = _within(concave, lower, upper)
        high = -below(lambda x: -f(x), lambda x: -derivative(x), turned, -slope, lower, upper)
        found.append(Lines(lower_slope=slope, lower_intercept=low, upper_slope=slope, upper_intercept=high))
    return found[0], found[1]


def _within(pieces: Sequence[tuple[float, float]], lower: Tensor, upper: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The parts of [l, u] in some intervals; a point where there is none."""
    found = []
    for a, b in pieces:
        left, right = lower.clamp(min=a), upper.clamp(max=b)
        away = left > right
        found.append((torch.where(away, lower, left), torch.where(away, lower, right)))
    return found


def below(
    f: Function,
    derivative: Function,
    pieces: Sequence[tuple[Tensor, Tensor]],
    slope: Tensor,
    lower: Tensor,
    upper: Tensor,
) -> Tensor:
    """min over [l, u] of f(x) − slope·x; f is convex on `pieces` of [l, u], and concave between them.

    `slope` is shaped like the ends, or has a dimension before theirs.
    """
    least = torch.minimum(f(lower) - slope * lower, f(upper) - slope * upper)
    for left, right in pieces:
        lo, hi = left, right
        for _ in range(BISECTIONS):
            at = (lo + hi) / 2
            falling = derivative(at) < slope
            lo, hi = torch.where(falling, at, lo), torch.where(falling, hi, at)
        # f(x) − slope·x is convex on the bracket: it lies above its tangent at the bracket's left end
        bottom = f(lo) - slope * lo + (derivative(lo) - slope).clamp(max=0) * (hi - lo)
        ends = torch.minimum(f(left) - slope * left, f(right) - slope * right)
        least = torch.minimum(least, torch.minimum(bottom, ends))
    return least


def _touching(f: Function, derivative: Function, end: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """The slope of the line from (end, f(end)) that touches f in [left, right], nearly; any slope is sound.

    `end` is shaped like left and right, or has a dimension before theirs.
    """
    start = f(end)
    lo, hi = left, right
    for _ in range(BISECTIONS // 2):
        at = (lo + hi) / 2
        # the tangent at `at` passes over (end, f(end)) while `at` is too near to the end
        over = f(at) + derivative(at) * (end - at) > start
        towards = over == (end <= at)
        lo, hi = torch.where(towards, at, lo), torch.where(towards, hi, at)
    return derivative((lo + hi) / 2)


def relu_lines(lower: Tensor, upper: Tensor, free: float | None = None) -> Lines:
    """max(x, 0) on [l, u]: exact where the sign is decided, else the chord above and a line through 0 below.

    `free`: the slope of that line; None: 1 where u > −l, else 0.
    """
    on, off = lower >= 0, upper <= 0
    undecided = ~(on | off)
    width = torch.where(undecided, upper - lower, torch.ones_like(upper))
    zero, one = torch.zeros_like(lower), torch.ones_like(lower)
    chord = torch.where(undecided, upper / width, torch.where(off, zero, one))
    below = (upper > -lower).to(lower.dtype) if free is None else free * one
    slope = torch.where(undecided, below, torch.where(off, zero, one))
    # the chord through (l, 0) and (u, u), raised to meet both ends in spite of rounding
    above = torch.where(undecided, torch.maximum(-chord * lower, upper - chord * upper), zero)
    nan = lower.isnan() | upper.isnan()
    return Lines(
        lower_slope=slope,
        lower_intercept=torch.where(nan, lower + upper, zero),
        upper_slope=chord,
        upper_intercept=torch.where(nan, lower + upper, above),
    )

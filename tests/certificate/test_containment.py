"""Whether a set lies in another: never said of one that sticks out, in rationals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vertex_softmax.certificate.checker.input_sets import CheckedBalls, CheckedBox, CheckedChoices
from vertex_softmax.certificate.containment import are_covering, contains, contains_box


def ball(norm: int = 2, **change: Any) -> CheckedBalls:
    """Of four numbers in two balls, one of them fixed."""
    radius = change.get("radius", np.array([1.0, 2.0, 0.5, 0.0]))
    middle = change.get("middle", np.zeros(4))
    ends = {"lower": middle - radius, "upper": middle + radius}
    members = np.array([0, 0, 1, 1])
    return CheckedBalls(norm=norm, **{"middle": middle, "radius": radius, "members": members, **ends, **change})


def test_a_box_in_balls() -> None:
    root = np.float64(np.sqrt(0.5))
    assert Fraction(float(root)) ** 2 > Fraction(1, 2)  # rounded up
    inside = np.array([np.nextafter(root, 0), 2 * np.nextafter(root, 0), 0.5, 0.0])
    assert contains_box(ball(), -inside, inside)
    out = np.array([root, 2 * root, 0.5, 0.0])
    assert not contains_box(ball(), -out, out)
    assert not contains_box(ball(1), -inside, inside)
    assert contains_box(ball(1), -inside / 2, inside / 2)
    assert not contains_box(ball(), -inside, inside + np.array([0, 0, 0, 5e-324]))
    cut = ball(upper=np.array([0.25, 2.0, 0.5, 0.0]))
    assert not contains_box(cut, -inside, inside)
    whole = CheckedBox(lower=-np.ones(4), upper=np.ones(4))
    assert contains_box(whole, -np.ones(4), np.ones(4))
    assert not contains_box(whole, -np.ones(4), np.ones(4) + 1e-15)


@pytest.mark.parametrize(
    ("outer", "inner", "word"),
    [
        (ball(), ball(), ""),
        (ball(), ball(1), ""),
        (ball(1), ball(), "norm"),
        (ball(), ball(radius=np.array([1.0, 2.0, 0.25, 0.0])), ""),
        (ball(radius=np.array([1.0, np.nextafter(2.0, 0), 0.5, 0.0])), ball(), "radius"),
        (ball(), ball(middle=np.array([0.0, 5e-324, 0.0, 0.0])), "centre"),
        (ball(), ball(middle=np.array([0.0, 0.0, 0.0, 1.0])), "fixed"),
        (ball(), ball(members=np.zeros(4, dtype=np.int64)), ""),
        (ball(members=np.zeros(4, dtype=np.int64)), ball(), "one ball"),
        (ball(upper=np.array([1.0, 1.5, 0.5, 0.0])), ball(), "cuts"),
        (CheckedBox(lower=-3 * np.ones(4), upper=3 * np.ones(4)), ball(), ""),
        (CheckedBox(lower=-np.ones(4), upper=np.ones(4)), ball(), "a box"),
        (ball(), CheckedBox(lower=np.zeros(4), upper=np.array([0.5, 0.5, 0.0, 0.0])), ""),
        (ball(), CheckedBox(lower=np.zeros(4), upper=np.array([1.0, 0.5, 0.0, 0.0])), "ℓ2 ball"),
    ],
)
def test_balls(outer: Any, inner: Any, word: str) -> None:
    assert word in contains(outer, inner)
    assert bool(word) == bool(contains(outer, inner))


def lists(*vectors: Any, numbers: Any = ((0, 1), (2,))) -> CheckedChoices:
    places = tuple(np.array(n) for n in numbers)
    rows = tuple(np.array(v, dtype=np.float64) for v in vectors)
    ends = np.empty((2, 3))
    for n, v in zip(places, rows, strict=True):
        ends[0, n], ends[1, n] = v.min(0), v.max(0)
    return CheckedChoices(numbers=places, vectors=rows, lower=ends[0], upper=ends[1])


BOTH = lists([[0, 1], [2, 3], [0, 3]], [[5], [6]])


@pytest.mark.parametrize(
    ("inner", "fits"),
    [
        (BOTH, True),
        (lists([[0, 3], [0, 1]], [[6], [5]]), True),
        (lists([[0, 1]], [[5], [6]]), True),
        (lists([[0, 1, 5]], numbers=((0, 1, 2),)), True),
        (lists([[0, 1], [2, 1]], [[5]]), False),
        (lists([[2, 1]], [[5]]), False),
        (lists([[0, 1]], [[7]]), False),
        (lists([[0], [2]], [[1, 5]], numbers=((0,), (1, 2))), False),
        (lists([[0, 1, 5], [2, 3, 6]], numbers=((0, 1, 2),)), False),
        (lists([[np.nextafter(0, 1), 1], [2, 3]], [[5]]), False),
    ],
)
def test_choices(inner: CheckedChoices, fits: bool) -> None:
    assert (contains(BOTH, inner) == "") == fits


def test_choices_and_other_sets() -> None:
    assert contains(CheckedBox(lower=np.zeros(3), upper=np.full(3, 6.0)), BOTH) == ""
    assert contains(CheckedBox(lower=np.zeros(3), upper=np.full(3, 5.0)), BOTH)
    assert contains(BOTH, CheckedBox(lower=np.array([0.0, 1, 5]), upper=np.array([0.0, 1, 5]))) == ""
    assert contains(BOTH, CheckedBox(lower=np.array([0.0, 1, 5]), upper=np.array([0.0, 1, 6])))


GRID = st.integers(0, 4)
SPANS = st.tuples(GRID, GRID).map(sorted)


@settings(max_examples=300)
@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=6), st.tuples(SPANS, SPANS))
def test_boxes_cover_what_their_points_cover(boxes: Any, asked: Any) -> None:
    """Against all points of a grid twice as fine: pieces of boxes with whole ends have one of these inside."""
    lowers, uppers = (np.array([[side[end] for side in box] for box in boxes], dtype=float) for end in (0, 1))
    lower, upper = (np.array([side[end] for side in asked], dtype=float) for end in (0, 1))
    axes = [np.arange(lower[k], upper[k] + 0.25, 0.5) for k in range(2)]
    points = np.array([(x, y) for x in axes[0] for y in axes[1]])
    inside = ((lowers <= points[:, None]) & (points[:, None] <= uppers)).all(-1).any(1)
    assert are_covering(lower, upper, lowers, uppers) == bool(inside.all())


def test_covers_of_many_pieces() -> None:
    """All 4096 cells of a grid cover its box; one less does not; a cover that takes too many cuts is given up."""
    ends = np.arange(16.0)
    cells = np.stack(np.meshgrid(ends, ends, ends), -1).reshape(-1, 3)
    lower, upper = np.zeros(3), np.full(3, 16.0)
    assert are_covering(lower, upper, cells, cells + 1)
    for k in (0, 2000, 4095):
        assert not are_covering(lower, upper, np.delete(cells, k, 0), np.delete(cells + 1, k, 0))
    slabs = 12  # each leaves out a small middle of one number, and the box is cut along all of them
    lowers = np.concatenate([np.zeros((slabs, slabs)), 0.6 * np.eye(slabs)])
    uppers = np.concatenate([1 - 0.6 * np.eye(slabs), np.ones((slabs, slabs))])
    assert not are_covering(np.zeros(slabs), np.ones(slabs), lowers, uppers)

"""Cuts: what they leave holds every number on their side, and a batch has each branch's own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.certificate.checker.helpers import module

cuts = module("cuts")
Rejected = module("file").Rejected
NUMBERS = st.floats(-10, 10)


@given(NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, st.booleans()), max_size=4), NUMBERS)
def test_every_number_on_the_side_is_left(a: float, b: float, sides: list[tuple[float, bool]], x: float) -> None:
    """However often a range is cut; what is left where nothing is may be anything, but it is a range."""
    lo, hi = min(a, b), max(a, b)
    left = lo <= x <= hi
    for point, side in sides:
        lo, hi = cuts.Cut(1, 0, point, False, side).within(lo, hi)
        left = left and (x <= point if side else x >= point)
        assert lo <= hi
    if left:
        assert lo <= x <= hi


def test_a_cut_at_an_end() -> None:
    for point, side, expected in ((0.0, True, (0.0, 0.0)), (0.0, False, (0.0, 1.0)), (1.0, True, (0.0, 1.0))):
        assert cuts.Cut(1, 0, point, False, side).within(0.0, 1.0) == expected


def test_ranges_are_cut_on_one_side_alone() -> None:
    assert cuts.Cut(1, 0, 0.25, False, True).within(-1.0, 1.0) == (-1.0, 0.25)
    assert cuts.Cut(1, 0, 0.25, False, False).within(-1.0, 1.0) == (0.25, 1.0)


def test_a_batch_has_the_cuts_of_each_branch() -> None:
    branches = [
        {(3, 1): (0.0, 1.0, 0.5), (3, 2): (0.0, 2.0, 0.0)},
        {},
        {(4, 0): (1.0, 2.0, -1.0), (3, 1): (5.0, 6.0, 7.0)},
    ]
    found = cuts.gathered(branches)
    assert sorted(found) == [3, 4]
    assert found[3].which.tolist() == [0, 0, 2]
    assert found[3].entries.tolist() == [1, 2, 1]
    assert found[3].box.lo.tolist() == [0.0, 0.0, 5.0]
    assert found[3].box.hi.tolist() == [1.0, 2.0, 6.0]
    assert found[3].held.tolist() == [0.5, 0.0, 7.0]
    assert (found[4].which.tolist(), found[4].held.tolist()) == ([2], [-1.0])


def test_every_branch_for_several_objectives() -> None:
    one = cuts.gathered([{(3, 1): (0.0, 1.0, 0.5)}, {(3, 4): (2.0, 3.0, 0.25)}])[3]
    three = one.each(3)
    assert three.which.tolist() == [0, 1, 2, 3, 4, 5]
    assert three.entries.tolist() == [1, 1, 1, 4, 4, 4]
    assert three.box.lo.tolist() == [0.0] * 3 + [2.0] * 3
    assert three.box.hi.tolist() == [1.0] * 3 + [3.0] * 3
    assert three.held.tolist() == [0.5] * 3 + [0.25] * 3
    assert one.each(1) is one


@pytest.mark.parametrize(
    "wrong",
    [
        (0, 0, 0.0, False), (3, 0, 0.0, False), (-1, 0, 0.0, False), (True, 0, 0.0, False), (1, 4, 0.0, False),
        (1, -1, 0.0, False), (1, 0, math.nan, False), (1, 0, math.inf, False), (1, 0, 0.0, 1), (1, 0, "0", False),
        (1, 0, None, False), (1.0, 0, 0.0, False), (1, True, 0.0, False),
    ],
)  # fmt: skip
def test_cuts_that_make_no_sense(wrong: tuple[Any, ...]) -> None:
    sizes = [9, 4, 4]
    assert cuts.checked_cut(1, 3, 0.5, False, True, sizes) == cuts.Cut(1, 3, 0.5, False, True)
    with pytest.raises(Rejected):
        cuts.checked_cut(*wrong, True, sizes)


def test_arrays_are_of_their_kind() -> None:
    found = cuts.gathered([{(1, 0): (0, 1, 0)}])[1]
    assert (found.which.dtype, found.entries.dtype) == (np.int64, np.int64)
    assert (found.box.lo.dtype, found.box.hi.dtype, found.held.dtype) == (np.float64,) * 3

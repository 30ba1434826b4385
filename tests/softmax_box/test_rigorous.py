"""Proofs in ball arithmetic: True means proved, False means refuted, and None is an answer too."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box.boxes import FAMILIES
from tests.softmax_box.checks import check_enclosure, known
from tests.softmax_box.helpers import DTYPES, exact_min
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError
from vertex_softmax.softmax_box import rigorous

HALF = (np.array([0.0, 1.0]), np.zeros(2), np.zeros(2))


def test_a_bound_that_is_exactly_attained_is_proved() -> None:
    """φ(½) is exactly zero, which no ball can show; Lindemann–Weierstrass can."""
    assert vx.is_lower_bound(0.5, *HALF) is True
    assert vx.is_lower_bound(math.nextafter(0.5, 1), *HALF) is False
    assert vx.is_lower_bound(math.nextafter(0.5, 0), *HALF) is True


def test_exact_zeros_at_scores_that_are_not_zero() -> None:
    c, scores = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.1, 0.1, -7.3, -7.3])
    assert vx.is_lower_bound(0.5, c, scores, scores) is True
    assert vx.is_lower_bound(math.nextafter(0.5, 1), c, scores, scores) is False
    almost = scores + np.array([0, 0, 0, 5e-16 * 8])
    assert vx.is_lower_bound(0.5, c, scores, almost) is True
    assert vx.is_lower_bound(0.5, c, scores - np.array([0, 0, 0, 5e-16 * 8]), scores) is False


def test_the_trivial_bounds_are_decided_without_arithmetic() -> None:
    assert vx.is_lower_bound(0.0, *HALF) is True
    assert vx.is_lower_bound(-math.inf, *HALF) is True
    assert vx.is_lower_bound(math.inf, *HALF) is False
    assert vx.is_lower_bound(1.0, *HALF) is False


def test_a_coefficient_of_a_masked_key_is_no_bound() -> None:
    c, ends = np.array([-9.0, 1.0]), np.array([-np.inf, 0.0])
    assert vx.is_lower_bound(1.0, c, ends, ends) is True
    assert vx.is_lower_bound(math.nextafter(1.0, 2), c, ends, ends) is False


def test_none_where_the_working_precision_is_not_enough() -> None:
    """φ(½) = ¼ e^{−20001} > 0 beside terms that cancel exactly but are not exact numbers: 28,000 bits would show it."""
    c, lower, upper = np.array([0.0, 1.0, 0.75]), np.array([0.0, 0.0, -20000.0]), np.array([0.0, 0.0, 1.0])
    assert vx.is_lower_bound(0.5, c, lower, upper) in (None, True)
    assert vx.is_lower_bound(math.nextafter(0.5, 1), c, lower, upper) is False
    assert vx.is_lower_bound(math.nextafter(0.5, 0), c, lower, upper) is True


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_neighbours_of_the_exact_minimum_are_told_apart(name, dtype) -> None:
    """The float below the minimum is proved, the float above refuted: one ulp decides, never rounding."""
    for keys, rows in {1: 5, 2: 30, 5: 20, 33: 3}.items():
        case = known(name, rows, keys, dtype)
        for i, ball in enumerate(case.exact):
            row = [x[i] for x in case.boxes]
            near = float(ball)
            below, above = math.nextafter(near, -math.inf), math.nextafter(near, math.inf)
            assert vx.is_lower_bound(below, *row) is True, (keys, i)
            assert vx.is_lower_bound(above, *row) is False, (keys, i)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_enclosures_contain_the_minimum_and_are_narrow(name, dtype) -> None:
    """Also at extreme ranges the ends are a few ulps apart, relative to the largest coefficient."""
    cases = [known(name, rows, keys, dtype) for keys, rows in {1: 5, 2: 30, 5: 20, 33: 3, 512: 1}.items()]
    check_enclosure(vx.softmax_box_enclosure, cases, narrow=1e-12)


def test_enclosures_are_float64_also_of_float32() -> None:
    c, lower, upper = np.float32([0.1, 0.9]), np.float32([-1, -1]), np.float32([1, 1])
    lo, hi = vx.softmax_box_enclosure(c, lower, upper)
    assert lo.dtype == hi.dtype == np.float64
    assert lo < exact_min(c, lower, upper) < hi
    assert hi - lo <= 4 * math.ulp(float(lo))


def test_batches_and_broadcasting() -> None:
    c, lower, upper = np.tile([0.0, 1.0], (5, 1, 1)), np.zeros((3, 2)), np.zeros(2)
    lo, hi = vx.softmax_box_enclosure(c, lower, upper)
    assert lo.shape == hi.shape == (5, 3)
    answers = vx.is_lower_bound(np.array([0.4, 0.5, 0.6]), c, lower, upper)
    assert answers.shape == (5, 3)
    assert answers.tolist() == [[True, True, False]] * 5
    as_tensor = vx.is_lower_bound(torch.tensor([0.4, 0.5, 0.6]), *(torch.from_numpy(x) for x in (c, lower, upper)))
    assert as_tensor.tolist() == answers.tolist()


def test_claims_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="t is NaN"):
        vx.is_lower_bound(math.nan, *HALF)
    with pytest.raises(InvalidValueError, match=r"t of shape \(2,\) does not broadcast"):
        vx.is_lower_bound(np.zeros(2), *HALF)
    with pytest.raises(vx.VertexError):
        vx.is_lower_bound("half", *HALF)
    with pytest.raises(InvalidValueError, match=r"lower is NaN at index \(1,\)"):
        vx.is_lower_bound(0.0, HALF[0], np.array([0.0, np.nan]), HALF[2])
    with pytest.raises(InvalidValueError, match="c is NaN"):
        vx.softmax_box_enclosure(np.array([np.nan, 0.0]), HALF[1], HALF[2])


@pytest.mark.parametrize(
    ("c", "lower", "upper"),
    [
        ([1.7e308, 1.6e308], [0.0, 0.0], [1.0, 1.0]),
        ([1.7e308, -1.7e308], [0.0, 0.0], [1.0, 1.0]),
        ([0.0, 1.0], [-1.7e308, -1.7e308], [1.7e308, 1.7e308]),
        ([5e-324, 1e-323, -5e-324], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]),
    ],
)
def test_enclosures_at_the_ends_of_the_range(c, lower, upper) -> None:
    lo, hi = vx.softmax_box_enclosure(np.array(c), np.array(lower), np.array(upper))
    exact = exact_min(c, lower, upper)
    assert not lo > exact
    assert not hi < exact


def test_without_python_flint_the_error_names_the_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    for call in (vx.softmax_box_enclosure, lambda *box: vx.is_lower_bound(0.0, *box)):
        with pytest.raises(MissingDependencyError, match=r"vertex-softmax\[proof\]") as caught:
            call(*HALF)
        assert isinstance(caught.value, ImportError)
        assert isinstance(caught.value, vx.VertexError)


def test_conversions_step_outward() -> None:
    flint = rigorous.imported_flint()
    with flint.ctx.workprec(128):
        third = flint.arb(1) / 3
        assert flint.arb(rigorous._down(flint, third)) < third < flint.arb(rigorous._up(flint, third))
        assert rigorous._down(flint, flint.arb(0.25)) == rigorous._up(flint, flint.arb(0.25)) == 0.25

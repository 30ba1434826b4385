"""The exact range of every softmax component."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb
from hypothesis import given
from hypothesis import strategies as st

import vertex_softmax as vx
from tests.softmax_box.checks import check_probabilities, known
from tests.softmax_box.helpers import DTYPES, exact_probabilities, exact_ratio
from vertex_softmax.softmax_box import reference

NAMES = (
    "ordinary",
    "wide",
    "full_range",
    "dominating",
    "duplicates",
    "masked",
    "degenerate",
    "one_ulp_wide",
    "huge_scores",
)
SIZES = {1: 10, 2: 40, 3: 30, 5: 20, 9: 10, 33: 4, 70: 2}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != "huge_scores"])
def test_ranges_are_exact_to_rounding(name, dtype) -> None:
    check_probabilities(vx.softmax_box_probabilities, [known(name, rows, keys, dtype) for keys, rows in SIZES.items()])


def test_ranges_agree_with_the_reference() -> None:
    lower, upper = np.array([-1.0, 0.0, 2.0, -3.0]), np.array([0.0, 0.5, 2.0, 3.0])
    np.testing.assert_allclose(
        vx.softmax_box_probabilities(lower, upper), reference.probabilities(lower, upper), rtol=1e-14
    )


def test_ranges_are_the_bounds_of_unit_coefficients() -> None:
    """p_j is c · softmax(s) with c = e_j: a second algorithm for the same numbers."""
    _, lower, upper = (x.double() for x in known("ordinary", 20, 6, torch.float64).boxes)
    low, high = vx.softmax_box_bounds(torch.eye(6, dtype=torch.float64), lower[:, None], upper[:, None])
    got = vx.softmax_box_probabilities(lower, upper)
    torch.testing.assert_close(got[0], low, rtol=0, atol=1e-14)
    torch.testing.assert_close(got[1], high, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_outward_ranges_contain_the_exact_ones(name, dtype) -> None:
    """Zero tolerance, decided by the oracle."""
    for keys, rows in SIZES.items():
        _, lower, upper = known(name, rows, keys, dtype).boxes
        least, greatest = (x.tolist() for x in vx.softmax_box_probabilities(lower, upper, outward=True))
        for i, (row_l, row_u) in enumerate(zip(lower.tolist(), upper.tolist(), strict=True)):
            for j, (low, high) in enumerate(exact_probabilities(row_l, row_u)):
                assert 0 <= least[i][j] <= greatest[i][j] <= 1
                assert not arb(least[i][j]) > low, (name, keys, i, j)
                assert not arb(greatest[i][j]) < high, (name, keys, i, j)


@given(st.lists(st.tuples(st.floats(-40, 40), st.floats(0, 40)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_no_point_of_the_box_leaves_the_outward_range(keys, seed) -> None:
    lower = np.array([k[0] for k in keys])
    upper = lower + np.array([k[1] for k in keys])
    least, greatest = vx.softmax_box_probabilities(lower, upper, outward=True)
    scores = np.clip(lower + np.random.default_rng(seed).random(len(keys)) * (upper - lower), lower, upper)
    for j in range(len(keys)):
        value = exact_ratio(np.eye(len(keys))[j], scores)
        assert not value < float(least[j])
        assert not value > float(greatest[j])


def test_outward_is_close_at_ordinary_ranges() -> None:
    _, lower, upper = known("ordinary", 40, 9, torch.float64).boxes
    plain, sure = vx.softmax_box_probabilities(lower, upper), vx.softmax_box_probabilities(lower, upper, outward=True)
    for a, b in zip(plain, sure, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-300)


def test_masked_keys_have_probability_zero_and_one_key_has_one() -> None:
    lower, upper = np.array([0.0, -np.inf, 1.0]), np.array([1.0, -np.inf, 1.0])
    least, greatest = vx.softmax_box_probabilities(lower, upper)
    assert least[1] == greatest[1] == 0
    for ends in (([-5.0], [5.0]), ([-5000.0], [5000.0]), ([-1.0, -np.inf], [1.0, -np.inf])):
        least, greatest = vx.softmax_box_probabilities(*map(np.array, ends))
        assert least[0] == greatest[0] == 1


def test_a_row_with_a_very_wide_key_keeps_the_digits_of_the_others() -> None:
    """Where the wide key sits low, the others are compared with each other, not with its far upper end."""
    exact = np.exp([3, 5]) / (1 + np.exp(3) + np.exp(5))
    for far in (1e3, 1e9, 1e14, 1e300):
        _, greatest = vx.softmax_box_probabilities(np.array([0.0, 3.0, 5.0]), np.array([far, 3.0, 5.0]))
        np.testing.assert_allclose(greatest[1:], exact, rtol=1e-12)


def test_scores_whose_differences_overflow() -> None:
    for outward in (False, True):
        least, greatest = vx.softmax_box_probabilities(
            np.array([-1.7e308, -1.7e308]), np.array([1.7e308, -1.6e308]), outward=outward
        )
        assert least.tolist() == [0, 0]
        assert greatest[0] == 1
        assert greatest[1] == 1


def test_a_dominating_key_keeps_its_small_lower_end() -> None:
    """Total minus own would answer 1: e^{−40} is lost against e^{40}."""
    least, _ = vx.softmax_box_probabilities(np.array([-40.0, 0.0]), np.array([40.0, 0.0]))
    assert least[0] == pytest.approx(np.exp(-40), rel=1e-12)

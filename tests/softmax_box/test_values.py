"""Every implementation gives the exact minimum, to the accuracy that helpers.tolerance states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flint import arb

import vertex_softmax as vx
from tests.softmax_box.boxes import FAMILIES, family
from tests.softmax_box.checks import check_values, known
from tests.softmax_box.helpers import DTYPES, IMPLEMENTATIONS, enumerated_min, exact_min, exact_mins, tolerance
from vertex_softmax.softmax_box import reference

SIZES = {1: 10, 2: 60, 3: 60, 5: 40, 8: 20, 9: 20, 16: 20, 17: 10, 33: 10, 65: 10, 130: 4, 200: 4}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_value_is_the_exact_minimum(name: str, dtype: torch.dtype, implementation: str) -> None:
    check_values(IMPLEMENTATIONS[implementation], (known(name, rows, keys, dtype) for keys, rows in SIZES.items()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_value_is_the_least_of_all_vertices(name: str, dtype: torch.dtype) -> None:
    """Theorem 1 alone: 2^K vertices, K ≤ 14. The enumeration itself is float64, so it gets its own tolerance."""
    for keys in range(1, 15):
        boxes = family(name, 6 if keys < 12 else 2, keys, dtype)
        least = enumerated_min(*boxes)
        allowed = tolerance(*boxes) + tolerance(*(x.double() for x in boxes))
        for algorithm in ("newton", "threshold"):
            got = vx.softmax_box_min(*boxes, algorithm=algorithm)
            assert bool(((got.double() - least).abs() <= allowed).all()), (keys, algorithm)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_with_thousands_of_keys(dtype: torch.dtype, implementation: str) -> None:
    names = ("ordinary", "wide", "ties", "masked", "offset", "full_range")
    cases = [known(name, 1, keys, dtype) for name in names for keys in (1000, 4096)]
    check_values(IMPLEMENTATIONS[implementation], cases)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FAMILIES)
def test_algorithms_and_both_ends_agree(name: str, dtype: torch.dtype) -> None:
    """min, max and bounds, newton and threshold: the same numbers to twice the tolerance; max is −min(−c)."""
    for keys in (1, 2, 7, 40, 150):
        c, lower, upper = family(name, 30, keys, dtype, seed=1)
        allowed = 2 * tolerance(c, lower, upper)
        least, greatest = vx.softmax_box_bounds(c, lower, upper)
        assert torch.equal(least, vx.softmax_box_min(c, lower, upper))
        assert torch.equal(greatest, vx.softmax_box_max(c, lower, upper))
        assert torch.equal(greatest, -vx.softmax_box_min(-c, lower, upper))
        sorted_least, sorted_greatest = vx.softmax_box_bounds(c, lower, upper, algorithm="threshold")
        assert bool(((least.double() - sorted_least.double()).abs() <= allowed).all()), keys
        assert bool(((greatest.double() - sorted_greatest.double()).abs() <= allowed).all()), keys
        assert bool((least.double() - greatest.double() <= allowed).all())


def test_the_oracle_agrees_with_the_reference_and_with_enumeration() -> None:
    for keys in (1, 2, 5, 9):
        boxes = family("wide", 10, keys, torch.float64)
        balls = exact_mins(*boxes)
        for ball, least, row, allowed in zip(
            balls, enumerated_min(*boxes), zip(*(x.numpy() for x in boxes), strict=True), tolerance(*boxes), strict=True
        ):
            for value in (
                least,
                reference.exhaustive_min(*row),
                reference.threshold_min(*row),
                reference.newton_min(*row),
            ):
                assert float(abs(arb(float(value)) - ball).upper()) <= allowed


def test_a_key_that_dominates_at_its_upper_end_moves_down_when_that_is_better() -> None:
    """Newton without a band stops an ulp above c_k here and answers c_k instead of almost −1."""
    wrong = 0
    for width in (20.0, 35.0, 50.0, 59.0):
        for middle in np.float32(np.linspace(0.05, 0.95, 200)):
            c, lower, upper = np.float32([middle, -1, 1]), np.float32([-width, 0, 0]), np.float32([width, 0, 0])
            exact = float(exact_min(c, lower, upper))
            got = float(vx.softmax_box_min(c, lower, upper))
            wrong += abs(got - exact) > 1e-5
    assert wrong == 0


@pytest.mark.parametrize("value", [1e-300, 1e300, 1.7e308, -1.7e308, 0.0, -0.0, 5e-324])
def test_equal_coefficients_of_any_size_give_that_coefficient(value: float) -> None:
    c, lower, upper = np.full(3, value), np.array([-1.0, 0.0, -500.0]), np.array([2.0, 0.0, 500.0])
    for outward in (False, True):
        least, greatest = vx.softmax_box_bounds(c, lower, upper, outward=outward)
        assert least == pytest.approx(value, rel=1e-12)
        assert greatest == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e300, 1.7e308])
def test_coefficients_near_the_ends_of_the_range(scale: float) -> None:
    c, lower, upper = np.array([-1.0, 0.25, 1.0]) * scale, np.zeros(3), np.ones(3)
    expected = vx.softmax_box_min(c / scale, lower, upper)
    assert vx.softmax_box_min(c, lower, upper) / scale == pytest.approx(expected, rel=1e-13)
    assert vx.softmax_box_min(c, lower, upper, algorithm="threshold") / scale == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize(
    ("c", "lower", "upper", "expected"),
    [
        ([1e-300, 2e-300], [-300.0, -300.0], [-300.0, 0.0], 1.5e-300),
        ([1e-40, 2e-40], [-590.0, -590.0], [-590.0, 0.0], 1.5e-40),
    ],
)
def test_small_coefficients_times_small_weights_do_not_underflow(c, lower, upper, expected) -> None:
    for algorithm in ("newton", "threshold"):
        got = vx.softmax_box_min(np.array(c), np.array(lower), np.array(upper), algorithm=algorithm)
        assert got == pytest.approx(expected, rel=1e-12)


def test_small_single_precision_coefficients_times_small_weights_do_not_underflow() -> None:
    c, lower, upper = np.float32([1e-20, 2e-20]), np.float32([-55, -55]), np.float32([-55, 0])
    for algorithm in ("newton", "threshold"):
        assert vx.softmax_box_min(c, lower, upper, algorithm=algorithm) == pytest.approx(1.5e-20, rel=1e-5)


@pytest.mark.parametrize("edge", [1e4, 1e300, 1.7e308])
def test_scores_near_the_ends_of_the_range(edge: float) -> None:
    c = np.array([0.0, 1.0])
    both = np.array([-edge, -edge]), np.array([edge, edge])
    assert [float(x) for x in vx.softmax_box_bounds(c, *both)] == [0.0, 1.0]
    apart = np.array([-edge, edge]), np.array([-edge, edge])
    assert [float(x) for x in vx.softmax_box_bounds(c, *apart)] == [1.0, 1.0]
    equal = np.array([edge, edge]), np.array([edge, edge])
    assert [float(x) for x in vx.softmax_box_bounds(c, *equal)] == [0.5, 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_key_gives_its_coefficient(dtype: torch.dtype) -> None:
    c, lower, upper = family("full_range", 50, 1, dtype)
    for algorithm in ("newton", "threshold"):
        got = vx.softmax_box_min(c, lower, upper, algorithm=algorithm)
        assert bool(((got - c[:, 0]).abs() <= tolerance(c, lower, upper)).all())
        assert torch.equal(vx.softmax_box_min(c, lower, upper, algorithm=algorithm, outward=True), c[:, 0])

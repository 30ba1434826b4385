"""Every figure against its definition, written out slowly."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vertex_lab.experiments import statistics
from vertex_lab.experiments.statistics import DRAWS, mean_error, near_zero, only, paired, rate_error, resampled

numbers = st.floats(-1e3, 1e3, allow_nan=False).map(lambda x: round(x, 6))
pairs = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=40)


def middle(values: list[Fraction]) -> Fraction:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@given(pairs)
def test_paired_is_its_definition(found: list[tuple[float, float]]) -> None:
    differences = [Fraction(b) - Fraction(a) for a, b in found]
    result = paired([a for a, _ in found], [b for _, b in found])
    assert result.trials == len(found)
    assert result.mean == pytest.approx(float(sum(differences) / len(found)), abs=1e-9)
    assert result.median == pytest.approx(float(middle(differences)), abs=1e-9)
    assert result.improved == sum(d > Fraction(1, 10**8) for d in differences) / len(found)  # none is in between


def test_improved_is_by_more_than_rounding() -> None:
    assert paired([1.0] * 4, [1.0, 1.0 + 5e-10, 1.0 + 2e-9, 0.5]).improved == 0.25
    assert paired([0.0], [statistics.IMPROVED]).improved == 0.0


def test_paired_refuses_what_is_not_the_same_trials() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [])
    with pytest.raises(TypeError):
        paired([None, 1.0], [1.0, 1.0])  # type: ignore[list-item]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_only_counts_what_one_alone_certifies(found: list[tuple[bool, bool]]) -> None:
    a, b = [x for x, _ in found], [y for _, y in found]
    kinds = [(x, y) for x, y in found if x != y]
    assert only(a, b) == (kinds.count((False, True)), kinds.count((True, False)))
    assert only(b, a) == only(a, b)[::-1]


def test_only_refuses_lists_of_two_lengths() -> None:
    with pytest.raises(ValueError, match="zip"):
        only([True], [True, False])


def test_two_seeds_are_known_exactly() -> None:
    """The mean of two draws of {a, b} is a, (a + b)/2, b with probabilities 1/4, 1/2, 1/4."""
    for a, b in ((1.0, 2.0), (2.0, 1.0), (-3.5, 8.25)):
        low, middle_value, high = min(a, b), (a + b) / 2, max(a, b)
        assert resampled({0: a, 1: b}) == (2, middle_value, low, high)
        assert resampled({0: a, 1: b}, level=0.6) == (2, middle_value, low, high)  # 0.2 and 0.8
        assert resampled({0: a, 1: b}, level=0.4) == (2, middle_value, middle_value, middle_value)  # 0.3 and 0.7


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("seeds", [3, 4, 5])
def test_the_interval_is_that_of_all_possible_draws(seeds: int, level: float) -> None:
    values = [math.sin(7.3 * i) for i in range(seeds)]
    means = sorted(math.fsum(draw) / seeds for draw in itertools.product(values, repeat=seeds))
    found = resampled(dict(enumerate(values)), level=level)
    assert found.seeds == seeds
    assert found.mean == pytest.approx(math.fsum(values) / seeds, abs=1e-12)
    chance = 5 * math.sqrt(level * (1 - level) / DRAWS)  # five standard errors of a share of the draws
    for end, share in ((found.low, (1 - level) / 2), (found.high, (1 + level) / 2)):
        least = means[max(0, int((share - chance) * len(means)) - 1)]
        most = means[min(len(means) - 1, int((share + chance) * len(means)) + 1)]
        assert least - 1e-12 <= end <= most + 1e-12


def test_resampling_is_the_same_every_time_and_for_every_order() -> None:
    values = {seed: math.sin(seed * seed) for seed in (3, 1, 9, 2, 8, 5, 12, 0, 4, 17)}  # means of many different sizes
    first = resampled(values)
    assert first == resampled(values) == resampled(dict(sorted(values.items())))
    assert first.low < first.mean < first.high
    assert len({resampled(values, seed=seed) for seed in range(5)}) == 5


def test_one_seed_has_no_interval_and_none_has_nothing() -> None:
    assert resampled({4: 0.75}) == (1, 0.75, 0.75, 0.75)
    for found in (paired([], []), resampled({})):
        assert found[0] == 0
        assert all(math.isnan(x) for x in found[1:])
    assert only([], []) == (0, 0)
    assert near_zero([], 1.0) == 0
    assert math.isnan(rate_error(0.5, 0))
    assert math.isnan(mean_error([]))
    assert math.isnan(mean_error([1.0]))


@given(st.lists(numbers, max_size=30), st.floats(1e-9, 10))
def test_near_zero_counts_the_half_open_interval(margins: list[float], limit: float) -> None:
    assert near_zero(margins, limit) == len([m for m in margins if m > 0 and not m > limit])


def test_near_zero_at_the_ends() -> None:
    assert near_zero([0.0, -0.0, 1e-6, math.nextafter(1e-6, 1), 5e-324], 1e-6) == 2


@given(st.integers(0, 50), st.integers(1, 50))
def test_the_error_of_a_rate(hits: int, misses: int) -> None:
    """√(r (1 − r)/n) is the standard deviation of 0s and 1s over √n."""
    outcomes = [1] * hits + [0] * misses
    n = len(outcomes)
    mean = Fraction(hits, n)
    variance = sum((x - mean) ** 2 for x in outcomes) / n
    assert rate_error(hits / n, n) == pytest.approx(math.sqrt(variance / n), abs=1e-12)


@given(st.lists(numbers, min_size=2, max_size=20))
def test_the_error_of_a_mean(values: list[float]) -> None:
    exact = [Fraction(x) for x in values]
    mean = sum(exact) / len(exact)
    variance = sum((x - mean) ** 2 for x in exact) / (len(exact) - 1)
    assert mean_error(values) == pytest.approx(math.sqrt(variance / len(exact)), rel=1e-9, abs=1e-9)

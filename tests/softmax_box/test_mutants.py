"""The checks have teeth: each broken variant of mutants.py fails the check that the real implementations pass."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

import vertex_softmax as vx
from tests.softmax_box import mutants
from tests.softmax_box.checks import (
    Known,
    accepted,
    check_acceptance,
    check_enclosure,
    check_not_vacuous,
    check_outward,
    check_probabilities,
    check_values,
    check_vertex,
    known,
)
from tests.softmax_box.helpers import DTYPES, IMPLEMENTATIONS
from vertex_softmax.softmax_box import ThresholdVertex
from vertex_softmax.softmax_box.outward import SAFETY

NAMES = ("ordinary", "wide", "dominating", "ties", "masked", "rounded_scores", "tiny_coefficients", "full_range")


def cases(*names: str, rows: int = 300) -> list[Known]:
    return [known(name, rows, keys, dtype) for name in names or NAMES for keys in (2, 3, 5, 17, 40) for dtype in DTYPES]


@pytest.mark.parametrize("mutation", mutants.VALUE_MUTATIONS)
def test_wrong_threshold_algorithms_are_caught(mutation: str) -> None:
    with pytest.raises(AssertionError, match="is off by"):
        check_values(functools.partial(mutants.by_thresholds, mutation=mutation), cases("ordinary", "wide", rows=60))


@pytest.mark.parametrize("mutant", [mutants.newton_without_band, mutants.newton_without_rounds])
def test_wrong_newton_iterations_are_caught(mutant: Callable) -> None:
    with pytest.raises(AssertionError, match="is off by"):
        check_values(mutant, cases("wide", "dominating"))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_same_values_check_passes_for_the_real_ones(implementation: str) -> None:
    check_values(IMPLEMENTATIONS[implementation], cases("ordinary", "wide", "dominating", rows=60))


def test_the_unmutated_threshold_algorithm_passes() -> None:
    check_values(mutants.by_thresholds, cases("ordinary", "wide", rows=60))


@pytest.mark.parametrize("mutant", mutants.OUTWARD_MUTANTS)
def test_wrong_proofs_of_rounding_are_caught(mutant: str) -> None:
    with pytest.raises(AssertionError, match="is above"):
        check_outward(mutants.OUTWARD_MUTANTS[mutant], cases())


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_same_outward_check_passes_for_the_real_ones(implementation: str) -> None:
    check_outward(IMPLEMENTATIONS[implementation], cases())


def test_a_rounding_bound_of_half_the_size_is_caught() -> None:
    with pytest.raises(AssertionError, match="was accepted"):
        check_acceptance(functools.partial(accepted, safety=SAFETY / 2), cases("rounded_scores"))


def test_no_candidate_above_the_minimum_is_accepted() -> None:
    assert check_acceptance(accepted, cases("ordinary", "wide", "offset", "ties", "rounded_scores")) > 50_000


@pytest.mark.parametrize("mutant", mutants.PROBABILITY_MUTANTS)
def test_wrong_ranges_of_probabilities_are_caught(mutant: Callable) -> None:
    with pytest.raises(AssertionError, match="key"):
        check_probabilities(mutant, cases("wide", rows=20))


def test_the_same_probabilities_check_passes_for_the_real_one() -> None:
    check_probabilities(vx.softmax_box_probabilities, cases("ordinary", "wide", "masked", "dominating", rows=20))


def test_an_outward_that_gives_up_is_caught() -> None:
    with pytest.raises(AssertionError, match="of the allowed gap"):
        check_not_vacuous(
            lambda c, *ends, outward=False: c.amin(-1) if outward else vx.softmax_box_min(c, *ends), cases()
        )


@pytest.mark.parametrize("mutant", mutants.ENCLOSURE_MUTANTS)
def test_wrong_enclosures_are_caught(mutant: str) -> None:
    with pytest.raises(AssertionError):
        check_enclosure(mutants.ENCLOSURE_MUTANTS[mutant], cases("ordinary", rows=30), narrow=1e-12)


def test_the_same_enclosure_check_passes_for_the_real_one() -> None:
    check_enclosure(vx.softmax_box_enclosure, cases("ordinary", rows=30), narrow=1e-12)


def compared_with_the_rounded_value(c: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> ThresholdVertex:
    """A key that dominates at its upper end has c_j = value after rounding, and falls out of the mask."""
    value = vx.softmax_box_min(c, lower, upper)
    mask = (c < value[:, None]) & (upper > -torch.inf)
    return ThresholdVertex(value, mask, mask.sum(-1))


def all_upper_ends(c: torch.Tensor, lower: torch.Tensor, upper: torch.Tensor) -> ThresholdVertex:
    mask = upper > -torch.inf
    return ThresholdVertex(vx.softmax_box_min(c, lower, upper), mask, mask.sum(-1))


@pytest.mark.parametrize("mutant", [compared_with_the_rounded_value, all_upper_ends])
def test_wrong_vertices_are_caught(mutant: Callable) -> None:
    with pytest.raises(AssertionError, match="the vertex has value"):
        check_vertex(mutant, cases("wide", "dominating", rows=60))

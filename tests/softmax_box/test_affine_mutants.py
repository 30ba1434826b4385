"""The checks of the affine vertex rule have teeth: each broken variant fails one that the real rule passes."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.softmax_box import affine_mutants
from tests.softmax_box.affine_checks import (
    Known,
    Minorant,
    Rows,
    check_not_vacuous,
    check_outward,
    check_ranges,
    check_values,
    known,
    tolerance,
)
from tests.softmax_box.helpers import DTYPES
from vertex_softmax.softmax_box import affine_minorant
from vertex_softmax.softmax_box.affine_outward import proved_ranges


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors on a busy machine: threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cases() -> list[Known]:
    return [known(250, K, M, dtype) for K, M in ((1, 1), (2, 1), (3, 2), (5, 1), (4, 5)) for dtype in DTYPES]


def lowered(minorant: Minorant, *box: torch.Tensor, outward: bool = False) -> torch.Tensor:
    """Rounding is no excuse: the result less twice what is allowed for it."""
    return minorant(*box) - 2 * tolerance(Rows(*box)).to(box[-1].dtype)


@pytest.mark.parametrize("mutation", [*affine_mutants.UNSOUND, *affine_mutants.LOOSE])
def test_wrong_rules_are_caught(mutation: str) -> None:
    with pytest.raises(AssertionError, match="is off by"):
        check_values(functools.partial(affine_mutants.by_cut, mutation=mutation), cases())


@pytest.mark.parametrize("mutation", affine_mutants.UNSOUND)
def test_unsound_rules_are_above_the_exact_one(mutation: str) -> None:
    with pytest.raises(AssertionError, match="is above"):
        check_outward(functools.partial(lowered, functools.partial(affine_mutants.by_cut, mutation=mutation)), cases())


@pytest.mark.parametrize("minorant", [affine_mutants.by_cut, affine_minorant])
def test_the_same_checks_pass_for_the_unmutated_ones(minorant: Minorant) -> None:
    check_values(minorant, cases())
    check_outward(functools.partial(lowered, minorant), cases())


@pytest.mark.parametrize("mutant", affine_mutants.PROOFS)
def test_wrong_proofs_of_rounding_are_caught(mutant: str) -> None:
    with pytest.raises(AssertionError, match="is above"):
        check_outward(affine_mutants.PROOFS[mutant], cases())


@pytest.mark.parametrize("mutant", affine_mutants.RANGES)
def test_ranges_that_are_not_widened_are_caught(mutant) -> None:
    with pytest.raises(AssertionError, match=r"cut short|key"):
        check_ranges(mutant, cases())


def test_an_outward_that_gives_up_is_caught() -> None:
    with pytest.raises(AssertionError, match="of the allowed gap"):
        check_not_vacuous(affine_mutants.with_unit(1000.0), cases())


def test_the_same_checks_pass_for_the_real_proof() -> None:
    check_outward(affine_minorant, cases())
    check_ranges(proved_ranges, cases())
    check_not_vacuous(affine_minorant, cases())

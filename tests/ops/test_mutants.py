"""The checks have teeth: every broken rule of mutants.py fails the check that the real ones pass."""

from __future__ import annotations

import pytest

from tests.ops.mutants import MUTANTS, affine_forms, contract, network
from vertex_softmax.ops import OPS


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name: str) -> None:
    broken, check = MUTANTS[name]
    with broken(), pytest.raises(AssertionError):
        check()


def test_the_real_ones_pass_the_same_checks() -> None:
    contract(*OPS)
    network()
    affine_forms()

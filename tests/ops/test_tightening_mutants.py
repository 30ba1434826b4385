"""The checks of the tightenings have teeth: every broken rule of tightening_mutants.py fails one."""

from __future__ import annotations

import pytest

from tests.ops.tightening_mutants import CHECKS, MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name: str) -> None:
    broken, check = MUTANTS[name]
    with broken(), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", CHECKS)
def test_the_real_ones_pass_the_same_checks(check: str) -> None:
    CHECKS[check]()

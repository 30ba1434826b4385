"""The checks of the faces have teeth: every broken face of face_mutants.py fails one."""

from __future__ import annotations

import pytest

from tests.ops.face_mutants import CHECKS, MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name: str) -> None:
    broken, check = MUTANTS[name]
    with broken(), pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("check", CHECKS)
def test_the_real_ones_pass_the_same_checks(check: str) -> None:
    CHECKS[check]()

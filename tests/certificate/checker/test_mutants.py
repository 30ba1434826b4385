"""The tests have teeth: each broken copy of mutants.py fails the tests that the real files pass."""

from __future__ import annotations

import pytest

from tests.certificate.checker import mutants


@pytest.mark.slow
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda m: f"{m.file}: {m.name}")
def test_a_fault_is_caught(mutant: mutants.Mutant) -> None:
    assert not mutants.survives(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted({mutant.file for mutant in mutants.MUTANTS}))
def test_a_copy_without_a_fault_passes(file: str) -> None:
    assert mutants.survives(None, file)

"""The older catalogues, of broken rules put in place of real ones while a test runs: every such test is one mutant.

A mutant is killed if its test passes (the test expects the check to fail). All other tests of the module, which show
that the real rules pass the same checks, have to pass too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.mutation.runner import Outcome, Runner, Suite


class Patched(NamedTuple):
    """One test module."""

    area: str
    tests: str
    mutants: tuple[str, ...]
    """its tests that are mutants; the others show that the real ones pass"""


PATCHED = (
    Patched("ops, patched", "ops/test_mutants.py", ("test_the_mutant_is_caught",)),
    Patched("tightenings, patched", "ops/test_tightening_mutants.py", ("test_the_mutant_is_caught",)),
    Patched(
        "primitive, patched",
        "softmax_box/test_mutants.py",
        (
            "test_wrong_threshold_algorithms_are_caught",
            "test_wrong_newton_iterations_are_caught",
            "test_wrong_proofs_of_rounding_are_caught",
            "test_a_rounding_bound_of_half_the_size_is_caught",
            "test_wrong_ranges_of_probabilities_are_caught",
            "test_an_outward_that_gives_up_is_caught",
            "test_wrong_enclosures_are_caught",
            "test_wrong_vertices_are_caught",
        ),
    ),
    Patched(
        "affine rule, patched",
        "softmax_box/test_affine_mutants.py",
        (
            "test_wrong_rules_are_caught",
            "test_wrong_proofs_of_rounding_are_caught",
            "test_ranges_that_are_not_widened_are_caught",
            "test_an_outward_that_gives_up_is_caught",
        ),
    ),
)


def outcomes(runner: Runner, module: Patched) -> list[Outcome]:
    """What became of a module's mutants."""
    found: dict[str, Any] = runner.whole(Suite((module.tests,)))
    tests: dict[str, str] = found["outcomes"]
    real = [name for name in tests if _function(name) not in module.mutants]
    bad = [name for name in real if tests[name] != "passed"]
    if bad or not real:
        by = f"the real ones do not pass: {bad}"
        return [Outcome(f"{module.area}: all", module.area, "error", by, found["seconds"])]
    mine = [name for name in tests if _function(name) in module.mutants]
    each = round(found["seconds"] / len(mine), 1)
    return [
        Outcome(
            f"{module.area}: {_case(name)}", module.area, "killed" if tests[name] == "passed" else "survived", "", each
        )
        for name in mine
    ]


def _function(name: str) -> str:
    return name.rpartition("::")[2].partition("[")[0]


def _case(name: str) -> str:
    return name.rpartition("::")[2]

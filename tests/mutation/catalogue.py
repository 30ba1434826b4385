"""All mutants of source text: those of this folder by area, and the checker's own."""

from __future__ import annotations

from tests.certificate.checker import mutants as checker
from tests.mutation import (
    balls,
    choices,
    facts,
    forward,
    forward_rules,
    halving,
    identities,
    importers,
    kernel,
    onnx_edge,
    primitive,
    products,
    proofs,
    relaxations,
    search,
    second_order,
    several_inputs,
    sharing,
    specs,
    still_rows,
    third_order,
    verdicts,
    walks,
    zonotopes,
)
from tests.mutation.mutant import Mutant

PARTS = (
    *(
        relaxations,
        products,
        zonotopes,
        second_order,
        third_order,
        still_rows,
        walks,
        facts,
        primitive,
        kernel,
        verdicts,
        identities,
    ),
    *(balls, choices, search, halving, sharing, specs, importers, onnx_edge, proofs, forward, forward_rules),
    several_inputs,
)
AREAS = (
    "relaxations",
    "walks",
    "primitive",
    "verdicts",
    "search",
    "specs",
    "importers",
    "proofs",
    "forward",
    "checker",
)


def catalogue() -> list[Mutant]:
    """Every mutant, in the order of AREAS."""
    found: list[Mutant] = [mutant for part in PARTS for mutant in part.MUTANTS]
    for m in checker.MUTANTS:
        tests = tuple(f"certificate/checker/{path.name}" for path in sorted(checker.FOLDER.glob(f"test_{m.file}*.py")))
        file = f"certificate/checker/{m.file}.py"
        found.append(Mutant("checker", file, m.name, m.scope, m.old, m.new, tests, "", m.occurrence))
    return sorted(found, key=lambda mutant: AREAS.index(mutant.area))

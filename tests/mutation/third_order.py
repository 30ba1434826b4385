"""Faults in zonotopes to third order: products of three of the input's unknowns, and what is left of fourth order."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "ops/triples.py",
        "ops/test_triples.py",
        {
            "triples: a square times a number, not halved": (
                "times",
                "(matrix(form, count) / 2)",
                "matrix(form, count)",
            ),
            "triples: half of a spectral norm": (
                "_reach",
                "(norm * u.sum(-1) * v.sum(-1)).sqrt()",
                "(norm * u.sum(-1) * v.sum(-1) / 4).sqrt()",
            ),
            "triples: a third of a third": ("_spots", "1 / 3", "1 / 9"),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/third_rows.py",
        "ops/propagation/test_third_order.py",
        {
            "third rows: z without errors": ("_divided", "bow / 2 + z.third.tightest_radius", "bow / 2"),
            "third rows: 1/Z in a narrower range": ("_divided", "(over - under) / 2", "(over - under) / 8"),
            "third rows: no error of m r": (
                "_along",
                "own + bent + mu * most / 2 * sizes.rest + delta",
                "own + bent + delta",
            ),
            "third rows: no error of r²": (
                "_along",
                "own + bent + mu * most / 2 * sizes.rest + delta",
                "own + mu * most / 2 * sizes.rest + delta",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/third_norms.py",
        "ops/propagation/test_third_order.py",
        {
            "third norms: no errors of a": (
                "normalized_to_third_order",
                "rho * A_line * of_third.size.sqrt()",
                "0 * rho",
            ),
            "third norms: the wrong sign of a²": (
                "_with_products",
                "a_square - of.a_form - of.b_form / 2",
                "-a_square - of.a_form - of.b_form / 2",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/propagation/third_curves.py",
        "ops/propagation/test_third_order.py",
        {
            "third curves: no fourth derivative": ("bent_to_third_order", "at.fourth * h**4 / 24", "0 * h"),
            "third curves: no m r": ("bent_to_third_order", "third.abs() * most / 2 * rest", "0 * rest"),
        },
    ),
]

"""Faults in what passes lean on: regions, the facts of boxes, shared relaxations, the sums of a pass, parts of a set.

Left out, because they only cost tightness: a relaxation that is made anew although nothing changed, values of free
parameters and multipliers that are handed to another part (every value is sound), a cut that is not made.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "walks",
        "sets/region.py",
        "sets/test_region.py",
        {
            "support: the largest value": (
                "BoxRegion.support",
                "constant + (flat @ centre).squeeze(-1) - (flat.abs() @ radius).squeeze(-1)",
                "constant + (flat @ centre).squeeze(-1) + (flat.abs() @ radius).squeeze(-1)",
            ),
            "support: the constant forgotten": (
                "BoxRegion.support",
                "constant + (flat @ centre).squeeze(-1)",
                "(flat @ centre).squeeze(-1)",
            ),
            "sets of other inputs": ("BoxRegion.at", "self.upper[which]", "self.lower[which]"),
            "rearranged the other way": ("BoxRegion.rearranged", "numbers.flatten()", "numbers.flatten().argsort()"),
        },
    ),
    *mutants(
        "walks",
        "bounds/boxes.py",
        "bounds/test_relaxations.py",
        {
            "facts without the second input's interval": (
                "Boxes.facts",
                "(self.intervals[i] for i in inputs)",
                "(self.intervals[i] for i in inputs[:1])",
            ),
            "facts without the centred rows": (
                "Boxes.facts",
                "(self.centred.get((i, node)) for i in inputs)",
                "(None for i in inputs)",
            ),
            "facts without the summary": ("Boxes.facts", "self.summaries.get(node)", "None"),
            "facts without the inner range": ("Boxes.facts", "self.inner.get(node)", "None"),
            "a first interval may cross itself": (
                "Boxes._with_met",
                "(both.lower > both.upper).any()",
                "old is not new and (both.lower > both.upper).any()",
            ),
            "centred rows may cross": ("Boxes.with_centred", "(*self.problems, *problems)", "self.problems"),
            "centred rows that are not bounded above": (
                "Boxes.with_centred",
                "box.lower.isfinite().all() & box.upper.isfinite().all()",
                "box.lower.isfinite().all()",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/relaxations.py",
        "bounds/test_relaxations.py",
        {
            "parts share what was cut": (
                "Relaxations.of",
                "self.whole is not None and boxes.whole is not None and _same(facts, boxes.whole.facts(node))",
                "self.whole is not None and boxes.whole is not None",
            ),
            "the same if one fact is": (
                "_same",
                "all(a is b for a, b in zip(facts, others, strict=True))",
                "any(a is b for a, b in zip(facts, others, strict=True))",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/boxes.py",
        "bounds/test_backward.py",
        {
            "what crosses is no problem": ("Boxes._with_met", "(*self.problems, *problems)", "self.problems"),
        },
        only="cross",
    ),
    *mutants(
        "walks",
        "bounds/box_passes.py",
        "bounds/test_backward.py",
        {
            "no box is looked at": ("all_boxes", "boxes = boxes.inspected(node)", "pass"),
        },
        only="one_end",
    ),
    *mutants(
        "walks",
        "bounds/box_passes.py",
        "bounds/test_backward.py",
        {
            "upper ends of the wrong sign": ("_written", "-both[:, 1]", "both[:, 1]"),
        },
        only="boxes_and_bounds_hold and plain",
    ),
    *mutants(
        "walks",
        "bounds/box_passes.py",
        "bounds/test_rounding.py",
        {
            "passes are not rounded outward": (
                "_by_passes",
                "lower_bound(question, boxes, objective, rules, outward=True)",
                "lower_bound(question, boxes, objective, rules)",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_generators.py",
        {
            "only the last error": ("_Sums.add_error", "self.error + error.flatten(1)", "error.flatten(1)"),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_ascent.py",
        {
            "only the last slopes on the input": (
                "_Sums.add_coefficients",
                "self.coefficients + coefficients",
                "coefficients",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_odd_graphs.py",
        {
            "constants of the graph are forgotten": (
                "backward",
                "sums.add_constant((total(parts).dense() * node.op.value).flatten(2).sum(-1))",
                "pass",
            ),
        },
    ),
    *mutants(
        "walks",
        "bounds/backward.py",
        "bounds/test_splits.py",
        {
            "multipliers: nothing is added to the constant": (
                "_apply_multipliers",
                "sums.add_constant(constant.flatten(2).sum(-1))",
                "pass",
            ),
            "multipliers: nothing is added to the coefficients": (
                "_apply_multipliers",
                "parts.append(Coefficients(most - least))",
                "pass",
            ),
            "multipliers: the coefficients' sign": ("_apply_multipliers", "most - least", "least - most"),
        },
    ),
    *mutants(
        "walks",
        "bounds/splits.py",
        "bounds/test_splits.py",
        {
            "cuts of the part before": (
                "part_boxes",
                "end[k, split.place] = split.point",
                "end[k - 1, split.place] = split.point",
            ),
            "at least is at most": ("part_boxes", "split.at_least is at_least", "split.at_least is not at_least"),
        },
    ),
]

"""Faults in sets of words, in what is known of their rows, and in branching on choices.

Left out: which word is split and where, what is tried first, when boxes by passes are tried, how many parts go
together: every order ends with the same verdict.
"""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "sets/choice_region.py",
        "sets/test_choice_region.py",
        {
            "choices that are not allowed count for the box": (
                "ChoiceRegion.box",
                "self.values.masked_fill(out, -torch.inf).amax(2)",
                "self.values.amin(2)",
            ),
            "the largest choice in place of the least": (
                "ChoiceRegion.support",
                "self.by_choice(A).amin(-1)",
                "self.by_choice(A).nan_to_num(posinf=-1e30).amax(-1)",
            ),
            "the fixed words are left out": (
                "ChoiceRegion.support",
                "constant + rest + self.by_choice(A).amin(-1).sum(-1)",
                "constant + self.by_choice(A).amin(-1).sum(-1)",
            ),
            "balls that are too small": (
                "ChoiceRegion.columns",
                "((count - 1) / count).to(apart).sqrt()",
                "((count - 1) / count).to(apart)",
            ),
            "a row of several words counts as a row of one": (
                "ChoiceRegion._rows",
                "(depends.sum(1) > 1).any()",
                "(depends.sum(1) > 9).any()",
            ),
            "members are not found again": (
                "ChoiceRegion.rearranged",
                "place[self.members]",
                "self.members",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/choice_rows.py",
        "sets/test_choice_region.py",
        {
            "rows of different words take the same choice": (
                "ChoiceRows.products",
                "diagonal | ~shared[..., None, None]",
                "diagonal",
            ),
            "only the first choice of values": (
                "ChoiceRows.functionals",
                "range(1, self.values.shape[-2])",
                "range(1, 1)",
            ),
            "products are not about their centres": (
                "ChoiceRows.products",
                "other.values - y.unsqueeze(-2)",
                "other.values",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/bilinear.py",
        "methods/test_choices.py",
        {
            "the second-order part of choices is left out": (
                "MatMul._over_choices",
                "second.radius",
                "0 * second.radius",
            ),
            "the centre of the second-order part is left out": (
                "MatMul._over_choices",
                "second.centre - at_x @ at_y.mT",
                "-(at_x @ at_y.mT)",
            ),
        },
        only="below and crown",
    ),
    *mutants(
        "search",
        "search/choices.py",
        "search/test_choices.py",
        {
            "half of a split word's choices are lost": (
                "_Part.split",
                "(order[:cut], order[cut:count])",
                "(order[:cut], order[:cut])",
            ),
            "parts that are not positive are closed": (
                "_WordTree._store",
                "(sure > 0).all(1)",
                "(sure > -0.2).all(1)",
            ),
            "combinations that are not positive are fine": (
                "_WordTree._evaluate_parts",
                "(sure > 0).all(1)",
                "(sure > -0.2).all(1)",
            ),
            "what cannot be decided is done": (
                "_WordTree.grow",
                "Ending.DOUBT if self.left else Ending.DONE",
                "Ending.DONE",
            ),
            "one objective is enough": (
                "_WordTree._store",
                "(sure > 0).all(1)",
                "(sure > 0).any(1)",
            ),
        },
    ),
    *mutants(
        "importers",
        "sets/loading.py",
        "sets/test_token_choices.py",
        {
            "other uses of the ids are overlooked": (
                "_Module._combinations",
                "reading.translated.other_uses()",
                "([], [])",
            ),
        },
        only="hides or elsewhere",
    ),
]

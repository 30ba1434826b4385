"""Faults in what counts as a row that does not move, and in what stands in its place."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "relaxations",
        "bounds/dependence.py",
        "bounds/test_dependence.py",
        {
            "dependence: values are not read": ("_of", "scores | values", "scores"),
            "dependence: scores are not read": ("_of", "scores | values", "values"),
            "dependence: the left factor alone": ("_of", "left | right", "left"),
            "dependence: penalties hide": ("_seen", "op.mask & (op.penalty == 0)", "op.mask"),
            "dependence: a linear map keeps numbers apart": (
                "_of",
                "given[0].any(-1, keepdim=True).expand(node.shape)",
                "given[0].all(-1, keepdim=True).expand(node.shape)",
            ),
            "dependence: what has no rule is still": (
                "_of",
                "torch.ones(node.shape, dtype=torch.bool, device=moves.device)",
                "torch.zeros(node.shape, dtype=torch.bool, device=moves.device)",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "bounds/still_rows.py",
        "bounds/test_still_rows.py",
        {
            "still rows: the order of rows is lost": (
                "_Rebuilding._joined",
                "torch.argsort(torch.cat([others, part.index]))",
                "torch.cat([others, part.index])",
            ),
            "still rows: a batch has the rows of its first": (
                "without_still_rows",
                "isinstance(region, ChoiceRegion) or lower.shape[0] != 1",
                "isinstance(region, ChoiceRegion)",
            ),
            "still rows: what underflowed is forgotten": (
                "without_still_rows",
                "_with_what_underflowed(point, boxes_by_zonotopes(point))",
                "boxes_by_zonotopes(point)",
            ),
            "still rows: overflow is known": ("_finite_where_still", "bool((fine | moves).all())", "True"),
        },
    ),
    *mutants(
        "relaxations",
        "bounds/backward.py",
        "bounds/test_underflow.py",
        {
            "coefficients do not underflow": (
                "_Sums.whole_size",
                "self.size + (self.numbers * (info.tiny / info.eps) * self.reached).unsqueeze(1)",
                "self.size",
            )
        },
    ),
    *mutants(
        "relaxations",
        "bounds/relaxations.py",
        "bounds/test_underflow.py",
        {
            "forms do not underflow": (
                "Relaxations.form_over",
                "None if form is None or _may_lack(self.index, node, boxes) else form",
                "form",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "bounds/underflow.py",
        "bounds/test_underflow.py",
        {
            "underflow: factors are what boxes say": (
                "lost_by_underflow",
                "[widened(boxes[i], e) for i, e in zip(node.inputs, arrived, strict=True)]",
                "[boxes[i] for i in node.inputs]",
            ),
            "underflow: a key loses its weight alone": ("_most_lost", "not isinstance(node.op, Attention)", "True"),
        },
        only="factor or key",
    ),
    *mutants(
        "relaxations",
        "bounds/underflow.py",
        "bounds/test_underflow.py",
        {
            "underflow: both ends or none": ("_lost", "small | _lost_at_one_end(node, boxes, least)", "small"),
            "underflow: outputs of 0 have lost nothing": (
                "with_underflow",
                "_may_be_present(question, boxes).flatten(1)",
                "(boxes[output].magnitude > 0).flatten(1)",
            ),
        },
        only="end_that or output_that",
    ),
    *mutants(
        "relaxations",
        "bounds/boxes.py",
        "bounds/test_rounding.py",
        {
            "a mean is as large as its result": (
                "Boxes.reach",
                "torch.maximum(magnitude, values * (1 + offset / OF_SCORES))",
                "torch.maximum(magnitude, 0 * values)",
            ),
        },
        only="cancel or offset",
    ),
    *mutants(
        "relaxations",
        "bounds/boxes.py",
        "bounds/test_rounding.py",
        {
            "an offset of scores rounds nothing": ("Boxes.reach", "values * (1 + offset / OF_SCORES)", "values"),
            "a constant node is exact": ("by_intervals", "rounded_constants(box.lower.dtype)", "0.0"),
        },
        only="offset or constants",
    ),
    *mutants(
        "relaxations",
        "bounds/backward.py",
        "bounds/test_form_terms.py",
        {"forms round nothing": ("_reach", "terms is None", "True")},
    ),
    *mutants(
        "relaxations",
        "bounds/exact_ranges.py",
        "bounds/test_form_terms.py",
        {"forms over choices round nothing": ("_outward", "OUTWARD[box.lower.dtype] * terms", "0 * terms")},
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "bounds/test_rounding.py",
        {"an offset is exact": ("Shift.interval", "rounded_constants(low.dtype)", "0.0")},
        only="constants",
    ),
    *mutants(
        "relaxations",
        "ops/normalization.py",
        "ops/test_normalization.py",
        {
            "what cancels in sigma's plane": (
                "Normalize._sigma",
                "square - rows.along / d + self.eps - spare",
                "square - rows.along / d + self.eps",
            ),
        },
    ),
    *mutants(
        "relaxations",
        "ops/linear.py",
        "bounds/test_rounding.py",
        {"a sum rounds its result": ("Sum.interval", "self.evaluate(end.abs())", "x.abs()")},
        only="cancel",
    ),
    *mutants(
        "relaxations",
        "ops/gelu_values.py",
        "ops/test_lines.py",
        {
            "gelu cancels": ("value", "0.5 * x * torch.erfc(x * -math.sqrt(0.5))", "torch.nn.functional.gelu(x)"),
            "the exponent of gelu is exact": ("rounded", "8 * torch.finfo(x.dtype).eps * size", "0 * size"),
        },
        only="tiny",
    ),
    *mutants(
        "relaxations",
        "ops/enclosed.py",
        "ops/test_enclosed.py",
        {
            "enclosed: the middle alone": ("EnclosedBound.backward", "constant - error", "constant"),
            "enclosed: one end is not reached": (
                "Enclosed._ball",
                "torch.maximum(self.upper - middle, middle - self.lower)",
                "(self.upper - middle) / 2",
            ),
        },
    ),
]

"""Faults in reading properties: comparisons, connectives, boxes and their rounding."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "specs",
        "specs/formula.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "≤ read as ≥": ("comparison", '("<=", "<", "=")', '(">=", "<", "=")'),
            "< read as ≤": ("comparison", 'operator == "<"', "False"),
            "a negative factor keeps the side": ("_at_most", "factor > 0", "factor != 0"),
            "or read as and": ("connective", 'operator == "and"', "True"),
            "the negation of ≤ is ≥": (
                "negated",
                "dataclasses.replace(literal, upper=not literal.upper, strict=not literal.strict)",
                "dataclasses.replace(literal, upper=not literal.upper)",
            ),
        },
    ),
    *mutants(
        "specs",
        "specs/normal_form.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "the looser of two bounds": (
                "_tighter",
                "(new.near < old.near) == new.upper",
                "(new.near > old.near) == new.upper",
            ),
            "boxes of one point are empty": (
                "_crossed",
                "low.value == high.value and (low.strict or high.strict)",
                "low.value == high.value",
            ),
            "what holds throughout is left out": ("Assertions._boxes", "list(self.inequalities)", "[]"),
            "outward is inward": (
                "rounded",
                "(above, below) if bound.upper else (below, above)",
                "(below, above) if bound.upper else (above, below)",
            ),
            "a strict bound holds its point": ("rounded", "bound.strict and error == 0", "False and error == 0"),
            "only the last choice": ("Assertions._disjuncts", "_product(either, choice, position)", "choice"),
            "negated literals are not": ("_flat", "part if positive else negated(part)", "part"),
        },
    ),
    *mutants(
        "specs",
        "specs/property.py",
        "specs/test_property.py",
        {
            "strict inequalities hold at the limit": (
                "Inequality.holds",
                "total < self.limit if self.strict else total <= self.limit",
                "total <= self.limit",
            ),
            "any inequality": (
                "Conjunction.holds",
                "all(inequality.holds(output) for inequality in self.inequalities)",
                "any(inequality.holds(output) for inequality in self.inequalities)",
            ),
            "the outer box": (
                "Case.contains",
                "(flat >= self.inner_lower) & (flat <= self.inner_upper)",
                "(flat >= self.lower) & (flat <= self.upper)",
            ),
            "the matrix's sign": ("Conjunction.matrix", "C[i, k] = a", "C[i, k] = -a"),
            "limits to the nearest number": ("rounded_up", "Fraction(float(near)) < value", "not value"),
            "limits of single precision to the nearest number": (
                "Inequality.scaled",
                "rounded_up(self.limit * factor, single=single)",
                "float(np.float32(float(self.limit * factor))) if single else rounded_up(self.limit * factor)",
            ),
            "rows are not scaled": ("Inequality.scaled", "0 if abs(top) <= plain else -top", "0"),
            "limits are not scaled with their rows": (
                "Inequality.scaled",
                "rounded_up(self.limit * factor, single=single)",
                "rounded_up(self.limit, single=single)",
            ),
            "rows of any span": ("Inequality.scaled", "top - bottom > span", "False"),
            "declared shapes are any": ("Property.require", "_core(shape) != _core(declared)", "len(shape) < 0"),
        },
    ),
    *mutants(
        "specs",
        "specs/vnnlib1.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "the short way reads ≥ as ≤": ("Reader._bound", 'operator == "<="', "True"),
        },
    ),
    *mutants(
        "specs",
        "certificate/comparison.py",
        "certificate/test_comparison.py",
        {
            "boxes need not contain": (
                "_CoveredPart.contains",
                "contains_box(self.given, case.lower, case.upper)",
                "contains_box(self.given, case.lower, case.lower)",
            ),
            "limits of any height": ("_follows", "rows[direction] <= limit", "rows[direction] is not None"),
            "one row of a case is enough": (
                "_follows",
                "all(direction in rows and rows[direction] <= limit for direction, limit in case.items())",
                "any(direction in rows and rows[direction] <= limit for direction, limit in case.items())",
            ),
            "multiples of either sign": ("_limits", "abs(coefficients[0][1])", "coefficients[0][1]"),
            "the highest limit of a direction": (
                "_limits",
                "min(limit, limits.get(direction, limit))",
                "max(limit, limits.get(direction, limit))",
            ),
        },
    ),
    *mutants(
        "specs",
        "certificate/instances.py",
        "certificate/test_comparison.py",
        {
            "rows that are nearly exact": ("exact_row", "not _is_double(a)", "not a"),
            "limits are not scaled with exact rows": ("exact_row", "inequality.limit * factor", "inequality.limit"),
        },
    ),
]

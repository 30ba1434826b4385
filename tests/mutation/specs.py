"""Faults in reading properties: comparisons, connectives, boxes and their rounding."""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "specs",
        "specs/formula.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "≤ read as ≥": ('if operator in ("<=", "<", "="):', 'if operator in (">=", "<", "="):'),
            "< read as ≤": ('_at_most(a, b, operator == "<", position)', "_at_most(a, b, False, position)"),
            "a negative factor keeps the side": (
                "bound(inputs[0], factor > 0, limit / factor,",
                "bound(inputs[0], factor != 0, limit / factor,",
            ),
            "or read as and": ('return Junction(operator == "and", parts)', "return Junction(True, parts)"),
            "the negation of ≤ is ≥": ("strict=not literal.strict)", "strict=literal.strict)"),
        },
    ),
    *mutants(
        "specs",
        "specs/normal_form.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "the looser of two bounds": (
                "return (new.near < old.near) == new.upper",
                "return (new.near > old.near) == new.upper",
            ),
            "boxes of one point are empty": (
                "(low.value == high.value and (low.strict or high.strict))",
                "low.value == high.value",
            ),
            "what holds throughout is left out": ("inequalities = list(self.inequalities)\n", "inequalities = []\n"),
            "outward is inward": (
                "return (above, below) if bound.upper else (below, above)",
                "return (below, above) if bound.upper else (above, below)",
            ),
            "a strict bound holds its point": (
                "    if bound.strict and error == 0:\n",
                "    if False and error == 0:\n",
            ),
            "only the last choice": ("either = _product(either, choice, position)\n", "either = choice\n"),
            "negated literals are not": (
                "parent.parts.append(part if positive else negated(part))",
                "parent.parts.append(part)",
            ),
        },
    ),
    *mutants(
        "specs",
        "specs/property.py",
        "specs/test_property.py",
        {
            "strict inequalities hold at the limit": (
                "return total < self.limit if self.strict else total <= self.limit",
                "return total <= self.limit",
            ),
            "any inequality": ("return all(inequality.holds(output)", "return any(inequality.holds(output)"),
            "the outer box": (
                "(flat >= self.inner_lower) & (flat <= self.inner_upper)",
                "(flat >= self.lower) & (flat <= self.upper)",
            ),
            "the matrix's sign": ("C[i, k] = a", "C[i, k] = -a"),
            "limits to the nearest number": ("if Fraction(float(near)) < value:", "if not value:"),
            "limits of single precision to the nearest number": (
                "rounded_up(self.limit * factor, single=single)",
                "float(np.float32(float(self.limit * factor))) if single else rounded_up(self.limit * factor)",
            ),
            "rows are not scaled": ("shift = 0 if abs(top) <= plain else -top", "shift = 0"),
            "limits are not scaled with their rows": ("rounded_up(self.limit * factor,", "rounded_up(self.limit,"),
            "rows of any span": ("if top - bottom > span or", "if False or"),
            "declared shapes are any": ("_core(shape) != _core(declared)", "len(shape) < 0"),
        },
    ),
    *mutants(
        "specs",
        "specs/vnnlib1.py",
        "specs/test_vnnlib.py specs/test_vnnlib_errors.py",
        {
            "the short way reads ≥ as ≤": (
                'return bound(index, operator == "<=", value, False, match.start())',
                "return bound(index, True, value, False, match.start())",
            ),
        },
    ),
    *mutants(
        "specs",
        "certificate/comparison.py",
        "certificate/test_comparison.py",
        {
            "boxes need not contain": (
                "return bool((self.lower <= case.lower).all() and (case.upper <= self.upper).all())",
                "return bool((self.lower <= case.lower).all())",
            ),
            "limits of any height": ("rows[direction] <= limit", "rows[direction] is not None"),
            "one row of a case is enough": (
                "return all(direction in rows and",
                "return any(direction in rows and",
            ),
            "multiples of either sign": ("size = abs(held[0][1]) if held", "size = held[0][1] if held"),
            "the highest limit of a direction": ("min(limit, found.get", "max(limit, found.get"),
        },
    ),
    *mutants(
        "specs",
        "certificate/instances.py",
        "certificate/test_comparison.py",
        {
            "rows that are nearly exact": ("if not _is_double(a):", "if not a:"),
            "limits are not scaled with exact rows": (
                "rounded_up(inequality.limit * factor)",
                "rounded_up(inequality.limit)",
            ),
        },
    ),
]

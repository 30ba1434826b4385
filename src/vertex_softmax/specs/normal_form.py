"""From formulas about inputs and outputs to a `Property`: a disjunction of boxes, each with its violating conjunctions.

Invariant: the property is violated by exactly the (input, output) pairs of floats that satisfy all asserted formulas. A
disjunct is dropped only if its box is empty in exact arithmetic; a normal form that is too large raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from vertex_softmax.specs.formula import Formula, InputBound, Junction, Literal, LocatedError, Negation, negated
from vertex_softmax.specs.property import Case, Conjunction, Floats, Inequality, Property

DISJUNCTS = 1 << 18
"""The most disjuncts of the disjunctive normal form; the largest of VNN-COMP has 120,000."""
LITERALS = 1 << 23
"""The most inequalities in all disjuncts together."""
NUMBERS = 1 << 24
"""The most boxes × inputs if there are several boxes; a box has four float64 per input."""
_VACUOUS = "a property that does not depend on the network is almost surely a mistake in the file"

Disjunct = tuple["Disjunct | Literal", ...]
"""A conjunction of literals, nested so that joining two conjunctions takes constant time; `_literals` flattens it."""
Ends = dict[int, InputBound]
"""Input index → its tightest lower (or upper) bound."""
_LITERAL = (InputBound, Inequality)


class _Either(NamedTuple):
    """A disjunction of conjunctions of literals; `size` is the number of literals in all disjuncts."""

    disjuncts: list[Disjunct]
    size: int


class _Node:
    """A negation-free conjunction (`every`) or disjunction; none of its parts is a junction of its own kind.

    `either` is its disjunctive normal form, once `_normal_form` has computed it.
    """

    __slots__ = ("either", "every", "parts")

    def __init__(self, every: bool, parts: list[Literal | _Node]) -> None:
        self.every, self.parts = every, parts
        self.either = _Either([], 0)


class Assertions:
    """The conjunction of all assertions so far.

    Bounds (`lower`, `upper`) and `inequalities` are those that every disjunct shares; `choices` are the remaining
    disjunctions with their positions. `about_outputs`: whether any assertion mentions an output.
    """

    def __init__(self) -> None:
        self.lower: Ends = {}
        self.upper: Ends = {}
        self.inequalities: list[Inequality] = []
        self.choices: list[tuple[int, _Either]] = []
        self.count = 0
        self.about_outputs = False

    def add(self, formula: Formula, position: int) -> None:
        """Assert one more formula, which stands at `position` in the file."""
        self.count += 1
        if isinstance(formula, _LITERAL):  # the common case
            self._assert_literals((formula,))
            return
        top, *nodes = _flat(formula)
        for node in reversed(nodes):
            self.about_outputs |= any(isinstance(part, Inequality) for part in node.parts)
            node.either = _normal_form(node, position)
            node.parts = []
        for part in top.parts:
            if not isinstance(part, _Node):
                self._assert_literals((part,))
            elif len(part.either.disjuncts) == 1:
                self._assert_literals(_literals(part.either.disjuncts[0]))
            elif part.either.disjuncts:
                self.choices.append((position, part.either))
            else:
                raise LocatedError(position, f"this assertion is never true, whatever the network does; {_VACUOUS}")

    def _assert_literals(self, literals: Iterable[Literal]) -> None:
        """Add literals that every disjunct shares."""
        for literal in literals:
            if isinstance(literal, InputBound):
                ends = self.upper if literal.upper else self.lower
                if _tighter(literal, ends.get(literal.input)):
                    ends[literal.input] = literal
            else:
                self.inequalities.append(literal)
                self.about_outputs = True

    def _disjuncts(self) -> list[Disjunct]:
        """The disjunctive normal form of all choices together, without what every disjunct shares."""
        either = _Either([()], 0)
        for position, choice in self.choices:
            either = _product(either, choice, position)
            _limited(len(either.disjuncts), len(either.disjuncts) * len(self.inequalities), position)
        return either.disjuncts

    def _boxes(self) -> list[tuple[Ends, Ends, list[Conjunction]]]:
        """(lower, upper, conjunctions) of every non-empty box; the ends are only those tighter than the shared ones."""
        crossed = _crossed(self.lower, {}, {}, self.upper)
        boxes: dict[object, tuple[Ends, Ends, list[Conjunction]]] = {}
        for disjunct in () if crossed else self._disjuncts():
            lower: Ends = {}
            upper: Ends = {}
            inequalities = list(self.inequalities)
            for literal in _literals(disjunct):
                if isinstance(literal, Inequality):
                    inequalities.append(literal)
                    continue
                ends, shared = (upper, self.upper) if literal.upper else (lower, self.lower)
                if _tighter(literal, ends.get(literal.input) or shared.get(literal.input)):
                    ends[literal.input] = literal
            empty = _crossed(lower, upper, self.lower, self.upper)
            if empty:
                crossed = crossed or empty
                continue
            key = (_key(lower), _key(upper))
            boxes.setdefault(key, (lower, upper, []))[2].append(Conjunction(tuple(inequalities)))
        if crossed and not boxes:
            low, high = crossed
            raise LocatedError(
                max(low.position, high.position),
                f"X_{low.input} would have to be {'>' if low.strict else '≥'} {float(low.value)!r} and "
                f"{'<' if high.strict else '≤'} {float(high.value)!r}, so that no input is left; {_VACUOUS}",
            )
        return list(boxes.values())

    def property(self, declared: Mapping[int, int], outputs: int, end: int) -> Property:
        """The property of all assertions, for this number of outputs.

        `declared` maps every input index to the position of its declaration; `end` is the position of the end of the
        file.
        """
        if not self.count or not self.about_outputs:
            what = "no assertion is about the outputs" if self.count else "the file asserts nothing"
            raise LocatedError(end, f"{what}; {_VACUOUS}")
        boxes = self._boxes()
        inputs = len(declared)
        if len(boxes) > 1 and len(boxes) * inputs > NUMBERS:
            raise LocatedError(
                self.choices[-1][0],
                f"{len(boxes)} boxes of {inputs} inputs are more than {NUMBERS} numbers; split the property",
            )
        floats = _filled(np.full((4, inputs), np.nan), self.lower, self.upper)
        unbounded = [i for i in range(inputs) if i not in self.lower or i not in self.upper]
        cases = []
        for which, (lower, upper, conjunctions) in enumerate(boxes, 1):
            missing = [
                i for i in unbounded if not ((i in lower or i in self.lower) and (i in upper or i in self.upper))
            ]
            if missing:
                _refuse_unbounded(missing, declared, f" in box {which} of {len(boxes)}" if len(boxes) > 1 else "")
            ends = _filled(floats.copy() if len(boxes) > 1 else floats, lower, upper)
            case = Case(
                lower=ends[0],
                upper=ends[1],
                inner_lower=ends[2],
                inner_upper=ends[3],
                conjunctions=tuple(conjunctions),
            )
            cases.append(case)
        return Property(tuple(cases), inputs, outputs)


def _refuse_unbounded(missing: list[int], declared: Mapping[int, int], where: str) -> None:
    named = ", ".join(f"X_{i}" for i in missing[:5]) + (f" and {len(missing) - 5} others" if len(missing) > 5 else "")
    raise LocatedError(
        declared[missing[0]],
        f"{named}, declared here, {'have' if len(missing) > 1 else 'has'} no lower or no upper bound{where}; "
        "every input needs both",
    )


def _key(ends: Ends) -> tuple[object, ...]:
    """A hashable key that is equal for equal bounds; their positions do not count."""
    return tuple((i, ends[i].value.numerator, ends[i].value.denominator, ends[i].strict) for i in sorted(ends))


def _tighter(new: InputBound, old: InputBound | None) -> bool:
    """Whether the new bound excludes more than the old one of the same input and side; None excludes nothing."""
    if old is None:
        return True
    if new.near != old.near:  # rounding is monotone, and floats compare faster than fractions
        return (new.near < old.near) == new.upper
    if new.value != old.value:
        return (new.value < old.value) == new.upper
    return new.strict and not old.strict


def _crossed(lower: Ends, upper: Ends, shared_lower: Ends, shared_upper: Ends) -> tuple[InputBound, InputBound] | None:
    """The bounds of an input between which no number lies, or None; only inputs in `lower` or `upper` are examined.

    Where one of the two has no bound, the shared one counts.
    """
    for i in (*lower, *(i for i in upper if i not in lower)):
        low, high = lower.get(i) or shared_lower.get(i), upper.get(i) or shared_upper.get(i)
        if low is None or high is None or low.near < high.near:
            continue
        if low.value > high.value or (low.value == high.value and (low.strict or high.strict)):
            return low, high
    return None


def _filled(floats: Floats, lower: Ends, upper: Ends) -> Floats:
    """Write bounds into the rows lower, upper, inner_lower, inner_upper of `floats` (4, inputs), and return it."""
    for ends, outer, inner in ((lower, floats[0], floats[2]), (upper, floats[1], floats[3])):
        for i, bound in ends.items():
            outer[i], inner[i] = rounded(bound)
    return floats


def rounded(bound: InputBound) -> tuple[float, float]:
    """(outer, inner): the nearest float on or outside the bound, and the nearest that satisfies it."""
    value, nearest = bound.value, bound.near
    top, bottom = nearest.as_integer_ratio()
    error = top * value.denominator - value.numerator * bottom
    below = nearest if error <= 0 else math.nextafter(nearest, -math.inf)
    above = nearest if error >= 0 else math.nextafter(nearest, math.inf)
    if bound.strict and error == 0:
        return nearest, math.nextafter(nearest, -math.inf if bound.upper else math.inf)
    return (above, below) if bound.upper else (below, above)


def _flat(formula: Formula) -> list[_Node]:
    """The formula without negations, as its junctions, outer ones first; the first is a conjunction.

    Iterative, because files may nest deeper than Python's stack allows.
    """
    nodes = [_Node(True, [])]
    stack: list[tuple[Formula, bool, _Node]] = [(formula, True, nodes[0])]
    while stack:
        part, positive, parent = stack.pop()
        if isinstance(part, Negation):
            stack.append((part.part, not positive, parent))
        elif isinstance(part, Junction):
            every = part.every == positive
            if every != parent.every and len(part.parts) != 1:
                nodes.append(_Node(every, []))
                parent.parts.append(nodes[-1])
                parent = nodes[-1]
            stack.extend((p, positive, parent) for p in reversed(part.parts))
        else:
            parent.parts.append(part if positive else negated(part))
    return nodes


def _literals(disjunct: Disjunct) -> Iterator[Literal]:
    """The literals of a (nested) disjunct, in order."""
    stack: list[Disjunct | Literal] = [disjunct]
    while stack:
        part = stack.pop()
        if isinstance(part, _LITERAL):
            yield part
        else:
            stack.extend(reversed(part))


def _normal_form(node: _Node, position: int) -> _Either:
    """The node's disjunctive normal form, computed from those of its parts."""
    inner = [part.either for part in node.parts if isinstance(part, _Node)]
    if node.every:
        literals = tuple(part for part in node.parts if not isinstance(part, _Node))
        result = _Either([literals], len(literals))
        for either in inner:
            result = _product(result, either, position)
        return result
    size = sum(either.size for either in inner) + len(node.parts) - len(inner)
    _limited(sum(len(either.disjuncts) for either in inner) + len(node.parts) - len(inner), size, position)
    disjuncts: list[Disjunct] = []
    for part in node.parts:
        if isinstance(part, _Node):
            disjuncts += part.either.disjuncts
        else:
            disjuncts.append((part,))
    return _Either(disjuncts, size)


def _product(left: _Either, right: _Either, position: int) -> _Either:
    """The disjunctive normal form of the conjunction of two."""
    size = left.size * len(right.disjuncts) + right.size * len(left.disjuncts)
    _limited(len(left.disjuncts) * len(right.disjuncts), size, position)
    return _Either([(a, b) for a in left.disjuncts for b in right.disjuncts], size)


def _limited(disjuncts: int, inequalities: int, position: int) -> None:
    """Raise if a normal form of this size is too large."""
    if disjuncts > DISJUNCTS or inequalities > LITERALS:
        raise LocatedError(
            position,
            f"with this assertion the disjunctive normal form has {disjuncts} disjuncts and {inequalities} "
            f"inequalities; up to {DISJUNCTS} and {LITERALS} are read: split the property",
        )
